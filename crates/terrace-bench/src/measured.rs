//! A figure and the baseline that it is compared with.

use std::hint::black_box;
use std::time::Instant;

/// Number of runs of which the median counts.
pub(crate) const RUNS: usize = 5;

/// Runs of a figure and of its baseline, in turns and in the same unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    values: Vec<f64>,
    baselines: Vec<f64>,
    better: Better,
}

/// The better one of two figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Better {
    /// The lesser one: a time.
    Less,
    /// The greater one: a rate.
    More,
}

impl Measured {
    /// Times of [`RUNS`] runs; figure and baseline take turns, so that noise hits both.
    pub(crate) fn in_turns(run: impl FnMut(usize) -> (f64, f64)) -> Self {
        let (values, baselines) = (0..RUNS).map(run).unzip();
        Self::of(values, baselines, Better::Less)
    }

    /// Runs that were made elsewhere; as many baselines as figures, and at least one.
    pub(crate) fn of(values: Vec<f64>, baselines: Vec<f64>, better: Better) -> Self {
        Self {
            values,
            baselines,
            better,
        }
    }

    /// The median of the fast path.
    #[must_use]
    pub fn value(&self) -> f64 {
        median(self.values.clone())
    }

    /// The median of the baseline.
    #[must_use]
    pub fn baseline(&self) -> f64 {
        median(self.baselines.clone())
    }

    /// `value / baseline`.
    #[must_use]
    pub fn ratio(&self) -> f64 {
        self.value() / self.baseline()
    }

    /// The fast path's run that took least time: what else ran on the machine only ever adds some.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.best(&self.values)
    }

    /// The same of the baseline.
    #[must_use]
    pub fn baseline_least(&self) -> f64 {
        self.best(&self.baselines)
    }

    /// The ratio of both, which a busy machine bends least.
    #[must_use]
    pub fn ratio_least(&self) -> f64 {
        self.least() / self.baseline_least()
    }

    /// The distance of the farthest runs of the figure or its baseline, whichever is more, as a part of the median.
    #[must_use]
    pub fn spread(&self) -> f64 {
        spread(&self.values).max(spread(&self.baselines))
    }

    pub(crate) fn per(mut self, count: f64) -> Self {
        let all = self.values.iter_mut().chain(&mut self.baselines);
        all.for_each(|figure| *figure /= count);
        self
    }

    fn best(&self, figures: &[f64]) -> f64 {
        let figures = figures.iter().copied();
        match self.better {
            Better::Less => figures.fold(f64::INFINITY, f64::min),
            Better::More => figures.fold(0.0, f64::max),
        }
    }
}

fn spread(figures: &[f64]) -> f64 {
    let least = figures.iter().copied().fold(f64::INFINITY, f64::min);
    let most = figures.iter().copied().fold(0.0, f64::max);
    (most - least) / median(figures.to_vec())
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

#[cfg(test)]
#[expect(clippy::float_cmp, reason = "no figure is rounded here")]
mod tests {
    use super::*;

    #[test]
    fn one_slow_run_bends_neither_the_median_nor_the_least() {
        let quiet = Measured::of(vec![10.0; 5], vec![5.0; 5], Better::Less);
        let mut noisy = quiet.clone();
        noisy.values[3] = 90.0;
        noisy.baselines[0] = 7.0;
        assert_eq!((noisy.ratio(), noisy.ratio_least()), (2.0, 2.0));
        assert_eq!((quiet.spread(), noisy.spread()), (0.0, 8.0));
        assert_eq!(quiet.per(10.0).value(), 1.0);
    }

    #[test]
    fn the_least_time_of_a_rate_is_its_greatest_figure() {
        let rates = Measured::of(vec![8.0, 10.0, 9.0], vec![20.0, 10.0, 15.0], Better::More);
        assert_eq!((rates.least(), rates.baseline_least()), (10.0, 20.0));
        assert_eq!((rates.ratio(), rates.ratio_least()), (0.6, 0.5));
    }
}
