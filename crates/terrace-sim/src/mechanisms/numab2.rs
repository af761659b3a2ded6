//! `numab2`: NUMA balancing, mode 2, `NUMA_BALANCING_MEMORY_TIERING` (Linux 6.1 and later:
//! kernel/sched/fair.c, mm/migrate.c, mm/vmscan.c).
//!
//! - Trigger: a hinting fault ([`Scanner`]); only pages of slower nodes get hints. Their faults are not
//!   counted (`task_numa_fault`), so the scan period stays the shortest.
//! - Threshold: the time from hint to fault is under `hot_threshold_ms`, one second, at first; each minute the threshold
//!   goes up or down by an eighth of that, if there were fewer or more candidates than the rate limit allows
//!   (`numa_promotion_adjust_threshold`). While the first node has plenty of free memory, there is none
//!   (`pgdat_free_space_enough`).
//! - Rate limit: `numa_balancing_promote_rate_limit_MBps`, 65,536 (`numa_promotion_rate_limit`).
//!   A scenario may set both, and may hold the threshold fixed ([`PromotionLimits`]).
//! - Victim: a page of the inactive list whose A bit is clear, by kswapd ([`Reclaim`]). A promotion that finds the
//!   first node below its high watermark wakes kswapd, which frees up to the promotion watermark.

use super::linux::marks::{free_pages, full_pages, may_come, pages};
use super::linux::reclaim::{Aim, Copied, Reclaim};
use super::linux::scanner::Scanner;
use super::needs::{Memory, Need};
use super::{Context, Fault, Mechanism, Moved, Setup, Unit};
use crate::base::number::{index, low};

/// The limits of promotions that an administrator may set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PromotionLimits {
    /// Time from hint to fault below which a page is hot (`numa_balancing/hot_threshold_ms`), ms.
    pub hot_threshold_ms: u32,
    /// Candidates for promotion a second (`numa_balancing_promote_rate_limit_MBps`), MiB.
    pub rate_limit_mb_s: u32,
    /// Whether the threshold follows the number of candidates (`numa_promotion_adjust_threshold`).
    pub adapt: bool,
}

impl PromotionLimits {
    /// The defaults of Linux (kernel/sched/fair.c, `sysctl_numa_balancing_hot_threshold` and
    /// `sysctl_numa_balancing_promote_rate_limit`).
    pub const LINUX: Self = Self {
        hot_threshold_ms: 1000,
        rate_limit_mb_s: 65_536,
        adapt: true,
    };

    /// The rate limit in 4 KiB pages a second.
    fn pages_per_s(self) -> u64 {
        pages(u64::from(self.rate_limit_mb_s) << 20)
    }
}

/// Steps in the threshold's range, which is twice its first value (`NUMA_MIGRATION_ADJUST_STEPS`).
const ADJUST_STEPS: u64 = 16;

/// Time between two changes of the threshold, ms: `numa_balancing_scan_period_max_ms`.
const ADJUST_PERIOD: u64 = 60_000;

/// Free memory beyond the promotion watermark that is plenty, bytes; or a 16th of the node.
const PLENTY: u64 = 1 << 30;

/// The state of the limits: times in ms, candidates in 4 KiB pages of the full-size machine.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// Candidates allowed a second.
    rate: u64,
    /// The threshold at first (`sysctl_numa_balancing_hot_threshold`).
    reference: u64,
    adapts: bool,
    threshold: Option<u64>,
    candidates: u64,
    /// Candidates at the start of this second, and the time of that start.
    second: (u64, u64),
    /// Candidates at the start of this minute, and the time of that start.
    minute: (u64, u64),
}

impl Limits {
    fn new(limits: PromotionLimits) -> Self {
        Self {
            rate: limits.pages_per_s(),
            reference: u64::from(limits.hot_threshold_ms),
            adapts: limits.adapt,
            threshold: None,
            candidates: 0,
            second: (0, 0),
            minute: (0, 0),
        }
    }

    /// Whether to promote a page whose fault came `latency` after its hint.
    fn allow(&mut self, now: u64, latency: u64, pages: u64) -> bool {
        if self.adapts {
            self.adjust(now);
        }
        if latency >= self.threshold.unwrap_or(self.reference) {
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
        let step = self.reference * 2 / ADJUST_STEPS;
        let threshold = self.threshold.unwrap_or(self.reference);
        self.threshold = Some(if found > expected * 11 / 10 {
            threshold.saturating_sub(step).max(step)
        } else if found < expected * 9 / 10 {
            (threshold + step).min(self.reference * 2)
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
    /// default limit is above what any VM promotes, and a node below the other is never found to have plenty.
    pub fn needs(memory: Memory) -> Vec<Need> {
        vec![
            Scanner::NEED,
            Need::of_watermarks(memory),
            Reclaim::need(memory),
        ]
    }

    /// A mechanism that scans nothing in its first second.
    #[must_use]
    pub fn new(setup: &Setup, limits: PromotionLimits) -> Self {
        Self {
            scanner: Scanner::new(setup, true),
            reclaim: Reclaim::new(setup, Aim::Promotion),
            limits: Limits::new(limits),
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

    /// Limits of so many 4 KiB pages a second, with the threshold of Linux.
    fn limits(rate: u64) -> Limits {
        Limits {
            rate,
            ..Limits::new(PromotionLimits::LINUX)
        }
    }

    #[test]
    fn a_second_lets_no_more_candidates_through_than_its_limit() {
        let mut limits = limits(100);
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
        let mut limits = limits(10);
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

    #[test]
    fn a_threshold_that_does_not_adapt_stays() {
        let mut limits = Limits::new(PromotionLimits {
            hot_threshold_ms: 200,
            rate_limit_mb_s: 1,
            adapt: false,
        });
        assert_eq!(limits.rate, 256);
        assert!(limits.allow(1, 199, 1) && !limits.allow(2, 200, 1));
        for minute in 1..20 {
            limits.allow(60_003 * minute, 0, 1);
        }
        assert!(limits.allow(60_003 * 20, 199, 1) && !limits.allow(60_003 * 20, 200, 1));
    }
}
