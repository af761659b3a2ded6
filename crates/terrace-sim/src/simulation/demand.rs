//! Protection faults and statistics: what the engine hears about VMs whose demand it tracks, and what it asks for.

use terrace_proto::{Action, Event, FaultReport, PAGE_SIZE, Protection, VmId, VmStatistics};

use super::Simulation;
use crate::host::moves::position;
use crate::host::vm::Vm;
use crate::machine::PS;
use crate::machine::vcpu::Vcpu;

/// Time between reports of a VM's statistics, ns of the full-size machine: HPMBS counts page walks per 0.1 s.
const STATISTICS_EVERY: u64 = 100_000_000;

impl Simulation {
    /// The faults of this quantum, one event per VM that had any, and the statistics that are due.
    pub(super) fn observe_demand(&mut self) -> Vec<Event> {
        let (now, scale) = (self.now().0, self.scenario.machine.scale);
        let (due, costs) = (now >= self.due.statistics, self.machine.costs());
        let mut events = Vec::new();
        for (vm, spec) in self.vms.iter_mut().zip(&self.scenario.vms) {
            let Some(permissions) = &mut vm.space.second.permissions else {
                continue;
            };
            let compute = vm.vcpus.iter().find(|vcpu| vcpu.is_running());
            let compute_ps = compute.map_or(0, Vcpu::compute_ps);
            permissions.follow(vm.space.counts.accesses(), compute_ps, costs);
            let blocks = permissions.take_faulted();
            if !blocks.is_empty() {
                events.push(Event::Faulted(FaultReport {
                    vm: vm.id,
                    accesses: permissions.instructions(),
                    blocks,
                }));
            }
            if due {
                let has = vm.provision.as_ref().map_or(spec.bytes(), |device| {
                    device.given().iter().sum::<u64>() * PAGE_SIZE * scale
                });
                let sizes = (has, spec.shortage.swap);
                events.push(Event::Statistics(statistics(vm, sizes, scale)));
            }
        }
        if due {
            self.due.statistics = now + STATISTICS_EVERY;
        }
        events
    }

    /// Keeps the working sets that the engine found since the last call.
    pub(super) fn keep_working_sets(&mut self) {
        for (vm, sets) in self.vms.iter().zip(&mut self.working_sets) {
            if vm.space.second.permissions.is_some()
                && let Some(estimate) = self.session.engine().demand_estimate(vm.id)
            {
                sets.add(estimate);
            }
        }
    }

    /// Takes permissions away or gives them back, if the action asks for that; returns whether it did.
    pub(super) fn act_on_permissions(&mut self, action: &Action) -> bool {
        match action {
            Action::Protect(protection) => self.protect(protection),
            Action::Unprotect(vm) => {
                let vm = &mut self.vms[position(*vm)];
                if let Some(permissions) = &mut vm.space.second.permissions {
                    permissions.permit_all();
                }
            }
            _ => return false,
        }
        true
    }

    /// Takes the permission of blocks away, and flushes the translations of all vCPUs, as KVM does after it changed an
    /// entry of the second stage. The vCPU that faulted does it, on the VM's own time.
    fn protect(&mut self, protection: &Protection) {
        let costs = self.machine.costs();
        let vm = &mut self.vms[position(protection.vm)];
        let Some(permissions) = &mut vm.space.second.permissions else {
            return;
        };
        let denied = |block: &&u32| permissions.deny(**block);
        let denied = protection.blocks.iter().filter(denied).count() as u64;
        if denied == 0 {
            return;
        }
        let exits = vm.space.counts.flush_exits;
        let sent = vm.shoot_down(costs) + denied * costs.hint_page;
        let exits = vm.space.counts.flush_exits - exits;
        vm.steal(sent);
        let spent = sent + exits * costs.exit;
        if let Some(permissions) = &mut vm.space.second.permissions {
            permissions.spend(spent);
        }
    }

    /// Number of protection faults of a VM so far, as simulated.
    #[must_use]
    pub fn protection_faults(&self, vm: VmId) -> u64 {
        let vm = self.vms.get(position(vm));
        let permissions = vm.and_then(|vm| vm.space.second.permissions.as_deref());
        permissions.map_or(0, |permissions| permissions.faults())
    }
}

/// A VM's statistics. Memory is as simulated, as all bytes that the engine hears of; times are of the full-size machine.
/// Accesses and walks are those of the simulated time, without the scale: a distance of `n / scale` pages is seen as often
/// per access as one of `n` pages on the full-size machine.
fn statistics(vm: &Vm, (bytes, swap): (u64, u64), scale: u64) -> VmStatistics {
    let counts = &vm.space.counts;
    let ns = |ps: u64| ps / PS * scale;
    let permissions = vm.space.second.permissions.as_deref();
    let clocks = vm.vcpus.iter().map(|vcpu| vcpu.progress().clock());
    let total = bytes / scale;
    let reclaim = vm.answers.reclaim.as_ref();
    let unmapped = (total / PAGE_SIZE).saturating_sub(vm.space.guest.pages());
    let free = reclaim.map_or(unmapped, |reclaim| reclaim.free_pages(&vm.space));
    let unused = reclaim.map_or(swap / scale, |reclaim| {
        reclaim.free_swap_pages() * PAGE_SIZE
    });
    VmStatistics {
        vm: vm.id,
        accesses: permissions.map_or(0, |permissions| permissions.instructions()),
        walks: counts.walks,
        tracking_ns: ns(permissions.map_or(0, |permissions| permissions.spent())),
        cpu_ns: ns(clocks.sum()),
        total_bytes: total,
        free_bytes: free * PAGE_SIZE,
        used_swap_bytes: (swap / scale).saturating_sub(unused),
    }
}
