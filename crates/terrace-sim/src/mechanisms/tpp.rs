//! `tpp`: transparent page placement (Maruf et al., ASPLOS '23), as in the paper; watermarks and anything else that
//! the paper leaves open are those of its authors' patches to Linux 5.13.
//!
//! - Trigger: a hinting fault ([`Scanner`]); only pages of slower nodes get hints.
//! - Threshold: the page is on the active list (§5.3). An inactive page is activated instead, so that its
//!   next hinting fault promotes it.
//! - Rate limit: the scan period, as in mode 1; and a promotion is refused below the high watermark.
//! - Victim: a page of the inactive list whose A bit is clear, by kswapd ([`Reclaim`]), which is woken at any
//!   tick while the first node has less free memory than the demotion watermark, 2 % of it
//!   (`demote_scale_factor`), and works until it has as much. A demoted page gets a hint at once.

use super::linux::marks::may_come;
use super::linux::reclaim::{Aim, Copied, Reclaim};
use super::linux::scanner::Scanner;
use super::needs::{Memory, Need};
use super::{Context, Fault, Mechanism, Moved, Setup, Unit};

/// Transparent page placement.
#[derive(Debug)]
pub struct Tpp {
    scanner: Scanner,
    reclaim: Reclaim,
}

impl Tpp {
    /// The least VM for the mechanism's constants.
    pub fn needs(memory: Memory) -> Vec<Need> {
        vec![
            Scanner::NEED,
            Need::of_watermarks(memory),
            Reclaim::need(memory),
            Reclaim::need_of_demotion(memory),
        ]
    }

    /// A mechanism that demotes at once, and scans after a second.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            scanner: Scanner::new(setup, true),
            reclaim: Reclaim::new(setup, Aim::Demotion),
        }
    }
}

impl Mechanism for Tpp {
    fn run_quantum(&mut self, context: &mut Context) {
        self.reclaim.work(context, &mut Copied);
        self.scanner.work(context, |_| {});
    }

    fn hint_fault(&mut self, context: &mut Context, fault: Fault) {
        let unit = fault.unit;
        if context.tier(unit) == Some(0) {
            return;
        }
        let mut failed = false;
        if self.reclaim.is_active(unit) {
            failed =
                !(may_come(context, &self.reclaim.marks(0), 0) && context.migrate_now(unit, 0));
            if !failed {
                self.reclaim.came(unit, 0);
            }
        } else {
            self.reclaim.activate(unit);
        }
        self.scanner.fault(context.now_ns(), false, failed);
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            if self.reclaim.arrived(moved) {
                context.hint(moved.unit);
            }
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
        self.reclaim.heap_bytes()
    }
}
