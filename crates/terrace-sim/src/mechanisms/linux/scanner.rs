//! The scanner that sets hints (kernel/sched/fair.c, `task_numa_work`; mm/mprotect.c,
//! `change_pte_range`).
//!
//! Once per scan period, the next 256 MiB in the order of addresses lose their present bit, and the next access to
//! each page faults. A stretch without a page to change does not count, up to 2 GiB per period. The [`Period`] is
//! that of a whole pass over memory, 1 s to 60 s, shared among its windows, and never under 100 ms a window; it
//! follows the faults. A mechanism that counts no faults keeps the period that it began with.
//!
//! Left out: each thread's own period and the random choice of the thread that scans. All threads of the load count
//! as one task that finds all pages shared, as if any thread accessed any page.

use super::super::needs::{Need, Part};
use super::super::{Context, Setup, Stage, Unit};
use super::marks::full_pages;
use super::period::Period;
use terrace_proto::PAGE_SIZE;

/// `numa_balancing_scan_size_mb`, bytes.
const SCAN_SIZE: u64 = 256 << 20;

/// Address space that a window may go through, as a multiple of the part that it may change.
const VIRTUAL: u64 = 8;

/// Units between two reads of the clock: a table's leaves.
const STEP: u32 = 512;

/// A window under way.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Units that may still be changed.
    left: u64,
    /// Units that may still be gone through.
    through: u64,
    /// The present stretch.
    start: Unit,
    end: Unit,
    changed: bool,
    /// Whether the window changed anything, so that translations must be flushed.
    flush: bool,
}

/// The scanner.
#[derive(Debug)]
pub struct Scanner {
    units: u32,
    /// Whether pages of the first tier get no hint.
    spare_first: bool,
    /// Units that a window may change.
    size: u64,
    period: Period,
    next: Unit,
    window: Option<Window>,
    rounds: u64,
}

impl Scanner {
    /// The need of a VM that is not smaller than one window.
    pub const NEED: Need = Need {
        part: Part::All,
        least: SCAN_SIZE,
        constant: "scans 256 MiB at a time (numa_balancing_scan_size_mb)",
        relation: "more than this VM's",
    };

    /// The scanner of a VM. With `spare_first`, pages of the first tier get no hint.
    #[must_use]
    pub fn new(setup: &Setup, spare_first: bool) -> Self {
        Self {
            units: setup.units,
            spare_first,
            size: (SCAN_SIZE / PAGE_SIZE / full_pages(setup)).max(1),
            period: Period::new(setup, SCAN_SIZE),
            next: 0,
            window: None,
            rounds: 0,
        }
    }

    /// Number of passes over all memory so far (`numa_scan_seq`).
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Continues the scan if it is due, as long as there is time; `hinted` is called for each page that gets a hint.
    pub fn work(&mut self, context: &mut Context, mut hinted: impl FnMut(Unit)) {
        if self.window.is_none() {
            if !self.period.is_over(context.now_ns()) || self.units == 0 {
                return;
            }
            self.period.begin(context.now_ns());
            self.window = Some(Window {
                left: self.size,
                through: self.size * VIRTUAL,
                start: self.next,
                end: self.stretch(self.size),
                changed: false,
                flush: false,
            });
        }
        while let Some(mut window) = self.window.take() {
            if !self.step(context, &mut window, &mut hinted) {
                self.window = Some(window);
            } else if window.flush {
                context.flush();
            }
            if !context.has_time() {
                return;
            }
        }
    }

    fn stretch(&self, left: u64) -> Unit {
        let end = (u64::from(self.next) + left).min(u64::from(self.units));
        u32::try_from(end).unwrap_or(self.units)
    }

    /// Goes through a table's leaves; returns whether the window is over.
    fn step(
        &mut self,
        context: &mut Context,
        window: &mut Window,
        hinted: &mut impl FnMut(Unit),
    ) -> bool {
        let end = window.end.min(self.next.saturating_add(STEP));
        let mut changed = 0;
        for unit in self.next..end {
            let spared = match context.tier(unit) {
                Some(tier) => tier == 0 && self.spare_first,
                None => true,
            };
            if !spared && !context.is_hinted(unit) {
                context.hint(unit);
                hinted(unit);
                changed += 1;
            }
        }
        let scanned = u64::from(end - self.next);
        let costs = context.costs();
        let ps = changed * costs.hint_page + (scanned - changed) * costs.scan_leaf;
        context.spend(Stage::Track, ps);
        window.changed |= changed > 0;
        self.next = end;
        end == window.end && self.end_stretch(window)
    }

    fn end_stretch(&mut self, window: &mut Window) -> bool {
        let gone = u64::from(window.end - window.start);
        window.flush |= window.changed;
        if window.changed {
            window.left = window.left.saturating_sub(gone);
        }
        window.through = window.through.saturating_sub(gone);
        if self.next == self.units {
            self.next = 0;
            self.rounds += 1;
            return true;
        }
        window.start = self.next;
        window.end = self.stretch(window.left);
        window.changed = false;
        window.left == 0 || window.through == 0
    }

    /// Counts a fault: whether it was on a page of the first tier, and whether its migration failed
    /// (`task_numa_fault`). The first one after a pass over memory adapts the period.
    pub fn fault(&mut self, now_ns: u64, local: bool, failed: bool) {
        self.period.fault(now_ns, self.rounds, local, failed);
    }
}
