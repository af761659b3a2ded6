//! The price of what VMs have under `trade`: never above that of their first sizes for longer than a trade lasts.

use std::collections::BTreeMap;

use terrace_core::arbiter::{ArbiterConfig, Rule};

use crate::reserve::{brought, percent};
use crate::world::{Given, Machine, SECOND, World};

/// The prices of VMs with several tiers.
pub struct Prices {
    ratio_milli: u64,
    config: ArbiterConfig,
    /// The price of what each VM brought, or had if that is more.
    first: BTreeMap<u32, u128>,
    /// The most that each VM had.
    had: BTreeMap<u32, u64>,
    /// Orders that were checked.
    pub checked: usize,
}

/// The sizes of the first and of the last tier.
pub fn ends(each: &[u64]) -> [u64; 2] {
    [each[0], each[each.len() - 1]]
}

impl Prices {
    /// The prices of VMs that came just now; none if nobody trades.
    pub fn new(config: &ArbiterConfig, vms: &BTreeMap<u32, Machine>) -> Self {
        let mut prices = Self {
            ratio_milli: u64::from(config.price_ratio_milli),
            config: config.clone(),
            first: BTreeMap::new(),
            had: BTreeMap::new(),
            checked: 0,
        };
        let trades = |vm: &Machine| config.rule == Rule::Trade && vm.tiers.len() > 1;
        for (id, vm) in vms.iter().filter(|(_, vm)| trades(vm)) {
            // One that is above its ceiling when it comes is not made to sell.
            let first = prices.cost(ends(&brought(vm)));
            let first = first.max(prices.cost(ends(&vm.sizes())));
            prices.first.insert(*id, first);
        }
        prices
    }

    /// The price of sizes, thousandths of a byte of slow memory.
    fn cost(&self, [fast, slow]: [u64; 2]) -> u128 {
        u128::from(fast) * u128::from(self.ratio_milli) + u128::from(slow) * 1000
    }

    /// Notes what VMs have.
    pub fn note(&mut self, world: &World) {
        for (id, vm) in &world.vms {
            let had = self.had.entry(*id).or_default();
            *had = vm.size().max(*had);
        }
    }

    /// Checks that an order raises the price by no more than what a trade may owe: what is taken at once, as fast memory.
    pub fn check(&mut self, order: &Given) {
        let Some(first) = self.first.get(&order.vm) else {
            return;
        };
        let had = self.had.get(&order.vm).copied().unwrap_or(0);
        let pace = percent(had, self.config.shrink_percent);
        let pace = pace.max(self.config.least_shrink_bytes);
        let owes = u128::from(pace) * u128::from(self.ratio_milli);
        let [before, after] = order.ends.map(|ends| self.cost(ends));
        assert!(
            after <= first + owes || after <= before,
            "{order:?}: {before} to {after}, first {first}, owes {owes}"
        );
        self.checked += 1;
    }

    /// Lets all VMs obey and want nothing, until no trade lasts: no price is above the first one by more than a block.
    pub fn settle(&self, world: &mut World) {
        if self.first.is_empty() {
            return;
        }
        for _ in 0..40 {
            world.rest();
            world.pass(9 * SECOND);
        }
        for (id, first) in &self.first {
            let vm = &world.vms[id];
            let block = vm.tiers.iter().map(|tier| tier.block_bytes).max();
            let slack = u128::from(block.unwrap_or(0)) * u128::from(self.ratio_milli);
            let cost = self.cost(ends(&vm.sizes()));
            assert!(cost <= first + slack, "VM {id}: {cost} of {first}");
        }
    }
}
