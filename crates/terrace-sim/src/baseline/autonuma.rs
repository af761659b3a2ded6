//! `autonuma`: NUMA balancing, mode 1 (Linux 5.4, kernel/sched/fair.c, mm/mprotect.c, mm/migrate.c).
//!
//! - Trigger: `task_numa_work` takes the present bit from the next 256 MiB of memory
//!   (`numa_balancing_scan_size_mb`) once per scan period, 1 s to 60 s; the next access faults.
//! - Threshold: none that matters here. All processors are on the fast node, so every fault on a page of
//!   another node asks for a migration (`should_numa_migrate_memory`).
//! - Rate limit: the period doubles where a migration failed or nothing faulted, and follows the share of
//!   faults that were local otherwise (`update_task_scan_period`).
//! - Victim: none. A migration is refused while the fast node has less free memory than its high watermark
//!   (`migrate_balanced_pgdat`); nothing is ever demoted.

use super::{Fault, Ground, Mechanism, Setup, Stage};

/// `numa_balancing_scan_size_mb`, bytes.
const SCAN_SIZE: u64 = 256 << 20;

/// `numa_balancing_scan_period_min_ms` and `_max_ms`, ns.
const PERIOD: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// `NUMA_PERIOD_SLOTS` and `NUMA_PERIOD_THRESHOLD`.
const SLOTS: u64 = 10;
const THRESHOLD: u64 = 7;

/// Part of a node that its high watermark keeps free: `watermark_scale_factor` 10 for the step from min
/// to low and from low to high, each 0.1 %.
const HIGH: u64 = 500;

/// Mode 1.
#[derive(Debug, Default)]
pub struct Autonuma {
    units: u32,
    next: u32,
    due: u64,
    period: u64,
    local: u64,
    remote: u64,
    failed: bool,
    rounds: u64,
}

impl Autonuma {
    /// Nothing is scanned before a second has passed (`numa_balancing_scan_delay_ms`).
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            units: setup.units,
            due: PERIOD.0,
            period: PERIOD.0,
            ..Self::default()
        }
    }

    /// `update_task_scan_period`, with all memory in one task's hands: nothing is private to a node.
    fn update_period(&mut self) {
        let faults = self.local + self.remote;
        self.period = if faults == 0 || self.failed {
            (self.period * 2).min(PERIOD.1)
        } else {
            let slot = self.period / SLOTS;
            let local = self.local * SLOTS / faults;
            let longer = if local >= THRESHOLD {
                self.period + (local - THRESHOLD).max(1) * slot
            } else {
                self.period - (THRESHOLD - local) * slot
            };
            longer.clamp(PERIOD.0, PERIOD.1)
        };
        (self.local, self.remote, self.failed) = (0, 0, false);
    }
}

impl Mechanism for Autonuma {
    fn pass(&mut self, ground: &mut Ground) {
        if ground.now_ns() < self.due {
            return;
        }
        self.due = ground.now_ns() + self.period;
        let chunk = ground.units_in(SCAN_SIZE).min(u64::from(self.units));
        for _ in 0..chunk {
            ground.hint(self.next);
            self.next += 1;
            if self.next == self.units {
                self.next = 0;
                self.rounds += 1;
                self.update_period();
            }
        }
        ground.spend(Stage::Track, chunk * ground.costs().hint_page);
        ground.flush();
    }

    fn hint_fault(&mut self, ground: &mut Ground, fault: Fault) {
        if ground.tier(fault.unit) == Some(0) {
            self.local += 1;
            return;
        }
        self.remote += 1;
        let kept = ground.capacity(0) / HIGH;
        let moved = ground.free(0) > kept && ground.migrate_now(fault.unit, 0);
        self.failed |= !moved;
    }

    fn rounds(&self) -> u64 {
        self.rounds
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}
