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
use super::needs::{Memory, Need};
use super::{Context, Fault, Mechanism, Setup};
use crate::guest::marks::Marks;

/// NUMA balancing, mode 1.
#[derive(Debug)]
pub struct Autonuma {
    scanner: Scanner,
    first: Option<Marks>,
}

impl Autonuma {
    /// The least VM for the mechanism's constants.
    pub fn needs(memory: Memory) -> Vec<Need> {
        vec![Scanner::NEED, Need::of_watermarks(memory)]
    }

    /// A mechanism that scans nothing in its first second.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            scanner: Scanner::new(setup, false),
            first: None,
        }
    }
}

impl Mechanism for Autonuma {
    fn run_quantum(&mut self, context: &mut Context) {
        if self.first.is_none() {
            self.first = of_tiers(context).first().copied();
        }
        self.scanner.work(context, |_| {});
    }

    fn hint_fault(&mut self, context: &mut Context, fault: Fault) {
        let local = context.tier(fault.unit) == Some(0);
        let failed = !local && {
            let fits = self.first.is_some_and(|marks| may_come(context, &marks, 0));
            !(fits && context.migrate_now(fault.unit, 0))
        };
        self.scanner.fault(context.now_ns(), local, failed);
    }

    fn rounds(&self) -> u64 {
        self.scanner.rounds()
    }

    fn heap_bytes(&self) -> usize {
        0
    }
}
