//! Moves: a plan's pages, one after another on one processor, in one of three ways.
//!
//! - `linux`: the kernel unmaps a batch, flushes, copies page by page and maps each to its new place;
//!   the next access to a page faults in the second stage. An access to a page that is not back yet
//!   waits.
//! - `write-protect`: a batch is copied while only reads go on; writes wait for the batch's end.
//! - `pml-copy`: a batch is copied while reads and writes go on; what was written meanwhile is unmapped
//!   and copied again; mappings are filled at once, so no access faults.

use terrace_core::policy::Move;
use terrace_proto::{MovePlan, MoveReport, MoveStatus, PAGE_SIZE, PageCode, PageResult, TierId};

use super::vm::Vm;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::second_stage::bits;
use crate::machine::tier::{Load, Traffic};
use crate::number::{float, low, place, whole};

/// What moves see of the machine.
pub struct Memory<'a> {
    /// The tiers under load.
    pub loads: &'a [Load],
    /// What goes over them in this quantum.
    pub traffic: &'a mut [Traffic; TIERS],
    /// 4 KiB pages that are free per tier.
    pub free: &'a mut [u64; TIERS],
    /// The constants.
    pub costs: &'a Costs,
}

/// A page of the batch.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// Its place in the plan.
    at: usize,
    unit: u32,
    from: u8,
    to: TierId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// The next batch begins.
    Begin,
    /// An item of the batch is copied.
    Copy(usize),
    /// All of the batch are copied.
    End,
    /// An item that was written meanwhile is copied again.
    Again(usize),
}

/// A plan under way.
#[derive(Debug)]
pub struct Moving {
    plan: MovePlan,
    way: Move,
    results: Vec<PageResult>,
    next: usize,
    batch: Vec<Item>,
    step: Step,
    /// Time that is left of the quanta so far, ps.
    budget: u64,
    spent: u64,
}

impl Moving {
    /// A plan that begins.
    #[must_use]
    pub fn new(plan: MovePlan, way: Move) -> Self {
        Self {
            results: Vec::with_capacity(plan.moves.len()),
            plan,
            way,
            next: 0,
            batch: Vec::new(),
            step: Step::Begin,
            budget: 0,
            spent: 0,
        }
    }

    /// Whose pages.
    #[must_use]
    pub fn vm(&self) -> terrace_proto::VmId {
        self.plan.vm
    }

    /// Works for `ps` of one processor's time; says whether the plan is done.
    pub fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        self.budget += ps;
        loop {
            if self.step == Step::Begin && self.next == self.plan.moves.len() {
                return true;
            }
            let cost = self.cost(vm, memory);
            if cost > self.budget {
                return false;
            }
            self.budget -= cost;
            self.spent += cost;
            vm.spent.migrate += cost;
            self.go(vm, memory);
        }
    }

    /// The report; `scale` turns simulated time into the full-size machine's.
    #[must_use]
    pub fn report(mut self, scale: u64) -> MoveReport {
        let order = |result: &PageResult| result.gfn;
        let positions: std::collections::BTreeMap<_, _> = (0..)
            .zip(&self.plan.moves)
            .map(|(i, m)| (m.gfn, i))
            .collect();
        self.results
            .sort_by_key(|result| positions.get(&order(result)).copied().unwrap_or(usize::MAX));
        MoveReport {
            id: self.plan.id,
            vm: self.plan.vm,
            results: self.results,
            elapsed_ns: self.spent / crate::machine::PS * scale,
        }
    }

    /// What the coming step takes, ps.
    fn cost(&self, vm: &Vm, memory: &Memory) -> u64 {
        let vcpus = vm.vcpus.iter().filter(|v| v.ended.is_none()).count() as u64;
        match self.step {
            Step::Begin => vcpus * memory.costs.shootdown_send,
            Step::End if self.way == Move::Linux => 0,
            Step::End => vcpus * memory.costs.shootdown_send,
            Step::Copy(i) => memory.costs.move_page + self.copy_ps(i, vm, memory),
            Step::Again(i) => self.copy_ps(i, vm, memory),
        }
    }

    fn copy_ps(&self, i: usize, vm: &Vm, memory: &Memory) -> u64 {
        let item = self.batch[i];
        let lines = memory.costs.copy_lines;
        let read = memory.loads[usize::from(item.from)].copy_ps(false, lines);
        let write = memory.loads[item.to.index()].copy_ps(true, lines);
        read.max(write) * vm.space.second.pages_per_unit()
    }

    fn go(&mut self, vm: &mut Vm, memory: &mut Memory) {
        match self.step {
            Step::Begin => self.begin(vm, memory),
            Step::Copy(i) => {
                self.copied(i, vm, memory);
                if self.way == Move::Linux {
                    self.switch(i, vm, memory);
                }
                self.step = if i + 1 == self.batch.len() {
                    Step::End
                } else {
                    Step::Copy(i + 1)
                };
            }
            Step::End => self.end(vm, memory),
            Step::Again(i) => {
                self.copied(i, vm, memory);
                self.switch(i, vm, memory);
                self.step = if i + 1 == self.batch.len() {
                    Step::Begin
                } else {
                    Step::Again(i + 1)
                };
            }
        }
    }

    /// Takes the next pages that can be moved, and unmaps or marks them.
    fn begin(&mut self, vm: &mut Vm, memory: &Memory) {
        self.batch.clear();
        while self.batch.len() < memory.costs.move_batch && self.next < self.plan.moves.len() {
            let at = self.next;
            self.next += 1;
            if let Some(item) = self.item(at, vm, memory) {
                let second = &mut vm.space.second;
                match self.way {
                    Move::Linux => second.raise(item.unit, bits::UNMAPPED),
                    Move::WriteProtect => second.raise(item.unit, bits::PROTECTED),
                    Move::PmlCopy => second.lower(item.unit, bits::DIRTY),
                }
                self.batch.push(item);
            }
        }
        if self.batch.is_empty() {
            return;
        }
        vm.shoot_down(memory.costs);
        self.step = Step::Copy(0);
    }

    /// A page of the plan, if it can be moved; otherwise its result is known.
    fn item(&mut self, at: usize, vm: &Vm, memory: &Memory) -> Option<Item> {
        let wanted = self.plan.moves[at];
        let second = &vm.space.second;
        let frame = low(wanted.gfn.0);
        let unit = second.unit_of(frame);
        let from = (unit < second.len()).then(|| second.tier(unit)).flatten();
        let status = match from {
            None => MoveStatus::Absent,
            Some(from) if from == wanted.to.0 => MoveStatus::AlreadyThere,
            Some(_) if second.get(unit) & (bits::UNMAPPED | bits::PROTECTED) != 0 => {
                MoveStatus::Busy
            }
            Some(_) if memory.free[wanted.to.index()] < second.pages_per_unit() => {
                MoveStatus::NoMemory
            }
            Some(from) => {
                return Some(Item {
                    at,
                    unit,
                    from,
                    to: wanted.to,
                });
            }
        };
        self.results.push(PageResult {
            gfn: wanted.gfn,
            status,
            now: code(from, second.huge()),
        });
        None
    }

    /// Counts the bytes of one copy.
    fn copied(&self, i: usize, vm: &Vm, memory: &mut Memory) {
        let item = self.batch[i];
        let bytes = vm.space.second.pages_per_unit() * PAGE_SIZE;
        memory.traffic[usize::from(item.from)].read += bytes;
        memory.traffic[item.to.index()].written += bytes;
    }

    /// The page is in its new place from now on, if there is room.
    fn switch(&mut self, i: usize, vm: &mut Vm, memory: &mut Memory) {
        let item = self.batch[i];
        let second = &mut vm.space.second;
        let pages = second.pages_per_unit();
        let huge = second.huge();
        let from = second.tier(item.unit);
        if from != Some(item.from) {
            // A balloon took it meanwhile.
            self.results.push(PageResult {
                gfn: self.plan.moves[item.at].gfn,
                status: from.map_or(MoveStatus::Absent, |_| MoveStatus::Busy),
                now: code(from, huge),
            });
            return;
        }
        let room = &mut memory.free[item.to.index()];
        let fits = *room >= pages;
        if fits {
            *room -= pages;
            memory.free[usize::from(item.from)] += pages;
            second.put(item.unit, Some(item.to.0));
        }
        second.lower(item.unit, bits::UNMAPPED | bits::PROTECTED);
        if self.way != Move::PmlCopy {
            second.raise(item.unit, bits::UNFILLED);
        }
        if fits {
            vm.count_move(item.from, item.to);
        }
        let (status, now) = if fits {
            (MoveStatus::Moved, item.to.0)
        } else {
            (MoveStatus::NoMemory, item.from)
        };
        self.results.push(PageResult {
            gfn: self.plan.moves[item.at].gfn,
            status,
            now: code(Some(now), huge),
        });
    }

    /// The batch is copied.
    fn end(&mut self, vm: &mut Vm, memory: &mut Memory) {
        self.step = Step::Begin;
        match self.way {
            Move::Linux => {}
            Move::WriteProtect => {
                for i in 0..self.batch.len() {
                    self.switch(i, vm, memory);
                }
                vm.shoot_down(memory.costs);
            }
            Move::PmlCopy => {
                let second = &vm.space.second;
                let (again, clean): (Vec<Item>, Vec<Item>) = self
                    .batch
                    .iter()
                    .partition(|item| second.get(item.unit) & bits::DIRTY != 0);
                self.batch = clean;
                for i in 0..self.batch.len() {
                    self.switch(i, vm, memory);
                }
                for item in &again {
                    vm.space.second.raise(item.unit, bits::UNMAPPED);
                }
                vm.shoot_down(memory.costs);
                self.batch = again;
                if !self.batch.is_empty() {
                    self.step = Step::Again(0);
                }
            }
        }
    }
}

fn code(tier: Option<u8>, huge: bool) -> PageCode {
    tier.map_or(PageCode::ABSENT, |tier| PageCode::new(TierId(tier), huge))
}

/// Free 4 KiB pages per tier: capacities less what VMs hold.
#[must_use]
pub fn free_pages(capacity: &[u64; TIERS], vms: &[Vm]) -> [u64; TIERS] {
    let mut free = *capacity;
    for vm in vms.iter().filter(|vm| vm.endless.is_none()) {
        for (free, held) in free.iter_mut().zip(vm.held_pages()) {
            *free = free.saturating_sub(held);
        }
    }
    free
}

/// Part of bytes, rounded down: for headroom.
#[must_use]
pub fn part(bytes: u64, share: f64) -> u64 {
    whole(float(bytes) * share)
}

/// Number of a VM in the list.
#[must_use]
pub fn position(vm: terrace_proto::VmId) -> usize {
    place(u64::from(vm.0)).saturating_sub(1)
}
