//! The engine's plans: what they ask for, and what is told of them.

use terrace_core::policy::Move;
use terrace_proto::{MovePlan, MoveReport, MoveStatus, PageCode, PageResult, TierId};

use super::travel::{Memory, Outcome, Travel, Wanted, Way};
use super::vm::Vm;
use crate::machine::TIERS;
use crate::words::number::{low, place};
use crate::words::side::Side;

/// A plan under way.
#[derive(Debug)]
pub struct Moving {
    plan: MovePlan,
    huge: bool,
    travel: Travel,
}

impl Moving {
    /// A plan that begins; `batch` pages are unmapped at a time.
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
            travel: Travel::new(wanted.collect(), way),
            huge: second.huge(),
            plan,
        }
    }

    /// Whose pages.
    #[must_use]
    pub fn vm(&self) -> terrace_proto::VmId {
        self.plan.vm
    }

    /// Works for `ps` of one processor's time; says whether the plan is done.
    pub fn work(&mut self, vm: &mut Vm, memory: &mut Memory, ps: u64) -> bool {
        self.travel.work(vm, memory, ps)
    }

    /// The report; `scale` turns simulated time into the full-size machine's.
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
        let outcomes = self.travel.outcomes().iter();
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
            elapsed_ns: self.travel.spent() / crate::machine::PS * scale,
        }
    }
}

/// Free 4 KiB pages per tier: capacities less what VMs hold.
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

/// Number of a VM in the list.
#[must_use]
pub fn position(vm: terrace_proto::VmId) -> usize {
    place(u64::from(vm.0)).saturating_sub(1)
}
