//! The period in which the scanner sets hints (kernel/sched/fair.c, `task_scan_min`, `task_scan_max`,
//! `update_task_scan_period`): the more of the faults are remote, the shorter.

use crate::mechanisms::Setup;
use crate::mechanisms::linux::marks::full_pages;
use terrace_proto::PAGE_SIZE;

/// `numa_balancing_scan_delay_ms`, ns.
const DELAY: u64 = 1_000_000_000;

/// `numa_balancing_scan_period_min_ms` and `_max_ms`, ns.
const PERIOD: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// Least time between windows, ns: `MAX_SCAN_WINDOW` is 2,560 MiB a second.
const FLOOR: u64 = 100_000_000;

/// `NUMA_PERIOD_SLOTS` and `NUMA_PERIOD_THRESHOLD`.
const SLOTS: u64 = 10;
const THRESHOLD: u64 = 7;

/// Hinting faults since the period was last adapted (`numa_faults_locality`).
#[derive(Debug, Default)]
struct Faults {
    local: u64,
    remote: u64,
    /// Whether a migration failed.
    failed: bool,
}

impl Faults {
    fn count(&mut self, local: bool, failed: bool) {
        self.local += u64::from(local);
        self.remote += u64::from(!local);
        self.failed |= failed;
    }

    /// Slots that were local; `None` if there were no faults or a migration failed.
    fn local_slots(&self) -> Option<u64> {
        if self.failed {
            return None;
        }
        (self.local * SLOTS).checked_div(self.local + self.remote)
    }

    /// Clears the counts; as in the kernel, a failed migration is not forgotten.
    fn restart(&mut self) {
        (self.local, self.remote) = (0, 0);
    }
}

/// Time between two windows, ns.
#[derive(Debug)]
pub(super) struct Period {
    least: u64,
    most: u64,
    now: u64,
    /// When the next window begins, ns.
    due: u64,
    faults: Faults,
    /// Number of passes over memory when the period was last adapted to the faults.
    adapted: u64,
}

impl Period {
    /// The period of a VM whose memory is scanned in windows of so many bytes.
    pub(super) fn new(setup: &Setup, window: u64) -> Self {
        let memory = u64::from(setup.units) * full_pages(setup) * PAGE_SIZE;
        let windows = memory.div_ceil(window).max(1);
        let least = (PERIOD.0 / windows).max(FLOOR);
        Self {
            least,
            most: (PERIOD.1 / windows).max(least),
            now: least,
            due: DELAY,
            faults: Faults::default(),
            adapted: 0,
        }
    }

    /// Whether the next window is due.
    pub(super) fn is_over(&self, now_ns: u64) -> bool {
        now_ns >= self.due
    }

    /// Begins a window.
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.due = now_ns + self.now;
    }

    /// Counts a fault that was taken after so many passes over memory. The first one after a pass adapts the period.
    pub(super) fn fault(&mut self, now_ns: u64, passes: u64, local: bool, failed: bool) {
        if self.adapted != passes {
            self.adapted = passes;
            self.adapt(now_ns);
        }
        self.faults.count(local, failed);
    }

    /// Adapts the period (`update_task_scan_period`). As in the kernel, the counts stay after a failed migration, so
    /// that the period only grows once one has failed.
    fn adapt(&mut self, now_ns: u64) {
        let Some(local) = self.faults.local_slots() else {
            self.now = (self.now * 2).min(self.most);
            self.begin(now_ns);
            return;
        };
        let slot = self.now.div_ceil(SLOTS);
        let period = if local >= THRESHOLD {
            self.now + (local - THRESHOLD).max(1) * slot
        } else {
            self.now.saturating_sub((THRESHOLD - local) * slot)
        };
        self.now = period.clamp(self.least, self.most);
        self.faults.restart();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn period(gib: u32) -> Period {
        let setup = Setup::of_units(gib << 18);
        Period::new(&setup, 256 << 20)
    }

    #[test]
    fn periods_are_of_all_memory_and_a_window_takes_100_ms_at_least() {
        let small = period(1);
        assert_eq!((small.least, small.most), (250_000_000, 15_000_000_000));
        let large = period(16);
        assert_eq!((large.least, large.most), (100_000_000, 937_500_000));
    }

    #[test]
    fn the_period_follows_faults_and_grows_after_a_failed_migration() {
        let mut period = period(1);
        let mut passes = 0;
        let mut pass = |local, failed| {
            passes += 1;
            period.fault(0, passes, local, failed);
            period.now / 1_000_000
        };
        // Nothing was counted before the first fault.
        assert_eq!(pass(true, false), 500);
        assert_eq!(pass(true, false), 650);
        assert_eq!(pass(false, false), 845);
        assert_eq!(pass(false, true), 253);
        assert_eq!([pass(true, false), pass(true, false)], [507, 1014]);
    }
}
