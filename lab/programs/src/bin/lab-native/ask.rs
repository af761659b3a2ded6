//! A client of a workload's socket.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::native;

/// Sends one line and prints the answer.
pub fn ask(name: &str, line: &str) -> Result<()> {
    let path = native::socket_path(name);
    let mut stream =
        UnixStream::connect(&path).with_context(|| format!("nobody answers on {path}"))?;
    stream.write_all(format!("{line}\n").as_bytes())?;
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer)?;
    ensure!(!answer.is_empty(), "{path} was closed without an answer");
    print!("{answer}");
    Ok(())
}
