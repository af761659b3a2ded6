//! Two LRU lists per node, and kswapd, which demotes from them (mm/vmscan.c, mm/swap.c).
//!
//! Anonymous pages begin on the inactive list (since Linux 5.9), here in the order of their addresses. At the tail of
//! the inactive list, a page whose A bit is set goes back to its head and is marked as referenced; one that was
//! marked already goes to the active list (`folio_check_references`). The other pages are demoted to the next node
//! (`demote_folio_list`), 32 at a time, unmapped and flushed together. From the active list's tail, pages go to the
//! inactive list, A set or not (`shrink_active_list`), while the inactive list is low (`inactive_is_low`). kswapd
//! scans a 4,096th of the lists, then through twice as much and so on (`balance_pgdat`), until the node has
//! enough free memory; after 16 times in vain it gives the node up (`MAX_RECLAIM_RETRIES`).
//!
//! Left out: file pages, swap (a page that cannot be demoted is activated, as in a system without swap), memory
//! cgroups, direct reclaim, the multi-generational LRU, and one batch of activations for each processor: here there
//! is one.

use terrace_proto::{MoveStatus, PageBitmap};

use super::super::lists::Lists;
use super::super::needs::{Memory, Need};
use super::super::{Context, MigrationMode, Moved, Setup, Stage, Unit};
use super::marks::{free_pages, full_pages, of_tiers};
use crate::base::number::to_usize;
use crate::guest::marks::Marks;

/// Pages taken off a list at a time (`SWAP_CLUSTER_MAX`).
const CLUSTER: u64 = 32;

/// The shift by which a list's length is divided at first (`DEF_PRIORITY`).
const PRIORITY: u32 = 12;

/// Failed attempts after which kswapd gives a node up (`MAX_RECLAIM_RETRIES`).
const RETRIES: u32 = 16;

/// Entries of a `pagevec`: activations that are done together.
const PAGEVEC: usize = 15;

/// Time after which TPP tries a node again that was given up, ns.
const TRY_AGAIN: u64 = 10_000_000_000;

/// The watermark that kswapd keeps free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Aim {
    /// More than the promotion watermark, on all nodes (Linux 5.18 and later, in tiering mode). An allocation or a
    /// promotion that finds too little memory wakes kswapd.
    Promotion,
    /// On the first node, TPP's demotion watermark: any tick at which less is free wakes kswapd. On others, more than
    /// the high watermark.
    Demotion,
}

/// A mechanism's own part in demotion.
pub trait Demotion {
    /// Reports that kswapd begins work on a node, and wants so many units.
    fn begin(&mut self, context: &mut Context, tier: u8, wanted: u64) {
        let _ = (context, tier, wanted);
    }

    /// Demotes a page without a copy; returns the target tier if it did.
    fn remap(&mut self, context: &mut Context, unit: Unit) -> Option<u8> {
        let _ = (context, unit);
        None
    }

    /// Makes room on a node that has no memory for a page that is to be demoted to it.
    fn make_room(&mut self, context: &mut Context, tier: u8) {
        let _ = (context, tier);
    }
}

/// Demotion of all pages by a copy.
#[derive(Debug)]
pub struct Copied;

impl Demotion for Copied {}

/// A node's kswapd.
#[derive(Clone, Debug, Default)]
struct Kswapd {
    awake: bool,
    priority: u32,
    in_round: bool,
    /// Units of the inactive and the active list that are still to be scanned in this round.
    left: [u64; 2],
    deactivates: bool,
    wanted: u64,
    scanned: u64,
    freed: u64,
    freed_since_woken: u64,
    failures: u32,
    try_at: u64,
    under_way: u64,
}

/// The LRU lists, and kswapd.
#[derive(Debug)]
pub struct Reclaim {
    aim: Aim,
    lists: Lists,
    filled: bool,
    referenced: PageBitmap,
    activating: Vec<Unit>,
    marks: Vec<Marks>,
    nodes: Vec<Kswapd>,
    per_unit: u64,
}

impl Reclaim {
    /// The need of a first tier that is larger than what kswapd demotes at a time.
    #[must_use]
    pub fn need(memory: Memory) -> Need {
        let constant = "demotes 32 pages at a time (SWAP_CLUSTER_MAX)";
        Need::of_pages(CLUSTER, memory, constant)
    }

    /// The need of a first tier whose demotion watermark is a simulated page at least.
    #[must_use]
    pub fn need_of_demotion(memory: Memory) -> Need {
        Need {
            relation: "less than a simulated page of this VM's",
            ..Need::of_pages(
                Marks::DEMOTION_PARTS,
                memory,
                "keeps 2 % of the first tier free (demote_scale_factor)",
            )
        }
    }

    /// The lists of a VM, which are filled by the first [`Reclaim::work`].
    #[must_use]
    pub fn new(setup: &Setup, aim: Aim) -> Self {
        let lists = u8::try_from(2 * setup.tiers).unwrap_or(u8::MAX);
        Self {
            aim,
            lists: Lists::new(lists, setup.units),
            filled: false,
            referenced: PageBitmap::new(u64::from(setup.units)),
            activating: Vec::new(),
            marks: Vec::new(),
            nodes: vec![Kswapd::default(); setup.tiers],
            per_unit: full_pages(setup),
        }
    }

    fn fill(&mut self, context: &mut Context) {
        self.filled = true;
        self.marks = of_tiers(context);
        context.set_movers(self.nodes.len());
        for unit in 0..context.units() {
            if let Some(tier) = context.tier(unit) {
                self.lists.push(2 * tier, unit);
            }
        }
    }

    /// A node's watermarks.
    #[must_use]
    pub fn marks(&self, tier: u8) -> Marks {
        let at = usize::from(tier);
        self.marks.get(at).copied().unwrap_or_default()
    }

    /// Whether a page is on an active list.
    #[must_use]
    pub fn is_active(&self, unit: Unit) -> bool {
        self.lists.list_of(unit).is_some_and(|list| list % 2 == 1)
    }

    /// Takes a page off its list.
    pub fn isolate(&mut self, unit: Unit) {
        self.lists.remove(unit);
    }

    /// Puts a page at a list's head.
    pub fn put_back(&mut self, unit: Unit, tier: u8, active: bool) {
        self.lists.push(2 * tier + u8::from(active), unit);
    }

    /// Puts a page on a list of the node to which it came; it stays active or inactive.
    pub fn came(&mut self, unit: Unit, tier: u8) {
        self.put_back(unit, tier, self.is_active(unit));
    }

    /// Marks a page as accessed (`mark_page_accessed`): the second time, an inactive page is activated, 15 of them
    /// together.
    pub fn mark_accessed(&mut self, unit: Unit) {
        let bit = u64::from(unit);
        if self.is_active(unit) || !self.referenced.get(bit) {
            self.referenced.set(bit);
            return;
        }
        self.referenced.put(bit, false);
        self.activating.push(unit);
        if self.activating.len() == PAGEVEC {
            for unit in std::mem::take(&mut self.activating) {
                self.activate(unit);
            }
        }
    }

    /// Moves a page to its node's active list, if it is on a list.
    pub fn activate(&mut self, unit: Unit) {
        if let Some(list) = self.lists.list_of(unit) {
            self.lists.push(list | 1, unit);
        }
    }

    /// Whether a node has as much free memory as kswapd keeps free.
    fn balanced(&self, context: &Context, tier: u8) -> bool {
        let free = free_pages(context, tier);
        let marks = self.marks(tier);
        match self.aim {
            Aim::Promotion => free > marks.promo,
            Aim::Demotion if tier == 0 => free >= marks.demote,
            Aim::Demotion => free > marks.high,
        }
    }

    /// Wakes the kswapd of a node (`wakeup_kswapd`).
    pub fn wake(&mut self, context: &Context, tier: u8) {
        let balanced = self.balanced(context, tier);
        let Some(node) = self.nodes.get_mut(usize::from(tier)) else {
            return;
        };
        if node.awake || balanced || node.failures >= RETRIES {
            return;
        }
        node.awake = true;
        node.priority = PRIORITY;
        node.freed_since_woken = 0;
    }

    /// Runs the kswapd of each node, as long as there is time.
    pub fn work(&mut self, context: &mut Context, demotion: &mut impl Demotion) {
        if !self.filled {
            self.fill(context);
        }
        if self.aim == Aim::Demotion {
            let now = context.now_ns();
            if let Some(first) = self.nodes.first_mut()
                && first.failures >= RETRIES
                && now >= first.try_at
            {
                first.failures = RETRIES - 1;
            }
            self.wake(context, 0);
        }
        // Each node has a thread of its own: none waits until another has given up.
        let mut works = true;
        while works && context.has_time() {
            works = false;
            for tier in (0_u8..).take(self.nodes.len()) {
                works |= self.balance(context, tier, demotion);
            }
        }
    }

    /// Makes the next step of `balance_pgdat`; returns whether there was one.
    fn balance(&mut self, context: &mut Context, tier: u8, demotion: &mut impl Demotion) -> bool {
        let balanced = self.balanced(context, tier);
        let node = &mut self.nodes[usize::from(tier)];
        if !node.awake || node.under_way > 0 {
            return false;
        }
        if balanced {
            node.awake = false;
            node.in_round = false;
        } else if !node.in_round {
            self.begin(context, tier, demotion);
        } else if node.left[0] == 0 || node.freed >= node.wanted {
            self.end(context, tier);
        } else {
            self.batch(context, tier, demotion);
        }
        true
    }

    /// Whether the inactive list is low (`inactive_is_low`): the larger the node, the smaller its inactive part is to
    /// be.
    fn inactive_is_low(&self, tier: u8) -> bool {
        let (inactive, active) = (self.lists.len(2 * tier), self.lists.len(2 * tier + 1));
        let gib = ((inactive + active) * self.per_unit) >> 18;
        let ratio = (10 * gib).isqrt().max(1);
        inactive * ratio < active
    }

    fn begin(&mut self, context: &mut Context, tier: u8, demotion: &mut impl Demotion) {
        if self.inactive_is_low(tier) {
            self.deactivate(context, tier, CLUSTER);
        }
        let marks = self.marks(tier);
        let mark = match self.aim {
            Aim::Demotion if tier == 0 => marks.demote,
            _ => marks.high,
        };
        let wanted = (mark / self.per_unit).max(CLUSTER);
        let deactivates = self.inactive_is_low(tier);
        // If there is no tier to demote to, anonymous pages are left alone.
        let is_last = usize::from(tier) + 1 == self.nodes.len();
        let (inactive, active) = (self.lists.len(2 * tier), self.lists.len(2 * tier + 1));
        let node = &mut self.nodes[usize::from(tier)];
        node.left = if is_last {
            [0, 0]
        } else {
            [inactive >> node.priority, active >> node.priority]
        };
        node.in_round = true;
        node.deactivates = deactivates;
        node.wanted = wanted;
        (node.scanned, node.freed) = (0, 0);
        demotion.begin(context, tier, wanted);
    }

    /// Ends the round: the next one scans more, if this one was too short or in vain.
    fn end(&mut self, context: &mut Context, tier: u8) {
        if self.inactive_is_low(tier) {
            self.deactivate(context, tier, CLUSTER);
        }
        let now = context.now_ns();
        let node = &mut self.nodes[usize::from(tier)];
        node.in_round = false;
        if node.scanned >= node.wanted && node.freed > 0 {
            return;
        }
        node.priority -= 1;
        if node.priority > 0 {
            return;
        }
        node.priority = PRIORITY;
        if std::mem::take(&mut node.freed_since_woken) == 0 {
            node.failures += 1;
        }
        if node.failures >= RETRIES {
            node.awake = false;
            node.try_at = now + TRY_AGAIN;
        }
    }

    fn batch(&mut self, context: &mut Context, tier: u8, demotion: &mut impl Demotion) {
        let node = &mut self.nodes[usize::from(tier)];
        let [inactive, active] = node.left.map(|left| left.min(CLUSTER));
        node.left[0] -= inactive;
        node.left[1] -= active;
        node.scanned += inactive;
        let deactivates = node.deactivates;
        self.demote(context, tier, inactive, demotion);
        if deactivates {
            self.deactivate(context, tier, active);
        }
    }

    /// Deactivates pages of the active list (`shrink_active_list`).
    fn deactivate(&mut self, context: &mut Context, tier: u8, units: u64) {
        for _ in 0..units {
            let Some(unit) = self.lists.pop(2 * tier + 1) else {
                return;
            };
            context.spend(Stage::Classify, context.costs().lru_page);
            context.young(unit);
            self.lists.push(2 * tier, unit);
        }
    }

    /// Demotes pages of the inactive list (`shrink_inactive_list`).
    fn demote(
        &mut self,
        context: &mut Context,
        tier: u8,
        units: u64,
        demotion: &mut impl Demotion,
    ) {
        let mut cold = Vec::with_capacity(to_usize(units));
        for _ in 0..units {
            let Some(unit) = self.lists.pop(2 * tier) else {
                break;
            };
            context.spend(Stage::Classify, context.costs().lru_page);
            let bit = u64::from(unit);
            let was_referenced = self.referenced.get(bit);
            let young = context.young(unit);
            self.referenced.put(bit, young);
            if young {
                self.put_back(unit, tier, was_referenced);
            } else {
                cold.push(unit);
            }
        }
        self.send(context, tier, &cold, demotion);
    }

    /// Sends cold pages to the next node (`demote_folio_list`). The allocations there take memory down to its min
    /// watermark, and wake its kswapd.
    fn send(
        &mut self,
        context: &mut Context,
        tier: u8,
        cold: &[Unit],
        demotion: &mut impl Demotion,
    ) {
        let to = tier + 1;
        let marks = self.marks(to);
        let mut sent = Vec::with_capacity(cold.len());
        for unit in cold {
            if let Some(to) = demotion.remap(context, *unit) {
                self.put_back(*unit, to, false);
                self.freed(tier, 1);
                continue;
            }
            let taken = sent.len() as u64 * self.per_unit;
            let full = |context: &Context| free_pages(context, to) <= marks.min + taken;
            if free_pages(context, to) <= marks.low + taken {
                self.wake(context, to);
            }
            if full(context) {
                demotion.make_room(context, to);
            }
            if full(context) {
                self.put_back(*unit, tier, true);
            } else {
                sent.push((*unit, to));
            }
        }
        if !sent.is_empty() {
            self.nodes[usize::from(tier)].under_way = sent.len() as u64;
            context.submit(&sent, MigrationMode::Unmap);
        }
    }

    fn freed(&mut self, tier: u8, units: u64) {
        let node = &mut self.nodes[usize::from(tier)];
        node.freed += units;
        node.freed_since_woken += units;
        node.failures = 0;
    }

    /// Takes in the end of a demotion; returns whether the page was demoted.
    pub fn arrived(&mut self, moved: &Moved) -> bool {
        let tier = moved.to.saturating_sub(1);
        let node = &mut self.nodes[usize::from(tier)];
        node.under_way = node.under_way.saturating_sub(1);
        let demoted = moved.outcome.status == MoveStatus::Moved;
        if demoted {
            self.freed(tier, 1);
        }
        if let Some(now) = moved.outcome.now {
            self.put_back(moved.unit, now, !demoted);
        }
        demoted
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.referenced.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_activated_at_their_second_access_fifteen_at_a_time() {
        let setup = Setup::of_units(20);
        let mut reclaim = Reclaim::new(&setup, Aim::Demotion);
        (0..20).for_each(|unit| reclaim.put_back(unit, 1, false));
        let active = |reclaim: &Reclaim| (0..20).filter(|unit| reclaim.is_active(*unit)).count();
        (0..20).for_each(|unit| reclaim.mark_accessed(unit));
        (0..14).for_each(|unit| reclaim.mark_accessed(unit));
        assert_eq!(active(&reclaim), 0);
        reclaim.mark_accessed(14);
        assert_eq!(active(&reclaim), 15);
        // An active page that comes to another node stays active.
        reclaim.came(3, 0);
        reclaim.came(17, 0);
        assert!(reclaim.is_active(3) && !reclaim.is_active(17));
    }
}
