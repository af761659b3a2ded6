//! The orders of a test, a line at a time; every line is answered by one line of JSON.
//!
//! `targets PAGES…` (one per tier) · `manner good|refuse|refuse-half|short|boast|silent` ·
//! `statistics` (asks the guest for new ones) · `state`.

use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::balloon::Manner;
use crate::session::Session;

pub struct Control {
    listener: UnixListener,
    client: Option<BufReader<UnixStream>>,
}

impl Control {
    pub fn new(listener: UnixListener) -> Self {
        Self {
            listener,
            client: None,
        }
    }

    pub fn descriptors(&self) -> Vec<RawFd> {
        let client = self
            .client
            .iter()
            .map(|reader| reader.get_ref().as_raw_fd());
        client.chain([self.listener.as_raw_fd()]).collect()
    }

    pub fn serve(&mut self, ready: &[RawFd], session: &mut Session) -> Result<()> {
        if ready.contains(&self.listener.as_raw_fd()) {
            let (stream, _) = self.listener.accept()?;
            self.client = Some(BufReader::new(stream));
            return Ok(());
        }
        let Some(client) = &mut self.client else {
            return Ok(());
        };
        if !ready.contains(&client.get_ref().as_raw_fd()) {
            return Ok(());
        }
        let mut line = String::new();
        if client.read_line(&mut line)? == 0 {
            self.client = None;
            return Ok(());
        }
        let answer = match carry_out(line.trim(), session) {
            Ok(answer) => answer,
            Err(error) => json!({ "error": format!("{error:#}") }),
        };
        writeln!(client.get_mut(), "{answer}").context("answering an order")
    }
}

fn carry_out(line: &str, session: &mut Session) -> Result<Value> {
    let args: Vec<&str> = line.split_whitespace().collect();
    match args[..] {
        ["targets", ref pages @ ..] => set_targets(session, pages)?,
        ["manner", name] => session.balloons.manner = manner(name)?,
        ["statistics"] => session.ask_for_statistics()?,
        ["state"] => return state(session),
        _ => bail!("no such order: {line}"),
    }
    session.work()?;
    Ok(json!({}))
}

fn set_targets(session: &mut Session, pages: &[&str]) -> Result<()> {
    let balloons = &mut session.balloons;
    ensure!(pages.len() == balloons.tiers.len(), "one target per tier");
    for (tier, pages) in balloons.tiers.iter_mut().zip(pages) {
        tier.target = pages.parse()?;
    }
    balloons.generation += 1;
    balloons.has_news = true;
    Ok(())
}

fn manner(name: &str) -> Result<Manner> {
    Ok(match name {
        "good" => Manner::Good,
        "refuse" => Manner::Refuse,
        "refuse-half" => Manner::RefuseHalf,
        "short" => Manner::Short,
        "boast" => Manner::Boast,
        "silent" => Manner::Silent,
        _ => bail!("no such manner: {name}"),
    })
}

fn state(session: &Session) -> Result<Value> {
    Ok(json!({
        "tiers": session.balloons.tiers,
        "allocated_bytes": session.memory.allocated_bytes()?,
        "statistics": session.balloons.statistics,
    }))
}
