//! A socket on which a workload answers between its passes: one line in, one line out, one client at a time.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use terrace_lab_programs::native;

/// Longest wait for a client: one that sends nothing must not stop the workload for long.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct LineServer(UnixListener);

impl LineServer {
    pub fn new(name: &str) -> Result<Self> {
        let path = native::socket_path(name);
        // That of an earlier workload of this name.
        fs::remove_file(&path).ok();
        let listener = UnixListener::bind(&path).with_context(|| format!("cannot bind {path}"))?;
        Ok(Self(listener))
    }

    /// Waits for a question, for `timeout_ms` at most (-1 is for ever), and answers it.
    pub fn serve(&self, timeout_ms: i32, answer: impl FnOnce(&str) -> Result<Value>) -> Result<()> {
        let mut request = libc::pollfd {
            fd: self.0.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one pollfd is passed, and it lives through the call.
        let ready = unsafe { libc::poll(&raw mut request, 1, timeout_ms) };
        if ready < 0 {
            return Err(std::io::Error::last_os_error()).context("polling the socket");
        }
        if ready > 0 {
            let (stream, _) = self.0.accept().context("accepting a client")?;
            // A client that goes away before its answer has had its will.
            converse(stream, answer).ok();
        }
        Ok(())
    }
}

/// Answers a client's line. A line that makes no sense gets an `error`, never silence.
fn converse(stream: UnixStream, answer: impl FnOnce(&str) -> Result<Value>) -> Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let answer = answer(line.trim_end());
    let answer = answer.unwrap_or_else(|error| json!({ "error": format!("{error:#}") }));
    reader
        .get_mut()
        .write_all(format!("{answer}\n").as_bytes())?;
    Ok(())
}
