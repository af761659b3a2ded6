//! The guest agent, started beside the workload: in a real guest this is the init system's part.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

/// Path of the agent in the archive that is appended to the guest's initial file system.
const PROGRAM: &str = "/agent/terrace-agent";
const CONFIG: &str = "/agent/agent.toml";
const MODULE: &str = "/agent/terrace_guest.ko";
const LOG: &str = "/agent/log";

const LIST: &str = "/agent/hot";
const ROUND: &str = "/agent/round";

/// Bytes of the log's end that are shown.
const SHOWN_BYTES: usize = 8 << 10;

/// The agent, if it was started.
#[derive(Default)]
pub struct Agent(Option<Child>);

impl Agent {
    /// Starts the agent, asks it, shows its log, or kills it.
    pub fn command(&mut self, what: Option<&str>) -> Result<Value> {
        match what {
            Some("start") => self.start(),
            Some("status") => ask(&["status", "--json"]),
            Some("doctor") => ask(&["doctor", "--config", CONFIG]),
            Some("module") => load_module(),
            Some("gather") => self.gather(&[]),
            Some("round") => self.round(),
            Some("log") => log(),
            Some("kill") => self.kill(),
            other => bail!("no command `agent {}`", other.unwrap_or_default()),
        }
    }

    fn start(&mut self) -> Result<Value> {
        if let Some(child) = &mut self.0 {
            ensure!(child.try_wait()?.is_some(), "the agent runs already");
        }
        let log = File::create(LOG).with_context(|| format!("cannot create {LOG}"))?;
        let child = Command::new(PROGRAM)
            .args(["run", "--config", CONFIG])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .with_context(|| format!("cannot start {PROGRAM}"))?;
        let pid = child.id();
        self.0 = Some(child);
        Ok(json!({ "pid": pid }))
    }

    /// Begins a round of gathering these pages, as another tool would list them.
    pub fn gather_listed(&mut self, addresses: impl Iterator<Item = usize>) -> Result<Value> {
        let pid = std::process::id();
        let lines: String = addresses
            .map(|address| format!("{pid} {address:#x}\n"))
            .collect();
        fs::write(LIST, lines).with_context(|| format!("cannot write {LIST}"))?;
        self.gather(&["--pages", LIST])
    }

    /// Begins a round of gathering. The workload goes on meanwhile: without it nothing is hot.
    fn gather(&mut self, options: &[&str]) -> Result<Value> {
        let round = File::create(ROUND).with_context(|| format!("cannot create {ROUND}"))?;
        let child = Command::new(PROGRAM)
            .args(["gather", "--once", "--config", CONFIG, "--json"])
            .args(options)
            .stdin(Stdio::null())
            .stdout(round.try_clone()?)
            .stderr(File::create(LOG)?)
            .spawn()
            .with_context(|| format!("cannot start {PROGRAM}"))?;
        self.0 = Some(child);
        Ok(json!({}))
    }

    /// The round that was begun, once it is over.
    fn round(&mut self) -> Result<Value> {
        let child = self.0.as_mut().context("no round was begun")?;
        let Some(status) = child.try_wait()? else {
            return Ok(json!({ "over": false }));
        };
        ensure!(status.success(), "{}", fs::read_to_string(LOG)?);
        let round: Value = serde_json::from_str(&fs::read_to_string(ROUND)?)?;
        Ok(json!({ "over": true, "round": round }))
    }

    fn kill(&mut self) -> Result<Value> {
        let mut child = self.0.take().context("the agent was not started")?;
        child.kill()?;
        child.wait()?;
        Ok(json!({}))
    }
}

/// The answer of the agent's program: as JSON if it is JSON, else as text.
fn ask(arguments: &[&str]) -> Result<Value> {
    let answer = Command::new(PROGRAM)
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot start {PROGRAM}"))?;
    let text = String::from_utf8_lossy(&answer.stdout).into_owned();
    let errors = String::from_utf8_lossy(&answer.stderr).into_owned();
    let shown = serde_json::from_str(&text).unwrap_or(Value::String(text));
    Ok(json!({ "exit": answer.status.code(), "answer": shown, "errors": errors }))
}

/// Loads the guest module, which lies beside the agent.
fn load_module() -> Result<Value> {
    let file = File::open(MODULE).with_context(|| format!("cannot open {MODULE}"))?;
    // SAFETY: an open file, parameters that end in NUL, no flags.
    let result =
        unsafe { libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), c"".as_ptr(), 0) };
    if result != 0 {
        return Err(std::io::Error::last_os_error()).context("loading the guest module");
    }
    Ok(json!({}))
}

fn log() -> Result<Value> {
    let bytes = fs::read(LOG).with_context(|| format!("cannot read {LOG}"))?;
    let shown = &bytes[bytes.len().saturating_sub(SHOWN_BYTES)..];
    Ok(json!({ "log": String::from_utf8_lossy(shown) }))
}
