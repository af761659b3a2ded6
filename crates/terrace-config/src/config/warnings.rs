//! Warnings about settings that are valid and do not do what they seem to.

use bytesize::ByteSize;
use terrace_core::EngineConfig;
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
        warnings.extend(self.policy_warnings());
        warnings.extend(self.parts_warnings());
        warnings.extend(self.balance_warnings());
        warnings
    }

    /// Keys of policies that no VM has.
    fn policy_warnings(&self) -> Vec<String> {
        let (engine, usual) = (&self.engine, EngineConfig::default());
        let choices = [&engine.policy]
            .into_iter()
            .chain(engine.vm_policies.values());
        let rates = choices.map(|choice| {
            let policy = choice.resolve("policy");
            policy.is_ok_and(|policy| policy.estimate == Estimate::Rates)
        });
        let rates: Vec<bool> = rates.collect();
        if !rates.contains(&true) && engine.terrace != usual.terrace {
            return vec!["engine.terrace has no effect: no VM has policy = \"terrace\"".to_owned()];
        }
        if rates.contains(&false) {
            return Vec::new();
        }
        let set = [
            ("period_ms", engine.period_ms != usual.period_ms),
            (
                "huge_period_ms",
                engine.huge_period_ms != usual.huge_period_ms,
            ),
            (
                "window_ms",
                engine.terrace.fit_windows && engine.window_ms != usual.window_ms,
            ),
            ("max_level", engine.max_level != usual.max_level),
            ("quiet_bytes", engine.quiet_bytes != usual.quiet_bytes),
            (
                "quiet_vm_divisor",
                engine.quiet_vm_divisor != usual.quiet_vm_divisor,
            ),
            (
                "quiet_counter_max",
                engine.quiet_counter_max != usual.quiet_counter_max,
            ),
            ("hysteresis", engine.hysteresis != usual.hysteresis),
            (
                "min_hot_degree",
                engine.min_hot_degree != usual.min_hot_degree,
            ),
        ];
        let set = set.iter().filter(|(_, is_set)| *is_set);
        set.map(|(key, _)| {
            format!(
                "engine.{key} has no effect under policy terrace, which finds windows, rounds and moves by what they bring \
                 (docs/policy.md). Remove it, or set policy = \"vtmm\""
            )
        })
        .collect()
    }

    /// Rounds by parts that do not end within their period, and policies without them.
    fn parts_warnings(&self) -> Vec<String> {
        let engine = &self.engine;
        if engine.scan_parts == 1 {
            return Vec::new();
        }
        let estimate = engine
            .policy
            .resolve("policy")
            .map(|policy| policy.estimate);
        if estimate == Ok(Estimate::Rates) {
            // Its windows and pauses follow from what passes cost.
            return Vec::new();
        }
        if estimate == Ok(Estimate::HotLists) {
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

    /// Of these lines of `[engine]`.
    fn warnings(keys: &str) -> Vec<String> {
        let text = format!("[engine]\n{keys}\n");
        Config::parse(&text).unwrap().warnings()
    }

    #[test]
    fn keys_of_other_policies_are_warned_of() {
        let two = warnings("period_ms = 30000\nwindow_ms = 300");
        assert!(
            two.len() == 2
                && two[0].starts_with("engine.period_ms has no effect under policy terrace"),
            "{two:?}"
        );
        let by_hand = "window_ms = 300\nterrace = { fit_windows = false }";
        let other = "policy = \"vtmm\"\nperiod_ms = 30000\nwindow_ms = 300";
        let mixed = "period_ms = 30000\nvm_policies = { db1 = \"vtmm\" }";
        for fine in [
            by_hand,
            other,
            mixed,
            "cool_down_rounds = 2\nfull_pass_every = 2",
        ] {
            assert_eq!(warnings(fine), [""; 0], "{fine}");
        }
        let none = warnings("policy = \"vtmm\"\nterrace = { pace = false }");
        assert!(
            none.len() == 1 && none[0].contains("no VM has policy"),
            "{none:?}"
        );
    }

    #[test]
    fn rounds_by_parts_that_never_rest_are_warned_of() {
        let long = warnings("policy = \"vtmm\"\nscan_parts = 16");
        assert!(
            long[0].contains("16 parts x 8 windows x 600 ms = 76.8 s") && long.len() == 1,
            "{long:?}"
        );
        let short = "policy = \"vtmm\"\nscan_parts = 16\nwindow_ms = 20";
        let rare = "policy = \"vtmm\"\nscan_parts = 16\nperiod_ms = 80000";
        for fine in [short, rare, "scan_parts = 16"] {
            assert!(warnings(fine).is_empty(), "{fine}");
        }
        let lists = warnings("scan_parts = 16\npolicy = \"hmvisor\"");
        assert!(
            lists[0].contains("no effect under policy hmvisor") && lists.len() == 1,
            "{lists:?}"
        );
    }
}
