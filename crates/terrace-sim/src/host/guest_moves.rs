//! Plans that a guest carries out (`move = "guest"`, HMvisor §3.2.2): the host names frames, and the guest moves what lies
//! in them between its own nodes.
//!
//! Responsible for: one plan on a thread of the guest, whose vCPUs pay, and the report of it. It leaves to others: which
//! frames are named (the engine's), and that it forgets what it saw of them.
//!
//! A frame lies in the node of the tier behind it, as for the guest's own mechanisms: moved data keep the frame's number
//! and come to lie behind the other node, which gives a free page for them. A frame with none of the load's memory in it
//! (free, a table, or named twice) is left alone. Demotions that find no room change places with promotions that find none.

use std::collections::VecDeque;

use terrace_proto::{
    MovePlan, MoveReport, MoveStatus, PAGE_SIZE, PageCode, PageResult, TierId, VmId,
};

use super::migration::{Memory, page_copy_ps};
use super::vm::Vm;
use crate::base::number::{index, low};
use crate::base::side::Side;
use crate::machine::PS;

/// A plan that a guest carries out.
#[derive(Debug)]
pub struct Named {
    plan: MovePlan,
    /// The load's page in each named frame; none before the plan is begun.
    pages: Vec<Option<u32>>,
    statuses: Vec<MoveStatus>,
    next: usize,
    /// Moves that found no room, of the plan's.
    waiting: VecDeque<usize>,
    /// Time left of the quanta so far, ps.
    budget: u64,
    spent: u64,
}

/// A move that can be made now.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// The place in the plan.
    at: usize,
    unit: u32,
    from: u8,
    to: TierId,
}

impl Named {
    /// A plan that is not begun.
    #[must_use]
    pub fn new(plan: MovePlan) -> Self {
        Self {
            pages: Vec::new(),
            statuses: vec![MoveStatus::Busy; plan.moves.len()],
            plan,
            next: 0,
            waiting: VecDeque::new(),
            budget: 0,
            spent: 0,
        }
    }

    /// The VM whose guest carries the plan out.
    #[must_use]
    pub fn vm(&self) -> VmId {
        self.plan.vm
    }

    /// Works for `ps` of one processor's time; returns whether the plan is done.
    pub fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        if self.pages.is_empty() {
            self.pages = pages_in(&self.plan, vm);
        }
        self.budget += ps;
        let (before, began) = (self.spent, self.next);
        while self.next < self.plan.moves.len() && self.go(vm, memory) {
            self.next += 1;
        }
        if self.next > began {
            self.spent += vm.shoot_down_from(Side::Guest, memory.costs);
        }
        let spent = self.spent - before;
        vm.account.spent.migrate += spent;
        vm.steal(spent);
        self.next == self.plan.moves.len()
    }

    /// Makes the next move, if it can be made; returns whether there was time for it.
    fn go(&mut self, vm: &mut Vm, memory: &mut Memory) -> bool {
        let Some(item) = self.item(self.next, vm) else {
            return true;
        };
        let has_room = has_room(vm, memory, &item);
        let partner = match has_room {
            true => None,
            false => self.partner(&item, vm),
        };
        if !has_room && partner.is_none() {
            self.waiting.push_back(item.at);
            return true;
        }
        let items = [Some(item), partner];
        let items = items.iter().flatten();
        let cost = |item: &Item| cost(item, vm, memory);
        let ps: u64 = items.clone().map(cost).sum();
        if ps > self.budget {
            return false;
        }
        self.budget -= ps;
        self.spent += ps;
        // Of two that change places, one makes room for the other: nothing becomes free.
        if let Some(partner) = &partner {
            self.waiting.retain(|at| *at != partner.at);
        } else {
            make_room(vm, memory, &item);
            let pages = vm.space.second.pages_of(item.unit);
            memory.free[usize::from(item.from)] += pages;
            memory.free[item.to.index()] -= pages;
        }
        for item in items {
            put(item, vm, memory);
            self.statuses[item.at] = MoveStatus::Moved;
        }
        true
    }

    /// A move of the plan, if the frame holds memory of the load in another tier.
    fn item(&mut self, at: usize, vm: &Vm) -> Option<Item> {
        let page = self.pages[at]?;
        let named = self.plan.moves[at];
        let space = &vm.space;
        // It may have been swapped out since.
        let frame = space
            .guest
            .frame(page)
            .filter(|f| u64::from(*f) == named.gfn.0)?;
        let unit = space.second.unit_of(frame);
        let from = space.second.tier(unit)?;
        if from == named.to.0 {
            self.statuses[at] = MoveStatus::AlreadyThere;
            return None;
        }
        Some(Item {
            at,
            unit,
            from,
            to: named.to,
        })
    }

    /// A move the other way that waits for room.
    fn partner(&mut self, of: &Item, vm: &Vm) -> Option<Item> {
        let waiting: Vec<usize> = self.waiting.iter().copied().collect();
        let items = waiting.into_iter().filter_map(|at| self.item(at, vm));
        let mut items = items.collect::<Vec<_>>().into_iter();
        let pages = |unit: u32| vm.space.second.pages_of(unit);
        items.find(|item| {
            item.from == of.to.0 && item.to.0 == of.from && pages(item.unit) == pages(of.unit)
        })
    }

    /// The report of the plan; `scale` turns simulated time into the full-size machine's.
    #[must_use]
    pub fn report(self, vm: &Vm, scale: u64) -> MoveReport {
        let second = &vm.space.second;
        let code = |frame: u64| {
            let is_there = frame < vm.space.guest.frames();
            let tier = is_there.then(|| second.tier(second.unit_of(low(frame))));
            let tier = tier.flatten();
            tier.map_or(PageCode::ABSENT, |tier| {
                PageCode::new(TierId(tier), second.huge())
            })
        };
        let moves = self.plan.moves.iter().zip(&self.statuses);
        let results = moves.map(|(page, status)| PageResult {
            gfn: page.gfn,
            status: *status,
            now: code(page.gfn.0),
        });
        MoveReport {
            id: self.plan.id,
            vm: self.plan.vm,
            results: results.collect(),
            elapsed_ns: self.spent / PS * scale,
        }
    }
}

/// The load's page in each of a plan's frames; of a frame that is named twice, in one of the two.
fn pages_in(plan: &MovePlan, vm: &Vm) -> Vec<Option<u32>> {
    let guest = &vm.space.guest;
    let mut frames: Vec<(u64, usize)> = Vec::with_capacity(plan.moves.len());
    frames.extend(
        plan.moves
            .iter()
            .enumerate()
            .map(|(at, page)| (page.gfn.0, at)),
    );
    frames.sort_unstable();
    let mut found = vec![None; frames.len()];
    for page in (0..low(guest.pages())).step_by(index(low(guest.pages_per_leaf()))) {
        let frame = guest.frame(page).map(u64::from);
        let at = frame.map(|frame| frames.binary_search_by_key(&frame, |(frame, _)| *frame));
        if let Some(Ok(at)) = at {
            found[frames[at].1] = Some(page);
        }
    }
    found
}

/// Whether the node that a move goes to has a free page for it, beyond its watermark, and the host memory for that.
fn has_room(vm: &Vm, memory: &Memory, item: &Item) -> bool {
    let (to, second) = (item.to.index(), &vm.space.second);
    let device = vm.provision.as_ref();
    let in_node = device.is_none_or(|device| device.zones().has(&vm.space, to));
    let is_idle = vm.space.below_limit(to) < second.units_of(item.unit);
    let there = memory.free[to] >= second.pages_of(item.unit);
    in_node
        && if is_idle {
            vm.space.quota.idle()[to] > 0
        } else {
            there
        }
}

/// Takes the host memory from behind a free page of the node that a move goes to, if the node has no other.
fn make_room(vm: &mut Vm, memory: &mut Memory, item: &Item) {
    let to = item.to.index();
    if vm.space.below_limit(to) >= vm.space.second.units_of(item.unit) {
        return;
    }
    if let Some(reclaim) = &mut vm.answers.reclaim
        && reclaim.frames().strip_one(&mut vm.space, to)
    {
        memory.free[to] += vm.space.guest.pages_per_leaf();
    }
}

/// The time of one move, ps.
fn cost(item: &Item, vm: &Vm, memory: &Memory) -> u64 {
    let copy = page_copy_ps(memory.loads, memory.costs, item.from, item.to);
    memory.costs.move_page + copy * vm.space.second.pages_of(item.unit)
}

/// Puts the data of a frame behind the other node.
fn put(item: &Item, vm: &mut Vm, memory: &mut Memory) {
    let (from, to) = (usize::from(item.from), item.to.index());
    let pages = vm.space.second.pages_of(item.unit);
    memory.traffic[from].read += pages * PAGE_SIZE;
    memory.traffic[to].written += pages * PAGE_SIZE;
    vm.space.second.put(item.unit, Some(item.to.0));
    vm.count_move(item.unit, item.from, item.to);
}
