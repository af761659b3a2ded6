//! The demand of VMs: when their accesses are tracked, and what tracking found.
//!
//! Responsible for: the phases, the swapping and the shortness of each VM under a policy that observes protection
//! faults; when tracking begins, rests and ends (HPMBS §4.1). It leaves to others: distances and curves
//! ([`crate::demand`]), and taking permissions away.

use terrace_proto::{Action, FaultReport, Protection, Tick, VmId, VmStatistics};

use super::view::{DemandEstimate, DemandView, TrackingView};
use super::vm::Vm;
use super::{Engine, Shared};
use crate::config::EngineConfig;
use crate::demand::{
    Curve, DemandConfig, PhaseChange, Phases, REDUCED_POINTS, Swap, Track, Tracker, WorkingSet,
    rest_ns,
};
use crate::policy::Observe;
use crate::ram::Ram;

/// Pages in a block of 2 MiB.
const BLOCK_PAGES: u64 = terrace_proto::PAGES_PER_HUGE;

/// Bytes of a block.
const BLOCK_BYTES: u64 = BLOCK_PAGES * terrace_proto::PAGE_SIZE;

/// Reports of statistics in a second.
const REPORTS: u32 = 10;

/// A VM with less of its memory free than one part of so many is short: 5 % (HPMBS §4.1).
const SHORT_PART: u64 = 20;

/// Changes of phase that are remembered.
const MAX_CHANGES: usize = 256;

/// The state of tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    Off,
    /// With the time and the statistics at its start.
    On(Tick, VmStatistics),
    /// Too much of the VM's time was spent on it.
    Resting(Tick),
}

/// The demand of one VM.
#[derive(Debug)]
pub(crate) struct Demand {
    config: DemandConfig,
    tracker: Tracker,
    tracking: Tracking,
    phases: Phases,
    swap: Swap,
    last: Option<VmStatistics>,
    /// Loads and stores of the VM, by the newest event.
    accesses: u64,
    /// Reports since the last second ended.
    reports: u32,
    estimate: Option<DemandEstimate>,
    changes: Vec<(Tick, PhaseChange)>,
    /// Number of rests, and their time, ns.
    rests: (u64, u64),
}

impl Demand {
    /// A VM with this RAM that was not seen yet; `None` if its policy does not observe protection faults.
    pub fn new(observe: Observe, ram: &Ram, config: &EngineConfig) -> Option<Box<Self>> {
        if observe != Observe::ProtectionFaults {
            return None;
        }
        let blocks = u32::try_from(ram.span_pages().div_ceil(BLOCK_PAGES)).unwrap_or(u32::MAX);
        // The engine's configuration was checked.
        let phases = config.demand.phases().unwrap_or_default();
        Some(Box::new(Self {
            config: config.demand,
            tracker: Tracker::new(&config.demand, blocks),
            tracking: Tracking::Off,
            phases: Phases::new(phases),
            swap: Swap::default(),
            last: None,
            accesses: 0,
            reports: 0,
            estimate: None,
            changes: Vec::new(),
            rests: (0, 0),
        }))
    }

    /// Takes in the statistics of a tenth of a second; at the end of a second, the time that tracking is to rest from
    /// now on, ns.
    fn report(&mut self, now: Tick, seen: &VmStatistics) -> Option<u64> {
        let before = self.last.replace(*seen);
        self.accesses = self.accesses.max(seen.accesses);
        let walks = seen.walks.saturating_sub(before.map_or(0, |b| b.walks));
        if let Some(change) = self.phases.window(walks)
            && self.changes.len() < MAX_CHANGES
        {
            self.changes.push((now, change));
        }
        self.reports += 1;
        if self.reports < REPORTS {
            return None;
        }
        self.reports = 0;
        self.end_second(now, seen);
        self.rest(now, seen)
    }

    fn end_second(&mut self, now: Tick, seen: &VmStatistics) {
        self.swap.add(seen.used_swap_bytes);
        // A guest that swaps says how much it wants without being tracked.
        let set = match self.tracker.is_on() {
            true => self.tracker.end_second(),
            false if self.swap.is_swapping() => WorkingSet::default(),
            false => {
                // What it wanted while it swapped it wants no more.
                self.estimate = self.estimate.filter(|last| !last.is_swapping);
                return;
            }
        };
        let bytes = |blocks: u64| blocks * BLOCK_BYTES;
        let demand_bytes = match self.swap.wanted_bytes() {
            0 => bytes(set.wanted()),
            beyond => seen.total_bytes.saturating_add(beyond),
        };
        self.estimate = Some(DemandEstimate {
            at: now,
            tracked: set.tracked,
            footprint_bytes: bytes(set.footprint),
            most_95_bytes: bytes(set.most_95),
            most_99_bytes: bytes(set.most_99),
            all_bytes: bytes(set.all),
            is_swapping: self.swap.is_swapping(),
            demand_bytes,
        });
    }

    /// The time that tracking rests from now on, ns, if the largest hot set still costs too much.
    fn rest(&self, now: Tick, seen: &VmStatistics) -> Option<u64> {
        let Tracking::On(since, start) = self.tracking else {
            return None;
        };
        if !self.tracker.hot_set().is_at_most() {
            return None;
        }
        let elapsed = now.0.saturating_sub(since.0);
        let spent = u128::from(seen.tracking_ns.saturating_sub(start.tracking_ns));
        let cpu = u128::from(seen.cpu_ns.saturating_sub(start.cpu_ns));
        let share = (spent * u128::from(elapsed)).checked_div(cpu)?;
        let spent = u64::try_from(share).unwrap_or(u64::MAX);
        let rest = rest_ns(spent, elapsed, self.config.max_tracking_percent);
        (rest > 0).then_some(rest)
    }

    /// Whether the guest lacks memory: it swaps, or nearly nothing is free.
    fn is_short(&self) -> bool {
        let scarce = |seen: &VmStatistics| seen.free_bytes < seen.total_bytes / SHORT_PART;
        self.swap.is_swapping() || self.last.as_ref().is_some_and(scarce)
    }

    pub fn heap_bytes(&self) -> usize {
        self.tracker.heap_bytes()
    }

    /// The last second's estimate, if there is one.
    pub fn estimate(&self) -> Option<DemandEstimate> {
        self.estimate
    }

    /// Whether the phase lasts.
    pub fn is_stable(&self) -> bool {
        self.phases.is_stable()
    }

    /// The curve of all that was tracked so far.
    pub fn curve(&self, now: Tick) -> Option<Curve> {
        self.tracker.curve(now.0, self.accesses)
    }

    fn view(&self, now: Tick) -> DemandView {
        let curve = self.curve(now);
        DemandView {
            tracking: match self.tracking {
                Tracking::Off => TrackingView::Off,
                Tracking::On(..) => TrackingView::On,
                Tracking::Resting(_) => TrackingView::Resting,
            },
            tracked_faults: self.tracker.faults(),
            known_blocks: self.tracker.known_blocks(),
            hot_set_pages: self.tracker.hot_set().size(),
            largest_hot_set_pages: self.tracker.hot_set().largest(),
            rests: self.rests.0,
            rest_ns: self.rests.1,
            phases: self.phases.began(),
            is_stable: self.phases.is_stable(),
            changes: self.changes.clone(),
            estimate: self.estimate,
            curve: curve.map(|curve| curve.reduced(REDUCED_POINTS)),
        }
    }
}

impl Vm {
    /// Takes in faults. Faults that came after tracking ended say nothing.
    fn faulted(&mut self, report: &FaultReport, shared: &mut Shared) {
        let Some(demand) = &mut self.observer.demand else {
            return;
        };
        demand.accesses = demand.accesses.max(report.accesses);
        let mut blocks = Vec::new();
        for block in &report.blocks {
            demand.tracker.track(*block, report.accesses, &mut blocks);
        }
        // One that left and came back within one report is hot.
        blocks.retain(|block| !demand.tracker.hot_set().contains(*block));
        let span = self.pages.ram().span_pages().div_ceil(BLOCK_PAGES);
        let wrong = report.blocks.iter().filter(|b| u64::from(**b) >= span);
        self.history.counters.malformed_answers += wrong.count() as u64;
        if !blocks.is_empty() {
            let vm = self.id;
            shared.act(Action::Protect(Protection { vm, blocks }));
        }
    }

    fn statistics(&mut self, now: Tick, seen: &VmStatistics, shared: &mut Shared) {
        let Some(demand) = &mut self.observer.demand else {
            return;
        };
        let Some(rest) = demand.report(now, seen) else {
            return;
        };
        let until = Tick(now.0.saturating_add(rest));
        demand.rests = (demand.rests.0 + 1, demand.rests.1.saturating_add(rest));
        let (percent, ms) = (demand.config.max_tracking_percent, rest / 1_000_000);
        let text = format!(
            "tracking rests for {ms} ms: with the largest hot set it takes more than {percent} % of the VM's time"
        );
        self.history.say(now, text);
        self.stop_tracking(now, Tracking::Resting(until), shared);
    }

    /// Begins or ends tracking, as all VMs together need it.
    fn follow(&mut self, now: Tick, wanted: bool, shared: &mut Shared) {
        let wanted = wanted && !self.settings.paused && !self.unmapped;
        let Some(demand) = &mut self.observer.demand else {
            return;
        };
        match (demand.tracking, demand.last) {
            (Tracking::Off, Some(last)) if wanted => self.track_all(now, last, shared),
            (Tracking::Resting(until), Some(last)) if wanted && until <= now => {
                self.track_all(now, last, shared);
            }
            (Tracking::On(..), _) if !wanted => self.stop_tracking(now, Tracking::Off, shared),
            (Tracking::Resting(_), _) if !wanted => demand.tracking = Tracking::Off,
            _ => {}
        }
    }

    fn track_all(&mut self, now: Tick, last: VmStatistics, shared: &mut Shared) {
        let Some(demand) = &mut self.observer.demand else {
            return;
        };
        demand.tracking = Tracking::On(now, last);
        // A second of which a part was not tracked has no working set.
        demand.reports = 0;
        demand.tracker.begin(now.0, demand.accesses);
        let ram = self.pages.ram();
        let blocks = 0..ram.span_pages().div_ceil(BLOCK_PAGES);
        let exists = |block: &u64| ram.runs(block * BLOCK_PAGES, BLOCK_PAGES).next().is_some();
        let blocks = blocks.filter(exists).filter_map(|b| u32::try_from(b).ok());
        shared.act(Action::Protect(Protection {
            vm: self.id,
            blocks: blocks.collect(),
        }));
    }

    fn stop_tracking(&mut self, now: Tick, next: Tracking, shared: &mut Shared) {
        let Some(demand) = &mut self.observer.demand else {
            return;
        };
        demand.tracker.end(now.0, demand.accesses);
        demand.tracking = next;
        shared.act(Action::Unprotect(self.id));
    }
}

impl Engine {
    pub(super) fn faulted(&mut self, report: &FaultReport) {
        self.with(report.vm, |vm, shared| vm.faulted(report, shared));
    }

    /// Takes in the statistics of one VM, and decides whether all are tracked: from a phase that changes while some VM
    /// is short of memory, until no phase changes. Each VM follows at its own statistics: a stretch of tracking begins
    /// with the number of its accesses, and only these are of now.
    pub(super) fn statistics(&mut self, now: Tick, seen: &VmStatistics) {
        self.with(seen.vm, |vm, shared| vm.statistics(now, seen, shared));
        let demands = || {
            self.vms
                .values()
                .filter_map(|vm| vm.observer.demand.as_deref())
        };
        let wanted = match self.shared.config.demand.track {
            Track::Always => true,
            Track::Auto => {
                let changing = demands().any(|demand| demand.phases.is_changing());
                changing && (self.tracks || demands().any(Demand::is_short))
            }
        };
        self.tracks = wanted;
        self.with(seen.vm, |vm, shared| vm.follow(now, wanted, shared));
    }

    /// The demand of a VM; `None` if its policy does not track it.
    #[must_use]
    pub fn demand(&self, vm: VmId) -> Option<DemandView> {
        let demand = self.vms.get(&vm)?.observer.demand.as_deref()?;
        Some(demand.view(self.shared.now))
    }

    /// The last second's estimate of a VM's demand, if there is one.
    #[must_use]
    pub fn demand_estimate(&self, vm: VmId) -> Option<DemandEstimate> {
        self.vms.get(&vm)?.observer.demand.as_ref()?.estimate()
    }
}
