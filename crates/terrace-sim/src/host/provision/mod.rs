//! The devices that size a guest's nodes: virtio-mem, the balloon, HyperFlex.
//!
//! A device takes pages that the guest's kernel gives it, and gives them back. The pages that it holds of a node are
//! free for no program. The devices differ in the source of the pages:
//!
//! - **balloon**: `balloon_page_alloc` allocates without naming a node, so the kernel goes through the zonelist of
//!   the node whose processor the worker runs on. Slow nodes have no processors: that is the first tier, then the
//!   next. The first pass of `get_page_from_freelist` leaves each node its low watermark, the second
//!   (`__alloc_pages_slowpath`) its min watermark. Pages that were taken last are given back first
//!   (`balloon_page_list_enqueue` and `_dequeue` work at the list's head).
//! - **hyperflex**: each tier's balloon allocates on its own node alone (`__GFP_THISNODE`).
//! - **virtio-mem**: a block of 2 MiB is taken with what is in it; pages in use go elsewhere first
//!   (`alloc_contig_range`). Which pages lie in a block is not simulated: all blocks of a node are used alike.
//!
//! If a node has nothing left to give, HyperFlex's allocation reclaims as the kernel's own do: pages not accessed
//! since the last check are demoted, 32 at a time. The balloon's has nothing to gain by that: it would have taken the
//! free pages of the next node already. If nothing can be demoted, a guest with a swap device takes pages out to it, 32 at
//! a time: of the node that is allocated on, or of all for the balloon. An allocation that fails is tried again after a fifth of a second
//! (`fill_balloon`).
//!
//! The worker runs on the guest's vCPUs, the device on a processor of its own; one waits for the other.

mod allocator;
mod history;
mod nodes;
mod requests;
mod turns;

use terrace_proto::{OrderId, PAGE_SIZE, PageSize, TierId};

use crate::base::number::low;
use crate::base::side::Side;
use crate::guest::reclaim::{Reclaim, cluster};
use crate::guest::zones::Zones;
use crate::host::device::{BLOCK, Device, Provision};
use crate::host::migration::Memory;
use crate::host::placer;
use crate::host::vm::Vm;
use crate::machine::TIERS;
use crate::machine::costs::Costs;
use crate::machine::second_stage::bits;
use crate::machine::space::Space;
use crate::machine::vcpu::Environment;
use allocator::Allocator;
pub use history::History;
use history::Ordered;
use nodes::Nodes;
pub use requests::Refused;
use requests::Requests;
use turns::{Budget, Turns};

/// Time until an allocation that failed is tried again, ns.
const REST: u64 = 200_000_000;

/// A device, and the pages that it holds. Pages are of 4 KiB, as simulated.
#[derive(Debug)]
pub struct Provisioned {
    scale: u64,
    nodes: Nodes,
    requests: Requests,
    last_order: OrderId,
    allocator: Allocator,
    turns: Turns,
    budget: Budget,
    history: History,
    /// Pages that the device moves to take or to give a leaf: one if they are as large.
    moves: u64,
    page: PageSize,
}

/// The time that a step took, ps.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    guest: u64,
    host: u64,
}

/// A VM, without its device, and the machine that the device's work uses.
struct Around<'a, 'b> {
    vm: &'a mut Vm,
    memory: &'a mut Memory<'b>,
    env: &'a Environment,
}

impl Provisioned {
    /// The device of a guest that boots with all of its nodes, or with the memory that is plugged.
    #[must_use]
    pub fn new(provision: &Provision, sizes: &[u64], scale: u64, demotes: bool) -> Self {
        let whole = pages(&provision.nodes, scale);
        let booted = match provision.by {
            Device::VirtioMem => pages(sizes, scale),
            Device::Balloon | Device::Hyperflex => whole,
        };
        Self {
            scale,
            nodes: Nodes::new(provision.by, sizes.len(), whole, booted),
            requests: Requests::new(booted, &provision.resizes),
            last_order: OrderId(0),
            allocator: Allocator::new(booted, scale, demotes),
            turns: Turns::default(),
            budget: Budget::default(),
            history: History::default(),
            moves: 1,
            page: provision.page,
        }
    }

    /// The same device of a guest whose leaves have so many 4 KiB pages.
    #[must_use]
    pub fn of_leaves(mut self, leaf: u64) -> Self {
        self.nodes = self.nodes.of_leaves(leaf);
        self.allocator.zones = self.allocator.zones.of_leaves(leaf);
        self.moves = match self.page {
            PageSize::Base => leaf,
            PageSize::Huge => 1,
        };
        self
    }

    /// 4 KiB pages of a leaf of the guest.
    #[must_use]
    pub fn leaf(&self) -> u64 {
        self.nodes.leaf()
    }

    /// Limits the guest to what its nodes have.
    pub fn limit(&self, space: &mut Space) {
        let unit = space.second.pages_per_unit();
        space
            .quota
            .limit_to(&self.nodes.limits().map(|pages| pages / unit));
    }

    /// The kind of the device.
    #[must_use]
    pub fn by(&self) -> Device {
        self.nodes.by()
    }

    /// The machine's scale.
    #[must_use]
    pub fn scale(&self) -> u64 {
        self.scale
    }

    /// The number of tiers that the device sizes.
    #[must_use]
    pub fn tiers(&self) -> usize {
        self.nodes.count()
    }

    /// Pages that each node can have.
    #[must_use]
    pub fn nodes(&self) -> [u64; TIERS] {
        self.nodes.whole()
    }

    /// Target pages of each node.
    #[must_use]
    pub fn wanted(&self) -> [u64; TIERS] {
        self.nodes.wanted()
    }

    /// The number of the last order.
    #[must_use]
    pub fn last_order(&self) -> OrderId {
        self.last_order
    }

    /// Takes a request for these sizes of the VM, bytes.
    pub fn ask(&mut self, sizes: &[u64]) {
        self.requests.ask(pages(sizes, self.scale));
    }

    /// The next request for sizes and its number, if its time has come.
    pub fn next_resize(&mut self, now_ns: u64) -> Option<(u32, Vec<u64>)> {
        let (number, sizes) = self.requests.next(now_ns)?;
        self.ask(&sizes);
        Some((number, sizes))
    }

    /// The sizes of the nodes over time, and the orders.
    #[must_use]
    pub fn history(&self) -> &History {
        &self.history
    }

    /// Keeps an order that was given, for the result: its origin and its reason.
    pub fn keep_order(
        &mut self,
        at_ns: u64,
        to: &[Option<u64>],
        (origin, reason): (String, String),
    ) {
        self.history.order(Ordered {
            at_ns,
            from: self.given(),
            to_bytes: to.to_vec(),
            origin,
            reason,
        });
    }

    /// Keeps the present sizes of the nodes, if they changed.
    pub fn keep_sizes(&mut self, at_ns: u64) {
        self.history.see(at_ns, self.given());
    }

    /// Takes an order, bytes of each tier; the balloon's are of the whole.
    pub fn order(&mut self, number: OrderId, size_bytes: &[Option<u64>]) {
        self.last_order = number;
        self.turns.wake();
        if self.nodes.by() == Device::Balloon {
            let whole = size_bytes.first().copied().flatten();
            let asked = self.requests.asked();
            let whole = whole.map_or_else(|| asked.iter().sum(), |b| b / self.scale / PAGE_SIZE);
            self.nodes.want(self.nodes.parts(asked, whole));
            return;
        }
        let mut wanted = self.nodes.wanted();
        for (wanted, size) in wanted.iter_mut().zip(size_bytes) {
            *wanted = size.map_or(*wanted, |bytes| bytes / self.scale / PAGE_SIZE);
        }
        self.nodes.want(wanted);
    }

    /// Records that sizes were refused.
    pub fn refused(&mut self, at_ns: u64, why: &str) {
        self.requests.refuse(at_ns, why);
    }

    /// Resizes a guest that does nothing else yet to its target sizes; returns the time that this takes, ps.
    pub fn begin(&mut self, space: &mut Space, costs: &Costs) -> u64 {
        self.limit(space);
        let before = self.budget.spent();
        while let Some(tier) = self.due(0) {
            // Nothing is in use that could be reclaimed.
            let reach = self.nodes.reach(tier);
            let Some((tier, _)) = self.allocator.zones.find(space, reach) else {
                self.turns.rest(tier, REST);
                continue;
            };
            let took = self.take(tier, costs);
            self.budget.spend_at_boot(took.guest + took.host);
            self.limit(space);
        }
        self.budget.spent() - before
    }

    /// The guest's nodes as its allocator sees them.
    #[must_use]
    pub fn zones(&self) -> Zones {
        self.allocator.zones
    }

    /// Pages of the guest's nodes when it booted.
    #[must_use]
    pub fn booted(&self) -> [u64; TIERS] {
        match self.nodes.by() {
            Device::VirtioMem => self.nodes.wanted(),
            Device::Balloon | Device::Hyperflex => self.nodes.whole(),
        }
    }

    /// The number of pages of a load of `pages` that each tier first gets: allocations go through the zonelist.
    #[must_use]
    pub fn fit(&self, pages: u64) -> Vec<u64> {
        let given = self.given();
        let reserved: [u64; TIERS] =
            std::array::from_fn(|t| given[t].min(self.allocator.zones.low(t)));
        let mut fit: Vec<u64> = (0..self.tiers()).map(|t| given[t] - reserved[t]).collect();
        let mut short = pages.saturating_sub(fit.iter().sum());
        for (fit, reserved) in fit.iter_mut().zip(reserved) {
            let more = reserved.min(short);
            *fit += more;
            short -= more;
        }
        fit
    }

    /// Pages that the guest has of each node.
    #[must_use]
    pub fn given(&self) -> [u64; TIERS] {
        self.nodes.given()
    }

    /// Time that guest and device took so far, ps.
    #[must_use]
    pub fn spent(&self) -> u64 {
        self.budget.spent()
    }

    /// The requests that were refused so far.
    #[must_use]
    pub fn all_refused(&self) -> &[Refused] {
        self.requests.refused()
    }

    /// The next tier with work to do.
    fn due(&mut self, now_ns: u64) -> Option<usize> {
        let nodes = &self.nodes;
        let lacks = |tier| nodes.lacks(tier);
        self.turns.next(nodes.queues(), now_ns, lacks)
    }

    /// Takes a leaf of a tier into the balloon.
    fn take(&mut self, tier: usize, costs: &Costs) -> Took {
        self.nodes.take(tier);
        Took {
            guest: costs.balloon_page * self.moves,
            host: costs.balloon_host_page * self.moves,
        }
    }

    /// Gives a leaf back from the balloon.
    fn give(&mut self, tier: usize, costs: &Costs) -> Took {
        self.nodes.give(tier);
        Took {
            guest: costs.guest_page_work * self.moves,
            host: 0,
        }
    }

    /// Takes or gives one page or one block; `None` if nothing can be done now.
    fn step(&mut self, around: &mut Around) -> Option<Took> {
        let now = around.env.now_ns;
        while let Some(tier) = self.due(now) {
            let costs = &around.env.costs;
            let took = match (self.nodes.by(), self.nodes.lacks(tier) > 0) {
                (Device::VirtioMem, true) => self.unplug(tier, around),
                (Device::VirtioMem, false) => Some(self.plug(tier, costs)),
                (_, false) => Some(self.give(tier, costs)),
                (_, true) => self.inflate(tier, around),
            };
            self.limit(&mut around.vm.space);
            around.strip();
            if took.is_some() {
                return took;
            }
            self.turns.rest(tier, now + REST);
        }
        None
    }

    fn inflate(&mut self, tier: usize, around: &mut Around) -> Option<Took> {
        let reach = self.nodes.reach(tier);
        let Some((tier, is_below_low)) = self.allocator.zones.find(&around.vm.space, reach) else {
            let demotes = self.nodes.by() != Device::Balloon && self.allocator.demotes();
            let leaves = cluster(&around.vm.space);
            let pushed = demotes.then(|| self.push(tier, leaves, true, around));
            return pushed.flatten().or_else(|| self.swap_out(tier, around));
        };
        if is_below_low {
            placer::below_low_watermark(around.vm, around.memory, around.env, tier);
        }
        Some(self.take(tier, &around.env.costs))
    }

    /// Pages of a block, or the number of pages left to do if that is less.
    fn block(&self, tier: usize) -> u64 {
        let lacks = u64::try_from(self.nodes.lacks(tier).unsigned_abs()).unwrap_or(u64::MAX);
        (BLOCK / PAGE_SIZE / self.scale).max(self.leaf()).min(lacks)
    }

    fn plug(&mut self, tier: usize, costs: &Costs) -> Took {
        let pages = self.block(tier);
        self.nodes.plug(tier, pages);
        Took {
            guest: pages * costs.plug_page,
            host: 0,
        }
    }

    /// Unplugs a block. Pages in use in it find another place on their node, or make others go down a tier.
    fn unplug(&mut self, tier: usize, around: &mut Around) -> Option<Took> {
        let block = self.block(tier);
        let least = self.allocator.zones.min(tier);
        let free = around.vm.space.free_pages(tier);
        let short = (block + least).saturating_sub(free);
        if short > 0 {
            let leaves = short.div_ceil(self.leaf()).max(cluster(&around.vm.space));
            let pushed = self.push(tier, leaves, false, around);
            return pushed.or_else(|| self.swap_out(tier, around));
        }
        let present = self.nodes.given()[tier];
        let used = (block * (present - free)).div_ceil(present.max(1));
        let env = around.env;
        let moved = env.costs.move_page + env.copy_ps[tier][tier];
        let traffic = &mut around.memory.traffic[tier];
        traffic.read += used * PAGE_SIZE;
        traffic.written += used * PAGE_SIZE;
        around.vm.account.spent.migrate += used * moved;
        self.nodes.unplug(tier, block);
        Some(Took {
            guest: used * moved + block * env.costs.plug_page,
            host: block * env.costs.balloon_host_page,
        })
    }

    /// Swaps pages out that lie where an allocation for a tier looks; `None` if there is no device for it, or none can go.
    fn swap_out(&self, tier: usize, around: &mut Around) -> Option<Took> {
        let costs = &around.env.costs;
        let reclaim = around.vm.answers.reclaim.as_mut()?;
        let of = (self.nodes.reach(tier).len() == 1).then_some(tier);
        let leaves = cluster(&around.vm.space);
        let taken = reclaim.take_out(&mut around.vm.space, costs, leaves, of);
        if taken.leaves == 0 {
            return None;
        }
        let flushed = around.vm.shoot_down_from(Side::Guest, costs);
        Some(Took {
            guest: taken.ps + flushed,
            host: 0,
        })
    }

    /// Demotes pages of a tier, as a second-chance clock finds them, or in their order if not `cold`; `None` if no
    /// page can go.
    fn push(&mut self, from: usize, most: u64, cold: bool, around: &mut Around) -> Option<Took> {
        self.below(from, around)?;
        let leaf = self.leaf();
        let leaves = low(around.vm.space.guest.pages().div_ceil(leaf));
        let costs = around.env.costs;
        let (mut displaced, mut scanned) = (Vec::new(), 0);
        // Twice around: the first turn takes all second chances away.
        for _ in 0..2 * u64::from(leaves) {
            if displaced.len() as u64 == most {
                break;
            }
            let page = self.allocator.next_page(leaves) * low(leaf);
            let Some(unit) = unit_of(around.vm, page).filter(|u| is_settled(around.vm, *u, from))
            else {
                continue;
            };
            scanned += 1;
            if cold && around.vm.space.guest.age(page) {
                continue;
            }
            let Some(to) = self.below(from, around) else {
                break;
            };
            demote(unit, leaf, (from, to), around);
            displaced.push((unit, to.0));
        }
        if displaced.is_empty() {
            return None;
        }
        let copy = |(_, to): &(u32, u8)| around.env.copy_ps[from][usize::from(*to)];
        let copies: u64 = displaced.iter().map(copy).sum::<u64>() * leaf;
        let moving = copies + costs.move_page * displaced.len() as u64;
        let flushed = around.vm.shoot_down_from(Side::Guest, &costs);
        around.vm.account.spent.migrate += moving + flushed;
        placer::displaced(around.vm, around.memory, around.env, &displaced);
        Some(Took {
            guest: moving + flushed + scanned * costs.lru_page,
            host: 0,
        })
    }

    /// The tier that a page of a tier can be demoted to.
    fn below(&self, from: usize, around: &Around) -> Option<TierId> {
        let space = &around.vm.space;
        let has = |to: &usize| {
            around.memory.free[*to] >= self.leaf() && self.allocator.zones.has(space, *to)
        };
        let to = (from + 1..self.tiers()).find(has)?;
        u8::try_from(to).ok().map(TierId)
    }
}

/// 4 KiB pages of each tier, as simulated.
fn pages(bytes: &[u64], scale: u64) -> [u64; TIERS] {
    std::array::from_fn(|tier| bytes.get(tier).map_or(0, |b| b / scale / PAGE_SIZE))
}

/// The unit of a page of the load; `None` if the page is not in memory.
fn unit_of(vm: &Vm, page: u32) -> Option<u32> {
    let space = &vm.space;
    // Only reclaim gives a page another frame than its first.
    let reclaim = vm.answers.reclaim.as_ref();
    if !reclaim.is_some_and(Reclaim::is_sized) {
        return Some(space.second.unit_of(space.guest.first_data() + page));
    }
    let frame = space.guest.frame(page)?;
    Some(space.second.unit_of(frame))
}

/// Whether a unit is in a tier, and is not being moved.
fn is_settled(vm: &Vm, unit: u32, tier: usize) -> bool {
    let space = &vm.space;
    let moving = space.second.get(unit) & (bits::UNMAPPED | bits::PROTECTED) != 0;
    space.second.tier(unit).map(usize::from) == Some(tier)
        && !moving
        && !vm.answers.is_migrating(unit)
}

/// Demotes the leaf of so many pages that begins at a unit.
fn demote(unit: u32, pages: u64, (from, to): (usize, TierId), around: &mut Around) {
    let space = &mut around.vm.space;
    if space.below_limit(to.index()) < space.units_per_leaf() {
        around.strip_one(to.index());
    }
    let second = &mut around.vm.space.second;
    second.put_leaf(low(second.first_frame(unit).0), pages, Some(to.0));
    let memory = &mut *around.memory;
    memory.free[to.index()] = memory.free[to.index()].saturating_sub(pages);
    memory.free[from] += pages;
    memory.traffic[from].read += pages * PAGE_SIZE;
    memory.traffic[to.index()].written += pages * PAGE_SIZE;
    around.vm.account.move_pages(pages, from, to);
}

impl Around<'_, '_> {
    /// Takes the host memory from behind free pages of nodes that have become smaller than what the guest holds.
    fn strip(&mut self) {
        let Some(reclaim) = &mut self.vm.answers.reclaim else {
            return;
        };
        if reclaim.is_sized() {
            for (tier, free) in self.memory.free.iter_mut().enumerate() {
                *free += reclaim.frames().strip(&mut self.vm.space, tier);
            }
        }
    }

    /// Takes the host memory from behind a free page of a tier, to back another with it.
    fn strip_one(&mut self, tier: usize) {
        if let Some(reclaim) = &mut self.vm.answers.reclaim
            && reclaim.frames().strip_one(&mut self.vm.space, tier)
        {
            self.memory.free[tier] += self.vm.space.guest.pages_per_leaf();
        }
    }
}

/// Runs a VM's device for a quantum, if the VM has one.
pub fn run_quantum(vm: &mut Vm, memory: &mut Memory, env: &Environment, quantum: u64) {
    let Some(mut device) = vm.provision.take() else {
        return;
    };
    device.budget.add(quantum);
    let mut guest = 0;
    let mut around = Around {
        vm: &mut *vm,
        memory,
        env,
    };
    while device.budget.is_left() {
        let Some(took) = device.step(&mut around) else {
            break;
        };
        guest += took.guest;
        device.budget.spend(took.guest + took.host);
    }
    vm.steal(guest);
    vm.provision = Some(device);
}
