//! Tests of the scanner on plain emulated guests, started on this machine without an L1 around them.
//!
//! They are `terrace-host`'s own integration test `guests`; this module hands them the images and counts their
//! results.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::outcome::{Failure, Outcome};
use crate::children::Guarded;
use crate::guests::plain::{IMAGES, prepare};
use crate::{host, places};

/// The names of the tests that contain `only`.
pub fn names(only: Option<&str>) -> Result<Vec<String>> {
    let listing = host::output(cargo_test(only).args(["--list"]))?;
    let names = listing.lines().filter_map(|l| l.strip_suffix(": test"));
    Ok(names.map(str::to_owned).collect())
}

/// Runs the tests whose names contain `only`, one after the other; `long` makes some take minutes.
pub fn run(only: Option<&str>, long: bool) -> Result<Outcome> {
    let images = prepare()?;
    let mut tests = cargo_test(only);
    tests
        .arg("--ignored")
        .env(IMAGES, &images)
        .stdout(Stdio::piped());
    if long {
        tests.env("TERRACE_LONG", "1");
    }
    let mut child = Guarded::spawn(&mut tests)?;
    let output = child.stdout().context("cargo test has no output")?;
    let mut outcome = Outcome::default();
    for line in BufReader::new(output).lines() {
        let line = line.context("reading the output of cargo test")?;
        println!("{line}");
        match result(&line) {
            Some((_, true)) => outcome.passed += 1,
            Some((name, false)) => outcome.failed.push(Failure {
                name: name.to_owned(),
                why: String::new(),
            }),
            None => {}
        }
    }
    let status = child.wait()?;
    if status.success() != outcome.failed.is_empty() || outcome.passed + outcome.failed.len() == 0 {
        bail!("the tests on plain guests ended early ({status}); their output is above");
    }
    Ok(outcome)
}

/// The test that a line speaks of, and whether it passed: `test NAME ... ok` or `FAILED`.
pub fn result(line: &str) -> Option<(&str, bool)> {
    let (name, result) = line.strip_prefix("test ")?.split_once(" ... ")?;
    match result.split(' ').next()? {
        "ok" => Some((name, true)),
        "FAILED" => Some((name, false)),
        _ => None,
    }
}

fn cargo_test(only: Option<&str>) -> Command {
    let mut cargo = places::cargo();
    cargo
        .args(["test", "--quiet", "--package", "terrace-host"])
        .args(["--test", "guests", "--"])
        .args(only);
    cargo
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_told_from_everything_else() {
        assert_eq!(result("test a_name ... ok (1.0 s)"), Some(("a_name", true)));
        assert_eq!(
            result("test a_name ... FAILED (1.0 s)"),
            Some(("a_name", false))
        );
        for other in ["test a ... ignored, why", "10 hot pages ... ok", ""] {
            assert_eq!(result(other), None);
        }
    }
}
