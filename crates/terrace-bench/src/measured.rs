//! A figure and the baseline that it is compared with.

use std::cell::OnceCell;
use std::hint::black_box;
use std::ops::AddAssign;
use std::time::Instant;

use terrace_sys::perf::{Event, EventAttr, HARDWARE, HARDWARE_INSTRUCTIONS, Scope};

/// Number of runs of which the median counts.
pub(crate) const RUNS: usize = 5;

/// Runs of a figure and of its baseline, in turns and in the same unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    values: Vec<f64>,
    baselines: Vec<f64>,
    better: Better,
    /// Least instructions of a run and of a baseline's, if the machine counts them.
    instructions: Option<(f64, f64)>,
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
    pub(crate) fn in_turns(run: impl FnMut(usize) -> (Cost, Cost)) -> Self {
        let runs: Vec<(Cost, Cost)> = (0..RUNS).map(run).collect();
        let (values, baselines) = runs.iter().map(|(run, base)| (run.ns, base.ns)).unzip();
        Self {
            instructions: least_instructions(runs.into_iter()),
            ..Self::of(values, baselines, Better::Less)
        }
    }

    /// Rates of runs that each did `work` and of baselines that did as much, per second.
    pub(crate) fn rates(work: f64, runs: &[(Cost, Cost)]) -> Self {
        let rate = |cost: Cost| work * 1e9 / cost.ns;
        let (values, baselines) = runs
            .iter()
            .map(|(run, base)| (rate(*run), rate(*base)))
            .unzip();
        let instructions = least_instructions(runs.iter().copied());
        Self {
            instructions: instructions.map(|(run, base)| (run / work, base / work)),
            ..Self::of(values, baselines, Better::More)
        }
    }

    /// Runs that were made elsewhere; as many baselines as figures, and at least one.
    fn of(values: Vec<f64>, baselines: Vec<f64>, better: Better) -> Self {
        Self {
            values,
            baselines,
            better,
            instructions: None,
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

    /// Least instructions of the figure and of its baseline, for each thing that the figure is about (an entry, a page, an
    /// access); `None` if this machine has no counter for them.
    #[must_use]
    pub fn instructions(&self) -> Option<(f64, f64)> {
        self.instructions
    }

    pub(crate) fn per(mut self, count: f64) -> Self {
        let all = self.values.iter_mut().chain(&mut self.baselines);
        all.for_each(|figure| *figure /= count);
        self.instructions = self
            .instructions
            .map(|(run, base)| (run / count, base / count));
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

/// The cost of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cost {
    /// Wall time, ns.
    pub ns: f64,
    /// Instructions of this program, if the machine counts them.
    pub instructions: Option<f64>,
}

impl Cost {
    /// The cost of no work: where a sum begins.
    pub(crate) const NONE: Self = Self {
        ns: 0.0,
        instructions: Some(0.0),
    };
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        self.ns += other.ns;
        let both = self.instructions.zip(other.instructions);
        self.instructions = both.map(|(a, b)| a + b);
    }
}

/// Least instructions of the runs and of their baselines; `None` if one was not counted.
fn least_instructions(mut runs: impl Iterator<Item = (Cost, Cost)>) -> Option<(f64, f64)> {
    let counted = |(run, base): (Cost, Cost)| run.instructions.zip(base.instructions);
    let first = runs.next().and_then(counted)?;
    runs.try_fold(first, |(run, base), next| {
        let next = counted(next)?;
        Some((run.min(next.0), base.min(next.1)))
    })
}

/// The cost of the work.
pub(crate) fn timed<R>(work: impl FnOnce() -> R) -> Cost {
    COUNTER.with(|counter| {
        let counter = counter.get_or_init(counter_of_instructions).as_ref();
        let count = || counter.and_then(|event| event.times().ok());
        let before = count();
        let start = Instant::now();
        black_box(work());
        let ns = start.elapsed().as_secs_f64() * 1e9;
        // A counter that took turns with others counted a part of the work.
        let alone = before
            .zip(count())
            .filter(|(_, after)| after.enabled_ns == after.running_ns);
        Cost {
            ns,
            instructions: alone.map(|(before, after)| (after.count - before.count) as f64),
        }
    })
}

thread_local! {
    /// The counter of this thread's instructions; none if the machine has none or lets nobody count.
    static COUNTER: OnceCell<Option<Event>> = const { OnceCell::new() };
}

fn counter_of_instructions() -> Option<Event> {
    let attr = EventAttr {
        pmu: HARDWARE,
        config: HARDWARE_INSTRUCTIONS,
        exclude_kernel: true,
        exclude_hypervisor: true,
        // Threads that the work begins count, too.
        inherit: true,
        ..EventAttr::default()
    };
    let scope = Scope::Process { pid: 0, cpu: None };
    let event = Event::open(&attr, scope, None).ok()?;
    event.enable().ok()?;
    Some(event)
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
    fn instructions_are_the_least_of_each_or_none() {
        let cost = |ns, instructions| Cost { ns, instructions };
        let run = |n: usize| (cost(2.0, Some(30.0 - n as f64)), cost(1.0, Some(8.0)));
        assert_eq!(
            Measured::in_turns(run).per(2.0).instructions(),
            Some((13.0, 4.0))
        );
        let lost = |n: usize| match n {
            3 => (cost(2.0, None), cost(1.0, Some(8.0))),
            n => run(n),
        };
        assert_eq!(Measured::in_turns(lost).instructions(), None);
        let rates = Measured::rates(4.0, &[run(0), run(1)]);
        assert_eq!(rates.instructions(), Some((29.0 / 4.0, 2.0)));
        assert_eq!((rates.value(), rates.baseline()), (2e9, 4e9));
        let mut sum = Cost::NONE;
        sum += cost(1.0, Some(2.0));
        sum += cost(2.0, Some(3.0));
        assert_eq!(sum, cost(3.0, Some(5.0)));
        sum += cost(1.0, None);
        assert_eq!(sum, cost(4.0, None));
    }

    #[test]
    fn the_least_time_of_a_rate_is_its_greatest_figure() {
        let rates = Measured::of(vec![8.0, 10.0, 9.0], vec![20.0, 10.0, 15.0], Better::More);
        assert_eq!((rates.least(), rates.baseline_least()), (10.0, 20.0));
        assert_eq!((rates.ratio(), rates.ratio_least()), (0.6, 0.5));
    }
}
