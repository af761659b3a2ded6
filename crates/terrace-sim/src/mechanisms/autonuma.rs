//! `autonuma`: NUMA balancing, mode 1 (Linux 5.4: kernel/sched/fair.c, mm/mprotect.c, mm/migrate.c).
//!
//! - Trigger: a hinting fault ([`Scanner`]), on pages of any node.
//! - Threshold: none that matters here. All processors are on the first node, so every fault on a page of
//!   another node asks for a migration (`should_numa_migrate_memory`).
//! - Rate limit: the scan period, which grows once a migration failed (`update_task_scan_period`).
//! - Victim: none. A migration is refused while the first node has less free memory than its high watermark
//!   (`migrate_balanced_pgdat`); nothing is ever demoted.

use super::linux::marks::{may_come, of_tiers};
use super::linux::scanner::Scanner;
use super::{Fault, Ground, Mechanism, Setup};
use crate::guest::marks::Marks;

/// Mode 1.
#[derive(Debug)]
pub struct Autonuma {
    scanner: Scanner,
    first: Option<Marks>,
}

impl Autonuma {
    /// Nothing is scanned before a second has passed.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            scanner: Scanner::new(setup, false),
            first: None,
        }
    }
}

impl Mechanism for Autonuma {
    fn pass(&mut self, ground: &mut Ground) {
        if self.first.is_none() {
            self.first = of_tiers(ground).first().copied();
        }
        self.scanner.work(ground, |_| {});
    }

    fn hint_fault(&mut self, ground: &mut Ground, fault: Fault) {
        let local = ground.tier(fault.unit) == Some(0);
        let failed = !local && {
            let fits = self.first.is_some_and(|marks| may_come(ground, &marks, 0));
            !(fits && ground.migrate_now(fault.unit, 0))
        };
        self.scanner.fault(ground.now_ns(), local, failed);
    }

    fn rounds(&self) -> u64 {
        self.scanner.rounds()
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}
