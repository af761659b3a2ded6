//! Plans that a guest carries out (`move = "guest"`, HMvisor §3.2.2): the host names frames, and the guest moves what lies
//! in them between its own nodes.
//!
//! Responsible for: naming the frames of each guest's plans, no more than 1,024 in a second of the full-size machine; moving what
//! lies in them on a thread of the guest, whose vCPUs pay; and the answer, a number. It leaves to others: which frames are in a plan
//! (the engine's), and what it knows of them afterwards.
//!
//! A frame lies in the node of the tier behind it and stays there: data that move get a free frame of the other node, and theirs is
//! free then. A frame with none of the load's memory in it (free, a table, or named twice) is left alone. Demotions that find no room
//! change frames with promotions that find none.

use std::collections::{BTreeMap, VecDeque};

use terrace_core::engine::report_of_count;
use terrace_proto::{
    Event, GuestMoves, MovePlan, MoveReport, PAGE_SIZE, PageMove, Tick, TierId, VmId,
};

use super::migration::{Memory, page_copy_ps};
use super::moves::position;
use super::vm::Vm;
use crate::base::number::{low, to_usize};
use crate::base::side::Side;
use crate::machine::second_stage::bits;

/// Most frames that are named to a guest in a second, of the full-size machine (HMvisor §3.2.1).
const A_SECOND: u64 = 1024;

/// A second, ns.
const SECOND: u64 = 1_000_000_000;

/// The plans of guests that carry them out.
#[derive(Debug)]
pub struct NamedPlans {
    guests: BTreeMap<VmId, Queue>,
    scale: u64,
}

/// A guest's plans, the oldest first.
#[derive(Debug, Default)]
struct Queue {
    plans: VecDeque<Named>,
    /// Frames of the first plan that were named and answered.
    answered: usize,
    /// Pages that it moved of them.
    moved: u64,
    /// The frames that are named now.
    batch: Option<Batch>,
    /// Time before which no others are, ns of the full-size machine.
    not_before: u64,
}

/// A plan, and the time when it came, ns of the full-size machine.
#[derive(Debug)]
struct Named {
    plan: MovePlan,
    came: u64,
}

impl NamedPlans {
    /// No plans, on a machine of that scale.
    #[must_use]
    pub fn new(scale: u64) -> Self {
        Self {
            guests: BTreeMap::new(),
            scale,
        }
    }

    /// Takes in a plan.
    pub fn push(&mut self, plan: MovePlan, now: Tick) {
        let queue = self.guests.entry(plan.vm).or_default();
        let came = now.0;
        queue.plans.push_back(Named { plan, came });
    }

    /// Lets each guest work for a quantum; returns the reports of plans that are done by then. `now` is the quantum's end.
    pub fn run_quantum(
        &mut self,
        now: Tick,
        quantum: u64,
        vms: &mut [Vm],
        memory: &mut Memory,
    ) -> Vec<Event> {
        let mut events = Vec::new();
        for (vm, queue) in &mut self.guests {
            let vm = &mut vms[position(*vm)];
            queue.name(now.0, self.scale, vm);
            let ended = queue.work(now.0, quantum, vm, memory);
            events.extend(ended.map(Event::Moved));
        }
        events
    }
}

impl Queue {
    /// Names the next frames of the first plan, if it is time for some.
    fn name(&mut self, now: u64, scale: u64, vm: &Vm) {
        let Some(first) = self.plans.front() else {
            return;
        };
        if self.batch.is_some() || now < self.not_before {
            return;
        }
        let left = &first.plan.moves[self.answered..];
        let named = &left[..left.len().min(to_usize((A_SECOND / scale).max(1)))];
        self.not_before = now + named.len() as u64 * scale * SECOND / A_SECOND;
        self.batch = Some(Batch::new(named, vm));
    }

    /// Works on the frames that are named; returns the report of the plan that ends by that.
    fn work(&mut self, now: u64, ps: u64, vm: &mut Vm, memory: &mut Memory) -> Option<MoveReport> {
        let batch = self.batch.as_mut()?;
        if !batch.work(vm, memory, ps) {
            return None;
        }
        self.answered += batch.moves.len();
        self.moved += batch.moved;
        self.batch = None;
        let is_over = |named: &Named| self.answered >= named.plan.moves.len();
        if !self.plans.front().is_some_and(is_over) {
            return None;
        }
        let named = self.plans.pop_front()?;
        self.answered = 0;
        let moved = std::mem::take(&mut self.moved);
        let left = named.plan.moves.len() as u64 - moved;
        Some(report_of_count(&named.plan, moved, left, now - named.came))
    }
}

/// Frames that are named to a guest at once.
#[derive(Debug)]
pub(crate) struct Batch {
    moves: Vec<PageMove>,
    /// The load's page in each frame.
    pages: Vec<Option<u32>>,
    next: usize,
    /// Moves that found no room.
    waiting: VecDeque<usize>,
    /// Pages that were moved.
    moved: u64,
    /// Time left of the quanta so far, ps.
    budget: u64,
    /// Time spent, ps.
    spent: u64,
}

/// A move that can be made now.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// The place in the batch.
    at: usize,
    page: u32,
    frame: u32,
    from: u8,
    to: TierId,
}

impl Batch {
    /// Frames that a guest is told of.
    pub(crate) fn new(moves: &[PageMove], vm: &Vm) -> Self {
        Self {
            pages: pages_in(moves, vm),
            moves: moves.to_vec(),
            next: 0,
            waiting: VecDeque::new(),
            moved: 0,
            budget: 0,
            spent: 0,
        }
    }

    /// Pages that were moved so far.
    #[cfg(test)]
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Works for `ps` of one processor's time; returns whether all is done.
    pub(crate) fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        self.budget += ps;
        let (before, moved) = (self.spent, self.moved);
        let granted = vm.grant(memory.free);
        while self.next < self.moves.len() && self.go(vm, memory) {
            self.next += 1;
        }
        vm.settle(granted, memory.free);
        if self.moved > moved {
            self.spent += vm.shoot_down_from(Side::Guest, memory.costs);
        }
        let spent = self.spent - before;
        vm.account.spent.migrate += spent;
        vm.steal(spent);
        self.next == self.moves.len()
    }

    /// Makes the next move, if it can be made; returns whether there was time for it.
    fn go(&mut self, vm: &mut Vm, memory: &mut Memory) -> bool {
        let Some(item) = self.item(self.next, vm) else {
            return true;
        };
        let partner = match has_room(vm, item.to.index()) {
            true => None,
            false => self.partner(&item, vm),
        };
        let copies = [Some(&item), partner.as_ref()];
        let ps = copies.iter().flatten().map(|item| cost(item, memory)).sum();
        if self.budget < ps {
            return false;
        }
        let took = match &partner {
            Some(partner) => {
                self.waiting.retain(|at| *at != partner.at);
                exchange(&item, partner, vm, memory);
                Some(ps)
            }
            None => put(&item, vm, memory).map(|fault| ps + fault),
        };
        let Some(took) = took else {
            self.waiting.push_back(item.at);
            return true;
        };
        self.budget = self.budget.saturating_sub(took);
        self.spent += took;
        self.moved += 1 + u64::from(partner.is_some());
        true
    }

    /// A move of the batch, if the frame holds memory of the load in another tier.
    fn item(&self, at: usize, vm: &Vm) -> Option<Item> {
        let (page, named) = (self.pages[at]?, self.moves[at]);
        let space = &vm.space;
        // It may have been swapped out since.
        let frame = space.guest.frame(page);
        let frame = frame.filter(|frame| u64::from(*frame) == named.gfn.0)?;
        let from = space.second.tier(space.second.unit_of(frame))?;
        (from != named.to.0).then_some(Item {
            at,
            page,
            frame,
            from,
            to: named.to,
        })
    }

    /// A move the other way that waits for room.
    fn partner(&self, of: &Item, vm: &Vm) -> Option<Item> {
        let mut items = self.waiting.iter().filter_map(|at| self.item(*at, vm));
        items.find(|item| item.from == of.to.0 && item.to.0 == of.from)
    }
}

/// The load's page in each frame that is named; of a frame that is named twice, in one of the two.
fn pages_in(moves: &[PageMove], vm: &Vm) -> Vec<Option<u32>> {
    let guest = &vm.space.guest;
    let mut frames: Vec<(u64, usize)> = Vec::with_capacity(moves.len());
    frames.extend(moves.iter().enumerate().map(|(at, page)| (page.gfn.0, at)));
    frames.sort_unstable();
    let mut found = vec![None; frames.len()];
    for page in 0..low(guest.pages()) {
        let frame = guest.frame(page).map(u64::from);
        let at = frame.map(|frame| frames.binary_search_by_key(&frame, |(frame, _)| *frame));
        if let Some(Ok(at)) = at {
            found[frames[at].1] = Some(page);
        }
    }
    found
}

/// Whether a node has a free page beyond its min watermark.
fn has_room(vm: &Vm, node: usize) -> bool {
    let zones = vm
        .answers
        .reclaim
        .as_ref()
        .and_then(|kernel| kernel.zones());
    zones.is_some_and(|zones| zones.has(&vm.space, node))
}

/// The time of one move, ps.
fn cost(item: &Item, memory: &Memory) -> u64 {
    memory.costs.move_page + page_copy_ps(memory.loads, memory.costs, item.from, item.to)
}

/// Moves a page to a free frame of the other node; returns the time of the host's fault, if nothing was behind that frame yet, ps.
/// `None` if there is no free frame.
fn put(item: &Item, vm: &mut Vm, memory: &mut Memory) -> Option<u64> {
    if !has_room(vm, item.to.index()) {
        return None;
    }
    let space = &mut vm.space;
    let frames = vm.answers.reclaim.as_mut()?.frames();
    let frame = frames.pop_of(space, item.to.index())?;
    let unit = space.second.unit_of(frame);
    let mut fault = 0;
    if space.second.get(unit) & bits::UNFILLED != 0 {
        space.second.lower(unit, bits::UNFILLED);
        space.counts.exits += 1;
        fault = memory.costs.second_stage_fault;
    }
    space.guest.remap(item.page, frame);
    frames.free(space, item.frame);
    copied(item, frame, vm, memory);
    Some(fault)
}

/// Lets two pages change frames.
fn exchange(one: &Item, other: &Item, vm: &mut Vm, memory: &mut Memory) {
    for (item, frame) in [(one, other.frame), (other, one.frame)] {
        vm.space.guest.remap(item.page, frame);
        copied(item, frame, vm, memory);
    }
}

/// Counts a page that was copied to a frame.
fn copied(item: &Item, frame: u32, vm: &mut Vm, memory: &mut Memory) {
    memory.traffic[usize::from(item.from)].read += PAGE_SIZE;
    memory.traffic[item.to.index()].written += PAGE_SIZE;
    let second = &mut vm.space.second;
    let (old, new) = (second.unit_of(item.frame), second.unit_of(frame));
    second.raise(old, bits::ACCESSED);
    second.raise(new, bits::ACCESSED | bits::DIRTY);
    vm.count_move(new, item.from, item.to);
}

/// The word of a guest that moves its pages: what its nodes have free beyond their min watermarks. `None` if it does not.
#[must_use]
pub fn said(vm: &Vm, tiers: usize) -> Option<GuestMoves> {
    if !vm.moves_by_name() {
        return None;
    }
    let zones = vm.answers.reclaim.as_ref()?.zones()?;
    let free = |tier: usize| {
        let pages = vm.space.free_pages(tier);
        pages.saturating_sub(zones.min(tier) + 1) * PAGE_SIZE
    };
    Some(GuestMoves {
        vm: vm.id,
        free_bytes: Some((0..tiers).map(free).collect()),
    })
}
