//! `terrace plan VM --dry-run`: asks for a round that moves nothing, waits for it, and prints its result.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use anyhow::{Result, bail};
use terrace_api::client::{Client, segment};
use terrace_api::types::{Planning, Round, Status, VmDetail};
use terrace_core::MoveRefusal;

use super::print_json;
use crate::{output, render};

/// Time between two questions about progress.
const POLL: Duration = Duration::from_millis(250);

pub async fn run(client: &Client, name: &str, json: bool) -> Result<()> {
    let path = format!("/v1/vms/{}", segment(name));
    let mut progress = Progress::default();
    loop {
        let detail: VmDetail = client.get(&path).await?;
        let Some(round) = detail.round_under_way else {
            break;
        };
        progress.say(&format!("waiting for round {round}: {}", detail.phase))?;
        tokio::time::sleep(POLL).await;
    }
    let planning: Planning = client.post(&format!("{path}/plan"), &()).await?;
    let detail = loop {
        let detail: VmDetail = client.get(&path).await?;
        if detail.round_under_way != Some(planning.round) {
            break detail;
        }
        progress.say(&format!("planning: {}", detail.phase))?;
        tokio::time::sleep(POLL).await;
    };
    progress.say("")?;
    let mut rounds = detail.history.iter();
    let Some(round) = rounds.find(|r| r.number == planning.round) else {
        bail!("{name}: the round ended without a plan; see `terrace events`");
    };
    if let Some(why) = &round.abandoned {
        bail!("{name}: there is no plan, the round was given up: {why}");
    }
    if json {
        return print_json(round);
    }
    let status: Status = client.get("/v1/status").await?;
    output::print(text(&status, &detail, round))?;
    Ok(())
}

/// A line that replaces itself, shown if standard error is a terminal.
#[derive(Default)]
struct Progress {
    shown: usize,
}

impl Progress {
    fn say(&mut self, text: &str) -> Result<()> {
        let mut out = std::io::stderr();
        if out.is_terminal() {
            write!(out, "\r{text:<width$}\r", width = self.shown)?;
            out.flush()?;
            self.shown = text.chars().count();
        }
        Ok(())
    }
}

fn text(status: &Status, detail: &VmDetail, round: &Round) -> String {
    let first = status.tiers.first().map_or("fast", |t| t.name.as_str());
    let mut out = format!(
        "{}: what a round would move now. Nothing was moved.\n\n  \
         {} of {} known pages are hot: degree {} and up. {} of them are in {first}.\n\n",
        detail.vm.name,
        round.hot_pages,
        round.known_pages,
        round.threshold_degree,
        round.hot_on_fast_before,
    );
    for (what, pages) in [
        ("promote", round.proposed_promotions),
        ("demote", round.proposed_demotions),
    ] {
        out += &format!(
            "  {what:<8} {pages:>9} pages  {:>10}\n",
            render::pages(pages)
        );
    }
    let mut held = round.refused.iter();
    for refused in held
        .by_ref()
        .filter(|r| r.reason != MoveRefusal::PlanOnly.text())
    {
        let bytes = refused.units.saturating_mul(detail.unit_bytes);
        out += &format!(
            "  of these not tried: {}: {}\n",
            render::bytes(bytes),
            refused.reason
        );
    }
    out + &limits(status, detail) + &first_moves(round)
}

fn limits(status: &Status, detail: &VmDetail) -> String {
    let mut out = "\n  limits, checked again page by page as moves go on:\n".to_owned();
    for ((tier, bytes), limit) in status
        .tiers
        .iter()
        .zip(&detail.vm.tier_bytes)
        .zip(&detail.limits)
    {
        out += &format!(
            "    {:<8} holds {}, floor {}, ceiling {}; free in the tier {}\n",
            tier.name,
            render::bytes(*bytes),
            render::bytes(limit.floor_bytes),
            limit
                .ceiling_bytes
                .map_or_else(|| "none".into(), render::bytes),
            render::bytes(tier.free_bytes),
        );
    }
    if let Some(share) = &detail.vm.share {
        out += &format!("    {}\n", share.why);
    }
    if !detail.vm.moves {
        out += "    moves are off for this VM: its rounds move nothing either\n";
    }
    out
}

fn first_moves(round: &Round) -> String {
    let mut out = String::new();
    let planned = round.planned.iter().flatten();
    let rows: Vec<Vec<String>> = planned
        .map(|m| {
            vec![
                m.gpa.to_string(),
                render::bytes(m.bytes),
                m.degree.to_string(),
                format!("{} -> {}", m.from, m.to),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let table = render::table(&["PAGE", "SIZE", "DEGREE", "MOVE"], &[0, 1, 2], &rows);
        out += "\n  the first of them; ask about one by `terrace explain VM --page PAGE`:\n";
        for line in table.lines() {
            out += &format!("    {line}\n");
        }
    }
    out
}
