//! The reserve: only a VM that swaps buys of it.

use std::collections::BTreeMap;

use terrace_proto::{ProviderId, Tick};
use terrace_testkit::providers::Providers;

/// Memory that VMs have, beside what they may have without the reserve.
pub struct Reserve {
    /// The most of each tier that all may have while nobody has of the reserve.
    most: [u64; 2],
    /// Memory that each VM had or was on its way to at the last check, and whether it swapped then.
    last: BTreeMap<u32, ([u64; 2], bool)>,
}

impl Reserve {
    /// The reserve of a host that has so much of each tier, 5 %.
    pub fn of(capacity: [u64; 2], sizes: &[[u64; 2]]) -> Self {
        Self {
            most: capacity.map(|all| all - all / 20),
            last: (1..)
                .zip(sizes)
                .map(|(id, sizes)| (id, (*sizes, false)))
                .collect(),
        }
    }

    /// Checks that no VM got of the reserve since the last check, but those that swap or swapped then.
    pub fn check(&mut self, providers: &Providers) {
        let (mut all, mut drawn, mut others) = ([0; 2], [0; 2], [0; 2]);
        for (id, vm) in &providers.vms {
            let view = providers.engine().provisioning(ProviderId(*id), Tick(0));
            let balance = view.and_then(|view| view.balance);
            let swaps = balance.is_some_and(|balance| balance.is_swapping);
            let tiers = &vm.status.as_ref().unwrap().tiers;
            let has = [0, 1].map(|tier| tiers[tier].size_bytes.max(tiers[tier].target_bytes));
            let (had, swapped) = self.last.insert(*id, (has, swaps)).unwrap_or_default();
            for tier in [0, 1] {
                let grown = match swaps || swapped {
                    true => &mut drawn,
                    false => &mut others,
                };
                grown[tier] += has[tier].saturating_sub(had[tier]);
                all[tier] += has[tier];
            }
        }
        for tier in [0, 1] {
            let left = all[tier] - drawn[tier] <= self.most[tier];
            let (all, more) = (all[tier], others[tier]);
            assert!(
                left || more == 0,
                "{more} more of tier {tier}, {all} in all"
            );
        }
    }
}
