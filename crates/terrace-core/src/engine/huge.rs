//! Huge pages behind VMs whose balloons gave memory back: what the rest of the engine knows that is in their way, and
//! what follows for pages that are placed.
//!
//! Which tier memory lies in stays as it is: a block is collapsed only if all its pages lie on one node, and the kernel
//! takes the huge page from that node.

use std::time::Duration;

use terrace_proto::provision::{BlockStatus, CollapseReport};
use terrace_proto::{BackingChange, Tick};

use super::Engine;

/// Greatest time for which a VM's plans wait for a step: a step is longer only if the kernel holds it up. A plan that goes
/// out nevertheless spoils no data: the kernel takes each page for one of the two, and the other one finds it busy. A page
/// may then lie in another tier than the plan's report says, until the next look at its place.
const HOLD: Duration = Duration::from_secs(2);

impl Engine {
    /// Begins the step that is due and that nothing is in the way of.
    pub(super) fn collapse(&mut self, now: Tick) {
        let reserve_percent = self.shared.config.arbiter.host_reserve_percent;
        let (arbiter, vms) = (&self.arbiter, &self.vms);
        let has_plans = |vm| {
            let vm = vms.get(&vm);
            vm.is_some_and(|vm| !vm.moving.plans.is_empty())
        };
        let in_the_way = |id| arbiter.keeps_single_pages(now, id);
        let held = self
            .provision
            .collapse(now, reserve_percent, in_the_way, has_plans);
        for vm in held {
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.moving.held_until = Some(now.after(HOLD));
            }
        }
    }

    /// Takes in the outcome of a step.
    pub(super) fn collapsed(&mut self, now: Tick, report: &CollapseReport) {
        self.provision.collapsed(now, report);
        let Some(vm) = self.provision.vm(report.provider) else {
            return;
        };
        self.with(vm, |vm, _| vm.moving.held_until = None);
        let Ok(done) = &report.result else {
            return;
        };
        let huge = done.blocks.iter();
        let huge = huge.filter(|outcome| outcome.status == BlockStatus::Collapsed);
        for outcome in huge {
            let change = BackingChange {
                vm,
                block: outcome.block,
                huge: true,
            };
            self.with(vm, |vm, _| vm.backing(change));
        }
    }
}
