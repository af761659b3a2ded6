//! `nomad`: non-exclusive tiering (Xiang et al., OSDI '24), as its authors' patches to Linux 5.13 have it.
//!
//! - Trigger: a hinting fault ([`Scanner`]); only pages of slower nodes get hints.
//! - Threshold: the page becomes a candidate. Each later fault looks at the 20 candidates before it: one that
//!   was accessed counts as accessed again, and once it is on the active list it is queued for
//!   promotion (`decide_queue_page`).
//! - Rate limit: the queue takes 512 pages, and one thread works it off, page by page.
//! - Promotion: a transaction ([`Travelling::Transaction`]): copied while it stays mapped; where it was
//!   written meanwhile, it is tried again, ten times at most. The slow page is kept as a shadow, and the
//!   first write to the fast page drops it.
//! - Victim: as with TPP ([`super::tpp`]). A page that has a shadow is only mapped to it. Shadows are
//!   dropped ten at a time where a demotion finds no memory, and by the slow node's kswapd.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use terrace_proto::MoveStatus;

use super::linux::marks::{free_pages, full_pages};
use super::linux::reclaim::{Aim, Demotion, Reclaim};
use super::linux::scanner::Scanner;
use super::{Fault, Ground, Mechanism, Moved, Setup, Stage, Travelling, Unit};
use crate::machine::TIERS;
use crate::words::number::place;

/// `PG_FAULT_LOOKBACK_DIST`: candidates that a fault looks at.
const LOOK_BACK: usize = 20;

/// `PROMOTE_QUEUE_LEN`.
const QUEUE: usize = 512;

/// Times that a transaction is tried (`nomad_transit_pages`).
const TRIES: u32 = 10;

/// Shadows that are dropped where a demotion finds no memory (`alloc_demote_page`).
const ROOM: u64 = 10;

/// Slow pages that are copies of fast ones.
#[derive(Debug, Default)]
struct Shadows {
    /// Per tier where the shadow lies, the fast pages. They are dropped in order of number, not of age.
    of: [BTreeSet<Unit>; TIERS],
}

impl Shadows {
    /// The tier of a page's shadow, which is no shadow any more.
    fn take(&mut self, unit: Unit) -> Option<u8> {
        (0_u8..)
            .zip(&mut self.of)
            .find_map(|(tier, of)| of.remove(&unit).then_some(tier))
    }

    /// The page's old place is kept, unless something else took it at once.
    fn keep(&mut self, ground: &mut Ground, unit: Unit, tier: u8) {
        if ground.free(tier) == 0 {
            return;
        }
        self.of[usize::from(tier)].insert(unit);
        ground.keep(tier, 1);
        ground.guard(unit);
    }

    /// Drops a page's shadow, if it has one.
    fn drop_of(&mut self, ground: &mut Ground, unit: Unit) {
        if let Some(tier) = self.take(unit) {
            ground.keep(tier, -1);
            ground.unguard(unit);
            ground.spend(Stage::Migrate, ground.costs().guest_page_work);
        }
    }

    /// Drops so many of a tier.
    fn drop_some(&mut self, ground: &mut Ground, tier: u8, most: u64) {
        for _ in 0..most {
            let Some(unit) = self.of[usize::from(tier)].first().copied() else {
                return;
            };
            self.drop_of(ground, unit);
        }
    }
}

impl Demotion for Shadows {
    fn begin(&mut self, ground: &mut Ground, tier: u8, wanted: u64) {
        self.drop_some(ground, tier, wanted / 2);
    }

    fn remap(&mut self, ground: &mut Ground, unit: Unit) -> Option<u8> {
        let tier = self.take(unit)?;
        ground.keep(tier, -1);
        ground.unguard(unit);
        ground.remap(unit, tier);
        ground.hint(unit);
        ground.spend(Stage::Migrate, ground.costs().move_page);
        ground.flush();
        Some(tier)
    }

    fn make_room(&mut self, ground: &mut Ground, tier: u8) {
        self.drop_some(ground, tier, ROOM);
    }
}

/// A page that is being promoted.
#[derive(Clone, Copy, Debug)]
struct Promotion {
    from: u8,
    tries: u32,
}

/// Nomad.
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
    /// Demotion begins at once, the scan after a second.
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

    /// `decide_queue_page`: looks at the candidates before this one.
    fn look_back(&mut self, ground: &Ground) {
        let candidates = std::mem::take(&mut self.candidates);
        for (at, unit) in candidates.into_iter().enumerate() {
            let is_slow = ground.tier(unit).is_some_and(|tier| tier > 0);
            if !is_slow || self.queued.contains(&unit) {
                continue;
            }
            match (ground.accessed(unit), self.reclaim.is_active(unit)) {
                (true, true) => self.enqueue(unit),
                (true, false) => {
                    self.reclaim.mark_accessed(unit);
                    self.candidates.push_back(unit);
                }
                (false, _) if at <= LOOK_BACK => self.candidates.push_back(unit),
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

    /// The promoting thread goes on, once what it works at is through.
    fn promote(&mut self, ground: &mut Ground) {
        if self.under_way > 0 {
            return;
        }
        let mut units = std::mem::take(&mut self.again);
        if units.is_empty() {
            for unit in std::mem::take(&mut self.queue) {
                match ground.tier(unit) {
                    Some(from) if from > 0 && !ground.travels(unit) => {
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
        let free = free_pages(ground, 0).saturating_sub(self.reclaim.marks(0).min);
        let fit = place(free / full_pages(ground.setup())).min(units.len());
        for unit in units.split_off(fit) {
            self.give_up(unit);
        }
        self.under_way = units.len();
        let wanted: Vec<(Unit, u8)> = units.into_iter().map(|unit| (unit, 0)).collect();
        ground.submit(&wanted, Travelling::Transaction);
    }

    /// A page stays where it is.
    fn give_up(&mut self, unit: Unit) {
        self.queued.remove(&unit);
        if let Some(promotion) = self.promoting.remove(&unit) {
            self.reclaim.put_back(unit, promotion.from, true);
        }
    }

    /// A transaction ended.
    fn promoted(&mut self, ground: &mut Ground, moved: &Moved) {
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
                self.shadows.keep(ground, unit, from);
            }
            MoveStatus::Busy if promotion.tries < TRIES => self.again.push(unit),
            _ => self.give_up(unit),
        }
    }
}

impl Mechanism for Nomad {
    fn pass(&mut self, ground: &mut Ground) {
        self.reclaim.work(ground, &mut self.shadows);
        self.promote(ground);
        self.scanner.work(ground, |_| {});
    }

    fn hint_fault(&mut self, ground: &mut Ground, fault: Fault) {
        let unit = fault.unit;
        if ground.tier(unit) == Some(0) {
            return;
        }
        self.look_back(ground);
        if !self.candidates.contains(&unit) && !self.queued.contains(&unit) {
            self.candidates.push_front(unit);
        }
        self.scanner.fault(ground.now_ns(), false, false);
    }

    fn guard_fault(&mut self, ground: &mut Ground, unit: Unit) {
        self.shadows.drop_of(ground, unit);
    }

    fn moved(&mut self, ground: &mut Ground, moved: &[Moved]) {
        for moved in moved {
            if moved.to == 0 {
                self.promoted(ground, moved);
            } else if self.reclaim.arrived(moved) {
                ground.hint(moved.unit);
            }
        }
    }

    fn pressed(&mut self, ground: &mut Ground, tier: u8) {
        self.reclaim.wake(ground, tier);
    }

    fn pushed(&mut self, ground: &mut Ground, unit: Unit, to: u8) {
        self.shadows.drop_of(ground, unit);
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
