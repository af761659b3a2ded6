//! Samples of the host's counters for the engine: what its PMU finds of a VM's misses, twenty times a second.
//!
//! Loads that miss the last-level cache are sampled. Stores are not: the counters know all stores, not those that miss.
//! Each record costs the vCPU what it costs every mechanism here, and the host's processors the work on it; both count
//! as `track`.

use terrace_core::estimate::SamplePeriod;
use terrace_core::policy::Estimate;
use terrace_proto::{Event, Gfn, PageSamples, Samples};

use super::Simulation;
use crate::host::vm::Vm;
use crate::machine::PS;
use crate::machine::costs::Costs;
use crate::machine::pmu::Pmu;

/// Time between two reports, ns of the full-size machine.
const EVERY: u64 = 50_000_000;
/// Records that a buffer takes: one of 64 KiB, as the kernel's.
const BUFFER: usize = 340;

/// The sampling of a VM for the engine.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    period: SamplePeriod,
    /// When the last report was due, ns; 0: none was.
    since: u64,
}

/// Reports that are due, and the sampling of each VM.
#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    /// When, ns of the full-size machine.
    at: u64,
    of: Vec<Sampled>,
}

/// Whether the engine makes use of samples of a VM.
fn has_use(vm: &Vm) -> bool {
    vm.stages
        .is_some_and(|stages| stages.estimate == Estimate::Rates)
}

impl Simulation {
    /// The reports that are due, if the scenario has the host sample.
    pub(super) fn report_samples(&mut self) -> Vec<Event> {
        let (now, scale) = (self.now().0, self.scenario.machine.scale);
        let mut events = Vec::new();
        if !self.scenario.host.samples || now < self.due.samples.at {
            return events;
        }
        let due = &mut self.due.samples;
        due.at = now + EVERY;
        due.of.resize(self.vms.len(), Sampled::default());
        let costs = self.machine.costs();
        let engine = self.session.engine();
        for (vm, sampled) in self.vms.iter_mut().zip(&mut due.of) {
            if !has_use(vm) || vm.ended().is_some() {
                continue;
            }
            let over_ns = now - sampled.since;
            let first = std::mem::replace(&mut sampled.since, now) == 0;
            if first {
                vm.space.sampling.follow(Some(pmu(sampled.period)));
                continue;
            }
            let halvings = engine.sample_halvings(vm.id);
            events.extend(report(vm, sampled, (over_ns, halvings), (costs, scale)));
        }
        events
    }
}

fn pmu(period: SamplePeriod) -> Pmu {
    Pmu {
        load_period: period.misses(),
        store_period: 0,
        buffer: BUFFER,
        divisor: 1,
    }
}

/// Reports a VM's samples over so much time, and adapts their period.
fn report(
    vm: &mut Vm,
    sampled: &mut Sampled,
    (over_ns, halvings): (u64, u32),
    (costs, scale): (&Costs, u64),
) -> Option<Event> {
    let taken = vm.space.sampling.take();
    let records = taken.len() as u64;
    let record = costs.sample + costs.sample_interrupt / BUFFER as u64 + costs.sample_work;
    let took = records * record;
    vm.account.spent.track += took;
    let period = u32::try_from(sampled.period.misses()).unwrap_or(u32::MAX);
    let ran = over_ns / scale * vm.vcpus.len() as u64;
    if sampled.period.adapt(took / PS, ran, halvings) {
        vm.space.sampling.follow(Some(pmu(sampled.period)));
    }
    let mut frames: Vec<u32> = taken
        .iter()
        .filter_map(|sample| vm.space.guest.frame(sample.page))
        .collect();
    vm.space.sampling.reuse(taken);
    frames.sort_unstable();
    let same = frames.chunk_by(|one, other| one == other);
    let pages = same.map(|run| PageSamples {
        gfn: Gfn(u64::from(run[0])),
        reads: u32::try_from(run.len()).unwrap_or(u32::MAX),
        writes: 0,
    });
    Some(Event::Samples(Samples {
        vm: vm.id,
        period,
        over_ns,
        pages: pages.collect(),
    }))
}
