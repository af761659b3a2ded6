//! Variants of a scenario: another policy, another size of the first tier.

use super::error::Fault;
use super::{GuestPolicy, HostPolicy, HostShare, Scenario, policy, quantity};
use crate::base::side::Side;

impl Scenario {
    /// This scenario with one policy of the host for every VM, and none in the guests, or, by `NAME+gpac`, the gathering of hot
    /// pages, within the limits that the guests have already.
    ///
    /// # Errors
    /// If the policy is unknown (the message lists the known ones), or does not suit the scenario.
    pub fn with_policy(&self, name: &str) -> Result<Self, Fault> {
        let (host, gathers) = policy::host_part(name);
        let mut policy = policy::by_name(host, "policy")?;
        if let HostPolicy::Baseline(_, _, side @ Side::Guest) = &mut policy
            && gathers
        {
            if let Some((alone, _)) = host.split_once('@') {
                let what =
                    format!("the guest gathers, so {alone} can run at the host only: {alone}+gpac");
                return Err(Fault::new(format!("policy {name}"), what));
            }
            // Whatever else there is runs at the host.
            *side = Side::Host;
        }
        let mut scenario = self.under(&policy);
        for (vm, own) in scenario.vms.iter_mut().zip(&self.vms).filter(|_| gathers) {
            vm.guest_policy = Some(
                own.gathers()
                    .map_or(GuestPolicy::AUTO, GuestPolicy::Gathers),
            );
        }
        scenario
            .check()
            .map_err(|fault| Fault::new(format!("policy {name}: {}", fault.key()), fault.what))?;
        Ok(scenario)
    }

    /// This scenario with a policy as a scenario file has it: a name, or a table with a `base`.
    ///
    /// # Errors
    /// If there is no such policy; the message names it.
    pub fn with_policy_text(&self, text: &str) -> Result<Self, String> {
        let policy = policy::by_text(text)?;
        Ok(self.under(&policy))
    }

    /// This scenario with another rule by which the host shares memory.
    ///
    /// # Errors
    /// If there is no such rule (the message lists them), or the scenario does not suit it.
    pub fn with_share(&self, name: &str) -> Result<Self, Fault> {
        let mut scenario = self.clone();
        scenario.host.share = HostShare::by_name(name, "shares")?;
        scenario.check_share()?;
        Ok(scenario)
    }

    /// This scenario with every VM `all-fast`.
    #[must_use]
    pub fn all_fast(&self) -> Self {
        self.under(&HostPolicy::AllFast)
    }

    /// This scenario with every VM `all-slow`.
    #[must_use]
    pub fn all_slow(&self) -> Self {
        self.under(&HostPolicy::AllSlow)
    }

    fn under(&self, policy: &HostPolicy) -> Self {
        let mut scenario = self.clone();
        for vm in &mut scenario.vms {
            vm.policy = policy.clone();
            vm.guest_policy = None;
        }
        scenario
    }

    /// This scenario with `fast` bytes of the first tier for every VM, and as much memory in all as before.
    ///
    /// # Errors
    /// If a VM has less, or the size does not suit the scenario.
    pub fn with_fast(&self, fast: u64) -> Result<Self, Fault> {
        self.with_fast_by(|_| fast)
    }

    /// This scenario with the first tier of each VM so many times as large, and as much memory in all as before.
    ///
    /// # Errors
    /// If a VM has less, or the size does not suit the scenario.
    pub fn with_fast_times(&self, times: u32) -> Result<Self, Fault> {
        self.with_fast_by(|own| own.saturating_mul(times.into()))
    }

    /// This scenario with another size of each VM's first tier, by what it is.
    fn with_fast_by(&self, by: impl Fn(u64) -> u64) -> Result<Self, Fault> {
        let mut scenario = self.clone();
        let last = scenario.machine.tiers.len() - 1;
        for (i, vm) in scenario.vms.iter_mut().enumerate() {
            let fast = by(vm.sizes[0]);
            let both = vm.sizes[0] + vm.sizes[last];
            let Some(rest) = both.checked_sub(fast) else {
                let what = format!(
                    "VM \"{}\" has {} in its first and last tier together, which is less: choose a smaller size",
                    vm.name,
                    quantity::size_text(both)
                );
                return Err(Fault::new(format!("vm[{i}].fast"), what));
            };
            let machine = &mut scenario.machine.tiers;
            machine[0].bytes = machine[0].bytes - vm.sizes[0] + fast;
            machine[last].bytes = machine[last].bytes - vm.sizes[last] + rest;
            vm.sizes[0] = fast;
            vm.sizes[last] = rest;
        }
        scenario.check()?;
        Ok(scenario)
    }
}
