//! `memtierd`: Intel's daemon for tiers of a process's memory (github.com/intel/memtierd), which watches QEMU
//! from user space. Two of its policies, each as configured in its README (cmd/memtierd/README.md).
//!
//! - Trigger: the tracker `idlepage` looks at all pages every 5 s (heat) or 4 s (age), and counts per region
//!   of 256 pages; a policy decides every 10 s (heat) or 5 s (age), if nothing is being moved.
//! - Threshold, heat (`policy_heat.go`, `counters_heatmap.go`): accesses per page, kept by 0.8 a second; 0.01
//!   or more is the highest. Of four classes the highest goes to the first tier, the lowest to the last.
//! - Threshold, age (`policy_age.go`): accessed at each of the last three decisions goes to the first tier,
//!   at none for 15 s to the last. While there is something idle to move, nothing active is.
//! - Rate limit (`mover.go`): at most 1,024 pages of one task, every 20 ms (200 MB/s). A task of the heat
//!   policy is a region, so it moves 256 at a time; one of the age policy is a run of regions.
//! - Victim: none is looked for. The mover takes what was asked for last first, which under the heat policy is
//!   the coldest; a page that finds no room stays.

use super::{Ground, Mechanism, Setup, Stage, Travelling, Unit};
use crate::words::number::{float, low, place};

/// `PagesInRegion`: as a page's size, not divided by the scale, as it says which pages share their fate.
const REGION: u64 = 256;

/// `Mover.IntervalMs`, ns, and what goes in it at `Mover.Bandwidth`, 4 KiB pages.
const MOVE_EVERY: u64 = 20_000_000;
const MOVE_PAGES: u64 = 200 * 256 * 20 / 1000;

/// `HeatMax`, `HeatClasses`, and `HeatRetention` 0.8 a second over 10 s.
const HEAT_MAX: f64 = 0.01;
const CLASSES: f64 = 4.0;
const RETENTION: f64 = 0.107_374_182_4;

/// `IdleDurationMs`, ns, and the decisions in `ActiveDurationMs` (10 s), the one at hand included.
const IDLE: u64 = 15_000_000_000;
const ACTIVE: u8 = 0b111;

/// The age policy leaves runs of fewer pages alone.
const LEAST_RUN: u64 = 100;

/// Which policy decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// By heat.
    Heat,
    /// By age.
    Age,
}

/// What is known of a region.
#[derive(Clone, Copy, Debug, Default)]
struct Region {
    /// Accessed pages that the tracker counted since the last decision.
    accesses: u32,
    heat: f64,
    /// Where the heat policy thinks that it is.
    tier: Option<u8>,
    /// Decisions before which it was accessed, the last in bit 0.
    rounds: u8,
    /// When it was seen accessed last, ns.
    changed: u64,
}

/// Pages that are to be moved.
#[derive(Debug)]
struct Task {
    units: Vec<Unit>,
    done: usize,
    to: u8,
}

/// memtierd.
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
    /// Taken from the end.
    tasks: Vec<Task>,
    last: u8,
    decisions: u64,
}

impl Memtierd {
    /// Nothing is known of any page.
    #[must_use]
    pub fn new(setup: &Setup, policy: Policy) -> Self {
        let region = low((REGION / setup.pages_per_unit).max(1));
        let (scan, decide) = periods(policy);
        Self {
            policy,
            regions: vec![Region::default(); place(u64::from(setup.units.div_ceil(region)))],
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

    /// Goes on looking at pages.
    fn scan(&mut self, ground: &mut Ground) {
        let page = 2 * (ground.costs().query_page + ground.costs().lru_page);
        while self.next < ground.units() {
            if !ground.has_time() {
                return;
            }
            // Its place in the process, and its idle bit, are looked up to read it and again to set it.
            ground.spend(Stage::Track, page);
            let young = ground.young(self.next);
            self.regions[place(u64::from(self.next / self.region))].accesses += u32::from(young);
            self.next += 1;
        }
        self.next = 0;
        self.scanning = false;
    }

    fn units_of(&self, ground: &Ground, region: usize) -> std::ops::Range<Unit> {
        let first = low(region as u64) * self.region;
        first..(first + self.region).min(ground.units())
    }

    fn decide(&mut self, ground: &mut Ground) {
        self.decisions += 1;
        let work = self.regions.len() as u64 * ground.costs().classify_page;
        ground.spend(Stage::Classify, work);
        let now = ground.now_ns();
        for region in &mut self.regions {
            let accesses = std::mem::take(&mut region.accesses);
            let heat = (f64::from(accesses) / float(REGION)).min(HEAT_MAX);
            region.heat = (heat + region.heat * RETENTION).min(HEAT_MAX);
            region.rounds = region.rounds << 1 | u8::from(accesses > 0);
            if accesses > 0 {
                region.changed = now;
            }
        }
        if !self.tasks.is_empty() || ground.travelling() > 0 {
            return;
        }
        match self.policy {
            Policy::Heat => self.by_heat(ground),
            Policy::Age => self.by_age(ground),
        }
    }

    /// `startMovesFillFastFree`: regions from hot to cold, each a task if it seems to be elsewhere.
    fn by_heat(&mut self, ground: &Ground) {
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
            let units = self.units_of(ground, at);
            // A region that it did not look up before is where its last page is.
            let is = self.regions[at].tier;
            let is = is.or_else(|| units.clone().rev().find_map(|unit| ground.tier(unit)));
            // Once asked for, it counts as done.
            self.regions[at].tier = Some(to).filter(|_| is.is_some());
            if is.is_some_and(|is| is != to) {
                self.add(units.collect(), to);
            }
        }
    }

    /// Idle regions, or if there are none to move, active ones; neighbours together.
    fn by_age(&mut self, ground: &Ground) {
        let now = ground.now_ns();
        self.runs(ground, self.last, |region| region.changed + IDLE < now);
        if self.tasks.is_empty() {
            self.runs(ground, 0, |region| region.rounds & ACTIVE == ACTIVE);
        }
    }

    fn runs(&mut self, ground: &Ground, to: u8, picked: impl Fn(&Region) -> bool) {
        let mut run = Vec::new();
        for at in 0..self.regions.len() {
            if picked(&self.regions[at]) {
                let elsewhere = |unit: &Unit| ground.tier(*unit).is_some_and(|tier| tier != to);
                run.extend(self.units_of(ground, at).filter(elsewhere));
            } else {
                self.add_run(ground, std::mem::take(&mut run), to);
            }
        }
        self.add_run(ground, run, to);
    }

    fn add_run(&mut self, ground: &Ground, run: Vec<Unit>, to: u8) {
        if run.len() as u64 * ground.setup().pages_per_unit > LEAST_RUN {
            self.add(run, to);
        }
    }

    fn add(&mut self, units: Vec<Unit>, to: u8) {
        let done = 0;
        self.tasks.push(Task { units, done, to });
    }

    /// A turn of the mover.
    fn turn(&mut self, ground: &mut Ground) {
        let Some(mut task) = self.tasks.pop() else {
            return;
        };
        let most = place((MOVE_PAGES / ground.setup().pages_per_unit).max(1));
        let end = (task.done + most).min(task.units.len());
        let part: Vec<(Unit, u8)> = task.units[task.done..end]
            .iter()
            .map(|unit| (*unit, task.to))
            .collect();
        ground.submit(&part, Travelling::Unmap);
        task.done = end;
        if task.done < task.units.len() {
            self.tasks.push(task);
        }
        // A turn moves as many pages at any scale, so turns are as rare as the scale is large.
        self.move_at = ground.now_ns() + MOVE_EVERY * ground.setup().scale;
    }
}

/// Between two scans, and between two decisions, ns.
fn periods(policy: Policy) -> (u64, u64) {
    match policy {
        Policy::Heat => (5_000_000_000, 10_000_000_000),
        Policy::Age => (4_000_000_000, 5_000_000_000),
    }
}

impl Mechanism for Memtierd {
    fn pass(&mut self, ground: &mut Ground) {
        let now = ground.now_ns();
        let (scan, decide) = periods(self.policy);
        if now >= self.scan_at {
            self.scan_at = now + scan;
            self.scanning = true;
        }
        if self.scanning {
            self.scan(ground);
        }
        if now >= self.decide_at {
            self.decide_at = now + decide;
            self.decide(ground);
        }
        if now >= self.move_at && ground.travelling() == 0 {
            self.turn(ground);
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
