//! The demand of a VM in a run's result, of the full-size machine.

use serde::Serialize;
use terrace_core::demand::{Curve, CurveSource, PhaseChange};
use terrace_core::{DemandEstimate, DemandView, TrackingView};
use terrace_proto::Tick;

use crate::base::number::float;

/// Working sets that a result may have; of more seconds every other one is dropped.
const MAX_WORKING_SETS: usize = 1024;

/// The working sets of a VM, one a second, or fewer of a long run.
#[derive(Clone, Debug)]
pub(super) struct WorkingSets {
    sets: Vec<DemandEstimate>,
    /// Seconds for each one that is stored.
    every: u64,
    seen: u64,
    last: Option<Tick>,
}

impl Default for WorkingSets {
    fn default() -> Self {
        Self {
            sets: Vec::new(),
            every: 1,
            seen: 0,
            last: None,
        }
    }
}

impl WorkingSets {
    /// Takes in the newest estimate, which may be known already.
    pub fn add(&mut self, estimate: DemandEstimate) {
        if self.last == Some(estimate.at) {
            return;
        }
        self.last = Some(estimate.at);
        if self.seen.is_multiple_of(self.every) {
            self.sets.push(estimate);
        }
        self.seen += 1;
        if self.sets.len() == MAX_WORKING_SETS {
            let mut number = 0_usize;
            self.sets.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.every *= 2;
        }
    }
}

/// The demand of a VM as protection faults showed it.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct Demand {
    /// Whether it was tracked at the end: `on`, `off`, or `resting`.
    pub tracking: String,
    /// Faults that were tracked.
    pub tracked_faults: u64,
    /// Bytes of the hot set at the end.
    pub hot_set_bytes: u64,
    /// Bytes of the largest hot set.
    pub largest_hot_set_bytes: u64,
    /// Number of times that tracking rested because it took too much of the VM's time.
    pub rests: u64,
    /// Time of these rests, s; the last one may end after the run.
    pub rest_s: f64,
    /// The misses of each size of memory; `None` if nothing was tracked.
    pub curve: Option<DemandCurve>,
    /// The memory used in each second in which accesses were tracked; of a long run, in every n-th of them.
    pub working_sets: Vec<WorkingSetAt>,
    /// The changes of phase, the first 256.
    pub phases: Vec<PhaseAt>,
}

/// A miss-ratio curve.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct DemandCurve {
    /// The way in which it was found: `restored`, or `tracked` if the hot set is too small to restore the others.
    pub source: String,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Loads and stores while it was tracked, those that were not tracked themselves among them.
    pub accesses: u64,
    /// Time of tracking, s.
    pub span_s: f64,
    /// Bytes by which a feature of the curve may lie further left or right.
    pub resolution_bytes: u64,
    /// Bytes below which the curve is a guess.
    pub guess_below_bytes: u64,
    /// The points, at most 256, by size; on lines between them.
    pub points: Vec<DemandPoint>,
}

/// The misses of one size of memory.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct DemandPoint {
    /// Pages of `page_bytes`.
    pub pages: u64,
    /// Bytes.
    pub bytes: u64,
    /// Share of the accesses that miss.
    pub miss_ratio: f64,
    /// Misses a second.
    pub misses_per_s: f64,
}

/// The memory that a VM used in one second.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct WorkingSetAt {
    /// End of the second, s.
    pub at_s: f64,
    /// Faults that were tracked in it.
    pub tracked_faults: u64,
    /// Memory that was tracked, or in the hot set, bytes.
    pub footprint_bytes: u64,
    /// Memory that 95 % of the tracked reuses need, bytes.
    pub bytes_95: u64,
    /// Memory that 99 % of the tracked reuses need, bytes.
    pub bytes_99: u64,
    /// Memory that all tracked reuses need, bytes.
    pub bytes_100: u64,
    /// Whether the guest swapped.
    pub is_swapping: bool,
    /// The demand, bytes: `bytes_99` (the footprint if no reuse was tracked), or the VM's size and its used swap while
    /// it swaps.
    pub demand_bytes: u64,
}

/// A change of phase.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct PhaseAt {
    /// The time, s.
    pub at_s: f64,
    /// `began`, or `stable`.
    pub change: String,
}

impl DemandCurve {
    /// Whether no size of the curve is more than a guess.
    #[must_use]
    pub fn is_all_guess(&self) -> bool {
        let last = self.points.last();
        last.is_none_or(|point| point.bytes < self.guess_below_bytes)
    }
}

impl Demand {
    /// Reasons for which less can be believed of it than it seems, each a sentence's end without a full stop.
    #[must_use]
    pub fn cautions(&self) -> Vec<&'static str> {
        let Some(curve) = &self.curve else {
            return vec![
                "never tracked: no VM was short of memory while a phase changed; engine.demand.track = \"always\" measures",
            ];
        };
        let mut cautions = Vec::new();
        if curve.source == CurveSource::Tracked.name() {
            cautions.push(
                "nothing is restored, because at this scale the hot set has 20 pages or fewer: the curve is of tracked \
                 accesses alone",
            );
        }
        if curve.is_all_guess() {
            cautions.push(
                "all of the curve is a guess, because it ends below twice the largest hot set: a smaller \
                 engine.demand.hot_set_pages with resize_hot_set = false shows more, for more faults",
            );
        }
        if self.tracking == "resting" {
            cautions.push(
                "the last rest outlives the run: let the run be 20 times as long as a tracked second takes, or set \
                 engine.demand.max_tracking_percent = 100",
            );
        }
        cautions
    }

    /// The demand of a VM of a machine at a scale.
    pub(super) fn of(view: DemandView, sets: &WorkingSets, scale: u64) -> Self {
        let blocks = |blocks: u32| u64::from(blocks) * (2 << 20) * scale;
        let change = |(at, change): &(Tick, PhaseChange)| PhaseAt {
            at_s: seconds(at.0),
            change: match change {
                PhaseChange::Began => "began".into(),
                PhaseChange::Stable => "stable".into(),
            },
        };
        Self {
            tracking: match view.tracking {
                TrackingView::Off => "off".into(),
                TrackingView::On => "on".into(),
                TrackingView::Resting => "resting".into(),
            },
            tracked_faults: view.tracked_faults * scale,
            hot_set_bytes: blocks(view.hot_set_pages),
            largest_hot_set_bytes: blocks(view.largest_hot_set_pages),
            rests: view.rests,
            rest_s: seconds(view.rest_ns),
            curve: view.curve.map(|found| curve(&found, scale)),
            working_sets: sets
                .sets
                .iter()
                .map(|set| working_set(set, scale))
                .collect(),
            phases: view.changes.iter().map(change).collect(),
        }
    }
}

fn seconds(ns: u64) -> f64 {
    float(ns) / 1e9
}

fn curve(found: &Curve, scale: u64) -> DemandCurve {
    let bytes = |pages: u32| u64::from(pages) * found.page_bytes * scale;
    let point = |point: &terrace_core::demand::Point| DemandPoint {
        pages: u64::from(point.pages) * scale,
        bytes: bytes(point.pages),
        miss_ratio: float(point.misses) / float(found.accesses.max(1)),
        misses_per_s: float(point.misses * scale) / seconds(found.span_ns.max(1)),
    };
    DemandCurve {
        source: found.source.name().into(),
        page_bytes: found.page_bytes,
        accesses: found.accesses * scale,
        span_s: seconds(found.span_ns),
        resolution_bytes: bytes(found.resolution_pages),
        guess_below_bytes: bytes(found.guess_below_pages),
        points: found.points().iter().map(point).collect(),
    }
}

fn working_set(set: &DemandEstimate, scale: u64) -> WorkingSetAt {
    WorkingSetAt {
        at_s: seconds(set.at.0),
        tracked_faults: set.tracked * scale,
        footprint_bytes: set.footprint_bytes * scale,
        bytes_95: set.most_95_bytes * scale,
        bytes_99: set.most_99_bytes * scale,
        bytes_100: set.all_bytes * scale,
        is_swapping: set.is_swapping,
        demand_bytes: set.demand_bytes * scale,
    }
}
