//! Tests of the scanner on plain emulated guests, started on this machine without an L1 around them.
//!
//! They are `terrace-host`'s own integration test `guests`; what is done here is to make what they need
//! (a folder with a kernel, an initrd and an emulator) and to count their results.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use super::kernel::Kernel;
use super::{emulator, images, programs};
use crate::children::Guarded;
use crate::progress::say;
use crate::{host, places};

/// Names the folder for the tests.
const IMAGES: &str = "TERRACE_GUEST_IMAGES";

/// How many passed, and which failed.
#[derive(Default)]
pub struct Outcome {
    pub passed: usize,
    pub failed: Vec<Failure>,
}

/// A test that failed, and why if its runner says so.
pub struct Failure {
    pub name: String,
    pub why: String,
}

impl Outcome {
    pub fn and(mut self, other: Self) -> Self {
        self.passed += other.passed;
        self.failed.extend(other.failed);
        self
    }

    /// Counts a test, and prints its result.
    pub fn count(&mut self, name: &str, seconds: f64, result: Result<()>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                println!("test {name} ok ({seconds:.1} s)");
            }
            Err(error) => {
                println!("test {name} FAILED ({seconds:.1} s)\n{error:#}");
                self.failed.push(Failure {
                    name: name.to_owned(),
                    why: format!("{error:#}"),
                });
            }
        }
    }
}

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
fn result(line: &str) -> Option<(&str, bool)> {
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

/// A folder with all that a guest is started from.
pub fn prepare() -> Result<PathBuf> {
    let _lock = places::lock("images")?;
    host::install_missing()?;
    let kernel = Kernel::get(false)?;
    let initrd = images::guest(programs::build_lab()?)?;
    let folder = places::lab("guests")?;
    fs::write(folder.join("initrd"), initrd)?;
    let vmlinuz = folder.join("vmlinuz");
    if vmlinuz.is_symlink() {
        fs::remove_file(&vmlinuz)?;
    }
    symlink(kernel.image(), &vmlinuz)?;
    write_emulator(&folder.join("emulator"))?;
    say(&format!(
        "guests start from {}; to run a test alone: {IMAGES}={0} cargo test -p terrace-host --test guests -- \
         --ignored NAME",
        folder.display()
    ));
    Ok(folder)
}

/// A script that starts the emulator with options of its caller.
fn write_emulator(path: &Path) -> Result<()> {
    let command = emulator::command()?;
    let mut script = "#!/bin/sh\n".to_owned();
    for (name, value) in command.get_envs() {
        let value = quoted(&value.unwrap_or_default().to_string_lossy());
        script.push_str(&format!("export {}={value}\n", name.display()));
    }
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
    script.push_str(&format!("exec {} \"$@\"\n", words.join(" ")));
    fs::write(path, script).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(fs::set_permissions(
        path,
        fs::Permissions::from_mode(0o755),
    )?)
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
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

    #[test]
    fn a_shell_reads_a_quoted_word_as_it_was() {
        let word = "it's a $word";
        let echo = Command::new("sh")
            .args(["-c", &format!("printf %s {}", quoted(word))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&echo.stdout), word);
    }
}
