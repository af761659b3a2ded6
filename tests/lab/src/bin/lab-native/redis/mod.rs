//! A client of redis-server: fills it, then asks a few of its keys much more often than all others, and
//! knows what every value must be.

mod addresses;
mod client;
mod values;

use anyhow::{Context, Result, bail, ensure};
use client::Client;
use serde_json::{Value, json};
use terrace_lab::hotset::{self, Layout, Xorshift};
use terrace_lab::native::Load;
use terrace_lab::{commands, numa};
use values::Values;

use crate::line_server::LineServer;

/// Requests that are sent before the first answer is read.
const PIPELINE: usize = 16;
/// Of the requests for hot keys, one in this many sets a new value.
const SETS: usize = 4;

/// The keys, what was set and what was seen.
struct Keys {
    client: Client,
    values: Values,
    /// Numbers of the hot keys.
    hot: Vec<u32>,
    hot_request_percent: usize,
    random: Xorshift,
    running: bool,
    requests: u64,
    errors: u64,
}

/// Asks until it is told to quit or is killed.
pub fn run(spec: &Load) -> Result<()> {
    numa::pin(spec.processor).context("cannot keep to a processor")?;
    let mut keys = Keys::new(spec)?;
    keys.fill()?;
    let server = LineServer::new(&spec.name)?;
    let mut quit = false;
    while !quit {
        if keys.running {
            keys.ask()?;
        }
        server.serve(if keys.running { 0 } else { -1 }, |line| {
            quit = line == "quit";
            keys.answer(line)
        })?;
    }
    Ok(())
}

impl Keys {
    fn new(spec: &Load) -> Result<Self> {
        let hot = spec.keys * spec.hot_percent / 100;
        ensure!(hot > 0, "no key would be hot");
        Ok(Self {
            client: Client::connect(&spec.server)?,
            values: Values::new(spec.keys, spec.value_bytes),
            hot: hotset::choose(spec.keys, hot, spec.seed, Layout::Clustered),
            hot_request_percent: spec.hot_request_percent,
            random: Xorshift::new(spec.seed),
            running: true,
            requests: 0,
            errors: 0,
        })
    }

    fn fill(&mut self) -> Result<()> {
        let all: Vec<usize> = (0..self.values.keys()).collect();
        for keys in all.chunks(PIPELINE) {
            for key in keys {
                let value = self.values.content(*key);
                self.client.send(&[b"SET", &values::name(*key), &value])?;
            }
            for _ in keys {
                self.client.expect_ok()?;
            }
        }
        Ok(())
    }

    /// Some requests. Only hot keys are set anew: a value goes where the last one was freed, and values of
    /// cold keys would trade places with hot ones until the hot ones lie everywhere.
    fn ask(&mut self) -> Result<()> {
        let mut asked = Vec::with_capacity(PIPELINE);
        for _ in 0..PIPELINE {
            let is_hot = self.random.below(100) < self.hot_request_percent;
            let (key, set) = if is_hot {
                let key = self.hot[self.random.below(self.hot.len())];
                (usize::try_from(key)?, self.random.below(SETS) == 0)
            } else {
                (self.random.below(self.values.keys()), false)
            };
            let name = values::name(key);
            if set {
                self.values.renew(key);
                let value = self.values.content(key);
                self.client.send(&[b"SET", &name, &value])?;
                asked.push(None);
            } else {
                self.client.send(&[b"GET", &name])?;
                asked.push(Some((key, self.values.version(key))));
            }
        }
        for asked in asked {
            match asked {
                None => self.client.expect_ok()?,
                Some((key, version)) => {
                    let value = self.client.bulk()?;
                    self.errors += u64::from(!self.values.looks_like(key, version, &value));
                }
            }
        }
        self.requests += PIPELINE as u64;
        Ok(())
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        let mut words = line.split_whitespace();
        match words.next().unwrap_or_default() {
            "truth" => {
                return addresses::of(&mut self.client, &self.values, &self.hot);
            }
            "verify" => return self.verify(),
            "move" => {
                let seed = commands::number(words.next())?;
                let (keys, hot) = (self.values.keys(), self.hot.len());
                self.hot = hotset::choose(keys, hot, seed, Layout::Clustered);
            }
            "idle" => self.running = false,
            "run" => self.running = true,
            "stats" | "quit" => {}
            other => bail!(
                "no command {other:?}; there are truth, move SEED, idle, run, verify, stats, quit"
            ),
        }
        Ok(self.stats())
    }

    fn stats(&self) -> Value {
        json!({
            "running": self.running,
            "passes": self.requests,
            "errors": self.errors,
            "keys": self.values.keys(),
            "hot_keys": self.hot.len(),
        })
    }

    /// Reads every key.
    fn verify(&mut self) -> Result<Value> {
        let mut bad = 0;
        let all: Vec<usize> = (0..self.values.keys()).collect();
        for keys in all.chunks(PIPELINE) {
            for key in keys {
                self.client.send(&[b"GET", &values::name(*key)])?;
            }
            for key in keys {
                let value = self.client.bulk()?;
                bad += u64::from(!self.values.is(*key, self.values.version(*key), &value));
            }
        }
        let mut answer = self.stats();
        answer["bad"] = json!(bad);
        Ok(answer)
    }
}
