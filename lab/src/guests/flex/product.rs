//! The product's device (`terrace-hyperflex`), asked by its control socket as an operator would.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::device::{CONTROL, Device, GUEST, Running};
use super::shape::{PAGE, Shape};
use crate::guests::tiered::TIERS;
use crate::programs;

/// Counters of requests that a driver must never make.
const WRONG: [&str; 11] = [
    "malformed_chains",
    "broken_rings",
    "refused_order",
    "refused_alignment",
    "refused_outside",
    "refused_backing",
    "refused_duplicate",
    "refused_punch",
    "bad_event_buffers",
    "bad_statistics",
    "implausible_statistics",
];

/// The product's device, with all that it needs to be started again.
pub struct Hyperflex {
    program: PathBuf,
    arguments: Vec<String>,
    /// Memory of each tier.
    whole: [u64; TIERS],
    /// The device's process. `None` while it is killed.
    process: Option<Running>,
}

impl Device for Hyperflex {
    fn start(shape: &Shape) -> Result<Self> {
        let program = programs::build_hyperflex()?;
        let arguments = arguments(shape);
        let process = Running::start(&program, &arguments)?;
        process.connect()?;
        Ok(Self {
            program,
            arguments,
            whole: shape.node_bytes,
            process: Some(process),
        })
    }

    fn set_targets(&mut self, pages: [u64; TIERS]) -> Result<()> {
        let mut size_bytes = self.whole;
        for (size, pages) in size_bytes.iter_mut().zip(pages) {
            *size -= pages * PAGE;
        }
        self.ask(&json!({"resize": {"size_bytes": size_bytes}}))
            .map(drop)
    }

    fn actual(&mut self) -> Result<Vec<u64>> {
        let status = self.status(false)?;
        (0..TIERS)
            .map(|tier| {
                let size = status["tiers"][tier]["size_bytes"].as_u64();
                let size = size.with_context(|| format!("the device's status: {status}"))?;
                Ok((self.whole[tier] - size) / PAGE)
            })
            .collect()
    }

    fn expect_no_wrong_request(&mut self) -> Result<()> {
        let status = self.status(false)?;
        for name in WRONG {
            let is_zero = status["counters"][name] == 0;
            ensure!(is_zero, "{name}: {}", status["counters"]);
        }
        Ok(())
    }
}

fn arguments(shape: &Shape) -> Vec<String> {
    let pages = [(1, "4KiB"), (1 << 9, "2MiB")]
        .into_iter()
        .filter(|(bit, _)| shape.orders & bit != 0)
        .map(|(_, name)| name);
    let mut arguments = format!(
        "--socket {GUEST} --control {CONTROL} --state state --statistics 1 --pages {}",
        pages.collect::<Vec<_>>().join(",")
    );
    if !shape.is_leased {
        arguments.push_str(" --nobody-pins");
    }
    for (node, bytes) in shape.node_bytes.into_iter().enumerate() {
        arguments.push_str(&format!(" --tier node={node},size={bytes}"));
    }
    if let Some(bytes) = shape.total_bytes {
        arguments.push_str(&format!(" --total {bytes}"));
    }
    arguments.split(' ').map(str::to_owned).collect()
}

impl Hyperflex {
    /// The device's status; `verify` has it verify the memory's files too.
    pub fn status(&self, verify: bool) -> Result<Value> {
        let mut answer = self.ask(&json!({"status": {"verify": verify}}))?;
        Ok(answer["status"].take())
    }

    /// Ends the device without a warning, as `kill -9` does.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Has the device answer no request until it continues.
    pub fn hang(&self) -> Result<()> {
        self.process
            .as_ref()
            .context("the device is killed")?
            .hang()
    }

    pub fn go_on(&self) -> Result<()> {
        self.process
            .as_ref()
            .context("the device is killed")?
            .go_on()
    }

    /// Starts the device as it was started before, with the state that it left.
    pub fn start_again(&mut self) -> Result<()> {
        let process = Running::start_again(&self.program, &self.arguments)?;
        process.connect()?;
        self.process = Some(process);
        Ok(())
    }

    /// Ends the device and starts it with another shape's options; the guest's memory is the same.
    pub fn start_again_as(&mut self, shape: &Shape) -> Result<()> {
        self.kill();
        self.arguments = arguments(shape);
        self.start_again()
    }

    fn ask(&self, request: &Value) -> Result<Value> {
        let process = self.process.as_ref().context("the device is killed")?;
        let mut stream = process.connect()?;
        writeln!(stream, "{request}")?;
        let mut answer = String::new();
        BufReader::new(stream)
            .read_line(&mut answer)
            .with_context(|| format!("the device does not answer {request}: {}", process.log()))?;
        let value: Value = serde_json::from_str(&answer)
            .with_context(|| format!("the device's answer: {answer}"))?;
        ensure!(value["error"].is_null(), "{request}: {answer}");
        Ok(value)
    }
}
