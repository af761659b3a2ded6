//! A figure and the baseline that it is compared with.

use std::hint::black_box;
use std::time::Instant;

/// Number of runs of which the median counts.
pub(crate) const RUNS: usize = 5;

/// A figure and its baseline of the same run, in the same unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// The figure of the fast path.
    pub value: f64,
    /// The figure of the baseline.
    pub baseline: f64,
}

impl Measured {
    /// Medians of both figures over [`RUNS`] runs; the two take turns, so that noise hits both.
    pub(crate) fn in_turns(run: impl FnMut(usize) -> (f64, f64)) -> Self {
        let (values, baselines): (Vec<_>, Vec<_>) = (0..RUNS).map(run).unzip();
        Self {
            value: median(values),
            baseline: median(baselines),
        }
    }

    /// `value / baseline`.
    #[must_use]
    pub fn ratio(self) -> f64 {
        self.value / self.baseline
    }

    pub(crate) fn per(self, count: f64) -> Self {
        Self {
            value: self.value / count,
            baseline: self.baseline / count,
        }
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Nanoseconds that the work took.
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> f64 {
    let start = Instant::now();
    black_box(work());
    start.elapsed().as_secs_f64() * 1e9
}
