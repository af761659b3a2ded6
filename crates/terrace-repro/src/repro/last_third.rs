//! Cost of an access of the first VM in the last third of its accesses, where runs of one load are compared access by
//! access: to the ten-thousandth, which [`super::runs`]' own rates are not meant for.

use terrace_proto::VmId;
use terrace_sim::{Scenario, Simulation, Stop, number::float};

/// The first VM, as the engine knows it.
const FIRST: VmId = VmId(1);

/// The time and the protection faults of an access, on average.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PerAccess {
    /// Time of the full-size machine, ns.
    pub ns: f64,
    /// Protection faults.
    pub faults: f64,
    /// Walks of page tables.
    pub walks: f64,
}

/// A moment of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Moment {
    /// Accesses so far, as simulated.
    accesses: f64,
    /// Time of the full-size machine, s.
    at_s: f64,
    /// Protection faults so far, as simulated.
    faults: f64,
    /// Walks of page tables so far, as simulated.
    walks: f64,
}

impl Moment {
    /// The moment of that many accesses, on a line between two others.
    fn between(one: Self, other: Self, accesses: f64) -> Self {
        let part = (accesses - one.accesses) / (other.accesses - one.accesses);
        Self {
            accesses,
            at_s: one.at_s + (other.at_s - one.at_s) * part,
            faults: one.faults + (other.faults - one.faults) * part,
            walks: one.walks + (other.walks - one.walks) * part,
        }
    }
}

/// The last third of the first VM's accesses; all of them if it ends by the clock.
#[derive(Debug)]
pub(super) struct LastThird {
    /// Accesses before it, as simulated.
    before: f64,
    start: Option<Moment>,
    now: Moment,
}

impl LastThird {
    pub fn new(scenario: &Scenario) -> Self {
        let before = match scenario.vms[0].stop {
            Stop::Ops(ops) => float(ops / scenario.machine.scale * 2) / 3.0,
            Stop::Duration(_) | Stop::Trace => 0.0,
        };
        let now = Moment::default();
        Self {
            before,
            start: (before <= 0.0).then_some(now),
            now,
        }
    }

    pub fn update(&mut self, simulation: &Simulation) {
        self.pass(Moment {
            accesses: float(simulation.accesses(FIRST)),
            at_s: float(simulation.now().0) / 1e9,
            faults: float(simulation.protection_faults(FIRST)),
            walks: float(simulation.page_walks(FIRST)),
        });
    }

    fn pass(&mut self, now: Moment) {
        if self.start.is_none() && now.accesses >= self.before {
            self.start = Some(Moment::between(self.now, now, self.before));
        }
        self.now = now;
    }

    /// Cost of an access, when the VM's load ended at this time, s.
    pub fn per_access(&self, end_s: f64, scale: u64) -> PerAccess {
        let start = self.start.unwrap_or_default();
        let accesses = self.now.accesses - start.accesses;
        PerAccess {
            ns: (end_s - start.at_s) * 1e9 / (accesses * float(scale)),
            faults: (self.now.faults - start.faults) / accesses,
            walks: (self.now.walks - start.walks) / accesses,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn moment(accesses: f64, at_s: f64, faults: f64) -> Moment {
        Moment {
            accesses,
            at_s,
            faults,
            walks: 2.0 * faults,
        }
    }

    fn after(before: f64, moments: &[Moment]) -> PerAccess {
        let mut third = LastThird {
            before,
            start: (before <= 0.0).then(Moment::default),
            now: Moment::default(),
        };
        for now in moments {
            third.pass(*now);
        }
        third.per_access(6.0, 2)
    }

    #[test]
    fn the_last_third_begins_between_two_looks() {
        // Of 300 accesses 200 are over after 1.5 s and 5 faults; 100 take 4.5 s and 20 faults.
        let looks = [
            moment(100.0, 1.0, 0.0),
            moment(300.0, 2.0, 10.0),
            moment(300.0, 7.0, 25.0),
        ];
        let found = after(200.0, &looks);
        assert_eq!((found.faults, found.walks), (0.2, 0.4));
        assert_eq!(found.ns, 4.5e9 / 200.0);
    }

    #[test]
    fn a_load_that_ends_by_the_clock_counts_as_a_whole() {
        let found = after(0.0, &[moment(50.0, 2.0, 30.0), moment(100.0, 5.0, 30.0)]);
        assert_eq!((found.faults, found.ns), (0.3, 6e9 / 200.0));
    }
}
