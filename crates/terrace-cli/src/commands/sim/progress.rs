//! A line on standard error that shows the progress of the runs, if standard error is a terminal.

use std::io::{IsTerminal, Write};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use terrace_repro::compare::Progress;

/// Time between drawings.
const DRAW_EVERY: Duration = Duration::from_millis(100);

/// Width of the bar, characters.
const WIDTH: usize = 30;

/// The line of progress.
pub struct Bar {
    /// The time of the last drawing; `None` if the line is not drawn at all.
    drawn: Option<Mutex<Option<Instant>>>,
}

impl Bar {
    pub fn new(quiet: bool) -> Self {
        let seen = !quiet && std::io::stderr().is_terminal();
        Self {
            drawn: seen.then(|| Mutex::new(None)),
        }
    }

    /// Draws the line, unless that was just done.
    pub fn show(&self, progress: Progress) {
        let Some(Ok(mut drawn)) = self.drawn.as_ref().map(Mutex::try_lock) else {
            return;
        };
        if drawn.is_none_or(|at| at.elapsed() >= DRAW_EVERY) {
            *drawn = Some(Instant::now());
            // A terminal that is gone is no reason to end a run.
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", line(progress));
        }
    }

    /// Takes the line away.
    pub fn clear(&self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

fn line(progress: Progress) -> String {
    let percent = format!("{:.0}", progress.done * 100.0);
    let filled = percent.parse::<usize>().unwrap_or(0).min(100) * WIDTH / 100;
    let bar = "█".repeat(filled) + &"░".repeat(WIDTH - filled);
    format!(
        "{bar} {percent:>3} %  {} of {} runs finished",
        progress.finished, progress.runs
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_how_far_the_runs_are() {
        let line = line(Progress {
            finished: 1,
            runs: 4,
            done: 0.3333,
        });
        let bar = "█".repeat(9) + &"░".repeat(21);
        assert_eq!(line, format!("{bar}  33 %  1 of 4 runs finished"));
    }
}
