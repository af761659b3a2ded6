//! `static-best`: every page and page table is placed once, by what it costs in the whole run.
//!
//! The costs come from a run of the same scenario and seed with all memory fast.

use super::estimate::Demand;
use super::split::{Ranking, Use, Weights, best_part};
use crate::base::number::{index, low};
use crate::base::tier::Tier;
use crate::host::vm::Vm;
use crate::machine::profile::Profile;
use crate::machine::space::Space;

/// The profile of a VM's whole run.
#[derive(Clone, Debug)]
pub struct WholeRun {
    profile: Profile,
    vcpus: usize,
    vcpu_ps: u64,
}

impl WholeRun {
    /// The profile of a VM whose load has ended. `None` if nothing was counted.
    #[must_use]
    pub fn of(vm: &Vm) -> Option<Self> {
        let profile = vm.space.profile.as_deref()?.clone();
        let clocks = vm.vcpus.iter().map(|vcpu| vcpu.progress().clock());
        let worked = clocks.filter(|clock| *clock > 0);
        Some(Self {
            profile,
            vcpus: worked.clone().count(),
            vcpu_ps: worked.sum(),
        })
    }

    fn demand(&self) -> Option<Demand> {
        Demand::measured(self.profile.totals(), self.vcpus, self.vcpu_ps)
    }
}

/// The use of each unit that is backed and counts as the VM's.
#[must_use]
pub fn uses(space: &Space, pages: &[[u32; 2]], lines: &[u32]) -> Vec<Use> {
    let second = &space.second;
    let mut uses: Vec<Use> = (0..second.len())
        .map(|unit| Use {
            unit,
            ..Use::default()
        })
        .collect();
    for (page, [reads, writes]) in (0..).zip(pages) {
        if let Some(frame) = space.guest.frame(page) {
            let of = &mut uses[index(second.unit_of(frame))];
            of.reads = of.reads.saturating_add(*reads);
            of.writes = of.writes.saturating_add(*writes);
        }
    }
    for (frame, lines) in (0..).zip(lines) {
        let of = &mut uses[index(second.unit_of(frame))];
        of.lines = of.lines.saturating_add(*lines);
    }
    let first = second.first_counted();
    uses.retain(|of| of.unit >= first && second.tier(of.unit).is_some());
    uses
}

/// Places the pages of VMs by their profiles, and returns the most bytes that this took. `fit`: units that fit into each
/// tier, by VM.
pub fn place(vms: &mut [(&mut Vm, &WholeRun, Vec<u64>)], tiers: &[Tier]) -> usize {
    let weights = Weights::new(tiers);
    let rank = |(vm, run, fit): &(&mut Vm, &WholeRun, Vec<u64>)| {
        let uses = uses(&vm.space, run.profile.pages(), run.profile.tables());
        let is_first = |unit| vm.space.second.tier(unit) == Some(0);
        Ranking::new(&uses, weights, fit, run.demand(), is_first)
    };
    let rankings: Vec<Ranking> = vms.iter().map(rank).collect();
    let part = best_part(tiers, &rankings);
    for ((vm, ..), ranking) in vms.iter_mut().zip(&rankings) {
        for (unit, tier) in ranking.places(part) {
            vm.space.second.put(unit, Some(tier));
        }
    }
    let profiles = vms.iter().map(|(_, run, _)| run.profile.heap_bytes());
    profiles.sum::<usize>() + rankings.iter().map(Ranking::peak_bytes).sum::<usize>()
}

/// The frames of tables that a profile counts.
#[must_use]
pub fn empty(space: &Space) -> Box<Profile> {
    let tables = low(u64::from(space.guest.first_data()));
    Box::new(Profile::new(space.guest.pages(), tables))
}
