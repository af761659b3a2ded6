//! Steps of a longer task, one after the other, with the time each took.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use terrace_lab::progress::say;

/// A named step.
pub struct Stage {
    name: &'static str,
    run: Box<dyn FnOnce() -> Result<()>>,
}

impl Stage {
    pub fn new(name: &'static str, run: impl FnOnce() -> Result<()> + 'static) -> Self {
        Self {
            name,
            run: Box::new(run),
        }
    }
}

/// Runs the stages up to the first that fails, and prints a table of their times.
pub fn run(stages: Vec<Stage>) -> Result<()> {
    let mut times = Vec::new();
    let mut result = Ok(());
    for Stage { name, run } in stages {
        say(&format!("=== {name}"));
        let begin = Instant::now();
        result = run().with_context(|| format!("stage `{name}` failed"));
        times.push((name, begin.elapsed(), result.is_ok()));
        if result.is_err() {
            break;
        }
    }
    print_table(&times);
    result
}

fn print_table(times: &[(&str, Duration, bool)]) {
    let width = times.iter().map(|(name, ..)| name.len()).max().unwrap_or(0);
    eprintln!();
    for (name, time, succeeded) in times {
        let word = if *succeeded { "ok" } else { "FAILED" };
        eprintln!("{name:width$}  {:8.1} s  {word}", time.as_secs_f64());
    }
    let total: Duration = times.iter().map(|(_, time, _)| time).sum();
    eprintln!("{:width$}  {:8.1} s", "total", total.as_secs_f64());
}
