//! The outcome of a run of tests.

use std::time::Instant;

use anyhow::{Result, bail};

/// Lines of a failure that are shown again at the end.
const LINES: usize = 12;

/// The number of tests that passed, and the tests that failed.
#[derive(Default)]
pub struct Outcome {
    pub passed: usize,
    pub failed: Vec<Failure>,
}

/// A test that failed, and the reason if its runner has one.
pub struct Failure {
    pub name: String,
    pub why: String,
}

impl Outcome {
    /// Runs a test, counts it, and prints its result.
    pub fn run(&mut self, name: &str, test: impl FnOnce() -> Result<()>) {
        println!("test {name} …");
        let begin = Instant::now();
        let result = test();
        let seconds = begin.elapsed().as_secs_f64();
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

    /// Prints again at the end what failed and why: of a long log, the end is the part that is stored.
    pub fn conclude(&self) -> Result<()> {
        for failure in &self.failed {
            println!("failed: {}", failure.name);
            for line in failure.why.lines().take(LINES) {
                println!("    {line}");
            }
        }
        let failed = self.failed.len();
        println!("{} passed, {failed} failed", self.passed);
        if failed > 0 {
            let names: Vec<&str> = self.failed.iter().map(|f| f.name.as_str()).collect();
            bail!("{failed} of the lab's tests failed: {}", names.join(", "));
        }
        Ok(())
    }
}
