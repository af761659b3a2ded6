//! QEMU's machine protocol, as far as the lab needs it for L1.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// A connection to the QMP socket of L1's QEMU.
pub struct Qmp {
    reader: BufReader<UnixStream>,
}

impl Qmp {
    /// Takes a fresh connection past the greeting.
    pub fn start(stream: UnixStream) -> Result<Self> {
        stream.set_read_timeout(Some(Duration::from_secs(60)))?;
        let mut qmp = Self {
            reader: BufReader::new(stream),
        };
        qmp.receive()?;
        qmp.execute("qmp_capabilities", &json!({}))?;
        Ok(qmp)
    }

    /// Runs one command and returns its result; events in between are skipped.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value> {
        let request = json!({ "execute": command, "arguments": arguments });
        self.reader
            .get_mut()
            .write_all(format!("{request}\n").as_bytes())
            .with_context(|| format!("QMP {command}"))?;
        loop {
            let mut answer = self.receive().with_context(|| format!("QMP {command}"))?;
            if let Some(error) = answer.get("error") {
                bail!("QMP {command}: {error}");
            }
            if let Some(result) = answer.get_mut("return") {
                return Ok(result.take());
            }
        }
    }

    /// The machine's run state, such as `running` or `inmigrate`.
    pub fn status(&mut self) -> Result<String> {
        let answer = self.execute("query-status", &json!({}))?;
        Ok(answer["status"].as_str().unwrap_or_default().to_owned())
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        let read = self
            .reader
            .read_line(&mut line)
            .context("no answer from QEMU")?;
        if read == 0 {
            bail!("QEMU closed its QMP socket");
        }
        serde_json::from_str(&line).context("QEMU's answer is no JSON")
    }
}
