//! The reserve: who may have of it, as each order is given.

use std::collections::BTreeMap;

use terrace_core::arbiter::ArbiterConfig;
use terrace_proto::{ProviderId, Tick};

use crate::world::{Given, Kinds, Machine, SECOND, World, sum};

/// Time until what was decided is an order: a provider may take so long to answer.
const LATE: u64 = 10 * SECOND;

/// The books of the reserve.
pub struct Reserve {
    /// Memory of each kind that all may have while nobody has of the reserve. Of each tier half of its reserve besides: memory
    /// comes of it for which as much of another tier goes.
    most: Kinds,
    /// The time until which each VM swapped last.
    swapped: BTreeMap<u32, u64>,
    /// The most that each VM had so far: it may be held at that, once somebody lost by what was taken.
    had: BTreeMap<u32, u64>,
    /// Whether anybody swapped or said that it loses time.
    is_harmed: bool,
    /// Growth of those that may have of the reserve.
    drawn: Vec<(u64, Kinds)>,
    /// Orders to others that were checked.
    pub checked: usize,
}

/// So many percent of a number of bytes.
pub fn percent(bytes: u64, percent: u8) -> u64 {
    u64::try_from(u128::from(bytes) * u128::from(percent) / 100).unwrap()
}

/// The memory of each tier that a VM brings: no more than its ceiling, the slowest tiers less.
pub fn brought(vm: &Machine) -> Vec<u64> {
    let whole = sum(vm.tiers.iter().map(|tier| tier.whole_bytes));
    let least = sum(vm.tiers.iter().map(|tier| tier.least_bytes)).min(vm.size());
    let floor = vm.floor.max(least).min(whole);
    let mut over = vm.size().saturating_sub(vm.ceiling.max(floor).min(whole));
    let mut each: Vec<u64> = vm.tiers.iter().map(|tier| tier.size_bytes).collect();
    for size in each.iter_mut().rev() {
        let less = over.min(*size);
        (*size, over) = (*size - less, over - less);
    }
    each
}

/// Memory of each kind that the host has: what is configured, or what VMs brought.
pub fn capacity(config: &ArbiterConfig, vms: &BTreeMap<u32, Machine>) -> Kinds {
    let mut capacity = Kinds::default();
    for vm in vms.values() {
        for (tier, size) in brought(vm).into_iter().enumerate() {
            capacity[vm.kind(tier)] += size;
        }
    }
    let whole = [config.capacity_bytes];
    let configured = whole.iter().chain(&config.capacity_tiers_bytes);
    for (capacity, configured) in capacity.iter_mut().zip(configured) {
        if *configured > 0 {
            *capacity = *configured;
        }
    }
    capacity
}

impl Reserve {
    /// The reserve beside VMs that came just now.
    pub fn new(config: &ArbiterConfig, vms: &BTreeMap<u32, Machine>) -> Self {
        let mut most = capacity(config, vms);
        for (kind, all) in most.iter_mut().enumerate() {
            let reserve = percent(*all, config.reserve_percent);
            *all -= if kind == 0 { reserve } else { reserve / 2 };
        }
        Self {
            most,
            swapped: BTreeMap::new(),
            had: BTreeMap::new(),
            is_harmed: false,
            drawn: Vec::new(),
            checked: 0,
        }
    }

    /// Notes who swaps, from now for so long, ns.
    pub fn note(&mut self, world: &World, ns: u64) {
        let now = Tick(world.now);
        for (id, vm) in &world.vms {
            let view = world.session.engine().provisioning(ProviderId(*id), now);
            let balance = view.and_then(|view| view.balance);
            if balance.is_some_and(|balance| balance.is_swapping) {
                self.swapped.insert(*id, world.now + ns);
                self.is_harmed = true;
            }
            self.is_harmed |= vm.need.lost_ns > 0;
            let had = self.had.entry(*id).or_default();
            *had = vm.size().max(*had);
        }
    }

    /// Checks that an order to a VM which neither swaps nor gets back what it had takes nothing of the reserve.
    pub fn check(&mut self, order: &Given) {
        let late = order.at.saturating_sub(LATE);
        let swaps = self.swapped.get(&order.vm).is_some_and(|at| *at >= late);
        let had = self.had.get(&order.vm).copied().unwrap_or(0);
        let gets_back = self.is_harmed && order.has.min(order.reported) < had;
        if swaps || gets_back {
            self.drawn.push((order.at, order.more));
            return;
        }
        // What others had of it since this was decided is theirs.
        self.drawn.retain(|(at, _)| *at >= late);
        for (kind, more) in order.more.iter().enumerate().filter(|(_, more)| **more > 0) {
            let drawn = sum(self.drawn.iter().map(|(_, of)| of[kind]));
            let held = order.held[kind].saturating_sub(drawn);
            let most = self.most[kind];
            assert!(held <= most, "{more} more, {held} of {most} of kind {kind}");
            self.checked += 1;
        }
    }
}
