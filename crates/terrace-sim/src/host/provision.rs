//! The devices that size a guest's nodes: virtio-mem, the balloon, HyperFlex.
//!
//! A device takes pages that the guest's kernel gives it, and gives them back. What it holds of a node is free for
//! nobody. They differ in where the pages come from:
//!
//! - **balloon**: `balloon_page_alloc` allocates without naming a node, so the kernel goes through the zonelist of
//!   the node whose processor the worker runs on. Slow nodes have no processors: that is the first tier, then the
//!   next. The first pass of `get_page_from_freelist` leaves each node its low watermark, the second
//!   (`__alloc_pages_slowpath`) its min watermark. What was taken last is given back first
//!   (`balloon_page_list_enqueue` and `_dequeue` work at the list's head).
//! - **hyperflex**: each tier's balloon allocates on its own node alone (`__GFP_THISNODE`).
//! - **virtio-mem**: a block of 2 MiB is taken with what is in it; pages in use go elsewhere first
//!   (`alloc_contig_range`). Which pages lie in a block is not simulated: all blocks of a node are used alike.
//!
//! Where a node has nothing left to give, HyperFlex's allocation reclaims as the kernel's own do: pages not accessed
//! since the last look are demoted, 32 at a time. The balloon's has nothing to gain by that: it would have taken
//! what is free on the next node already. An allocation that fails is tried again after a fifth of a second
//! (`fill_balloon`).
//!
//! The worker runs on the guest's vCPUs, the device on a processor of its own; one waits for the other.

use std::collections::VecDeque;
use std::ops::Range;

use terrace_proto::{OrderId, PAGE_SIZE, TierId};

use super::device::{BLOCK, Device, Provision};
use super::placer;
use super::travel::Memory;
use super::vm::Vm;
use crate::guest::marks::Marks;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::second_stage::bits;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;
use crate::words::number::low;
use crate::words::side::Side;

/// Pages that reclaim demotes at a time (`SWAP_CLUSTER_MAX`).
const CLUSTER: u64 = 32;

/// Time until an allocation that failed is tried again, ns.
const REST: u64 = 200_000_000;

/// A device, and what it holds. Pages are of 4 KiB, as simulated.
#[derive(Debug)]
pub struct Provisioned {
    by: Device,
    scale: u64,
    tiers: usize,
    nodes: [u64; TIERS],
    wanted: [u64; TIERS],
    taken: [u64; TIERS],
    /// What the balloon took, in that order: tier and pages.
    runs: Vec<(u8, u64)>,
    /// What the VM is to have later: when, ns, and how much of each tier, bytes of the full-size machine.
    resizes: VecDeque<(u64, Vec<u64>)>,
    /// How many of these came up.
    wishes: u32,
    /// What was wanted last: the balloon's orders know no tiers.
    asked: [u64; TIERS],
    last_order: OrderId,
    refused: Vec<Refused>,
    /// The nodes' watermarks, of when the guest booted.
    marks: [Marks; TIERS],
    /// Whether the guest's reclaim demotes.
    demotes: bool,
    /// When a tier's allocations are tried again, ns; the balloon has one for all tiers.
    rests_until: [u64; TIERS],
    /// The tier whose turn it is.
    turn: usize,
    /// The next page that reclaim looks at.
    hand: u32,
    /// Time left of the quanta so far, ps; negative: overdrawn.
    left: i64,
    /// Time that guest and device took so far, ps.
    spent: u64,
}

/// Sizes that were not ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// When they were wanted, ns.
    pub at_ns: u64,
    /// Why.
    pub why: String,
}

/// What a step took, ps.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    guest: u64,
    host: u64,
}

/// What a VM without its device's work sees of the machine.
struct Around<'a, 'b> {
    vm: &'a mut Vm,
    memory: &'a mut Memory<'b>,
    env: &'a Environment,
}

impl Provisioned {
    /// A guest that boots with all of its nodes, or with what is plugged.
    #[must_use]
    pub fn new(provision: &Provision, sizes: &[u64], scale: u64, demotes: bool) -> Self {
        let nodes = pages(&provision.nodes, scale);
        let resizes = provision.resizes.iter();
        let booted = match provision.by {
            Device::VirtioMem => pages(sizes, scale),
            Device::Balloon | Device::Hyperflex => nodes,
        };
        let all: u64 = booted.iter().sum();
        Self {
            by: provision.by,
            scale,
            tiers: sizes.len(),
            nodes,
            wanted: booted,
            taken: std::array::from_fn(|t| nodes[t] - booted[t]),
            runs: Vec::new(),
            resizes: resizes.map(|r| (r.at_ns, r.sizes.clone())).collect(),
            wishes: 0,
            asked: booted,
            last_order: OrderId(0),
            refused: Vec::new(),
            marks: booted.map(|node| Marks::of(node * scale, all * scale)),
            demotes,
            rests_until: [0; TIERS],
            turn: 0,
            hand: 0,
            left: 0,
            spent: 0,
        }
    }

    /// By what.
    #[must_use]
    pub fn by(&self) -> Device {
        self.by
    }

    /// The machine's scale.
    #[must_use]
    pub fn scale(&self) -> u64 {
        self.scale
    }

    /// How many tiers it sizes.
    #[must_use]
    pub fn tiers(&self) -> usize {
        self.tiers
    }

    /// Pages that each node can have.
    #[must_use]
    pub fn nodes(&self) -> [u64; TIERS] {
        self.nodes
    }

    /// Pages that the VM is to have of each.
    #[must_use]
    pub fn wanted(&self) -> [u64; TIERS] {
        self.wanted
    }

    /// The last order.
    #[must_use]
    pub fn last_order(&self) -> OrderId {
        self.last_order
    }

    /// Somebody wants the VM to have these sizes, bytes.
    pub fn ask(&mut self, sizes: &[u64]) {
        self.asked = pages(sizes, self.scale);
    }

    /// The next sizes that somebody wants, if their time has come, and their number.
    pub fn next_resize(&mut self, now_ns: u64) -> Option<(u32, Vec<u64>)> {
        let (_, sizes) = self.resizes.pop_front_if(|(at, _)| *at <= now_ns)?;
        self.ask(&sizes);
        self.wishes += 1;
        Some((self.wishes, sizes))
    }

    /// Takes an order, bytes of each tier; the balloon's are of the whole.
    pub fn order(&mut self, number: OrderId, size_bytes: &[Option<u64>]) {
        self.last_order = number;
        self.rests_until = [0; TIERS];
        if self.by == Device::Balloon {
            self.wanted = self.asked;
            return;
        }
        for (wanted, size) in self.wanted.iter_mut().zip(size_bytes) {
            *wanted = size.map_or(*wanted, |bytes| bytes / self.scale / PAGE_SIZE);
        }
    }

    /// Sizes were not ordered.
    pub fn refused(&mut self, at_ns: u64, why: &str) {
        let why = why.to_owned();
        self.refused.push(Refused { at_ns, why });
    }

    /// Resizes a guest that does nothing else yet to what it is to have; says how long that takes, ps.
    pub fn begin(&mut self, space: &mut Space, costs: &Costs) -> u64 {
        space.limit = self.limits();
        let before = self.spent;
        while let Some(tier) = self.due(0) {
            // Nothing is in use that could be reclaimed.
            let Some((tier, _)) = self.find(space, self.reach(tier)) else {
                self.rests_until[tier] = REST;
                continue;
            };
            let took = self.take(tier, costs);
            self.spent += took.guest + took.host;
            space.limit = self.limits();
        }
        self.spent - before
    }

    /// Pages of the guest's nodes when it booted.
    #[must_use]
    pub fn booted(&self) -> [u64; TIERS] {
        match self.by {
            Device::VirtioMem => self.wanted,
            Device::Balloon | Device::Hyperflex => self.nodes,
        }
    }

    /// Where the pages of a load of that size are first put: as allocations go through the zonelist.
    #[must_use]
    pub fn fit(&self, pages: u64) -> Vec<u64> {
        let given = self.given();
        let kept: [u64; TIERS] =
            std::array::from_fn(|t| given[t].min(self.marks[t].low.div_ceil(self.scale)));
        let mut fit: Vec<u64> = (0..self.tiers).map(|t| given[t] - kept[t]).collect();
        let mut short = pages.saturating_sub(fit.iter().sum());
        for (fit, kept) in fit.iter_mut().zip(kept) {
            let more = kept.min(short);
            *fit += more;
            short -= more;
        }
        fit
    }

    /// What the guest has of each node, pages.
    #[must_use]
    pub fn given(&self) -> [u64; TIERS] {
        std::array::from_fn(|tier| self.nodes[tier] - self.taken[tier])
    }

    /// Time that guest and device took so far, ps.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.spent
    }

    /// What was refused so far.
    #[must_use]
    pub fn all_refused(&self) -> &[Refused] {
        &self.refused
    }

    /// Most units that the VM may have per tier.
    fn limits(&self) -> [u64; TIERS] {
        let given = self.given();
        std::array::from_fn(|tier| if tier < self.tiers { given[tier] } else { 0 })
    }

    /// What the device is to hold of a tier.
    fn target(&self, tier: usize) -> u64 {
        self.nodes[tier] - self.wanted[tier]
    }

    /// Pages that it must still take of a tier, less than 0 where it gives some back. The balloon knows their sum
    /// only.
    fn lacks(&self, tier: usize) -> i128 {
        let less = |target: u64, taken: u64| i128::from(target) - i128::from(taken);
        if self.by == Device::Balloon {
            let target = (0..self.tiers).map(|tier| self.target(tier)).sum();
            return less(target, self.taken.iter().sum());
        }
        less(self.target(tier), self.taken[tier])
    }

    /// The tiers that an allocation for one goes through.
    fn reach(&self, tier: usize) -> Range<usize> {
        match self.by {
            Device::Balloon => 0..self.tiers,
            Device::Hyperflex | Device::VirtioMem => tier..tier + 1,
        }
    }

    /// The next tier with something to do.
    fn due(&mut self, now_ns: u64) -> Option<usize> {
        let queues = match self.by {
            Device::Balloon => 1,
            Device::Hyperflex | Device::VirtioMem => self.tiers,
        };
        let is_due = |tier: &usize| match self.lacks(*tier) {
            0 => false,
            lacks => lacks < 0 || self.rests_until[*tier] <= now_ns,
        };
        let mut turns = (0..queues).map(|i| (self.turn + i) % queues);
        let tier = turns.find(is_due)?;
        self.turn = tier + 1;
        Some(tier)
    }

    /// Where the kernel finds a page, and whether it had to go below the low watermark for it.
    fn find(&self, space: &Space, tiers: Range<usize>) -> Option<(usize, bool)> {
        let has = |tier: usize, mark: u64| space.below_limit(tier) * self.scale > mark;
        let plenty = tiers.clone().find(|tier| has(*tier, self.marks[*tier].low));
        let plenty = plenty.map(|tier| (tier, false));
        let mut rest = tiers;
        plenty.or_else(|| {
            let tier = rest.find(|tier| has(*tier, self.marks[*tier].min));
            tier.map(|tier| (tier, true))
        })
    }

    /// A page of a tier goes into the balloon.
    fn take(&mut self, tier: usize, costs: &Costs) -> Took {
        self.taken[tier] += 1;
        let of = u8::try_from(tier).unwrap_or(u8::MAX);
        if self.by == Device::Balloon {
            match self.runs.last_mut() {
                Some((last, pages)) if *last == of => *pages += 1,
                _ => self.runs.push((of, 1)),
            }
        }
        Took {
            guest: costs.balloon_page,
            host: costs.balloon_host_page,
        }
    }

    /// A page comes back from the balloon.
    fn give(&mut self, tier: usize, costs: &Costs) -> Took {
        let mut tier = tier;
        if let Some((last, pages)) = self.runs.last_mut() {
            tier = usize::from(*last);
            *pages -= 1;
            if *pages == 0 {
                self.runs.pop();
            }
        }
        self.taken[tier] -= 1;
        Took {
            guest: costs.guest_page_work,
            host: 0,
        }
    }

    /// One page, or one block; none where nothing can be done now.
    fn step(&mut self, around: &mut Around) -> Option<Took> {
        let now = around.env.now_ns;
        while let Some(tier) = self.due(now) {
            let costs = &around.env.costs;
            let took = match (self.by, self.lacks(tier) > 0) {
                (Device::VirtioMem, true) => self.unplug(tier, around),
                (Device::VirtioMem, false) => Some(self.plug(tier, costs)),
                (_, false) => Some(self.give(tier, costs)),
                (_, true) => self.inflate(tier, around),
            };
            around.vm.space.limit = self.limits();
            if took.is_some() {
                return took;
            }
            self.rests_until[tier] = now + REST;
        }
        None
    }

    fn inflate(&mut self, tier: usize, around: &mut Around) -> Option<Took> {
        let reach = self.reach(tier);
        let Some((tier, pressed)) = self.find(&around.vm.space, reach) else {
            if self.by == Device::Balloon || !self.demotes {
                return None;
            }
            return self.push(tier, CLUSTER, true, around);
        };
        if pressed {
            placer::pressed(around.vm, around.memory, around.env, tier);
        }
        Some(self.take(tier, &around.env.costs))
    }

    /// Pages of a block, or what is left to do.
    fn block(&self, tier: usize) -> u64 {
        let lacks = u64::try_from(self.lacks(tier).unsigned_abs()).unwrap_or(u64::MAX);
        (BLOCK / PAGE_SIZE / self.scale).max(1).min(lacks)
    }

    fn plug(&mut self, tier: usize, costs: &Costs) -> Took {
        let pages = self.block(tier);
        self.taken[tier] -= pages;
        Took {
            guest: pages * costs.plug_page,
            host: 0,
        }
    }

    /// A block goes. What is in use in it finds another place on its node, or makes others go down a tier.
    fn unplug(&mut self, tier: usize, around: &mut Around) -> Option<Took> {
        let block = self.block(tier);
        let least = self.marks[tier].min.div_ceil(self.scale);
        let free = around.vm.space.below_limit(tier);
        let short = (block + least).saturating_sub(free);
        if short > 0 {
            return self.push(tier, short.max(CLUSTER), false, around);
        }
        let present = self.nodes[tier] - self.taken[tier];
        let used = (block * (present - free)).div_ceil(present.max(1));
        let env = around.env;
        let moved = env.costs.move_page + env.copy_ps[tier][tier];
        let traffic = &mut around.memory.traffic[tier];
        traffic.read += used * PAGE_SIZE;
        traffic.written += used * PAGE_SIZE;
        around.vm.spent.migrate += used * moved;
        self.taken[tier] += block;
        Some(Took {
            guest: used * moved + block * env.costs.plug_page,
            host: block * env.costs.balloon_host_page,
        })
    }

    /// Demotes pages of a tier, as a second-chance clock finds them, or whichever come first; none where no page
    /// can go.
    fn push(&mut self, from: usize, most: u64, cold: bool, around: &mut Around) -> Option<Took> {
        self.below(from, around)?;
        let pages = low(around.vm.space.guest.pages());
        let costs = around.env.costs;
        let (mut pushed, mut looked) = (Vec::new(), 0);
        // Twice around: the first turn takes all second chances away.
        for _ in 0..2 * u64::from(pages) {
            if pushed.len() as u64 == most {
                break;
            }
            let page = self.hand;
            self.hand = if page + 1 == pages { 0 } else { page + 1 };
            if !is_settled(around.vm, page, from) {
                continue;
            }
            looked += 1;
            if cold && around.vm.space.guest.age(page) {
                continue;
            }
            let Some(to) = self.below(from, around) else {
                break;
            };
            pushed.push((demote(page, from, to, around), to.0));
        }
        if pushed.is_empty() {
            return None;
        }
        let copy = |(_, to): &(u32, u8)| around.env.copy_ps[from][usize::from(*to)];
        let copies: u64 = pushed.iter().map(copy).sum();
        let moving = copies + costs.move_page * pushed.len() as u64;
        let flushed = around.vm.shoot_down_from(Side::Guest, &costs);
        around.vm.spent.migrate += moving + flushed;
        placer::pushed(around.vm, around.memory, around.env, &pushed);
        Some(Took {
            guest: moving + flushed + looked * costs.lru_page,
            host: 0,
        })
    }

    /// The tier that a page of a tier can be demoted to.
    fn below(&self, from: usize, around: &Around) -> Option<TierId> {
        let space = &around.vm.space;
        let has = |to: &usize| {
            around.memory.free[*to] > 0 && space.below_limit(*to) * self.scale > self.marks[*to].min
        };
        let to = (from + 1..self.tiers).find(has)?;
        u8::try_from(to).ok().map(TierId)
    }
}

/// Pages of each tier, as simulated.
fn pages(bytes: &[u64], scale: u64) -> [u64; TIERS] {
    std::array::from_fn(|tier| bytes.get(tier).map_or(0, |b| b / scale / PAGE_SIZE))
}

/// Whether a page of the load is in that tier, and nobody is moving it.
fn is_settled(vm: &Vm, page: u32, tier: usize) -> bool {
    let space = &vm.space;
    let unit = space.second.first_data() + page;
    let moving = space.second.get(unit) & (bits::UNMAPPED | bits::PROTECTED) != 0;
    space.second.tier(unit).map(usize::from) == Some(tier) && !moving && !vm.answers.travels(unit)
}

/// A page goes down; says which unit it is.
fn demote(page: u32, from: usize, to: TierId, around: &mut Around) -> u32 {
    let second = &mut around.vm.space.second;
    let unit = second.first_data() + page;
    second.put(unit, Some(to.0));
    let memory = &mut *around.memory;
    memory.free[to.index()] -= 1;
    memory.free[from] += 1;
    memory.traffic[from].read += PAGE_SIZE;
    memory.traffic[to.index()].written += PAGE_SIZE;
    around.vm.demoted += 1;
    unit
}

/// A quantum of a VM's device, if it has one.
pub fn pass(vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
    let Some(mut device) = vm.provision.take() else {
        return;
    };
    let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
    device.left = device.left.saturating_add(quantum).min(quantum);
    let mut guest = 0;
    let mut around = Around {
        vm: &mut *vm,
        memory,
        env,
    };
    while device.left > 0 {
        let Some(took) = device.step(&mut around) else {
            break;
        };
        let both = took.guest + took.host;
        guest += took.guest;
        device.spent += both;
        device.left = device.left.saturating_sub_unsigned(both);
    }
    vm.steal(guest);
    vm.provision = Some(device);
}
