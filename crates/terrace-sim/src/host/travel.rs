//! How pages travel: batch after batch on one processor, in one of several ways.
//!
//! - unmapped (`linux`): the kernel unmaps a batch, flushes, copies page by page and maps each to its new
//!   place. An access to a page that is not back yet waits. Where the host moved it, the next access
//!   faults in the second stage; a guest's kernel fills its own table at once.
//! - `write-protect`: a batch is copied while only reads go on; writes wait for the batch's end.
//! - `pml-copy`: a batch is copied while reads and writes go on; what was written meanwhile is unmapped
//!   and copied again; mappings are filled at once, so no access faults.
//! - as a transaction (Nomad, OSDI '24): a batch is copied while reads and writes go on, for one quantum at
//!   least; what was written meanwhile stays where it was.
//! - exchanged: two pages change places, both unmapped meanwhile; no free page is needed.

use terrace_core::policy::Move;
use terrace_proto::{MoveStatus, PAGE_SIZE, TierId};

use super::vm::Vm;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::second_stage::{SecondStage, bits};
use crate::machine::tier::{Load, Traffic};
use crate::words::side::Side;

/// What happens to mappings while pages are copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// None are left.
    Unmap,
    /// They are read-only.
    Protect,
    /// They stay; what is written is copied again.
    Precopy,
    /// They stay; what is written does not travel.
    Transaction,
    /// None are left, and pages change places by twos.
    Exchange,
}

impl From<Move> for Kind {
    fn from(stage: Move) -> Self {
        match stage {
            Move::Linux => Self::Unmap,
            Move::WriteProtect => Self::Protect,
            Move::PmlCopy => Self::Precopy,
        }
    }
}

/// A way to travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// What happens to mappings.
    pub kind: Kind,
    /// Who does it.
    pub side: Side,
    /// Most pages that are unmapped, or protected, at a time; an even number for an exchange.
    pub batch: usize,
}

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

/// A unit that shall be in a tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The unit of the second stage.
    pub unit: u32,
    /// Where to.
    pub to: TierId,
}

/// What became of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// As terrace-proto has it.
    pub status: MoveStatus,
    /// The tier where it is now, if it is backed.
    pub now: Option<u8>,
}

/// A page of the batch.
#[derive(Clone, Copy, Debug)]
struct Item {
    /// Its place in what is wanted.
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

/// Pages under way.
#[derive(Debug)]
pub struct Travel {
    wanted: Vec<Wanted>,
    way: Way,
    outcomes: Vec<Option<Outcome>>,
    /// Outcomes that were told.
    told: usize,
    next: usize,
    batch: Vec<Item>,
    step: Step,
    /// Time that is left of the quanta so far, ps.
    budget: u64,
    /// The batch was begun in this quantum: no vCPU has run since.
    fresh: bool,
    spent: u64,
}

impl Travel {
    /// A journey that begins. For an exchange, each two that follow each other change places.
    #[must_use]
    pub fn new(wanted: Vec<Wanted>, way: Way) -> Self {
        Self {
            outcomes: vec![None; wanted.len()],
            wanted,
            way,
            told: 0,
            next: 0,
            batch: Vec::new(),
            step: Step::Begin,
            budget: 0,
            fresh: false,
            spent: 0,
        }
    }

    /// What became of each, once all is done.
    #[must_use]
    pub fn outcomes(&self) -> &[Option<Outcome>] {
        &self.outcomes
    }

    /// The next page, in the order of what was asked for, of which it is known what became of it.
    pub fn next_known(&mut self) -> Option<(Wanted, Outcome)> {
        let outcome = (*self.outcomes.get(self.told)?)?;
        let wanted = self.wanted[self.told];
        self.told += 1;
        Some((wanted, outcome))
    }

    /// Processor time that it took so far, ps.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// Works for `ps` of one processor's time; says whether all is done.
    pub fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        self.budget += ps;
        self.fresh = false;
        loop {
            if self.step == Step::Begin && self.next == self.wanted.len() {
                return true;
            }
            // What a transaction is at risk of is what vCPUs write meanwhile, so they run meanwhile.
            if self.way.kind == Kind::Transaction && self.step == Step::End && self.fresh {
                self.budget = 0;
                return false;
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

    /// Switches page by page: others wait for the batch's end.
    fn switches_at_once(&self) -> bool {
        self.way.kind == Kind::Unmap
    }

    /// What the coming step takes, ps.
    fn cost(&self, vm: &Vm, memory: &Memory) -> u64 {
        let vcpus = vm.vcpus.iter().filter(|v| v.ended.is_none()).count() as u64;
        match self.step {
            Step::Begin => vcpus * memory.costs.shootdown_send,
            Step::End if self.switches_at_once() || self.way.kind == Kind::Exchange => 0,
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

    /// Takes the next pages that can be moved, and unmaps or marks them.
    fn begin(&mut self, vm: &mut Vm, memory: &Memory) {
        self.batch.clear();
        let by = if self.way.kind == Kind::Exchange {
            2
        } else {
            1
        };
        while self.batch.len() + by <= self.way.batch.max(by) && self.next < self.wanted.len() {
            let at = self.next..(self.next + by).min(self.wanted.len());
            self.next = at.end;
            let items: Vec<Item> = at.filter_map(|at| self.item(at, vm, memory)).collect();
            if self.way.kind == Kind::Exchange && !self.pairs(&items, &vm.space.second) {
                continue;
            }
            for item in items {
                let second = &mut vm.space.second;
                match self.way.kind {
                    Kind::Unmap | Kind::Exchange => second.raise(item.unit, bits::UNMAPPED),
                    Kind::Protect => second.raise(item.unit, bits::PROTECTED),
                    Kind::Precopy | Kind::Transaction => second.lower(item.unit, bits::DIRTY),
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

    /// Translations of the batch go.
    fn shoot_down(&self, vm: &mut Vm, costs: &Costs) {
        match self.batch.as_slice() {
            [item] => vm.shoot_down_unit(item.unit, self.way.side, costs),
            _ => vm.shoot_down_from(self.way.side, costs),
        };
    }

    /// Whether two pages can change places; if not, they stay.
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

    /// A wanted page, if it can be moved; otherwise its outcome is known.
    fn item(&mut self, at: usize, vm: &Vm, memory: &Memory) -> Option<Item> {
        let Wanted { unit, to } = self.wanted[at];
        let second = &vm.space.second;
        let from = (unit < second.len()).then(|| second.tier(unit)).flatten();
        let full = self.way.kind != Kind::Exchange && !vm.room_for(unit, to, memory.free);
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

    /// The page is in its new place from now on, if there is room.
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
        let exchange = self.way.kind == Kind::Exchange;
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

    /// The page can be reached again; where the host unmapped it, by a fault.
    fn let_go(&self, unit: u32, vm: &mut Vm) {
        let second = &mut vm.space.second;
        second.lower(unit, bits::UNMAPPED | bits::PROTECTED);
        if self.way.side == Side::Host && self.way.kind != Kind::Precopy {
            second.raise(unit, bits::UNFILLED);
        }
    }

    /// The batch is copied.
    fn end(&mut self, vm: &mut Vm, memory: &mut Memory) {
        self.step = Step::Begin;
        match self.way.kind {
            Kind::Unmap => {}
            Kind::Exchange => self.switch_all(vm, memory),
            Kind::Protect => {
                self.switch_all(vm, memory);
                vm.shoot_down_from(self.way.side, memory.costs);
            }
            Kind::Transaction => {
                self.shoot_down(vm, memory.costs);
                for item in self.take_written(vm) {
                    self.outcomes[item.at] = Some(Outcome {
                        status: MoveStatus::Busy,
                        now: Some(item.from),
                    });
                }
                self.switch_all(vm, memory);
            }
            Kind::Precopy => {
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

    /// Takes out of the batch what was written since it was copied.
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

/// What one processor takes to copy 4 KiB from a tier to another now, ps.
#[must_use]
pub fn page_copy_ps(loads: &[Load], costs: &Costs, from: u8, to: TierId) -> u64 {
    let lines = costs.copy_lines;
    let read = loads[usize::from(from)].copy_ps(false, lines);
    let write = loads[to.index()].copy_ps(true, lines);
    read.max(write)
}
