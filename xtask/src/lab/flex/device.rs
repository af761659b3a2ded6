//! The test device (`lab-flex`) as a process, and what a test orders it to do.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::{NODE_BYTES, TIERS};
use crate::children::Guarded;
use crate::lab::programs;
use crate::places;
use crate::progress::Wait;

/// The device's folder, seen from the machine's.
pub const SOCKET: &str = "../flex-device/guest";

const FOLDER: &str = "flex-device";
const CONTROL: &str = "control";

/// A running device; it ends with this value or with its guest.
pub struct Device {
    child: Guarded,
    control: BufReader<UnixStream>,
}

/// What the device says of itself.
#[derive(Deserialize, Debug)]
pub struct State {
    pub tiers: Vec<Tier>,
    /// Bytes of host memory behind each node of the guest.
    pub allocated_bytes: Vec<u64>,
    /// Tag, tier, value.
    pub statistics: Vec<(u16, u16, u64)>,
}

#[derive(Deserialize, Debug)]
pub struct Tier {
    pub actual: u64,
    pub inflated_base: u64,
    pub inflated_huge: u64,
    /// Requests that could not be right.
    pub wrong: u64,
}

impl Device {
    /// Starts one that offers these page orders.
    pub fn start(orders: u32) -> Result<Self> {
        programs::build_lab()?;
        let folder = places::lab("run")?.join(FOLDER);
        if folder.exists() {
            fs::remove_dir_all(&folder)?;
        }
        fs::create_dir_all(&folder)?;
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", "--"])
            .arg(programs::program("lab-flex")?)
            .args(["guest", CONTROL, &orders.to_string()])
            .args([NODE_BYTES; TIERS].map(|bytes| bytes.to_string()))
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(folder.join("log"))?);
        let child = Guarded::spawn(&mut command)?;
        let mut wait = Wait::begin_silently("waiting for the device", Duration::from_secs(30));
        while !folder.join("guest").exists() {
            wait.go_on()?;
            std::thread::sleep(Duration::from_millis(10));
        }
        // Socket addresses hold 107 bytes.
        let place = File::open(&folder)?;
        let path = PathBuf::from(format!("/proc/self/fd/{}/{CONTROL}", place.as_raw_fd()));
        let stream = UnixStream::connect(&path).context("connecting to the device")?;
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        Ok(Self {
            child,
            control: BufReader::new(stream),
        })
    }

    /// Sets all targets, in pages.
    pub fn set_targets(&mut self, pages: [u64; TIERS]) -> Result<()> {
        let pages = pages.map(|pages| pages.to_string()).join(" ");
        self.order(&format!("targets {pages}")).map(drop)
    }

    /// How it answers from now on; see `lab-flex`.
    pub fn set_manner(&mut self, manner: &str) -> Result<()> {
        self.order(&format!("manner {manner}")).map(drop)
    }

    /// Has the guest send statistics; they are in a later state.
    pub fn ask_for_statistics(&mut self) -> Result<()> {
        self.order("statistics").map(drop)
    }

    pub fn state(&mut self) -> Result<State> {
        let answer = self.order("state")?;
        serde_json::from_str(&answer).with_context(|| format!("the device's state: {answer}"))
    }

    fn order(&mut self, line: &str) -> Result<String> {
        if let Some(status) = self.child.ended()? {
            let log = places::lab("run")?.join(FOLDER).join("log");
            let log = fs::read_to_string(log).unwrap_or_default();
            bail!("the device ended ({status}): {log}");
        }
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
