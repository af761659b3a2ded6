//! A simulation: one scenario on one machine, step by step or to its end.
//!
//! Time advances in quanta. In each, every vCPU runs in its turn under the memory latencies that the quantum before
//! left; then management's processors work for as long; then what was done is reported to the engine, which decides
//! what is next. The engine lives in the full-size machine's time: a simulation at scale 64 passes a second of it in a
//! 64th of a second.

mod clock;
mod demand;
pub mod demand_result;
mod machine;
mod memory;
mod recorder;
pub mod result;
mod samples;
mod setup;
mod sharing;
mod sizes;
pub mod timeline;

#[cfg(test)]
mod tests;

use terrace_core::{Engine, Session};
use terrace_proto::log::Record;
use terrace_proto::{Command, Event, PAGE_SIZE, Tick, TierId, TierMemory, VmId};

use crate::base::load::Stop;
use crate::base::number::float;
use crate::base::tier::Tier;
use crate::host::bounds::clairvoyant::{self, Clairvoyant};
use crate::host::bounds::profiled::WholeRun;
use crate::host::management::Management;
use crate::host::moves::position;
use crate::host::vm::Vm;
use crate::host::{guest_moves, placer, provision};
use crate::machine::tier::Traffic;
use crate::machine::{PS, TIERS};
use crate::scenario::{GuestPolicy, HostPolicy, Scenario};
use clock::Clock;
use demand_result::{Demand, WorkingSets};
use machine::Machine;
use recorder::Recorder;
use result::{HotBlocks, Overhead, Provisioned, RunResult, VmResult};
use timeline::Timeline;

/// Time between reports of free memory to the engine, ns of the full-size machine.
const MEMORY_EVERY: u64 = 1_000_000_000;

/// The options of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Time between samples of the timeline: ns of the full-size machine; 0: no timeline is recorded.
    pub sample_every_ns: u64,
    /// Number of cells of memory in each sample's heat; 0: no heat is recorded.
    pub heat_cells: usize,
    /// Divisor of a quantum: 1, or 2 to see the effect of a shorter quantum.
    pub quantum_divisor: Option<u64>,
    /// Whether accesses are counted by page, for [`Simulation::profiles`].
    pub profile: bool,
}

/// Counts of every VM's accesses by page, from a run with all memory fast: what `static-best` places by.
#[derive(Clone, Debug)]
pub struct Profiles(pub(crate) Vec<WholeRun>);

/// A scenario that cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(pub String);

/// A finished run.
#[derive(Clone, Debug)]
pub struct Output {
    /// The run's result.
    pub result: RunResult,
    /// The run over time.
    pub timeline: Timeline,
}

/// Times of the next reports to the engine, ns of the full-size machine.
#[derive(Clone, Debug, Default)]
struct Reports {
    /// Of free memory.
    memory: u64,
    /// Of VMs' statistics.
    statistics: u64,
    /// Of guests' needs.
    needs: u64,
    /// Of the nodes of guests that move their own pages.
    nodes: u64,
    /// Of samples.
    samples: samples::Due,
}

/// A simulation under way.
pub struct Simulation {
    scenario: Scenario,
    clock: Clock,
    machine: Machine,
    vms: Vec<Vm>,
    /// The engine and, if it is recorded, the log of its events and actions since the log was last taken.
    session: Session<Option<Vec<(Tick, Record)>>>,
    management: Management,
    recorder: Recorder,
    due: Reports,
    /// The working sets that the engine found, by VM.
    working_sets: Vec<WorkingSets>,
    /// Number of rounds that each VM had ended at the last sample.
    rounds: Vec<u64>,
    /// The fast size that the engine knows of each VM whose guest moves its pages between sized nodes, bytes; 0: none.
    fast_sizes: Vec<u64>,
    /// Most bytes of state seen: of the engine, and in all.
    state: (u64, u64),
}

impl Simulation {
    /// Sets the machine up; no time passes.
    ///
    /// # Errors
    /// If something does not fit, or a file cannot be read.
    pub fn new(scenario: &Scenario, options: Options) -> Result<Self, RunError> {
        Self::start(scenario, options, false, None)
    }

    /// Sets the machine up with the profiles of a run of [`Scenario::all_fast`], which [`Simulation::new`] would make
    /// first if the scenario needs them ([`Scenario::needs_profiles`]).
    ///
    /// # Errors
    /// As [`Simulation::new`].
    pub fn with_profiles(
        scenario: &Scenario,
        options: Options,
        profiles: &Profiles,
    ) -> Result<Self, RunError> {
        Self::start(scenario, options, false, Some(profiles))
    }

    /// The counts so far of every VM's accesses by page. `None` unless [`Options::profile`] was set.
    #[must_use]
    pub fn profiles(&self) -> Option<Profiles> {
        let runs = self.vms.iter().map(WholeRun::of);
        runs.collect::<Option<_>>().map(Profiles)
    }

    /// Sets the machine up for [`Simulation::take_log`]: every page is re-armed in every window, and all events and
    /// actions of the engine are stored until they are taken.
    ///
    /// # Errors
    /// As [`Simulation::new`].
    pub fn recorded(scenario: &Scenario, options: Options) -> Result<Self, RunError> {
        Self::start(scenario, options, true, None)
    }

    fn start(
        scenario: &Scenario,
        options: Options,
        recorded: bool,
        profiles: Option<&Profiles>,
    ) -> Result<Self, RunError> {
        let mut simulation = setup::simulation(scenario, options, recorded)?;
        if scenario.needs_profiles() {
            let own = match profiles {
                Some(_) => None,
                None => Some(Self::profiled(scenario, options)?),
            };
            if let Some(profiles) = profiles.or(own.as_ref()) {
                setup::place_profiled(&mut simulation, profiles);
            }
        }
        simulation.tell_engine(Vec::new());
        // If the engine has no VM, state does not grow, and is not counted again.
        simulation.count_state();
        Ok(simulation)
    }

    /// Runs the scenario with all memory fast, for its profiles.
    fn profiled(scenario: &Scenario, options: Options) -> Result<Profiles, RunError> {
        let options = Options {
            profile: true,
            quantum_divisor: options.quantum_divisor,
            ..Options::default()
        };
        let mut simulation = Self::new(&scenario.all_fast(), options)?;
        while simulation.advance(u64::MAX) {}
        let profiles = simulation.profiles();
        profiles.ok_or_else(|| RunError("the run with all memory fast counted no pages".into()))
    }

    /// Takes the events and actions of the engine since the last call.
    pub fn take_log(&mut self) -> Vec<(Tick, Record)> {
        let log = self.session.log_mut().as_mut();
        log.map(std::mem::take).unwrap_or_default()
    }

    /// Sends the engine an event, and starts the actions that it decides.
    fn hear(&mut self, event: Event) {
        for action in self.session.hear(self.now(), event) {
            if self.act_on_permissions(&action) {
                continue;
            }
            if let Some(came) = self.act_on_sizes(&action) {
                self.hear(came);
                continue;
            }
            let batch = self.machine.costs().move_batch;
            let now = self.now();
            self.management.take(action, now, &self.vms, batch);
        }
    }

    /// Runs until a time (ns of the full-size machine since the start) or the end of all loads; returns whether some
    /// load still runs.
    pub fn advance(&mut self, until_ns: u64) -> bool {
        while self.now().0 < until_ns && self.vms.iter().any(|vm| vm.ended().is_none()) {
            self.quantum();
        }
        self.vms.iter().any(|vm| vm.ended().is_none())
    }

    fn quantum(&mut self) {
        self.request_sizes();
        let (end, quantum) = (self.clock.end(), self.clock.quantum());
        let env = self.machine.environment(end, self.now().0);
        let mut free = self.machine.free(&self.vms);
        let reached = |vm: &Vm| vm.space.counts.memory_accesses();
        let before: u64 = self.vms.iter().map(reached).sum();
        let tiers = &self.scenario.machine.tiers;
        let (ps, cache) = (self.clock.ps(), self.machine.caches().last_level.as_deref());
        if clairvoyant::place_windows(&mut self.vms, tiers, (ps, env.now_ns), cache) {
            self.count_state();
        }
        for (number, vm) in self.vms.iter_mut().enumerate() {
            self.machine.run(number, vm, &mut free, &env);
        }
        free = self.machine.free(&self.vms);
        let mut traffic = [Traffic::default(); TIERS];
        let mut memory = self.machine.memory(&mut traffic, &mut free);
        let mut events = self
            .management
            .run_quantum(end, quantum, &mut self.vms, &mut memory);
        for vm in &mut self.vms {
            provision::run_quantum(vm, &mut memory, &env, quantum);
            placer::run_quantum(vm, &mut memory, &env, quantum);
            placer::gather(vm, &mut memory, &env);
        }
        let after: u64 = self.vms.iter().map(reached).sum();
        self.machine
            .load(quantum, traffic, &mut self.vms, after - before);
        self.clock.advance();
        self.keep_sizes();
        self.balloons();
        self.follow_nodes();
        events.extend(self.observe_demand());
        events.extend(self.report_needs());
        events.extend(self.report_samples());
        self.tell_engine(events);
        self.keep_working_sets();
        let (now, scale) = (self.now().0, self.scenario.machine.scale);
        self.recorder.sample_if_due(now, scale, &mut self.vms);
    }

    fn balloons(&mut self) {
        let now = self.now().0;
        let (scale, costs) = (self.scenario.machine.scale, self.machine.costs());
        for vm in &mut self.vms {
            while vm.balloon.first().is_some_and(|step| step.at_ns <= now) {
                let step = vm.balloon.remove(0);
                if let Some(reclaim) = &mut vm.answers.reclaim {
                    let before = vm.space.counts.swapped_out;
                    // Memory that the guest cannot give stays with it: the result's bytes show it.
                    let _ = reclaim.balloon(&mut vm.space, costs, step.bytes / scale / PAGE_SIZE);
                    let written = vm.space.counts.swapped_out - before;
                    vm.shoot_down(costs);
                    vm.steal(written * costs.swap_write);
                }
            }
        }
    }

    /// Sends the engine events, and its timer if that is due.
    fn tell_engine(&mut self, events: Vec<Event>) {
        let now = self.now();
        let managed = self.vms.iter().any(|vm| vm.stages.is_some());
        if !managed && self.vms.iter().all(|vm| vm.provision.is_none()) {
            return;
        }
        if managed && now.0 >= self.due.memory {
            self.due.memory = now.0 + MEMORY_EVERY;
            self.hear(Event::Memory(self.free_memory()));
            let tiers = self.machine.tiers();
            let said = self
                .vms
                .iter()
                .filter_map(|vm| guest_moves::said(vm, tiers));
            for moves in said.collect::<Vec<_>>() {
                self.hear(Event::GuestMoves(moves));
            }
        }
        let due = self.engine().poll_timeout().is_some_and(|at| at <= now);
        if events.is_empty() && !due {
            return;
        }
        for event in events {
            self.hear(event);
        }
        if due {
            self.hear(Event::Timer);
        }
        self.count_rounds();
        self.count_state();
    }

    fn free_memory(&self) -> Vec<TierMemory> {
        let free = self.machine.free(&self.vms);
        (0_u8..)
            .zip(self.machine.capacity().iter().zip(free))
            .take(self.machine.tiers())
            .map(|(tier, (total, free))| TierMemory {
                tier: TierId(tier),
                total_bytes: total * PAGE_SIZE,
                free_bytes: free * PAGE_SIZE,
            })
            .collect()
    }

    /// Charges the time of ranking for each round that ended.
    fn count_rounds(&mut self) {
        for (vm, seen) in self.vms.iter().zip(&mut self.rounds) {
            let Some(round) = self.session.engine().last_round(vm.id) else {
                continue;
            };
            if round.number > *seen {
                *seen = round.number;
                let ps = round.known_pages * self.machine.costs().classify_page;
                self.management.rank(vm.id, ps);
            }
        }
    }

    fn count_state(&mut self) {
        let engine = self.engine().heap_bytes() as u64;
        let vms: u64 = self.vms.iter().map(Vm::heap_bytes).sum();
        let all = engine + vms + self.management.heap_bytes() + self.machine.heap_bytes();
        self.state = (self.state.0.max(engine), self.state.1.max(all));
    }

    /// Time of the full-size machine since the start, as the engine sees it.
    #[must_use]
    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Share of the longest load that is done, 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let done = |(vm, spec): (&Vm, &crate::scenario::Vm)| match spec.stop {
            _ if vm.ended().is_some() => 1.0,
            Stop::Duration(ns) => float(self.now().0) / float(ns.max(1)),
            Stop::Ops(ops) => {
                let scale = self.scenario.machine.scale;
                float(vm.space.counts.accesses() * scale) / float(ops.max(1))
            }
            Stop::Trace => 0.0,
        };
        let all = self.vms.iter().zip(&self.scenario.vms).map(done);
        all.fold(1.0, f64::min).clamp(0.0, 1.0)
    }

    /// The engine, to which the VMs have the numbers of the scenario's order, from 1.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.session.engine()
    }

    /// Passes an operator's command to the engine.
    pub fn command(&mut self, command: Command) {
        self.hear(Event::Command(command));
    }

    /// Number of a VM's exits so far without those by which the host flushes translations; of the full-size machine.
    #[must_use]
    pub fn exits_without_flushes(&self, vm: VmId) -> u64 {
        let counts = self.vms.get(position(vm)).map(|vm| vm.space.counts);
        counts.map_or(0, |c| {
            (c.exits - c.flush_exits) * self.scenario.machine.scale
        })
    }

    /// Number of a VM's walks of page tables so far, as simulated: the misses of its TLBs.
    #[must_use]
    pub fn page_walks(&self, vm: VmId) -> u64 {
        let vm = self.vms.get(position(vm));
        vm.map_or(0, |vm| vm.space.counts.walks)
    }

    /// Number of a VM's data accesses so far, as simulated.
    #[must_use]
    pub fn accesses(&self, vm: VmId) -> u64 {
        let vm = self.vms.get(position(vm));
        vm.map_or(0, |vm| vm.space.counts.accesses())
    }

    /// Number of a VM's data accesses so far that reached memory, and of those that the first tier served; as simulated.
    #[must_use]
    pub fn memory_accesses(&self, vm: VmId) -> (u64, u64) {
        let counts = self.vms.get(position(vm)).map(|vm| vm.space.counts);
        counts.map_or((0, 0), |c| (c.memory_accesses(), c.reads[0] + c.writes[0]))
    }

    /// The run over time so far.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        self.recorder.timeline()
    }

    /// The result so far; `slowdown_vs_all_fast`, `wall_s` and `accesses_per_wall_s` are the caller's.
    #[must_use]
    pub fn result(&self) -> RunResult {
        let scale = self.scenario.machine.scale;
        let pages: u64 = self.vms.iter().map(|vm| vm.space.guest.frames()).sum();
        let names: Vec<String> = self
            .scenario
            .vms
            .iter()
            .map(crate::scenario::Vm::policy_name)
            .collect();
        let same = names.windows(2).all(|pair| pair[0] == pair[1]);
        let vms = self.vms.iter().zip(&self.scenario.vms);
        RunResult {
            scenario: self.scenario.name.clone(),
            policy: if same {
                names[0].clone()
            } else {
                "mixed".into()
            },
            seed: self.scenario.seed,
            scale,
            simulated_s: float(self.now().0) / 1e9,
            wall_s: 0.0,
            accesses: self.vms.iter().map(|vm| vm.space.counts.accesses()).sum(),
            accesses_per_wall_s: 0.0,
            state_bytes_per_page: float(self.state.0) / float(pages.max(1)),
            sim_state_bytes_per_page: float(self.state.1) / float(pages.max(1)),
            sweep: None,
            share: None,
            model: None,
            way: None,
            vms: vms.map(|(vm, spec)| self.vm_result(vm, spec)).collect(),
        }
    }

    /// Rounds of what places a VM's pages.
    fn rounds_of(&self, vm: &Vm, spec: &crate::scenario::Vm) -> u64 {
        match &spec.policy {
            HostPolicy::Engine(..) => self.rounds[position(vm.id)],
            HostPolicy::Clairvoyant(..) => {
                let bound = vm.clairvoyant.as_ref();
                bound.map_or(0, Clairvoyant::windows)
            }
            _ => vm.answers.rounds(),
        }
    }

    fn vm_result(&self, vm: &Vm, spec: &crate::scenario::Vm) -> VmResult {
        let scale = self.scenario.machine.scale;
        let seconds = |ps: u64| float(ps * scale) / float(PS) / 1e9;
        let runtime_s = seconds(vm.ended().unwrap_or(self.clock.ps()));
        let counts = &vm.space.counts;
        let mut times = vm.vcpus[0].progress().times().clone();
        vm.vcpus[1..]
            .iter()
            .for_each(|vcpu| times.merge(vcpu.progress().times()));
        let tiers = 0..self.machine.tiers();
        let mean: Vec<u64> = tiers
            .clone()
            .map(|tier| crate::base::number::whole(vm.mean_bytes(tier)) * scale)
            .collect();
        let held = vm.pages_in_use();
        let gatherer = vm.answers.gatherer.as_ref();
        let permissions = vm.space.second.permissions.as_deref();
        let in_faults = permissions.map_or(0, |permissions| permissions.spent());
        let end: Vec<u64> = tiers.map(|tier| held[tier] * PAGE_SIZE * scale).collect();
        VmResult {
            name: spec.name.clone(),
            policy: spec.policy_name(),
            guest_policy: spec.guest_policy.map(GuestPolicy::name),
            rounds: self.rounds_of(vm, spec),
            runtime_s,
            ops_per_s: float(counts.accesses() * scale) / runtime_s.max(1e-12),
            p50_ns: times.quantile_ns(0.5),
            p99_ns: times.quantile_ns(0.99),
            slowdown_vs_all_fast: None,
            max_slowdown: spec.claim.max_slowdown,
            cost: cost(&paid(&mean, spec), &self.scenario.machine.tiers),
            performance_per_cost: None,
            cache_hit_ratio: counts.cache_hit_ratio(),
            fast_hit_ratio: counts.fast_hit_ratio(),
            fast_write_ratio: counts.fast_write_ratio(),
            dram_utility: utility(&counts.written_bytes, &mean),
            tier_written_bytes: counts.written_bytes[..mean.len()]
                .iter()
                .map(|bytes| bytes * scale)
                .collect(),
            fast_bytes_mean: mean[0],
            fast_bytes_end: end[0],
            tier_bytes_mean: mean,
            tier_bytes_end: end,
            promoted_pages: vm.account.promoted() * scale,
            demoted_pages: vm.account.demoted() * scale,
            vm_exits: (counts.exits - counts.scan_exits) * scale + counts.scan_exits,
            major_faults: counts.major_faults * scale,
            memory_wait_s: seconds(counts.memory_wait),
            swapped_in_bytes: counts.swapped_in * PAGE_SIZE * scale,
            swapped_out_bytes: counts.swapped_out * PAGE_SIZE * scale,
            overhead_s: Overhead {
                track: seconds(vm.account.spent.track + in_faults),
                classify: seconds(vm.account.spent.classify),
                migrate: seconds(vm.account.spent.migrate),
            },
            gathered_pages: gatherer.map(|own| own.gathered() * scale),
            hot_blocks: gatherer
                .and_then(|own| own.hot_blocks())
                .map(|blocks| HotBlocks::of(blocks, scale)),
            provision: vm.provision.as_deref().map(Provisioned::of),
            demand: self
                .engine()
                .demand(vm.id)
                .map(|demand| Demand::of(demand, &self.working_sets[position(vm.id)], scale)),
        }
    }

    /// The name of a VM.
    #[must_use]
    pub fn vm_name(&self, vm: VmId) -> Option<&str> {
        let spec = self.scenario.vms.get(position(vm))?;
        Some(&spec.name)
    }

    /// Utilization of a tier's bandwidth now, 0 to 1.
    #[must_use]
    pub fn utilization(&self, tier: TierId) -> f64 {
        self.machine.utilization(tier)
    }
}

/// The memory that a VM pays for, bytes per tier: the memory that it holds. Under memory-mode also its size of the
/// first tier, which holds nothing but must be there.
fn paid(held: &[u64], spec: &crate::scenario::Vm) -> Vec<u64> {
    let mut paid = held.to_vec();
    if matches!(spec.policy, HostPolicy::MemoryMode(_)) {
        paid[0] += spec.sizes[0];
    }
    paid
}

/// The cost of memory: GiB paid for per tier times the tier's price; `None` if such a tier has no price.
fn cost(paid: &[u64], tiers: &[Tier]) -> Option<f64> {
    let paid = paid.iter().zip(tiers).filter(|(bytes, _)| **bytes > 0);
    let parts =
        paid.map(|(bytes, tier)| Some(float(*bytes) / float(1 << 30) * tier.price_per_gib?));
    parts.sum()
}

/// HMvisor's `DRAM_utility`: the first tier's part of the write traffic over its part of the memory; 1 if nothing was
/// written, or nothing is held.
fn utility(written: &[u64; TIERS], mean: &[u64]) -> f64 {
    let all: u64 = written.iter().sum();
    let held: u64 = mean.iter().sum();
    if all == 0 || mean[0] == 0 {
        return 1.0;
    }
    (float(written[0]) / float(all)) / (float(mean[0]) / float(held))
}
