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

    /// Adds the outcome of other tests.
    pub fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed.extend(other.failed);
    }

    /// Takes in a line of what [`Outcome::conclude`] printed in another process.
    pub fn read(&mut self, line: &str) {
        if let Some(name) = line.strip_prefix("failed: ") {
            let (name, why) = (name.to_owned(), String::new());
            self.failed.push(Failure { name, why });
        } else if let Some((passed, failed)) = line.split_once(" passed, ") {
            let is_last = failed == format!("{} failed", self.failed.len());
            if let (Ok(passed), true) = (passed.parse(), is_last) {
                self.passed = passed;
            }
        } else if let (Some(failure), Some(why)) =
            (self.failed.last_mut(), line.strip_prefix("    "))
        {
            failure.why += why;
            failure.why += "\n";
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_process_printed_another_one_reads() {
        let mut read = Outcome::default();
        let lines = [
            "test one ok (1.0 s)",
            "    test two FAILED (2.0 s)",
            "failed: two",
            "    it is",
            "    slow",
            "3 passed, 2 failed",
            "1 passed, 1 failed",
        ];
        for line in lines {
            read.read(line);
        }
        assert_eq!((read.passed, read.failed.len()), (1, 1));
        assert_eq!(read.failed[0].name, "two");
        assert_eq!(read.failed[0].why, "it is\nslow\n");
        read.add(Outcome {
            passed: 4,
            failed: Vec::new(),
        });
        assert_eq!(read.passed, 5);
    }
}
