//! A client of redis-server: fills it, then asks a few of its keys much more often than all others, and knows the
//! content of every value.

mod addresses;
mod client;
mod values;

use anyhow::{Context, Result, bail, ensure};
use client::Client;
use serde_json::{Value, json};
use terrace_lab_programs::hotset::{self, Layout, Xorshift};
use terrace_lab_programs::native::Load;
use terrace_lab_programs::{commands, numa};
use values::Values;

use crate::line_server::LineServer;

/// Requests that are sent before the first answer is read.
const PIPELINE: usize = 32;
/// Number of requests of which one sets a new value and one gets it. All others copy it to another key: an emulated
/// server reads a value much faster than it sends one, and the values that it reads are the question here.
const SETS: usize = 16;
/// The key that values are copied to.
const SCRATCH: &[u8] = b"scratch";

/// One request, with the version that the key's value has then.
#[derive(Clone, Copy)]
enum Request {
    Set(usize),
    Get(usize, u32),
    Copy(usize, u32),
}

/// The keys, the values that were set, and the counts of requests and errors.
struct Keys {
    client: Client,
    values: Values,
    /// Numbers of the hot keys.
    hot: Vec<u32>,
    hot_request_percent: usize,
    /// The content of the scratch key: a key's value of some version.
    copied: Option<(usize, u32)>,
    random: Xorshift,
    running: bool,
    requests: u64,
    errors: u64,
}

/// Sends requests until it is asked to quit or is killed.
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
            copied: None,
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

    /// Sends some requests and checks the answers. Only hot keys are set anew: a value goes where the last one was
    /// freed, and values of cold keys would trade places with hot ones until the hot ones lie everywhere.
    fn ask(&mut self) -> Result<()> {
        let mut asked = Vec::with_capacity(PIPELINE);
        for _ in 0..PIPELINE {
            let request = self.choose()?;
            self.send(request)?;
            asked.push(request);
        }
        self.client.send(&[b"GET", SCRATCH])?;
        for request in asked {
            self.hear(request)?;
        }
        // It need not be there before the first copy.
        let scratch = self.client.bulk_if_there()?;
        let right = match (self.copied, scratch) {
            (Some((key, version)), Some(value)) => self.values.spot_check(key, version, value),
            (copied, scratch) => copied.is_none() && scratch.is_none(),
        };
        self.errors += u64::from(!right);
        self.requests += PIPELINE as u64;
        Ok(())
    }

    fn choose(&mut self) -> Result<Request> {
        let is_hot = self.random.below(100) < self.hot_request_percent;
        let key = if is_hot {
            usize::try_from(self.hot[self.random.below(self.hot.len())])?
        } else {
            self.random.below(self.values.keys())
        };
        Ok(match self.random.below(SETS) {
            0 if is_hot => {
                self.values.renew(key);
                Request::Set(key)
            }
            1 => Request::Get(key, self.values.version(key)),
            _ => Request::Copy(key, self.values.version(key)),
        })
    }

    fn send(&mut self, request: Request) -> Result<()> {
        match request {
            Request::Set(key) => {
                let value = self.values.content(key);
                self.client.send(&[b"SET", &values::name(key), &value])
            }
            Request::Get(key, _) => self.client.send(&[b"GET", &values::name(key)]),
            Request::Copy(key, _) => {
                let name = values::name(key);
                self.client.send(&[b"BITOP", b"AND", SCRATCH, &name])
            }
        }
    }

    fn hear(&mut self, request: Request) -> Result<()> {
        let right = match request {
            Request::Set(_) => {
                self.client.expect_ok()?;
                true
            }
            Request::Get(key, version) => {
                let value = self.client.bulk()?;
                self.values.spot_check(key, version, value)
            }
            Request::Copy(key, version) => {
                self.copied = Some((key, version));
                self.client.integer()? == self.values.bytes() as u64
            }
        };
        self.errors += u64::from(!right);
        Ok(())
    }

    fn answer(&mut self, line: &str) -> Result<Value> {
        let mut args = line.split_whitespace();
        match args.next().unwrap_or_default() {
            "truth" => {
                return addresses::of(&mut self.client, &self.values, &self.hot);
            }
            "verify" => return self.verify(),
            "move" => {
                let seed = commands::number(args.next())?;
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
                bad += u64::from(!self.values.is(*key, self.values.version(*key), value));
            }
        }
        let mut answer = self.stats();
        answer["bad"] = json!(bad);
        Ok(answer)
    }
}
