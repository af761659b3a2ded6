//! The engine's plans: the moves that they ask for, and the reports on them.

use terrace_core::policy::Move;
use terrace_proto::{MovePlan, MoveReport, MoveStatus, PageCode, PageResult, TierId};

use super::migration::{Memory, Migration, Outcome, Wanted, Way};
use super::vm::Vm;
use crate::base::number::{low, to_usize};
use crate::base::side::Side;
use crate::machine::TIERS;

/// A plan under way.
#[derive(Debug)]
pub struct Moving {
    plan: MovePlan,
    huge: bool,
    migration: Migration,
}

impl Moving {
    /// Starts a plan; `batch` pages are unmapped at a time.
    #[must_use]
    pub fn new(plan: MovePlan, vm: &Vm, way: Move, batch: usize) -> Self {
        let second = &vm.space.second;
        let wanted = plan.moves.iter().map(|page| Wanted {
            unit: second.unit_of(low(page.gfn.0)),
            to: page.to,
        });
        let way = Way {
            kind: way.into(),
            side: Side::Host,
            batch,
        };
        Self {
            migration: Migration::new(wanted.collect(), way),
            huge: second.huge(),
            plan,
        }
    }

    /// The VM whose pages move.
    #[must_use]
    pub fn vm(&self) -> terrace_proto::VmId {
        self.plan.vm
    }

    /// Works for `ps` of one processor's time; returns whether the plan is done.
    pub fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        self.migration.work(vm, memory, ps)
    }

    /// The report of the plan; `scale` turns simulated time into the full-size machine's.
    #[must_use]
    pub fn report(self, scale: u64) -> MoveReport {
        let code = |tier: Option<u8>| {
            tier.map_or(PageCode::ABSENT, |tier| {
                PageCode::new(TierId(tier), self.huge)
            })
        };
        let lost = Outcome {
            status: MoveStatus::Busy,
            now: None,
        };
        let outcomes = self.migration.outcomes().iter();
        let results = self.plan.moves.iter().zip(outcomes).map(|(page, outcome)| {
            let outcome = outcome.unwrap_or(lost);
            PageResult {
                gfn: page.gfn,
                status: outcome.status,
                now: code(outcome.now),
            }
        });
        MoveReport {
            id: self.plan.id,
            vm: self.plan.vm,
            results: results.collect(),
            elapsed_ns: self.migration.spent() / crate::machine::PS * scale,
        }
    }
}

/// Free 4 KiB pages per tier: capacities less the pages that VMs hold.
#[must_use]
pub fn free_pages(capacity: &[u64; TIERS], vms: &[Vm]) -> [u64; TIERS] {
    let mut free = *capacity;
    for vm in vms.iter().filter(|vm| vm.endless.is_none()) {
        for (free, held) in free.iter_mut().zip(vm.held_pages()) {
            *free = free.saturating_sub(held);
        }
    }
    free
}

/// The index of a VM in the list.
#[must_use]
pub fn position(vm: terrace_proto::VmId) -> usize {
    to_usize(u64::from(vm.0)).saturating_sub(1)
}
