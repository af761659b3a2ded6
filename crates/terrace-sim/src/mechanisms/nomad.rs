//! `nomad`: non-exclusive tiering (Xiang et al., OSDI '24), as its authors' patches to Linux 5.13 have it.
//!
//! - Trigger: a hinting fault ([`Scanner`]); only pages of slower nodes get hints.
//! - Threshold: the page becomes a candidate. Each later fault checks the 20 candidates before it: one that
//!   was accessed counts as accessed again, and once it is on the active list it is queued for
//!   promotion (`decide_queue_page`).
//! - Rate limit: the queue takes 512 pages, and one thread works through it, page by page.
//! - Promotion: a transaction ([`MigrationMode::Transaction`]): the page is copied while it stays mapped; if it was
//!   written meanwhile, it is tried again, ten times at most. The slow page remains as a shadow, and the first write
//!   to the fast page drops the shadow.
//! - Victim: as with TPP ([`super::tpp`]). A page that has a shadow is only mapped to it. Shadows are dropped ten at
//!   a time if a demotion finds no memory, and by the slow node's kswapd.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use terrace_proto::MoveStatus;

use super::linux::marks::{free_pages, full_pages};
use super::linux::reclaim::{Aim, Demotion, Reclaim};
use super::linux::scanner::Scanner;
use super::needs::{Memory, Need};
use super::tpp::Tpp;
use super::{Context, Fault, Mechanism, MigrationMode, Moved, Setup, Stage, Unit};
use crate::base::number::to_usize;
use crate::machine::TIERS;

/// Candidates that a fault checks (`PG_FAULT_LOOKBACK_DIST`).
const LOOKBACK: usize = 20;

/// Length of the queue of promotions (`PROMOTE_QUEUE_LEN`).
const QUEUE: usize = 512;

/// Times that a transaction is tried (`nomad_transit_pages`).
const TRIES: u32 = 10;

/// Shadows that are dropped if a demotion finds no memory (`alloc_demote_page`).
const ROOM: u64 = 10;

/// Slow pages that are copies of fast ones.
#[derive(Debug, Default)]
struct Shadows {
    /// The fast pages, by the tier of the shadow. They are dropped in order of number, not of age.
    of: [BTreeSet<Unit>; TIERS],
}

impl Shadows {
    /// Takes a page's shadow, which is none from now on; returns the shadow's tier.
    fn take(&mut self, unit: Unit) -> Option<u8> {
        (0_u8..)
            .zip(&mut self.of)
            .find_map(|(tier, of)| of.remove(&unit).then_some(tier))
    }

    /// Keeps the page's old place as a shadow, unless something else took it at once.
    fn keep(&mut self, context: &mut Context, unit: Unit, tier: u8) {
        if context.free(tier) == 0 {
            return;
        }
        self.of[usize::from(tier)].insert(unit);
        context.keep(tier, 1);
        context.guard(unit);
    }

    /// Drops a page's shadow, if it has one.
    fn drop_of(&mut self, context: &mut Context, unit: Unit) {
        if let Some(tier) = self.take(unit) {
            context.keep(tier, -1);
            context.unguard(unit);
            context.spend(Stage::Migrate, context.costs().guest_page_work);
        }
    }

    /// Drops so many shadows of a tier.
    fn drop_some(&mut self, context: &mut Context, tier: u8, most: u64) {
        for _ in 0..most {
            let Some(unit) = self.of[usize::from(tier)].first().copied() else {
                return;
            };
            self.drop_of(context, unit);
        }
    }
}

impl Demotion for Shadows {
    fn begin(&mut self, context: &mut Context, tier: u8, wanted: u64) {
        self.drop_some(context, tier, wanted / 2);
    }

    fn remap(&mut self, context: &mut Context, unit: Unit) -> Option<u8> {
        let tier = self.take(unit)?;
        context.keep(tier, -1);
        context.unguard(unit);
        context.remap(unit, tier);
        context.hint(unit);
        context.spend(Stage::Migrate, context.costs().move_page);
        context.flush();
        Some(tier)
    }

    fn make_room(&mut self, context: &mut Context, tier: u8) {
        self.drop_some(context, tier, ROOM);
    }
}

/// A page that is being promoted.
#[derive(Clone, Copy, Debug)]
struct Promotion {
    from: u8,
    tries: u32,
}

/// The mechanism Nomad.
#[derive(Debug)]
pub struct Nomad {
    scanner: Scanner,
    reclaim: Reclaim,
    shadows: Shadows,
    /// Pages that faulted, the last one first.
    candidates: VecDeque<Unit>,
    queue: VecDeque<Unit>,
    queued: BTreeSet<Unit>,
    promoting: BTreeMap<Unit, Promotion>,
    again: Vec<Unit>,
    under_way: usize,
}

impl Nomad {
    /// The least VM for the mechanism's constants: a fast node that the queue alone would fill is too small, and so is
    /// one that is too small for TPP.
    pub fn needs(memory: Memory) -> Vec<Need> {
        let constant = "queues 512 pages for promotion (PROMOTE_QUEUE_LEN)";
        let mut needs = Tpp::needs(memory);
        needs.push(Need::of_pages(QUEUE as u64, memory, constant));
        needs
    }

    /// A mechanism that demotes at once, and scans after a second.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            scanner: Scanner::new(setup, true),
            reclaim: Reclaim::new(setup, Aim::Demotion),
            shadows: Shadows::default(),
            candidates: VecDeque::new(),
            queue: VecDeque::new(),
            queued: BTreeSet::new(),
            promoting: BTreeMap::new(),
            again: Vec::new(),
            under_way: 0,
        }
    }

    /// Checks the candidates before this one (`decide_queue_page`).
    fn recheck_candidates(&mut self, context: &Context) {
        let candidates = std::mem::take(&mut self.candidates);
        for (at, unit) in candidates.into_iter().enumerate() {
            let is_slow = context.tier(unit).is_some_and(|tier| tier > 0);
            if !is_slow || self.queued.contains(&unit) {
                continue;
            }
            match (context.accessed(unit), self.reclaim.is_active(unit)) {
                (true, true) => self.enqueue(unit),
                (true, false) => {
                    self.reclaim.mark_accessed(unit);
                    self.candidates.push_back(unit);
                }
                (false, _) if at <= LOOKBACK => self.candidates.push_back(unit),
                (false, _) => {}
            }
        }
    }

    fn enqueue(&mut self, unit: Unit) {
        if self.queue.len() < QUEUE {
            self.queue.push_back(unit);
            self.queued.insert(unit);
        }
    }

    /// Runs the promoting thread, if its last batch is done.
    fn promote(&mut self, context: &mut Context) {
        if self.under_way > 0 {
            return;
        }
        let mut units = std::mem::take(&mut self.again);
        if units.is_empty() {
            for unit in std::mem::take(&mut self.queue) {
                match context.tier(unit) {
                    Some(from) if from > 0 && !context.is_migrating(unit) => {
                        self.reclaim.isolate(unit);
                        self.promoting.insert(unit, Promotion { from, tries: 0 });
                        units.push(unit);
                    }
                    _ => {
                        self.queued.remove(&unit);
                    }
                }
            }
        }
        // The allocations on the first node take what its min watermark leaves.
        let free = free_pages(context, 0).saturating_sub(self.reclaim.marks(0).min);
        let fit = to_usize(free / full_pages(context.setup())).min(units.len());
        for unit in units.split_off(fit) {
            self.give_up(unit);
        }
        self.under_way = units.len();
        let wanted: Vec<(Unit, u8)> = units.into_iter().map(|unit| (unit, 0)).collect();
        context.submit(&wanted, MigrationMode::Transaction);
    }

    /// Gives up the promotion of a page, which stays in its tier.
    fn give_up(&mut self, unit: Unit) {
        self.queued.remove(&unit);
        if let Some(promotion) = self.promoting.remove(&unit) {
            self.reclaim.put_back(unit, promotion.from, true);
        }
    }

    /// Takes in the end of a transaction.
    fn promoted(&mut self, context: &mut Context, moved: &Moved) {
        self.under_way = self.under_way.saturating_sub(1);
        let unit = moved.unit;
        let Some(promotion) = self.promoting.get_mut(&unit) else {
            return;
        };
        promotion.tries += 1;
        let from = promotion.from;
        match moved.outcome.status {
            MoveStatus::Moved => {
                self.promoting.remove(&unit);
                self.queued.remove(&unit);
                self.reclaim.put_back(unit, 0, true);
                self.shadows.keep(context, unit, from);
            }
            MoveStatus::Busy if promotion.tries < TRIES => self.again.push(unit),
            _ => self.give_up(unit),
        }
    }
}

impl Mechanism for Nomad {
    fn run_quantum(&mut self, context: &mut Context) {
        self.reclaim.work(context, &mut self.shadows);
        self.promote(context);
        self.scanner.work(context, |_| {});
    }

    fn hint_fault(&mut self, context: &mut Context, fault: Fault) {
        let unit = fault.unit;
        if context.tier(unit) == Some(0) {
            return;
        }
        self.recheck_candidates(context);
        if !self.candidates.contains(&unit) && !self.queued.contains(&unit) {
            self.candidates.push_front(unit);
        }
        self.scanner.fault(context.now_ns(), false, false);
    }

    fn guard_fault(&mut self, context: &mut Context, unit: Unit) {
        self.shadows.drop_of(context, unit);
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            if moved.to == 0 {
                self.promoted(context, moved);
            } else if self.reclaim.arrived(moved) {
                context.hint(moved.unit);
            }
        }
    }

    fn below_low_watermark(&mut self, context: &mut Context, tier: u8) {
        self.reclaim.wake(context, tier);
    }

    fn displaced(&mut self, context: &mut Context, unit: Unit, to: u8) {
        self.shadows.drop_of(context, unit);
        self.reclaim.came(unit, to);
    }

    fn rounds(&self) -> u64 {
        self.scanner.rounds()
    }

    fn heap_bytes(&self) -> usize {
        let shadows: usize = self.shadows.of.iter().map(BTreeSet::len).sum();
        self.reclaim.heap_bytes() + shadows * size_of::<Unit>()
    }
}
