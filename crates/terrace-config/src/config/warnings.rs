//! Warnings about settings that are valid and do not do what they seem to.

use bytesize::ByteSize;
use terrace_core::arbiter::Rule;

use super::{Config, TierNodes, VmConfig};
use crate::agent::VmMode;

impl Config {
    /// Warnings about settings that are valid and have no effect, for people; each begins with the path of its key.
    #[must_use]
    pub fn warnings(&self) -> Vec<String> {
        let is_idle = |vm: &VmConfig| vm.moves && !vm.is_opted_in();
        let what = "moves = true has no effect while scan = false: pages that are not observed are not ranked. \
                    Set scan = true too";
        let defaults = self.vm("").is_ok_and(|vm| is_idle(&vm));
        let sections = self.vms.keys().filter(|name| {
            let own = self.vms.get(*name).is_some_and(|vm| vm.moves == Some(true));
            own && self.vm(name).is_ok_and(|vm| is_idle(&vm))
        });
        let mut warnings: Vec<String> = sections.map(|name| format!("vm.{name}: {what}")).collect();
        if defaults && self.vms.is_empty() {
            warnings.push(format!("defaults: {what}"));
        }
        warnings.extend(self.unmoved().map(|name| {
            format!("vm.{name}: mode = \"coordinated\" moves no page while moves = false. Set moves = true too")
        }));
        warnings.extend(self.balance_warnings());
        warnings
    }

    /// VMs in coordinated mode whose pages may not be moved.
    fn unmoved(&self) -> impl Iterator<Item = &String> {
        self.vms.keys().filter(|name| {
            let vm = self.vm(name);
            vm.is_ok_and(|vm| vm.management.mode == VmMode::Coordinated && !vm.moves)
        })
    }

    fn balance_warnings(&self) -> Vec<String> {
        let arbiter = &self.engine.arbiter;
        if arbiter.rule == Rule::Off {
            return Vec::new();
        }
        let mut warnings = Vec::new();
        let names = self.vms.keys().map(String::as_str).chain([""]);
        let takes_part = |name: &str| self.vm(name).is_ok_and(|vm| vm.balance.takes_part());
        if !arbiter.observe && !names.into_iter().any(takes_part) {
            warnings.push(
                "balance.mode: no VM has a memory_floor, so none takes part. Set it under [vm.NAME] or [defaults]"
                    .to_owned(),
            );
        }
        let is_capped = |name: &str| {
            let balance = self.vm(name).ok().map(|vm| vm.balance);
            balance.is_some_and(|own| own.ceiling_bytes.is_some() && own.floor_bytes.is_none())
        };
        let capped = self.vms.keys().filter(|name| is_capped(name));
        warnings.extend(capped.map(|name| {
            format!(
                "vm.{name}: memory_ceiling has no effect without a memory_floor: the VM takes no part in balancing"
            )
        }));
        let capacity = arbiter.capacity_bytes;
        let reserve = u128::from(capacity) * u128::from(arbiter.reserve_percent) / 100;
        let left = capacity - u64::try_from(reserve).unwrap_or(capacity);
        let floors = self.floors().into_iter();
        let floors = floors
            .filter(|(path, _)| path != "defaults")
            .map(|(_, floor)| floor);
        let sum = floors.fold(0, u64::saturating_add);
        if capacity > 0 && sum > capacity {
            warnings.push(format!(
                "vm: the memory_floor of all VMs ({}) is above the capacity of all tiers together ({}): while all run, memory is not \
                 shared",
                ByteSize(sum),
                ByteSize(capacity)
            ));
        } else if capacity > 0 && sum > left {
            warnings.push(format!(
                "vm: the memory_floor of all VMs ({}) leaves too little of the capacity ({}) for balance.reserve_percent = {}: while \
                 all run, less is left for those that begin to swap",
                ByteSize(sum),
                ByteSize(capacity),
                arbiter.reserve_percent
            ));
        }
        let has_capacity = |tier: &&TierNodes| tier.engine.capacity_bytes.is_some();
        let (with, without): (Vec<_>, Vec<_>) = self.tiers.iter().partition(has_capacity);
        if let (Some(with), Some(without)) = (with.first(), without.first()) {
            let [with, without] = [with, without].map(|tier| &tier.engine.name);
            warnings.push(format!(
                "tier.capacity: memory is shared as if there were no capacity, because tier {with} has one and tier {without} \
                 has none"
            ));
        }
        warnings
    }
}
