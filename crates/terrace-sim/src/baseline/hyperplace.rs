//! `hyperplace`: the engine's own ranges (`terrace_core::hyperplace`) in a guest, by samples of the
//! processor's counters. No baseline, but it lives as they do.
//!
//! - Trigger: an epoch, 500 ms (HyperTier §4.2.2). Samples: each 4093rd load and store, of what the guest's
//!   kernel finds at context switches; no interrupt while the buffer lasts (§4.2.1).
//! - Threshold: ranges by accesses per byte, fitted to what the node holds.
//! - Rate limit: what one thread moves. What it has not begun when the next epoch ends is planned anew: first
//!   plans are made by ranges that are still large.
//! - Victim: the pages of the coldest ranges. Pages change places, so no free page is needed (§4.2.4).

use terrace_core::hyperplace::{Held, Params, Plan, Range, RangeTree, Ranked, Share, rank};

use super::{Ground, Mechanism, Pmu, Sample, Setup, Stage, Travelling, Unit};
use crate::number::{index, low, place};

/// What a scenario may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Loads per sample, and stores per sample.
    pub period: u64,
    /// Length of an epoch, ms.
    pub epoch_ms: u32,
    /// τ_split: accesses per vCPU and epoch.
    pub tau_split: u32,
}

impl Tuning {
    /// HyperTier §4.2.1, §4.2.2.
    pub const PAPER: Self = Self {
        period: 4093,
        epoch_ms: 500,
        tau_split: 15,
    };
}

/// Records that a buffer of 64 KiB holds (`PEBS_BUFFER_SIZE`, arch/x86/events/intel/ds.c; 192 bytes a record):
/// a context switch comes earlier.
const BUFFER: usize = 340;

/// What a process may use between its heap's start and the base of its mappings (§4.2.2), bytes.
const ROOT: u64 = 40 << 40;

/// Part of the fast node that stays free for its kernel: between the low and the high watermark.
const KEPT: u64 = 500;

/// Pages of the full-size machine that are sent at a time: some hundred milliseconds of one thread's work, less
/// than an epoch.
const SENT: u64 = 16_384;

/// Pairs that are sent at least: as many as are unmapped together at any scale.
const LEAST_PAIRS: u64 = 16;

/// HyperPlace in one guest with one process.
pub struct Hyperplace {
    period: u64,
    params: Params,
    tree: RangeTree,
    /// First page of the load in the tree: memory that is mapped lies at the root's end.
    base: u64,
    pages_per_unit: u64,
    due: u64,
    started: bool,
    /// What the last plan has left: units that go up, and those that they change places with, the next one
    /// last. Those without a partner go into what is free.
    up: Vec<Unit>,
    down: Vec<Unit>,
}

impl Hyperplace {
    /// One root over all that the process could map.
    #[must_use]
    pub fn new(setup: &Setup, tuning: Tuning) -> Self {
        let paper = Params::paper(setup.vcpus);
        let params = Params {
            epoch_ms: tuning.epoch_ms,
            tau_split: tuning.tau_split,
            granularity: (paper.granularity / setup.scale).max(setup.pages_per_unit),
            ..paper
        };
        let pages = u64::from(setup.units) * setup.pages_per_unit;
        let root = (ROOT / terrace_proto::PAGE_SIZE / setup.scale).max(pages);
        Self {
            period: tuning.period,
            params,
            tree: RangeTree::new(
                params,
                &[Range {
                    start: 0,
                    end: root,
                }],
            ),
            base: root - pages,
            pages_per_unit: setup.pages_per_unit,
            due: u64::from(params.epoch_ms) * 1_000_000,
            started: false,
            up: Vec::new(),
            down: Vec::new(),
        }
    }

    fn epoch(&mut self, ground: &mut Ground) {
        self.tree.end_epoch();
        let ranked = rank(&[&self.tree]);
        let leaves = self.tree.len() as u64;
        ground.spend_by_clock(Stage::Classify, leaves * ground.costs().lru_page);
        self.plan(ground, &ranked);
        self.tree.decay();
    }

    fn plan(&mut self, ground: &mut Ground, ranked: &[Ranked]) {
        let placed = Placed::walk(ground);
        let held: Vec<Held> = ranked
            .iter()
            .map(|range| placed.held(self.units_of(range, ground.units())))
            .collect();
        let kept = ground.node(0) / KEPT;
        let free = ground.free(0).saturating_sub(kept);
        let plan = Plan::new(ranked, &held, ground.held(0) + free, free);
        let units = |shares: &[Share], fast: bool| {
            let mut units: Vec<Unit> = Vec::new();
            for share in shares {
                let of = self.units_of(&ranked[share.rank], ground.units());
                let wanted = of.filter(|unit| placed.fast[index(*unit)] == fast);
                units.extend(wanted.take(place(share.pages)));
            }
            units.reverse();
            units
        };
        (self.up, self.down) = (units(&plan.promote, false), units(&plan.demote, true));
    }

    /// Sends the next pages of the plan.
    fn send(&mut self, ground: &mut Ground) {
        let last = low(ground.setup().tiers as u64).saturating_sub(1);
        let slow = u8::try_from(last).unwrap_or(1);
        let most = SENT / ground.setup().scale / self.pages_per_unit;
        let (mut alone, mut pairs) = (Vec::new(), Vec::new());
        for _ in 0..(most / 2).max(LEAST_PAIRS) {
            // The hottest go into what is free.
            let partner = (self.up.len() <= self.down.len()).then(|| self.down.pop());
            match (self.up.pop(), partner.flatten()) {
                (Some(up), Some(down)) => {
                    let from = ground.tier(up).unwrap_or(slow);
                    pairs.extend([(up, 0), (down, from)]);
                }
                (Some(up), None) => alone.push((up, 0)),
                (None, _) => break,
            }
        }
        ground.submit(&alone, Travelling::Unmap);
        ground.submit(&pairs, Travelling::Exchange);
    }

    /// Units of the load in a range.
    fn units_of(&self, range: &Ranked, units: u32) -> std::ops::Range<Unit> {
        let unit = |page: u64| {
            low(page.saturating_sub(self.base).div_ceil(self.pages_per_unit)).min(units)
        };
        unit(range.leaf.range.start)..unit(range.leaf.range.end)
    }
}

impl Mechanism for Hyperplace {
    fn pass(&mut self, ground: &mut Ground) {
        if !self.started {
            self.started = true;
            let scale = ground.setup().scale;
            ground.sample(Some(Pmu {
                load_period: self.period,
                store_period: self.period,
                buffer: BUFFER,
                divisor: scale,
            }));
        }
        if ground.now_ns() >= self.due {
            self.due += u64::from(self.params.epoch_ms) * 1_000_000;
            self.epoch(ground);
        }
        if ground.travelling() == 0 {
            self.send(ground);
        }
    }

    fn samples(&mut self, ground: &mut Ground, samples: &[Sample]) {
        let work = samples.len() as u64 * ground.costs().sample_work;
        ground.spend_by_clock(Stage::Track, work);
        for sample in samples {
            self.tree.count(self.base + u64::from(sample.page));
        }
    }

    fn rounds(&self) -> u64 {
        u64::from(self.tree.epoch())
    }

    fn heap_bytes(&self) -> usize {
        let planned = self.up.capacity() + self.down.capacity();
        self.tree.heap_bytes() + planned * size_of::<Unit>()
    }
}

/// Which units are in fast memory, by a walk of the process's tables.
struct Placed {
    fast: Vec<bool>,
    /// Fast ones before each unit.
    before: Vec<u32>,
}

impl Placed {
    fn walk(ground: &mut Ground) -> Self {
        let units = ground.units();
        let fast: Vec<bool> = (0..units)
            .map(|unit| ground.tier(unit) == Some(0))
            .collect();
        ground.spend(Stage::Classify, u64::from(units) * ground.costs().scan_leaf);
        let mut before = Vec::with_capacity(fast.len() + 1);
        before.push(0);
        for fast in &fast {
            before.push(before.last().copied().unwrap_or(0) + u32::from(*fast));
        }
        Self { fast, before }
    }

    fn held(&self, units: std::ops::Range<Unit>) -> Held {
        let fast = u64::from(self.before[index(units.end)] - self.before[index(units.start)]);
        Held {
            fast,
            slow: u64::from(units.end - units.start) - fast,
        }
    }
}
