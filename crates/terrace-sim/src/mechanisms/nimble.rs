//! `nimble`: Nimble page management (Yan et al., ASPLOS '19; its kernel's mm/memory_manage.c).
//!
//! - Trigger: a launcher calls `mm_manage` every 5 s (end_to_end_launcher/run_all.sh, `STATS_PERIOD`).
//! - Threshold: Linux's active and inactive lists of each node. First, half of each list is looked at
//!   (`shrink_lists_node_memcg`): an inactive page that is referenced for the second time becomes active, an
//!   active one becomes inactive. Then all of the slow node's active list is to be promoted
//!   (`do_mm_manage`).
//! - Rate limit: none but the fast node's size, in one call.
//! - Victim: from the tail of the fast node's inactive list, as many as are to be promoted and find no free
//!   page. 2 MiB pages change places, copied by 4 threads; 4 KiB pages are moved out first, then the others
//!   in, by one.
//!
//! Pages are unmapped in batches of 8 (`migration_batch_size`).

use super::lists::Lists;
use super::{Ground, Mechanism, Moved, Setup, Stage, Travelling, Unit};
use crate::machine::TIERS;
use crate::words::number::{index, place};

/// Between two calls, ns.
const PERIOD: u64 = 5_000_000_000;

/// `limit_mt_num`: threads that copy 2 MiB pages.
const THREADS: usize = 4;

/// `migration_batch_size`.
const BATCH: usize = 8;

/// What a call does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next call is waited for.
    Sleep,
    /// So many pages of a list are still to be looked at.
    Shrink(u8, u64),
    /// Pages of a tier are to go to the one above.
    Manage(u8),
    /// Once room is made above a tier, so many of its pages go there.
    Promote(u8, u64),
}

/// Nimble.
#[derive(Debug)]
pub struct Nimble {
    /// Inactive and active list of the first tier, then of the second, and so on.
    lists: Lists,
    /// `PG_referenced`.
    referenced: Vec<bool>,
    listed: bool,
    due: u64,
    step: Step,
    /// The slower of the two tiers between which pages travel.
    pair: u8,
    tiers: u8,
    huge: bool,
    calls: u64,
}

impl Nimble {
    /// Nothing is listed yet.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let lists = u8::try_from(2 * TIERS).unwrap_or(u8::MAX);
        Self {
            lists: Lists::new(lists, setup.units),
            referenced: vec![false; index(setup.units)],
            listed: false,
            due: PERIOD,
            step: Step::Sleep,
            pair: 1,
            tiers: u8::try_from(setup.tiers).unwrap_or(1),
            huge: setup.pages_per_unit > 1,
            calls: 0,
        }
    }

    /// Before Linux 5.9, anonymous pages begin on the active list.
    fn list_all(&mut self, ground: &mut Ground) {
        for unit in 0..ground.units() {
            if let Some(tier) = ground.tier(unit) {
                self.lists.push(active(tier), unit);
            }
        }
        ground.set_batch(BATCH);
        ground.set_movers(if self.huge { THREADS } else { 1 });
        self.listed = true;
    }

    /// Looks at pages from a list's tail while there is time; says how many are left.
    fn shrink(&mut self, ground: &mut Ground, list: u8, mut left: u64) -> u64 {
        while left > 0 && ground.has_time() {
            let Some(unit) = self.lists.tail(list) else {
                return 0;
            };
            left -= 1;
            ground.spend(Stage::Classify, ground.costs().lru_page);
            let young = ground.young(unit);
            let is_active = list % 2 == 1;
            let inactive = if is_active { list - 1 } else { list };
            let referenced = &mut self.referenced[index(unit)];
            let again = !is_active && young && *referenced;
            if !is_active {
                *referenced = young;
            }
            self.lists.push(inactive + u8::from(again), unit);
        }
        left
    }

    /// What follows on a list that was looked at.
    fn after(&self, list: u8) -> Step {
        match list + 1 {
            next if next < 2 * self.tiers => Step::Shrink(next, self.lists.len(next) / 2),
            _ => Step::Manage(1),
        }
    }

    /// `do_mm_manage` from a tier to the one above.
    fn manage(&mut self, ground: &mut Ground, tier: u8) -> Step {
        if tier >= self.tiers {
            return Step::Sleep;
        }
        self.pair = tier;
        let above = tier - 1;
        let most = ground.capacity(above);
        let free = ground.free(above);
        let wanted = self.lists.len(active(tier)).min(most);
        if wanted <= free {
            return Step::Promote(tier, wanted);
        }
        let cold = self.lists.len(2 * above).min(wanted - free);
        let victims = self.pop(2 * above, cold);
        if !self.huge {
            ground.submit(&towards(&victims, tier), Travelling::Unmap);
            // `putback_overflow_pages` lets base pages fill half of what was free.
            return Step::Promote(tier, wanted.min(cold + free / 2));
        }
        let hot = self.pop(active(tier), cold);
        let pairs: Vec<(Unit, u8)> = hot
            .iter()
            .zip(&victims)
            .flat_map(|(hot, cold)| [(*hot, above), (*cold, tier)])
            .collect();
        let share = pairs.len().div_ceil(2).div_ceil(THREADS).max(1);
        for part in pairs.chunks(2 * share) {
            ground.submit(part, Travelling::Exchange);
        }
        Step::Promote(tier, wanted.min(cold + free) - cold)
    }

    fn pop(&mut self, list: u8, count: u64) -> Vec<Unit> {
        let units = std::iter::from_fn(|| self.lists.pop(list));
        units.take(place(count)).collect()
    }
}

fn active(tier: u8) -> u8 {
    2 * tier + 1
}

fn towards(units: &[Unit], tier: u8) -> Vec<(Unit, u8)> {
    units.iter().map(|unit| (*unit, tier)).collect()
}

impl Mechanism for Nimble {
    fn pass(&mut self, ground: &mut Ground) {
        if !self.listed {
            self.list_all(ground);
        }
        while ground.has_time() && ground.travelling() == 0 {
            self.step = match self.step {
                Step::Sleep if ground.now_ns() < self.due => return,
                Step::Sleep => {
                    self.due = ground.now_ns() + PERIOD;
                    self.calls += 1;
                    Step::Shrink(0, self.lists.len(0) / 2)
                }
                Step::Shrink(list, left) => match self.shrink(ground, list, left) {
                    0 => self.after(list),
                    left => Step::Shrink(list, left),
                },
                Step::Manage(tier) => self.manage(ground, tier),
                Step::Promote(tier, count) => {
                    let hot = self.pop(active(tier), count);
                    ground.submit(&towards(&hot, tier - 1), Travelling::Unmap);
                    Step::Manage(tier + 1)
                }
            };
        }
    }

    /// Pages keep their being active.
    fn moved(&mut self, _: &mut Ground, moved: &[Moved]) {
        for page in moved {
            if let Some(now) = page.outcome.now {
                let was_active = page.to < self.pair;
                self.lists.push(2 * now + u8::from(was_active), page.unit);
            }
        }
    }

    fn rounds(&self) -> u64 {
        self.calls
    }

    fn heap_bytes(&self) -> usize {
        self.referenced.capacity() + self.lists.heap_bytes()
    }
}
