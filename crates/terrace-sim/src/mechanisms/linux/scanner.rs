//! The scanner that sets hints (kernel/sched/fair.c, `task_numa_work`; mm/mprotect.c,
//! `change_pte_range`).
//!
//! Once per scan period, the next 256 MiB in the order of addresses lose their present bit, and the next
//! access to each page faults. A stretch where nothing was to be changed does not count, up to 2 GiB per
//! period. The period is that of a whole pass over memory, 1 s to 60 s, shared among its windows, and
//! never under 100 ms a window (`task_scan_min`, `task_scan_max`). How it follows the faults
//! (`update_task_scan_period`) is here too; who counts no faults keeps the period that it began with.
//!
//! Left out: each thread's own period and the random choice of who scans. All threads of the load count as
//! one task that finds all pages shared, as where any thread accesses any page.

use super::super::{Ground, Setup, Stage, Unit};
use super::marks::full_pages;
use terrace_proto::PAGE_SIZE;

/// `numa_balancing_scan_size_mb`, bytes.
const SCAN_SIZE: u64 = 256 << 20;

/// Address space that a window may go through, as a multiple of what it may change.
const VIRTUAL: u64 = 8;

/// `numa_balancing_scan_delay_ms`, ns.
const DELAY: u64 = 1_000_000_000;

/// `numa_balancing_scan_period_min_ms` and `_max_ms`, ns.
const PERIOD: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// Least time between windows, ns: `MAX_SCAN_WINDOW` is 2,560 MiB a second.
const FLOOR: u64 = 100_000_000;

/// `NUMA_PERIOD_SLOTS` and `NUMA_PERIOD_THRESHOLD`.
const SLOTS: u64 = 10;
const THRESHOLD: u64 = 7;

/// Units between two looks at the clock: a table's leaves.
const STEP: u32 = 512;

/// A window under way.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Units that may still be changed.
    left: u64,
    /// Units that may still be gone through.
    through: u64,
    /// The stretch at hand.
    start: Unit,
    end: Unit,
    changed: bool,
    /// Something was changed in the window: translations must go.
    flush: bool,
}

/// The scanner.
#[derive(Debug)]
pub struct Scanner {
    units: u32,
    /// Pages of the first tier get no hint.
    spare_first: bool,
    size: u64,
    least: u64,
    most: u64,
    period: u64,
    due: u64,
    next: Unit,
    window: Option<Window>,
    rounds: u64,
    /// Rounds when the period was last adapted.
    adapted: u64,
    local: u64,
    remote: u64,
    failed: bool,
}

impl Scanner {
    /// Of a VM. With `spare_first`, pages of the first tier get no hint.
    #[must_use]
    pub fn new(setup: &Setup, spare_first: bool) -> Self {
        let per_unit = full_pages(setup);
        let memory = u64::from(setup.units) * per_unit * PAGE_SIZE;
        let windows = memory.div_ceil(SCAN_SIZE).max(1);
        let least = (PERIOD.0 / windows).max(FLOOR);
        Self {
            units: setup.units,
            spare_first,
            size: (SCAN_SIZE / PAGE_SIZE / per_unit).max(1),
            least,
            most: (PERIOD.1 / windows).max(least),
            period: least,
            due: DELAY,
            next: 0,
            window: None,
            rounds: 0,
            adapted: 0,
            local: 0,
            remote: 0,
            failed: false,
        }
    }

    /// Passes over all memory so far (`numa_scan_seq`).
    #[must_use]
    pub fn rounds(&self) -> u64 {
        self.rounds
    }

    /// Goes on where it is due, as long as there is time; `hinted` hears of each page that gets a hint.
    pub fn work(&mut self, ground: &mut Ground, mut hinted: impl FnMut(Unit)) {
        if self.window.is_none() {
            if ground.now_ns() < self.due || self.units == 0 {
                return;
            }
            self.due = ground.now_ns() + self.period;
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
            if !self.step(ground, &mut window, &mut hinted) {
                self.window = Some(window);
            } else if window.flush {
                ground.flush();
            }
            if !ground.has_time() {
                return;
            }
        }
    }

    fn stretch(&self, left: u64) -> Unit {
        let end = (u64::from(self.next) + left).min(u64::from(self.units));
        u32::try_from(end).unwrap_or(self.units)
    }

    /// Goes through a table's leaves; says whether the window is over.
    fn step(
        &mut self,
        ground: &mut Ground,
        window: &mut Window,
        hinted: &mut impl FnMut(Unit),
    ) -> bool {
        let end = window.end.min(self.next.saturating_add(STEP));
        let mut changed = 0;
        for unit in self.next..end {
            let spared = match ground.tier(unit) {
                Some(tier) => tier == 0 && self.spare_first,
                None => true,
            };
            if !spared && !ground.is_hinted(unit) {
                ground.hint(unit);
                hinted(unit);
                changed += 1;
            }
        }
        let looked = u64::from(end - self.next);
        let costs = ground.costs();
        let ps = changed * costs.hint_page + (looked - changed) * costs.scan_leaf;
        ground.spend(Stage::Track, ps);
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

    /// A fault was taken, on a page of the first tier or not; and whether its migration failed
    /// (`task_numa_fault`). The first one after a pass over memory adapts the period.
    pub fn fault(&mut self, now_ns: u64, local: bool, failed: bool) {
        if self.adapted != self.rounds {
            self.adapted = self.rounds;
            self.adapt(now_ns);
        }
        self.local += u64::from(local);
        self.remote += u64::from(!local);
        self.failed |= failed;
    }

    /// `update_task_scan_period`. As in the kernel, what was counted stays after a failed migration, so
    /// that once one has failed, the period only grows.
    fn adapt(&mut self, now_ns: u64) {
        let faults = self.local + self.remote;
        if faults == 0 || self.failed {
            self.period = (self.period * 2).min(self.most);
            self.due = now_ns + self.period;
            return;
        }
        let slot = self.period.div_ceil(SLOTS);
        let local = self.local * SLOTS / faults;
        let period = if local >= THRESHOLD {
            self.period + (local - THRESHOLD).max(1) * slot
        } else {
            self.period.saturating_sub((THRESHOLD - local) * slot)
        };
        self.period = period.clamp(self.least, self.most);
        (self.local, self.remote) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::Side;
    use super::*;

    fn scanner(gib: u32) -> Scanner {
        let setup = Setup {
            units: gib << 18,
            tiers: 2,
            pages_per_unit: 1,
            scale: 1,
            seed: 1,
            vcpus: 2,
            vm: "a".into(),
            side: Side::Guest,
        };
        Scanner::new(&setup, true)
    }

    #[test]
    fn periods_are_of_all_memory_and_a_window_takes_100_ms_at_least() {
        let small = scanner(1);
        assert_eq!((small.least, small.most), (250_000_000, 15_000_000_000));
        let large = scanner(16);
        assert_eq!((large.least, large.most), (100_000_000, 937_500_000));
    }

    #[test]
    fn the_period_follows_the_faults_and_only_grows_once_a_migration_failed() {
        let mut scanner = scanner(1);
        let mut round = |local, failed| {
            scanner.rounds += 1;
            scanner.fault(0, local, failed);
            scanner.period / 1_000_000
        };
        // Nothing was counted before the first fault.
        assert_eq!(round(true, false), 500);
        assert_eq!(round(true, false), 650);
        assert_eq!(round(false, false), 845);
        assert_eq!(round(false, true), 253);
        assert_eq!([round(true, false), round(true, false)], [507, 1014]);
    }
}
