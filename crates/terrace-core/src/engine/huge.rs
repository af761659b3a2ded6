//! Huge pages behind VMs whose balloons gave memory back: what the rest of the engine knows that is in their way, and
//! what follows for pages that are placed.
//!
//! Which tier memory lies in stays as it is: a block is collapsed only if all its pages lie on one node, and the kernel
//! takes the huge page from that node.

use terrace_proto::provision::{BlockStatus, CollapseReport};
use terrace_proto::{BackingChange, Tick};

use super::Engine;

impl Engine {
    /// Begins the steps that are due and that nothing is in the way of.
    pub(super) fn collapse(&mut self, now: Tick) {
        let reserve_percent = self.shared.config.arbiter.host_reserve_percent;
        let (arbiter, provision) = (&self.arbiter, &mut self.provision);
        provision.collapse(now, reserve_percent, |id| {
            arbiter.keeps_single_pages(now, id)
        });
    }

    /// Takes in the outcome of a step.
    pub(super) fn collapsed(&mut self, now: Tick, report: &CollapseReport) {
        self.provision.collapsed(now, report);
        let (Some(vm), Ok(done)) = (self.arbiter.vm(report.provider), &report.result) else {
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
