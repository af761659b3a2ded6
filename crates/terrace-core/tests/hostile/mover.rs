//! Plans under way, and what is reported of them.

use std::collections::BTreeMap;

use terrace_proto::{MoveReport, PlanId, VmId};

use crate::Dice;

/// The move of one unit, from its plan to the report.
pub struct Flight {
    pub unit: u64,
    pub from: u8,
    pub to: u8,
    /// Whether the move was carried out or given up, but not reported yet.
    pub done: bool,
}

/// A plan that was not reported yet.
struct Plan {
    vm: VmId,
    flights: Vec<Flight>,
}

/// The mover of pages, which reports late.
#[derive(Default)]
pub struct Mover {
    plans: BTreeMap<PlanId, Plan>,
    /// Reports of plans that are done.
    reports: Vec<MoveReport>,
    last: Option<MoveReport>,
}

impl Mover {
    pub fn begin(&mut self, plan: PlanId, vm: VmId) {
        let flights = Vec::new();
        self.plans.insert(plan, Plan { vm, flights });
    }

    pub fn board(&mut self, plan: PlanId, flight: Flight) {
        self.plans.get_mut(&plan).unwrap().flights.push(flight);
    }

    pub fn flights(&self, vm: VmId) -> impl Iterator<Item = &Flight> {
        let of = self.plans.values().filter(move |p| p.vm == vm);
        of.flat_map(|p| &p.flights)
    }

    /// Whether a unit is on its way, or was and it is not reported yet.
    pub fn carries(&self, vm: VmId, unit: u64) -> bool {
        self.flights(vm).any(|flight| flight.unit == unit)
    }

    /// A plan is carried out, as far as it goes.
    pub fn land(&mut self, plan: PlanId) {
        let flights = &mut self.plans.get_mut(&plan).unwrap().flights;
        flights.iter_mut().for_each(|f| f.done = true);
    }

    /// A VM is gone, and its pages with it.
    pub fn forget(&mut self, vm: VmId) {
        self.plans.retain(|_, plan| plan.vm != vm);
    }

    /// A report is handed in later.
    pub fn put_off(&mut self, report: MoveReport) {
        self.reports.push(report);
    }

    /// One of those that were put off, now and then.
    pub fn draw(&mut self, dice: &mut Dice) -> Option<MoveReport> {
        if self.reports.is_empty() || dice.below(2) > 0 {
            return None;
        }
        let at = dice.below(self.reports.len() as u64);
        Some(self.reports.remove(usize::try_from(at).unwrap()))
    }

    /// A report is handed in; the flights that it is about, if they are known.
    pub fn hand_in(&mut self, report: &MoveReport) -> Option<Vec<Flight>> {
        self.last = Some(report.clone());
        Some(self.plans.remove(&report.id)?.flights)
    }

    /// The report that was handed in last.
    pub fn last(&self) -> Option<MoveReport> {
        self.last.clone()
    }
}
