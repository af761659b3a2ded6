//! `memtierd`: Intel's daemon for tiers of a process's memory (github.com/intel/memtierd), which watches QEMU
//! from user space. Two of its policies, each as configured in its README (cmd/memtierd/README.md).
//!
//! - Trigger: the tracker `idlepage` scans all pages every 5 s (heat) or 4 s (age), and counts per region
//!   of 256 pages; a policy decides every 10 s (heat) or 5 s (age), if nothing is being moved.
//! - Threshold, heat (`policy_heat.go`, `counters_heatmap.go`): accesses per page, of which 0.8 remain each second;
//!   0.01 or more is the highest heat. Of four classes the highest goes to the first tier, the lowest to the last.
//! - Threshold, age (`policy_age.go`): pages accessed at each of the last three decisions go to the first tier, pages
//!   accessed at none for 15 s to the last. While there are idle pages to move, no active ones are moved.
//! - Rate limit (`mover.go`): at most 1,024 pages of one task, every 20 ms (200 MB/s). A task of the heat
//!   policy is a region, so it moves 256 at a time; one of the age policy is a run of regions.
//! - Victim: none is searched for. The mover takes the last request first, which under the heat policy is the coldest
//!   region; a page that finds no room stays.

use super::{Context, Mechanism, MigrationMode, Setup, Stage, Unit};
use crate::base::number::{float, low, to_usize};

/// Pages of a region (`PagesInRegion`): not divided by the scale, because it determines which pages share their fate.
const REGION: u64 = 256;

/// Time between two turns of the mover (`Mover.IntervalMs`), ns, and the 4 KiB pages that it moves in it at
/// `Mover.Bandwidth`.
const MOVE_EVERY: u64 = 20_000_000;
const MOVE_PAGES: u64 = 200 * 256 * 20 / 1000;

/// `HeatMax`, `HeatClasses`, and `HeatRetention` 0.8 a second over 10 s.
const HEAT_MAX: f64 = 0.01;
const CLASSES: f64 = 4.0;
const RETENTION: f64 = 0.107_374_182_4;

/// Idle time that sends pages down (`IdleDurationMs`), ns, and the decisions in `ActiveDurationMs` (10 s), the
/// present one included.
const IDLE: u64 = 15_000_000_000;
const ACTIVE: u8 = 0b111;

/// Pages of the shortest run that the age policy moves.
const MIN_RUN: u64 = 100;

/// The policy that decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The heat policy.
    Heat,
    /// The age policy.
    Age,
}

/// The state of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    /// Accessed pages that the tracker counted since the last decision.
    accesses: u32,
    heat: f64,
    /// The tier in which the heat policy believes the region to be.
    tier: Option<u8>,
    /// The decisions before which the region was accessed, one bit each, the last in bit 0.
    rounds: u8,
    /// When the region was last seen accessed, ns.
    changed: u64,
}

/// Pages that are to be moved.
#[derive(Debug)]
struct Task {
    units: Vec<Unit>,
    done: usize,
    to: u8,
}

/// The daemon memtierd.
#[derive(Debug)]
pub struct Memtierd {
    policy: Policy,
    regions: Vec<Region>,
    /// Units of a region.
    region: u32,
    next: Unit,
    scanning: bool,
    scan_at: u64,
    decide_at: u64,
    move_at: u64,
    /// Tasks, taken from the end.
    tasks: Vec<Task>,
    last: u8,
    decisions: u64,
}

impl Memtierd {
    /// A daemon that knows nothing of any page yet.
    #[must_use]
    pub fn new(setup: &Setup, policy: Policy) -> Self {
        let region = low((REGION / setup.pages_per_unit).max(1));
        let (scan, decide) = periods(policy);
        Self {
            policy,
            regions: vec![Region::default(); to_usize(u64::from(setup.units.div_ceil(region)))],
            region,
            next: 0,
            scanning: false,
            scan_at: scan,
            decide_at: decide,
            move_at: 0,
            tasks: Vec::new(),
            last: u8::try_from(setup.tiers).map_or(0, |tiers| tiers - 1),
            decisions: 0,
        }
    }

    /// Continues the scan of the pages.
    fn scan(&mut self, context: &mut Context) {
        let page = 2 * (context.costs().query_page + context.costs().lru_page);
        while self.next < context.units() {
            if !context.has_time() {
                return;
            }
            // Its place in the process, and its idle bit, are found to read it and again to set it.
            context.spend(Stage::Track, page);
            let young = context.young(self.next);
            self.regions[to_usize(u64::from(self.next / self.region))].accesses += u32::from(young);
            self.next += 1;
        }
        self.next = 0;
        self.scanning = false;
    }

    fn units_of(&self, context: &Context, region: usize) -> std::ops::Range<Unit> {
        let first = low(region as u64) * self.region;
        first..(first + self.region).min(context.units())
    }

    fn decide(&mut self, context: &mut Context) {
        self.decisions += 1;
        let work = self.regions.len() as u64 * context.costs().classify_page;
        context.spend(Stage::Classify, work);
        let now = context.now_ns();
        for region in &mut self.regions {
            let accesses = std::mem::take(&mut region.accesses);
            let heat = (f64::from(accesses) / float(REGION)).min(HEAT_MAX);
            region.heat = (heat + region.heat * RETENTION).min(HEAT_MAX);
            region.rounds = region.rounds << 1 | u8::from(accesses > 0);
            if accesses > 0 {
                region.changed = now;
            }
        }
        if !self.tasks.is_empty() || context.migrating() > 0 {
            return;
        }
        match self.policy {
            Policy::Heat => self.by_heat(context),
            Policy::Age => self.by_age(context),
        }
    }

    /// Asks for moves by heat (`startMovesFillFastFree`): regions from hot to cold, each a task if it seems to be
    /// elsewhere.
    fn by_heat(&mut self, context: &Context) {
        let mut order: Vec<usize> = (0..self.regions.len()).collect();
        let heat = |at: &usize| self.regions[*at].heat;
        order.sort_by(|a, b| heat(b).total_cmp(&heat(a)).then(a.cmp(b)));
        for at in order {
            let class = self.regions[at].heat * CLASSES / HEAT_MAX;
            let to = if class >= CLASSES - 1.0 {
                0
            } else if class < 1.0 {
                self.last
            } else {
                continue;
            };
            let units = self.units_of(context, at);
            // A region that it did not query before is where its last page is.
            let is = self.regions[at].tier;
            let is = is.or_else(|| units.clone().rev().find_map(|unit| context.tier(unit)));
            // Once asked for, it counts as done.
            self.regions[at].tier = Some(to).filter(|_| is.is_some());
            if is.is_some_and(|is| is != to) {
                self.add(units.collect(), to);
            }
        }
    }

    /// Asks for moves by age: idle regions, or if there are none to move, active ones; neighbours together.
    fn by_age(&mut self, context: &Context) {
        let now = context.now_ns();
        self.runs(context, self.last, |region| region.changed + IDLE < now);
        if self.tasks.is_empty() {
            self.runs(context, 0, |region| region.rounds & ACTIVE == ACTIVE);
        }
    }

    fn runs(&mut self, context: &Context, to: u8, picked: impl Fn(&Region) -> bool) {
        let mut run = Vec::new();
        for at in 0..self.regions.len() {
            if picked(&self.regions[at]) {
                let elsewhere = |unit: &Unit| context.tier(*unit).is_some_and(|tier| tier != to);
                run.extend(self.units_of(context, at).filter(elsewhere));
            } else {
                self.add_run(context, std::mem::take(&mut run), to);
            }
        }
        self.add_run(context, run, to);
    }

    fn add_run(&mut self, context: &Context, run: Vec<Unit>, to: u8) {
        if run.len() as u64 * context.setup().pages_per_unit > MIN_RUN {
            self.add(run, to);
        }
    }

    fn add(&mut self, units: Vec<Unit>, to: u8) {
        let done = 0;
        self.tasks.push(Task { units, done, to });
    }

    /// Takes a turn of the mover.
    fn turn(&mut self, context: &mut Context) {
        let Some(mut task) = self.tasks.pop() else {
            return;
        };
        let most = to_usize((MOVE_PAGES / context.setup().pages_per_unit).max(1));
        let end = (task.done + most).min(task.units.len());
        let part: Vec<(Unit, u8)> = task.units[task.done..end]
            .iter()
            .map(|unit| (*unit, task.to))
            .collect();
        context.submit(&part, MigrationMode::Unmap);
        task.done = end;
        if task.done < task.units.len() {
            self.tasks.push(task);
        }
        // A turn moves as many pages at any scale, so turns are as rare as the scale is large.
        self.move_at = context.now_ns() + MOVE_EVERY * context.setup().scale;
    }
}

/// The time between two scans, and between two decisions, ns.
fn periods(policy: Policy) -> (u64, u64) {
    match policy {
        Policy::Heat => (5_000_000_000, 10_000_000_000),
        Policy::Age => (4_000_000_000, 5_000_000_000),
    }
}

impl Mechanism for Memtierd {
    fn run_quantum(&mut self, context: &mut Context) {
        let now = context.now_ns();
        let (scan, decide) = periods(self.policy);
        if now >= self.scan_at {
            self.scan_at = now + scan;
            self.scanning = true;
        }
        if self.scanning {
            self.scan(context);
        }
        if now >= self.decide_at {
            self.decide_at = now + decide;
            self.decide(context);
        }
        if now >= self.move_at && context.migrating() == 0 {
            self.turn(context);
        }
    }

    fn rounds(&self) -> u64 {
        self.decisions
    }

    fn heap_bytes(&self) -> usize {
        let tasks: usize = self
            .tasks
            .iter()
            .map(|t| t.units.capacity() * size_of::<Unit>())
            .sum();
        tasks + self.regions.capacity() * size_of::<Region>()
    }
}
