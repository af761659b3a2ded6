//! CPU time for scans: one budget for all VMs.
//!
//! Responsible for: each VM's part of it, and when a VM may be scanned again. It leaves to others: the
//! scans ([`super::round`]), and what they cost, which the host reports.
//!
//! What a VM wants is what its last pass would cost in each window of the usual length. If all want more
//! than there is, each gets its part by weight; what a VM leaves, because its scans cost less or because it
//! is between rounds, goes to the others. A VM whose scans cost more than its part is scanned less often;
//! no other VM is.

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_proto::{ScanSpent, Tick, VmId};

use super::Shared;
use super::vm::Vm;
use crate::config::EngineConfig;
use crate::share::by_weight;

/// One CPU, in the unit of this file: millionths of a CPU.
const CPU: u64 = 1_000_000;
const PERCENT: u64 = CPU / 100;

/// All VMs that are scanned at this time.
#[derive(Debug, Default)]
pub(crate) struct ScanBudget {
    /// The CPU time that each VM wants, and its weight.
    wants: BTreeMap<VmId, (u64, u32)>,
    /// CPU time of all scans of all VMs ever, ns.
    pub spent_ns: u64,
}

impl ScanBudget {
    /// A VM's part, given what it wants.
    fn part(&mut self, vm: VmId, want: u64, weight: u32, config: &EngineConfig) -> u64 {
        self.wants.insert(vm, (want, weight));
        let amount = u64::from(config.scan_cpu_budget_percent) * PERCENT;
        let wants: Vec<_> = self.wants.values().copied().collect();
        let parts = by_weight(amount, &wants);
        let mut parts = self.wants.keys().zip(parts);
        parts.find(|(id, _)| **id == vm).map_or(0, |(_, part)| part)
    }

    pub fn remove(&mut self, vm: VmId) {
        self.wants.remove(&vm);
    }
}

/// A VM's account of its scans.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ScanAccount {
    /// CPU time ever, ns.
    pub spent_ns: u64,
    /// CPU time that the host reported and no answer has accounted for yet, ns.
    unbilled_ns: u64,
    /// The VM's virtual processors, as far as known; 0: not.
    pub vcpus: u32,
    /// No round starts before.
    pub due: Tick,
    /// Windows that were made longer for the sake of others, and by how much, ns.
    pub held_up: u64,
    pub held_up_ns: u64,
}

impl ScanAccount {
    /// The time in which so much work for a VM is one percent of its processors' time, ns: all of them, up to what scans may take of a CPU.
    pub fn one_percent_ns(&self, cpu_ns: u64, config: &EngineConfig) -> u64 {
        let most = u64::from(config.scan_cpu_share_max_percent.max(1));
        let vcpus = u64::from(self.vcpus).clamp(1, most);
        cpu_ns.saturating_mul(100) / vcpus
    }
}

impl Vm {
    /// Takes in the host's figure of what scans of this VM cost.
    pub fn scan_spent(&mut self, spent: &ScanSpent, shared: &mut Shared) {
        let ns = spent.cpu_ns;
        self.rounds.scans.unbilled_ns = self.rounds.scans.unbilled_ns.saturating_add(ns);
        self.add_scan_cost(ns, shared);
    }

    fn add_scan_cost(&mut self, ns: u64, shared: &mut Shared) {
        self.rounds.scans.spent_ns = self.rounds.scans.spent_ns.saturating_add(ns);
        let all = &mut shared.scans.spent_ns;
        *all = all.saturating_add(ns);
    }

    /// Bills a pass: the host's figure, or the answer's own if that is more or all there is. The rest of what the
    /// host reported (a search, answers that never came) is paid for between rounds.
    pub fn bill_pass(&mut self, answered_ns: u64, clearing: bool, shared: &mut Shared) -> u64 {
        let reported_ns = std::mem::take(&mut self.rounds.scans.unbilled_ns);
        if reported_ns == 0 {
            self.add_scan_cost(answered_ns, shared);
        }
        if !clearing {
            return reported_ns.max(answered_ns);
        }
        // A search went before this pass, which is no reason for a long window.
        let searched = reported_ns.saturating_sub(answered_ns);
        self.put_off(searched, shared);
        answered_ns
    }

    /// No round starts before so much CPU time is paid for.
    pub fn put_off(&mut self, cpu_ns: u64, shared: &mut Shared) {
        if shared.config.fair_shares && cpu_ns > 0 {
            let now = shared.now;
            let (after, _) = self.affordable(cpu_ns, shared);
            self.rounds.scans.due = self.rounds.scans.due.max(now).after(after);
        }
    }

    /// The cost of a scan that was not answered.
    pub fn bill_failure(&mut self, shared: &mut Shared) {
        let reported_ns = std::mem::take(&mut self.rounds.scans.unbilled_ns);
        self.put_off(reported_ns, shared);
    }

    /// The time in which a VM may spend so much CPU time on scans, and its part of the budget, millionths of
    /// a CPU.
    pub fn affordable(&mut self, cpu_ns: u64, shared: &mut Shared) -> (Duration, u64) {
        let config = &shared.config;
        let own = u64::from(config.scan_cpu_share_max_percent) * PERCENT;
        let mut part = own;
        if config.fair_shares {
            let window_ns = self.rhythm(config).window.as_nanos();
            let want = u128::from(cpu_ns) * u128::from(CPU) / window_ns;
            let want = u64::try_from(want).unwrap_or(u64::MAX).clamp(1, own);
            let got = shared
                .scans
                .part(self.id, want, self.size.weight, &shared.config);
            // Who got all that it wants keeps its windows.
            part = if got >= want { own } else { got.max(1) };
        }
        let ns = u128::from(cpu_ns) * u128::from(CPU) / u128::from(part);
        let ns = u64::try_from(ns).unwrap_or(u64::MAX);
        (Duration::from_nanos(ns), part)
    }

    /// Leaves its part to others while it is not scanned.
    pub fn tell_scans(&self, shared: &mut Shared) {
        if !self.rounds.is_scanning() || self.settings.paused {
            shared.scans.remove(self.id);
        }
    }
}
