//! `numab2`: NUMA balancing, mode 2, `NUMA_BALANCING_MEMORY_TIERING` (Linux 6.1 and later:
//! kernel/sched/fair.c, mm/migrate.c, mm/vmscan.c).
//!
//! - Trigger: a hinting fault ([`Scanner`]); only pages of slower nodes get hints. Their faults are not
//!   counted (`task_numa_fault`), so the scan period stays the shortest.
//! - Threshold: the time from hint to fault is under one second, at first; each minute the threshold goes up or down
//!   by an eighth of that, if there were fewer or more candidates than the rate limit allows
//!   (`numa_promotion_adjust_threshold`). While the first node has plenty of free memory, there is none
//!   (`pgdat_free_space_enough`).
//! - Rate limit: `numa_balancing_promote_rate_limit_MBps`, 65,536 (`numa_promotion_rate_limit`).
//! - Victim: a page of the inactive list whose A bit is clear, by kswapd ([`Reclaim`]). A promotion that finds the
//!   first node below its high watermark wakes kswapd, which frees up to the promotion watermark.

use super::linux::marks::{free_pages, full_pages, may_come, pages};
use super::linux::reclaim::{Aim, Copied, Reclaim};
use super::linux::scanner::Scanner;
use super::needs::{Memory, Need};
use super::{Context, Fault, Mechanism, Moved, Setup, Unit};
use crate::base::number::{index, low};

/// Limit of promotions (`numa_balancing_promote_rate_limit_MBps`), 4 KiB pages a second.
const RATE_LIMIT: u64 = 65_536 << 8;

/// Threshold of the latency at the start (`numa_balancing_hot_threshold_ms`), ms.
const HOT_THRESHOLD: u64 = 1000;

/// Steps in the threshold's range, which is twice its first value (`NUMA_MIGRATION_ADJUST_STEPS`).
const ADJUST_STEPS: u64 = 16;

/// Time between two changes of the threshold, ms: `numa_balancing_scan_period_max_ms`.
const ADJUST_PERIOD: u64 = 60_000;

/// Free memory beyond the promotion watermark that is plenty, bytes; or a 16th of the node.
const PLENTY: u64 = 1 << 30;

/// The limits of promotions: times in ms, candidates in 4 KiB pages of the full-size machine.
#[derive(Clone, Copy, Debug)]
struct Limits {
    rate: u64,
    threshold: Option<u64>,
    candidates: u64,
    /// Candidates at the start of this second, and the time of that start.
    second: (u64, u64),
    /// Candidates at the start of this minute, and the time of that start.
    minute: (u64, u64),
}

impl Limits {
    fn new(rate: u64) -> Self {
        Self {
            rate,
            threshold: None,
            candidates: 0,
            second: (0, 0),
            minute: (0, 0),
        }
    }

    /// Whether to promote a page whose fault came `latency` after its hint.
    fn allow(&mut self, now: u64, latency: u64, pages: u64) -> bool {
        self.adjust(now);
        if latency >= self.threshold.unwrap_or(HOT_THRESHOLD) {
            return false;
        }
        self.candidates += pages;
        if now - self.second.1 > 1000 {
            self.second = (self.candidates, now);
        }
        self.candidates - self.second.0 < self.rate
    }

    fn adjust(&mut self, now: u64) {
        if now - self.minute.1 <= ADJUST_PERIOD {
            return;
        }
        let expected = self.rate * ADJUST_PERIOD / 1000;
        let found = self.candidates - self.minute.0;
        let step = HOT_THRESHOLD * 2 / ADJUST_STEPS;
        let threshold = self.threshold.unwrap_or(HOT_THRESHOLD);
        self.threshold = Some(if found > expected * 11 / 10 {
            threshold.saturating_sub(step).max(step)
        } else if found < expected * 9 / 10 {
            (threshold + step).min(HOT_THRESHOLD * 2)
        } else {
            threshold
        });
        self.minute = (self.candidates, now);
    }
}

/// NUMA balancing, mode 2.
#[derive(Debug)]
pub struct Numab2 {
    scanner: Scanner,
    reclaim: Reclaim,
    limits: Limits,
    /// When each page got its hint, ms; then the time of its last fault after that.
    hinted: Vec<u32>,
}

impl Numab2 {
    /// The least VM for the mechanism's constants. The rate limit and the free memory that is plenty ask for none: the
    /// limit is above what any VM promotes, and a node below the other is never found to have plenty.
    pub fn needs(memory: Memory) -> Vec<Need> {
        vec![
            Scanner::NEED,
            Need::of_watermarks(memory),
            Reclaim::need(memory),
        ]
    }

    /// A mechanism that scans nothing in its first second.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            scanner: Scanner::new(setup, true),
            reclaim: Reclaim::new(setup, Aim::Promotion),
            limits: Limits::new(RATE_LIMIT),
            hinted: vec![0; index(setup.units)],
        }
    }

    /// Whether a page of a slower node is hot (`should_numa_migrate_memory`).
    fn is_hot(&mut self, context: &Context, unit: Unit) -> bool {
        let node = context.node(0) * full_pages(context.setup());
        let plenty = pages(PLENTY).max(node >> 4);
        if free_pages(context, 0) > self.reclaim.marks(0).promo + plenty {
            self.limits.threshold = None;
            return true;
        }
        let now = context.now_ns() / 1_000_000;
        let stamp = std::mem::replace(&mut self.hinted[index(unit)], low(now));
        let latency = u64::from(low(now).wrapping_sub(stamp));
        self.limits.allow(now, latency, full_pages(context.setup()))
    }
}

impl Mechanism for Numab2 {
    fn run_quantum(&mut self, context: &mut Context) {
        self.reclaim.work(context, &mut Copied);
        let now = low(context.now_ns() / 1_000_000);
        let hinted = &mut self.hinted;
        self.scanner.work(context, |unit| hinted[index(unit)] = now);
    }

    fn hint_fault(&mut self, context: &mut Context, fault: Fault) {
        let unit = fault.unit;
        if context.tier(unit) == Some(0) || !self.is_hot(context, unit) {
            return;
        }
        if !may_come(context, &self.reclaim.marks(0), 0) {
            self.reclaim.wake(context, 0);
        } else if context.migrate_now(unit, 0) {
            self.reclaim.came(unit, 0);
        }
    }

    fn moved(&mut self, _context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            self.reclaim.arrived(moved);
        }
    }

    fn below_low_watermark(&mut self, context: &mut Context, tier: u8) {
        self.reclaim.wake(context, tier);
    }

    fn displaced(&mut self, _: &mut Context, unit: Unit, to: u8) {
        self.reclaim.came(unit, to);
    }

    fn rounds(&self) -> u64 {
        self.scanner.rounds()
    }

    fn heap_bytes(&self) -> usize {
        self.reclaim.heap_bytes() + 4 * self.hinted.capacity()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_lets_no_more_candidates_through_than_its_limit() {
        let mut limits = Limits::new(100);
        let mut let_through = |from: u64, to: u64| {
            let allowed = (from..to).filter(|now| limits.allow(*now, 0, 1));
            u64::try_from(allowed.count()).expect("few")
        };
        assert_eq!(let_through(1, 1001), 99);
        // The candidate that begins a second is not counted in it.
        assert_eq!(let_through(1001, 2001), 100);
    }

    #[test]
    fn the_threshold_follows_the_number_of_candidates_by_the_minute() {
        let mut limits = Limits::new(10);
        assert!(limits.allow(1, 999, 5) && !limits.allow(2, 1000, 5));
        // 5 in a minute, and 600 were allowed.
        assert!(limits.allow(60_001, 1124, 6000) && !limits.allow(60_002, 1125, 1));
        // 6,000.
        assert!(!limits.allow(120_003, 1000, 1));
        assert_eq!(limits.threshold, Some(1000));
        for minute in 3..40 {
            limits.allow(60_003 * minute, 0, 6000);
        }
        assert_eq!(limits.threshold, Some(125));
        for minute in 40..80 {
            limits.allow(60_003 * minute, 3000, 1);
        }
        assert_eq!(limits.threshold, Some(2000));
    }
}
