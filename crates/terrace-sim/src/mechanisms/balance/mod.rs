//! `balance`: placement by the latency of tiers under load, after the principle of Colloid (Vuppalapati and Agarwal,
//! SOSP '24): accesses go to the tier that answers faster at the moment, until both answer equally fast. A tier whose
//! bandwidth is used up can be slower than one whose idle latency is higher.
//!
//! - Trigger: an interval, 100 ms. The uncore's counters of reads in flight and of reads served give each tier's mean
//!   latency in it (Little's law).
//! - Threshold: none. The tiers' latencies are compared; where they differ by more than a 20th, a part of the accesses
//!   is to go from the slower to the faster of the two ([`step`]): pages of the slower one, the hottest first, whose
//!   samples add up to that part ([`pages`]).
//! - Rate limit: 512 MiB a second, for both directions.
//! - Victim: where the target has no room, its coldest page, if it is two bins colder.
//!
//! Pages are sampled as Memtis does ([`Ksampled`]), and all counts are halved as often as its.

mod latency;
mod pages;
mod step;

use latency::Latencies;
use pages::{Pages, Shift};
use step::Step;

use super::memtis::Ksampled;
use super::{Context, Mechanism, MigrationMode, Moved, Sample, Setup, Stage, Unit};
use crate::base::number::to_usize;

/// The parameters that a scenario may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Balance {
    /// Time between two comparisons of the latencies, ms.
    pub interval_ms: u32,
    /// Most that is moved in both directions a second, MiB.
    pub rate_limit_mb_s: u32,
}

impl Balance {
    /// The defaults: an interval that holds thousands of samples, and the rate limit of our agent in the guest
    /// (`dist/terrace-agent.toml`).
    pub const DEFAULT: Self = Self {
        interval_ms: 100,
        rate_limit_mb_s: 512,
    };

    fn interval_ns(self) -> u64 {
        u64::from(self.interval_ms) * 1_000_000
    }

    /// Bytes that may be moved in an interval.
    fn bytes(self) -> u64 {
        (u64::from(self.rate_limit_mb_s) << 20) * u64::from(self.interval_ms) / 1000
    }
}

/// Pages that are submitted together, 4 KiB pages: those that Linux unmaps together (`NR_MAX_BATCHED_MIGRATION`).
const BATCH: u64 = 512;

/// Placement by the tiers' latencies.
#[derive(Debug)]
pub struct Balancer {
    parameters: Balance,
    pages: Pages,
    sampler: Ksampled,
    latencies: Latencies,
    step: Step,
    /// Bytes that may be moved now: what is not enough for a page and its victim is kept.
    allowed: u64,
    /// When the latencies are compared next, ns.
    due: u64,
    intervals: u64,
}

impl Balancer {
    /// A mechanism that has seen no sample yet.
    #[must_use]
    pub fn new(setup: &Setup, parameters: Balance) -> Self {
        Self {
            parameters,
            pages: Pages::new(setup),
            sampler: Ksampled::new(),
            latencies: Latencies::new(setup.tiers),
            step: Step::new(),
            allowed: 0,
            due: parameters.interval_ns(),
            intervals: 0,
        }
    }

    /// Compares the latencies of the interval, and shifts accesses if they differ.
    fn compare(&mut self, context: &mut Context) {
        self.intervals += 1;
        let unit = 4096 * context.setup().pages_per_unit * context.setup().scale;
        let more = self.parameters.bytes();
        self.allowed = (self.allowed + more).min(more.max(2 * unit));
        let unequal = self.latencies.unequal(context);
        self.latencies.reset();
        // What is under way still changes the latencies.
        if context.migrating() > 0 {
            return;
        }
        let Some((from, to)) = unequal else {
            return;
        };
        let part = self.step.next(from, to);
        let shift = Shift {
            from,
            to,
            part,
            most: self.allowed / unit,
        };
        let (leave, come) = self.pages.pick(context, shift);
        self.allowed -= (leave.len() + come.len()) as u64 * unit;
        submit(context, &leave, &come, from);
    }
}

/// Sends pages batch by batch; first those of the direction that finds room.
fn submit(context: &mut Context, leave: &[(Unit, u8)], come: &[(Unit, u8)], from: u8) {
    let batch = to_usize((BATCH / context.setup().pages_per_unit).max(1));
    let (mut leaving, mut coming) = (leave.chunks(batch), come.chunks(batch));
    let mut come_first = context.free(from) > 0;
    loop {
        let (a, b) = (coming.next(), leaving.next());
        if a.is_none() && b.is_none() {
            return;
        }
        let (first, second) = if come_first { (a, b) } else { (b, a) };
        for pages in [first, second].into_iter().flatten() {
            context.submit(pages, MigrationMode::Unmap);
        }
        come_first = true;
    }
}

impl Mechanism for Balancer {
    fn run_quantum(&mut self, context: &mut Context) {
        if !self.sampler.has_begun() {
            self.sampler.begin(context);
            self.pages.list_all(context);
        }
        self.sampler.keep_quota(context);
        self.latencies.measure(context);
        if context.now_ns() >= self.due {
            self.due = context.now_ns() + self.parameters.interval_ns();
            self.compare(context);
        }
    }

    fn samples(&mut self, context: &mut Context, samples: &[Sample]) {
        let work = samples.len() as u64 * context.costs().sample_work;
        context.spend(Stage::Track, work);
        self.sampler.spent(work);
        for sample in samples {
            let unit = context.unit_of_page(sample.page);
            self.pages.count(context, unit);
        }
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            self.pages.list(context, moved.unit);
        }
    }

    fn displaced(&mut self, context: &mut Context, unit: Unit, _: u8) {
        self.pages.list(context, unit);
    }

    fn rounds(&self) -> u64 {
        self.intervals
    }

    fn heap_bytes(&self) -> usize {
        self.pages.heap_bytes()
    }
}
