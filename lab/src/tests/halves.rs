//! The tests on guests of this machine, run by another process of this program while those in L1 run here: each emulator waits
//! for much of its time, and two of them share a small machine well.

use std::io::{BufRead, BufReader, PipeReader, pipe};
use std::process::{Command, Stdio};
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow, ensure};

use super::outcome::Outcome;
use super::plain;
use super::runner::TestArguments;
use crate::children::Guarded;
use crate::{guests, modules, programs};

/// The process that runs the tests on guests.
pub struct OnGuests {
    child: Guarded,
    output: JoinHandle<Result<Outcome>>,
}

impl OnGuests {
    /// Builds what its tests need, so that neither waits for the other's builds, and starts it.
    pub fn start(arguments: &TestArguments) -> Result<Self> {
        guests::plain::prepare()?;
        modules::build()?;
        programs::build_hyperflex()?;
        programs::build_product()?;
        let (read, write) = pipe()?;
        // Not by its path, where a later build may have put another one.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["lab", "test", "--on", "guests"])
            .args(arguments.only.iter().flat_map(|only| ["--only", only]))
            .args(arguments.long.then_some("--long"))
            .stdin(Stdio::null())
            .stdout(write.try_clone()?)
            .stderr(write);
        let child = Guarded::spawn_task(&mut command)?;
        Ok(Self {
            child,
            output: std::thread::spawn(|| print(read)),
        })
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// If it ended before it had run its tests.
    pub fn join(self) -> Result<Outcome> {
        let outcome = self.output.join();
        let status = self.child.wait()?;
        let outcome = outcome.map_err(|_| anyhow!("no output"))??;
        ensure!(
            status.success() == outcome.failed.is_empty(),
            "the tests on guests ended early ({status}); their output is above"
        );
        Ok(outcome)
    }
}

/// Prints the lines of each test when it has ended, and reads the outcome of all.
fn print(read: PipeReader) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let mut lines = Vec::new();
    for line in BufReader::new(read).split(b'\n') {
        let line = line.context("reading the output of the tests on guests")?;
        let line = String::from_utf8_lossy(&line).into_owned();
        outcome.read(&line);
        // The error of a test that failed comes after its result.
        if line.starts_with("test ") && line.ends_with('…') {
            show(&mut lines);
        }
        let ends = plain::result(&line).is_some();
        lines.push(line);
        if ends {
            show(&mut lines);
        }
    }
    show(&mut lines);
    ensure!(
        outcome.passed + outcome.failed.len() > 0,
        "the tests on guests ended before the first one; their output is above"
    );
    Ok(outcome)
}

/// Prints lines at once, so that those of the other half come before or after.
fn show(lines: &mut Vec<String>) {
    println!("{}", lines.join("\n"));
    lines.clear();
}
