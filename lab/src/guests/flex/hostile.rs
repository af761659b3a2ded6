//! The test device (`lab-flex`), which misbehaves if a test orders it to.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::device::{CONTROL, Device, GUEST, Running};
use super::shape::Shape;
use crate::guests::tiered::TIERS;
use crate::programs;

/// The test device and the connection that orders it about.
pub struct Hostile {
    process: Running,
    control: BufReader<UnixStream>,
}

/// The device's answer to `state`.
#[derive(Deserialize, Debug)]
struct State {
    tiers: Vec<Tier>,
}

#[derive(Deserialize, Debug)]
struct Tier {
    actual: u64,
    /// Requests that could not be right.
    wrong: u64,
}

impl Device for Hostile {
    fn start(shape: &Shape) -> Result<Self> {
        programs::build_lab()?;
        let mut arguments = vec![
            GUEST.to_owned(),
            CONTROL.to_owned(),
            shape.orders.to_string(),
        ];
        arguments.extend(shape.node_bytes.map(|bytes| bytes.to_string()));
        let process = Running::start(&programs::program("lab-flex")?, &arguments)?;
        let control = BufReader::new(process.connect()?);
        Ok(Self { process, control })
    }

    fn set_targets(&mut self, pages: [u64; TIERS]) -> Result<()> {
        let pages = pages.map(|pages| pages.to_string()).join(" ");
        self.order(&format!("targets {pages}")).map(drop)
    }

    fn actual(&mut self) -> Result<Vec<u64>> {
        Ok(self.state()?.tiers.iter().map(|tier| tier.actual).collect())
    }

    fn expect_no_wrong_request(&mut self) -> Result<()> {
        let state = self.state()?;
        ensure!(state.tiers.iter().all(|tier| tier.wrong == 0), "{state:?}");
        Ok(())
    }
}

impl Hostile {
    /// Sets the device's manner of answering from now on; see `lab-flex`.
    pub fn set_manner(&mut self, manner: &str) -> Result<()> {
        self.order(&format!("manner {manner}")).map(drop)
    }

    fn state(&mut self) -> Result<State> {
        let answer = self.order("state")?;
        serde_json::from_str(&answer).with_context(|| format!("the device's state: {answer}"))
    }

    fn order(&mut self, line: &str) -> Result<String> {
        self.process.check_alive()?;
        writeln!(self.control.get_mut(), "{line}")?;
        let mut answer = String::new();
        self.control
            .read_line(&mut answer)
            .with_context(|| format!("the device does not answer `{line}`"))?;
        if answer.contains("\"error\"") {
            bail!("the device on `{line}`: {answer}");
        }
        Ok(answer)
    }
}
