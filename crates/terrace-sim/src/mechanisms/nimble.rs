//! `nimble`: Nimble page management (Yan et al., ASPLOS '19; its kernel's mm/memory_manage.c).
//!
//! - Trigger: a launcher calls `mm_manage` every 5 s (end_to_end_launcher/run_all.sh, `STATS_PERIOD`).
//! - Threshold: Linux's active and inactive lists of each node. First, half of each list is scanned
//!   (`shrink_lists_node_memcg`): an inactive page that is referenced for the second time becomes active, an
//!   active one becomes inactive. Then all of the slow node's active list is to be promoted
//!   (`do_mm_manage`).
//! - Rate limit: none but the fast node's size, in one call.
//! - Victim: from the tail of the fast node's inactive list, as many pages as are to be promoted and find no free
//!   page. 2 MiB pages change places, copied by 4 threads; 4 KiB pages are moved by one thread: first out, then the
//!   others in.
//!
//! Pages are unmapped in batches of 8 (`migration_batch_size`).

use super::lists::Lists;
use super::needs::{Memory, Need};
use super::{Context, Mechanism, MigrationMode, Moved, Setup, Stage, Unit};
use crate::base::number::{index, to_usize};
use crate::machine::TIERS;

/// Time between two calls, ns.
const PERIOD: u64 = 5_000_000_000;

/// Threads that copy 2 MiB pages (`limit_mt_num`).
const THREADS: usize = 4;

/// Pages that are unmapped together (`migration_batch_size`).
const BATCH: usize = 8;

/// The current step of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Waiting for the next call.
    Sleep,
    /// A scan of pages of a list, of which so many are left.
    Shrink(u8, u64),
    /// Choosing pages of a tier that go to the one above.
    Manage(u8),
    /// Sending so many pages of a tier to the one above, once room is made there.
    Promote(u8, u64),
}

/// The mechanism Nimble.
#[derive(Debug)]
pub struct Nimble {
    /// The inactive and the active list of each tier, the first tier's first.
    lists: Lists,
    /// Whether each page is referenced (`PG_referenced`).
    referenced: Vec<bool>,
    listed: bool,
    due: u64,
    step: Step,
    /// The slower of the two tiers between which pages migration.
    pair: u8,
    tiers: u8,
    huge: bool,
    calls: u64,
}

impl Nimble {
    /// The least VM for the mechanism's constants.
    pub fn needs(memory: Memory) -> Vec<Need> {
        let constant = "unmaps 8 pages at a time (migration_batch_size)";
        vec![Need::of_pages(BATCH as u64, memory, constant)]
    }

    /// A mechanism whose lists are still empty.
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

    /// Lists all pages. Before Linux 5.9, anonymous pages begin on the active list.
    fn list_all(&mut self, context: &mut Context) {
        for unit in 0..context.units() {
            if let Some(tier) = context.tier(unit) {
                self.lists.push(active(tier), unit);
            }
        }
        context.set_batch(BATCH);
        context.set_movers(if self.huge { THREADS } else { 1 });
        self.listed = true;
    }

    /// Scans pages from a list's tail while there is time; returns how many are left.
    fn shrink(&mut self, context: &mut Context, list: u8, mut left: u64) -> u64 {
        while left > 0 && context.has_time() {
            let Some(unit) = self.lists.tail(list) else {
                return 0;
            };
            left -= 1;
            context.spend(Stage::Classify, context.costs().lru_page);
            let young = context.young(unit);
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

    /// The step that follows the scan of a list.
    fn after(&self, list: u8) -> Step {
        match list + 1 {
            next if next < 2 * self.tiers => Step::Shrink(next, self.lists.len(next) / 2),
            _ => Step::Manage(1),
        }
    }

    /// Chooses the moves from a tier to the one above (`do_mm_manage`).
    fn manage(&mut self, context: &mut Context, tier: u8) -> Step {
        if tier >= self.tiers {
            return Step::Sleep;
        }
        self.pair = tier;
        let above = tier - 1;
        let most = context.capacity(above);
        let free = context.free(above);
        let wanted = self.lists.len(active(tier)).min(most);
        if wanted <= free {
            return Step::Promote(tier, wanted);
        }
        let cold = self.lists.len(2 * above).min(wanted - free);
        let victims = self.pop(2 * above, cold);
        if !self.huge {
            context.submit(&towards(&victims, tier), MigrationMode::Unmap);
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
            context.submit(part, MigrationMode::Exchange);
        }
        Step::Promote(tier, wanted.min(cold + free) - cold)
    }

    fn pop(&mut self, list: u8, count: u64) -> Vec<Unit> {
        let units = std::iter::from_fn(|| self.lists.pop(list));
        units.take(to_usize(count)).collect()
    }
}

fn active(tier: u8) -> u8 {
    2 * tier + 1
}

fn towards(units: &[Unit], tier: u8) -> Vec<(Unit, u8)> {
    units.iter().map(|unit| (*unit, tier)).collect()
}

impl Mechanism for Nimble {
    fn run_quantum(&mut self, context: &mut Context) {
        if !self.listed {
            self.list_all(context);
        }
        while context.has_time() && context.migrating() == 0 {
            self.step = match self.step {
                Step::Sleep if context.now_ns() < self.due => return,
                Step::Sleep => {
                    self.due = context.now_ns() + PERIOD;
                    self.calls += 1;
                    Step::Shrink(0, self.lists.len(0) / 2)
                }
                Step::Shrink(list, left) => match self.shrink(context, list, left) {
                    0 => self.after(list),
                    left => Step::Shrink(list, left),
                },
                Step::Manage(tier) => self.manage(context, tier),
                Step::Promote(tier, count) => {
                    let hot = self.pop(active(tier), count);
                    context.submit(&towards(&hot, tier - 1), MigrationMode::Unmap);
                    Step::Manage(tier + 1)
                }
            };
        }
    }

    /// Lists the pages that moved; each stays active or inactive.
    fn moved(&mut self, _: &mut Context, moved: &[Moved]) {
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
