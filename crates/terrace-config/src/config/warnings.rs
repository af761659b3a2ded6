//! Warnings about settings that are valid and do not do what they seem to.

use bytesize::ByteSize;
use terrace_core::arbiter::Rule;
use terrace_core::policy::Estimate;

use super::{Config, TierNodes, VmConfig};
use crate::agent::VmMode;

/// A time for people.
fn seconds(ms: u64) -> String {
    format!("{} s", std::time::Duration::from_millis(ms).as_secs_f64())
}

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
        warnings.extend(self.parts_warnings());
        warnings.extend(self.balance_warnings());
        warnings
    }

    /// Rounds by parts that do not end within their period, and policies without them.
    fn parts_warnings(&self) -> Vec<String> {
        let engine = &self.engine;
        if engine.scan_parts == 1 {
            return Vec::new();
        }
        let policy = engine.policy.resolve("policy");
        if policy.is_ok_and(|policy| policy.estimate == Estimate::HotLists) {
            return vec![
                "engine.scan_parts has no effect under policy hmvisor, which has windows of its own over all memory. Set it to 1, or \
                 take policy = \"vtmm\""
                    .to_owned(),
            ];
        }
        let windows = u64::from(engine.scan_parts) * u64::from(engine.windows);
        let round_ms = windows * engine.window_ms;
        if round_ms <= engine.period_ms {
            return Vec::new();
        }
        vec![format!(
            "engine.scan_parts: a round takes {} parts x {} windows x {} ms = {}, and period_ms has one start every {}, so that \
                 scans never rest. Set a shorter window_ms, fewer parts, or a longer period_ms",
            engine.scan_parts,
            engine.windows,
            engine.window_ms,
            seconds(round_ms),
            seconds(engine.period_ms),
        )]
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_by_parts_that_never_rest_are_warned_of() {
        let warnings = |keys: &str| {
            let text = format!("[engine]\n{keys}\n");
            Config::parse(&text).unwrap().warnings()
        };
        let long = warnings("scan_parts = 16");
        assert!(
            long[0].contains("16 parts x 8 windows x 600 ms = 76.8 s") && long.len() == 1,
            "{long:?}"
        );
        assert!(warnings("scan_parts = 16\nwindow_ms = 20").is_empty());
        assert!(warnings("scan_parts = 16\nperiod_ms = 80000").is_empty());
        let lists = warnings("scan_parts = 16\npolicy = \"hmvisor\"");
        assert!(
            lists[0].contains("no effect under policy hmvisor") && lists.len() == 1,
            "{lists:?}"
        );
    }
}
