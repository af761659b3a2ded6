//! The truth channel: a guest's own word on which of its pages are hot and whether all are intact.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::channel::{fresh_number, is_timeout};
use crate::machine::process::Process;
use crate::progress::Wait;

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A session with the `lab-guest` of one guest.
pub struct Truth {
    reader: BufReader<UnixStream>,
    line: Vec<u8>,
}

impl Truth {
    /// Connects to the guest behind L1's port `port` and waits until it answers.
    pub fn connect(process: &Process, port: &str, mut wait: Wait) -> Result<Self> {
        let stream = process.connect(port)?;
        stream.set_read_timeout(Some(POLL_INTERVAL))?;
        let mut truth = Self {
            reader: BufReader::new(stream),
            line: Vec::new(),
        };
        loop {
            let number = fresh_number()?;
            truth.send(&format!("ping {number}"))?;
            for _ in 0..4 {
                process.check_alive()?;
                // Skips what an earlier session left behind.
                if let Some(answer) = truth.receive()?
                    && answer["pong"] == number
                {
                    return Ok(truth);
                }
                wait.go_on()?;
            }
        }
    }

    /// Sends one line and returns the guest's answer.
    pub fn ask(&mut self, process: &Process, line: &str, timeout: Duration) -> Result<Value> {
        let mut wait = Wait::begin_silently(&format!("waiting for the guest: {line}"), timeout);
        self.send(line)?;
        loop {
            if let Some(answer) = self.receive()? {
                // A late echo of the start of the session.
                if answer.get("pong").is_some() && !line.starts_with("ping") {
                    continue;
                }
                if let Some(error) = answer.get("error") {
                    bail!("guest on {line:?}: {error}");
                }
                return Ok(answer);
            }
            process.check_alive()?;
            wait.go_on()?;
        }
    }

    fn send(&mut self, line: &str) -> Result<()> {
        let line = format!("{line}\n");
        let stream = self.reader.get_mut();
        stream.write_all(line.as_bytes()).context("truth channel")
    }

    /// A whole line. `None` if none came in time.
    fn receive(&mut self) -> Result<Option<Value>> {
        match self.reader.read_until(b'\n', &mut self.line) {
            Ok(0) => bail!("L1's QEMU closed the truth channel"),
            Ok(_) => {
                let line = std::mem::take(&mut self.line);
                Ok(serde_json::from_slice(&line).ok())
            }
            Err(error) if is_timeout(&error) => Ok(None),
            Err(error) => Err(error).context("truth channel"),
        }
    }
}
