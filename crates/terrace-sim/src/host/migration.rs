//! Moves of pages: batch after batch on one processor, in one of several ways.
//!
//! - unmapped (`linux`): the kernel unmaps a batch, flushes, copies page by page and maps each to its new
//!   place. An access to a page that is not back yet waits. If the host moved it, the next access
//!   faults in the second stage; a guest's kernel fills its own table at once.
//! - `write-protect`: a batch is copied while only reads continue; writes wait for the batch's end.
//! - `pml-copy`: a batch is copied while reads and writes continue; pages written meanwhile are unmapped
//!   and copied again; mappings are filled at once, so no access faults.
//! - as a transaction (Nomad, OSDI '24): a batch is copied while reads and writes continue, for one quantum at
//!   least; pages written meanwhile stay where they were.
//! - exchanged: two pages change places, both unmapped meanwhile; no free page is needed.

use terrace_core::policy::Move;
use terrace_proto::{MoveStatus, PAGE_SIZE, TierId};

use super::vm::Vm;
use crate::base::side::Side;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::second_stage::{SecondStage, bits};
use crate::machine::tier::{Load, Traffic};

/// The state of mappings while pages are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MigrationMode {
    /// Mappings are removed.
    Unmap,
    /// Mappings are read-only.
    Protect,
    /// Mappings stay; pages that are written are copied again.
    Precopy,
    /// Mappings stay; pages that are written do not move.
    Transaction,
    /// Mappings are removed, and pages change places by twos.
    Exchange,
}

impl From<Move> for MigrationMode {
    fn from(stage: Move) -> Self {
        match stage {
            // A guest's own moves are none of the host's.
            Move::Linux | Move::Guest => Self::Unmap,
            Move::WriteProtect => Self::Protect,
            Move::PmlCopy => Self::Precopy,
        }
    }
}

/// A way of moving pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// The state of mappings while pages are copied.
    pub kind: MigrationMode,
    /// The side that moves.
    pub side: Side,
    /// Most pages that are unmapped, or protected, at a time; an even number for an exchange.
    pub batch: usize,
}

/// The part of the machine that moves use.
pub struct Memory<'a> {
    /// The tiers under load.
    pub loads: &'a [Load],
    /// The tiers' traffic in this quantum.
    pub traffic: &'a mut [Traffic; TIERS],
    /// 4 KiB pages that are free per tier.
    pub free: &'a mut [u64; TIERS],
    /// The constants.
    pub costs: &'a Costs,
}

/// A move that is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The unit of the second stage.
    pub unit: u32,
    /// The target tier.
    pub to: TierId,
}

/// The outcome of one move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The status, as `terrace-proto` defines it.
    pub status: MoveStatus,
    /// The tier of the page now; `None` if it is not backed.
    pub now: Option<u8>,
}

/// A page of the batch.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// The index among the wanted moves.
    at: usize,
    unit: u32,
    from: u8,
    to: TierId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Begin the next batch.
    Begin,
    /// Copy an item of the batch.
    Copy(usize),
    /// End the batch, of which all items are copied.
    End,
    /// Copy an item again that was written meanwhile.
    Again(usize),
}

/// Pages under way.
#[derive(Debug)]
pub struct Migration {
    wanted: Vec<Wanted>,
    way: Way,
    outcomes: Vec<Option<Outcome>>,
    /// Number of outcomes reported so far.
    reported: usize,
    next: usize,
    batch: Vec<Item>,
    step: Step,
    /// Time left of the quanta so far, ps.
    budget: u64,
    /// Whether the batch was begun in this quantum: no vCPU has run since.
    fresh: bool,
    spent: u64,
}

impl Migration {
    /// Starts the moves. For an exchange, each two consecutive pages change places.
    #[must_use]
    pub fn new(wanted: Vec<Wanted>, way: Way) -> Self {
        Self {
            outcomes: vec![None; wanted.len()],
            wanted,
            way,
            reported: 0,
            next: 0,
            batch: Vec::new(),
            step: Step::Begin,
            budget: 0,
            fresh: false,
            spent: 0,
        }
    }

    /// The outcome of each move; all are known when all is done.
    #[must_use]
    pub fn outcomes(&self) -> &[Option<Outcome>] {
        &self.outcomes
    }

    /// The next move in the order of the request, if its outcome is known.
    pub fn next_known(&mut self) -> Option<(Wanted, Outcome)> {
        let outcome = (*self.outcomes.get(self.reported)?)?;
        let wanted = self.wanted[self.reported];
        self.reported += 1;
        Some((wanted, outcome))
    }

    /// Processor time spent so far, ps.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Works for `ps` of one processor's time; returns whether all is done.
    pub fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        self.budget += ps;
        self.fresh = false;
        loop {
            if self.step == Step::Begin && self.next == self.wanted.len() {
                return true;
            }
            // A transaction aborts if a vCPU writes to the page during the copy: it ends in a later call, so that vCPUs
            // run in between.
            if self.way.kind == MigrationMode::Transaction && self.step == Step::End && self.fresh {
                self.budget = 0;
                return false;
            }
            let cost = self.cost(vm, memory);
            if cost > self.budget {
                return false;
            }
            self.budget -= cost;
            self.spent += cost;
            vm.account.spent.migrate += cost;
            self.go(vm, memory);
        }
    }

    /// Whether pages switch one by one; otherwise they wait for the batch's end.
    fn switches_at_once(&self) -> bool {
        self.way.kind == MigrationMode::Unmap
    }

    /// The time of the next step, ps.
    fn cost(&self, vm: &Vm, memory: &Memory) -> u64 {
        let vcpus = vm.vcpus.iter().filter(|v| v.is_running()).count() as u64;
        match self.step {
            Step::Begin => vcpus * memory.costs.shootdown_send,
            Step::End if self.switches_at_once() || self.way.kind == MigrationMode::Exchange => 0,
            Step::End => vcpus * memory.costs.shootdown_send,
            Step::Copy(i) => memory.costs.move_page + self.copy_ps(i, vm, memory),
            Step::Again(i) => self.copy_ps(i, vm, memory),
        }
    }

    fn copy_ps(&self, i: usize, vm: &Vm, memory: &Memory) -> u64 {
        let item = self.batch[i];
        page_copy_ps(memory.loads, memory.costs, item.from, item.to)
            * vm.space.second.pages_of(item.unit)
    }

    fn go(&mut self, vm: &mut Vm, memory: &mut Memory) {
        match self.step {
            Step::Begin => self.begin(vm, memory),
            Step::Copy(i) => {
                self.copied(i, vm, memory);
                if self.switches_at_once() {
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

    /// Begins a batch: takes the next pages that can be moved, and unmaps or marks them.
    fn begin(&mut self, vm: &mut Vm, memory: &Memory) {
        self.batch.clear();
        let by = if self.way.kind == MigrationMode::Exchange {
            2
        } else {
            1
        };
        while self.batch.len() + by <= self.way.batch.max(by) && self.next < self.wanted.len() {
            let at = self.next..(self.next + by).min(self.wanted.len());
            self.next = at.end;
            let items: Vec<Item> = at.filter_map(|at| self.item(at, vm, memory)).collect();
            if self.way.kind == MigrationMode::Exchange && !self.pairs(&items, &vm.space.second) {
                continue;
            }
            for item in items {
                let second = &mut vm.space.second;
                match self.way.kind {
                    MigrationMode::Unmap | MigrationMode::Exchange => {
                        second.raise(item.unit, bits::UNMAPPED)
                    }
                    MigrationMode::Protect => second.raise(item.unit, bits::PROTECTED),
                    MigrationMode::Precopy | MigrationMode::Transaction => {
                        second.lower(item.unit, bits::DIRTY)
                    }
                }
                self.batch.push(item);
            }
        }
        if self.batch.is_empty() {
            return;
        }
        self.shoot_down(vm, memory.costs);
        self.fresh = true;
        self.step = Step::Copy(0);
    }

    /// Flushes the translations of the batch.
    fn shoot_down(&self, vm: &mut Vm, costs: &Costs) {
        match self.batch.as_slice() {
            [item] => vm.shoot_down_unit(item.unit, self.way.side, costs),
            _ => vm.shoot_down_from(self.way.side, costs),
        };
    }

    /// Whether two pages can change places; if not, their outcomes are that they stay.
    fn pairs(&mut self, items: &[Item], second: &SecondStage) -> bool {
        if let [a, b] = items
            && a.from == b.to.0
            && b.from == a.to.0
            && second.pages_of(a.unit) == second.pages_of(b.unit)
        {
            return true;
        }
        for item in items {
            self.outcomes[item.at] = Some(Outcome {
                status: MoveStatus::Busy,
                now: Some(item.from),
            });
        }
        false
    }

    /// A wanted page, if it can be moved; otherwise its outcome is set.
    fn item(&mut self, at: usize, vm: &Vm, memory: &Memory) -> Option<Item> {
        let Wanted { unit, to } = self.wanted[at];
        let second = &vm.space.second;
        let from = (unit < second.len()).then(|| second.tier(unit)).flatten();
        let full = self.way.kind != MigrationMode::Exchange && !vm.room_for(unit, to, memory.free);
        let status = match from {
            None => MoveStatus::Absent,
            Some(from) if from == to.0 => MoveStatus::AlreadyThere,
            Some(_) if second.get(unit) & (bits::UNMAPPED | bits::PROTECTED) != 0 => {
                MoveStatus::Busy
            }
            Some(_) if full => MoveStatus::NoMemory,
            Some(from) => return Some(Item { at, unit, from, to }),
        };
        self.outcomes[at] = Some(Outcome { status, now: from });
        None
    }

    /// Counts the bytes of one copy.
    fn copied(&self, i: usize, vm: &Vm, memory: &mut Memory) {
        let item = self.batch[i];
        let bytes = vm.space.second.pages_of(item.unit) * PAGE_SIZE;
        memory.traffic[usize::from(item.from)].read += bytes;
        memory.traffic[item.to.index()].written += bytes;
    }

    /// Switches a page to its new place, if there is room.
    fn switch(&mut self, i: usize, vm: &mut Vm, memory: &mut Memory) {
        let item = self.batch[i];
        let from = vm.space.second.tier(item.unit);
        if from != Some(item.from) {
            // A balloon took it meanwhile.
            self.outcomes[item.at] = Some(Outcome {
                status: from.map_or(MoveStatus::Absent, |_| MoveStatus::Busy),
                now: from,
            });
            return;
        }
        // Of two that change places, one makes room for the other: nothing becomes free.
        let exchange = self.way.kind == MigrationMode::Exchange;
        let fits = exchange || vm.room_for(item.unit, item.to, memory.free);
        let second = &mut vm.space.second;
        if fits {
            if !exchange {
                let pages = second.pages_of(item.unit);
                memory.free[item.to.index()] -= pages;
                memory.free[usize::from(item.from)] += pages;
            }
            second.put(item.unit, Some(item.to.0));
        }
        self.let_go(item.unit, vm);
        if fits {
            vm.count_move(item.unit, item.from, item.to);
        }
        let (status, now) = if fits {
            (MoveStatus::Moved, item.to.0)
        } else {
            (MoveStatus::NoMemory, item.from)
        };
        self.outcomes[item.at] = Some(Outcome {
            status,
            now: Some(now),
        });
    }

    /// Lets a page be reached again; if the host unmapped it, by a fault.
    fn let_go(&self, unit: u32, vm: &mut Vm) {
        let second = &mut vm.space.second;
        second.lower(unit, bits::UNMAPPED | bits::PROTECTED);
        if self.way.side == Side::Host && self.way.kind != MigrationMode::Precopy {
            second.raise(unit, bits::UNFILLED);
        }
    }

    /// Ends the batch, of which all pages are copied.
    fn end(&mut self, vm: &mut Vm, memory: &mut Memory) {
        self.step = Step::Begin;
        match self.way.kind {
            MigrationMode::Unmap => {}
            MigrationMode::Exchange => self.switch_all(vm, memory),
            MigrationMode::Protect => {
                self.switch_all(vm, memory);
                vm.shoot_down_from(self.way.side, memory.costs);
            }
            MigrationMode::Transaction => {
                self.shoot_down(vm, memory.costs);
                for item in self.take_written(vm) {
                    self.outcomes[item.at] = Some(Outcome {
                        status: MoveStatus::Busy,
                        now: Some(item.from),
                    });
                }
                self.switch_all(vm, memory);
            }
            MigrationMode::Precopy => {
                let again = self.take_written(vm);
                self.switch_all(vm, memory);
                for item in &again {
                    vm.space.second.raise(item.unit, bits::UNMAPPED);
                }
                vm.shoot_down_from(self.way.side, memory.costs);
                self.batch = again;
                if !self.batch.is_empty() {
                    self.step = Step::Again(0);
                }
            }
        }
    }

    fn switch_all(&mut self, vm: &mut Vm, memory: &mut Memory) {
        for i in 0..self.batch.len() {
            self.switch(i, vm, memory);
        }
    }

    /// Takes the pages out of the batch that were written since they were copied.
    fn take_written(&mut self, vm: &Vm) -> Vec<Item> {
        let second = &vm.space.second;
        let (written, clean) = self
            .batch
            .iter()
            .partition(|item| second.get(item.unit) & bits::DIRTY != 0);
        self.batch = clean;
        written
    }
}

/// The time in which one processor copies 4 KiB from a tier to another now, ps.
#[must_use]
pub fn page_copy_ps(loads: &[Load], costs: &Costs, from: u8, to: TierId) -> u64 {
    let lines = costs.copy_lines;
    let read = loads[usize::from(from)].copy_ps(false, lines);
    let write = loads[to.index()].copy_ps(true, lines);
    read.max(write)
}
