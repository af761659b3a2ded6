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
    /// Standard deviation of a Gaussian load, or 0.
    deviation: usize,
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

/// Numbers of the keys within one standard deviation of the middle.
fn near_the_middle(keys: usize, deviation: usize) -> Result<Vec<u32>> {
    let middle = keys / 2;
    let near = middle.saturating_sub(deviation)..(middle + deviation + 1).min(keys);
    near.map(|key| Ok(u32::try_from(key)?)).collect()
}

/// A number below `keys` that is Gaussian around the middle: the sum of twelve numbers has a standard deviation of one of
/// their ranges.
fn gaussian(random: &mut Xorshift, keys: usize, deviation: usize) -> usize {
    let sum: usize = (0..12).map(|_| random.below(deviation + 1)).sum();
    (keys / 2 + sum)
        .saturating_sub(6 * deviation)
        .min(keys.saturating_sub(1))
}

impl Keys {
    fn new(spec: &Load) -> Result<Self> {
        let hot = match spec.deviation {
            0 => hotset::choose(
                spec.keys,
                spec.keys * spec.hot_percent / 100,
                spec.seed,
                Layout::Clustered,
            ),
            deviation => near_the_middle(spec.keys, deviation)?,
        };
        ensure!(!hot.is_empty(), "no key would be hot");
        Ok(Self {
            client: Client::connect(&spec.server)?,
            values: Values::new(spec.keys, spec.value_bytes),
            hot,
            hot_request_percent: spec.hot_request_percent,
            deviation: spec.deviation,
            copied: None,
            random: Xorshift::new(spec.seed),
            running: true,
            requests: 0,
            errors: 0,
        })
    }

    fn fill(&mut self) -> Result<()> {
        let all = self.order_of_filling()?;
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

    /// One by one, or in random order, so that keys with neighbouring numbers lie anywhere.
    fn order_of_filling(&mut self) -> Result<Vec<usize>> {
        let keys = self.values.keys();
        if self.deviation == 0 {
            return Ok((0..keys).collect());
        }
        let seed = self.random.below(1 << 20) as u64;
        let order = hotset::choose(keys, keys, seed, Layout::Scattered).into_iter();
        order.map(|key| Ok(usize::try_from(key)?)).collect()
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
        let (key, is_hot) = self.choose_key()?;
        Ok(match self.random.below(SETS) {
            0 if is_hot => {
                self.values.renew(key);
                Request::Set(key)
            }
            1 => Request::Get(key, self.values.version(key)),
            _ => Request::Copy(key, self.values.version(key)),
        })
    }

    /// A key, and whether it is a hot one.
    fn choose_key(&mut self) -> Result<(usize, bool)> {
        if self.deviation > 0 {
            let key = gaussian(&mut self.random, self.values.keys(), self.deviation);
            return Ok((key, self.hot.binary_search(&u32::try_from(key)?).is_ok()));
        }
        let is_hot = self.random.below(100) < self.hot_request_percent;
        let key = if is_hot {
            usize::try_from(self.hot[self.random.below(self.hot.len())])?
        } else {
            self.random.below(self.values.keys())
        };
        Ok((key, is_hot))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn most_keys_of_a_gaussian_load_are_near_the_middle() {
        let mut random = Xorshift::new(7);
        let near = near_the_middle(10_000, 100).unwrap();
        assert_eq!((near[0], near.len()), (4900, 201));
        let chosen = (0..10_000).map(|_| gaussian(&mut random, 10_000, 100));
        let chosen = chosen.filter(|key| (4900..=5100).contains(key)).count();
        assert!((6500..7200).contains(&chosen), "{chosen}");
        assert_eq!(gaussian(&mut random, 1, 100), 0);
    }
}
