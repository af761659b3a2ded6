//! A simulation: one scenario on one machine, step by step or to its end.
//!
//! Time goes on in quanta. In each, every vCPU runs in its turn under the memory latencies that the
//! quantum before left; then management's processors work for as long; then the engine hears what was
//! done and says what is next. The engine lives in the full-size machine's time: a simulation at scale
//! 64 passes a second of it in a 64th of a second.

pub mod result;
mod setup;
mod sizes;
pub mod timeline;

#[cfg(test)]
mod tests;

use terrace_core::{Engine, Session};
use terrace_proto::log::Record;
use terrace_proto::{Command, Event, PAGE_SIZE, Tick, TierId, TierMemory, VmId};

use crate::host::management::Management;
use crate::host::moves::{free_pages, position};
use crate::host::oracle;
use crate::host::travel::{self, Memory};
use crate::host::vm::Vm;
use crate::host::{placer, provision};
use crate::machine::costs::Costs;
use crate::machine::memory_mode::MemoryMode;
use crate::machine::tier::{Load, Traffic};
use crate::machine::vcpu::Environment;
use crate::machine::{PS, TIERS};
use crate::scenario::{HostPolicy, Scenario};
use crate::words::load::Stop;
use crate::words::number::{float, place};
use crate::words::tier::Tier;
use result::{Overhead, Provisioned, RunResult, VmResult};
use timeline::{Sample, Timeline};

/// Length of a quantum, ps: 10 µs.
pub const QUANTUM: u64 = 10_000 * PS;

/// Time between reports of free memory to the engine, ns of the full-size machine.
const MEMORY_EVERY: u64 = 1_000_000_000;

/// How a scenario is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Time between samples of the timeline: ns of the full-size machine; 0: no timeline is kept.
    pub sample_every_ns: u64,
    /// Cells of memory per sample's heat; 0: none.
    pub heat_cells: usize,
    /// Quanta in the time of one: 1, or 2 to see what a shorter quantum changes.
    pub quantum_divisor: Option<u64>,
}

/// A scenario that cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(pub String);

/// A finished run.
#[derive(Clone, Debug)]
pub struct Output {
    /// What it says.
    pub result: RunResult,
    /// How it went.
    pub timeline: Timeline,
}

/// A simulation under way.
pub struct Simulation {
    scenario: Scenario,
    options: Options,
    costs: Costs,
    vms: Vec<Vm>,
    /// The engine, and what went into it and came out since that was taken last, if it is recorded.
    session: Session<Option<Vec<(Tick, Record)>>>,
    loads: Vec<Load>,
    /// 4 KiB pages per tier, as simulated.
    capacity: [u64; TIERS],
    management: Management,
    /// The machine's DRAM cache, under memory mode.
    memory_mode: Option<Box<MemoryMode>>,
    timeline: Timeline,
    /// Time, ps as simulated.
    now: u64,
    quantum: u64,
    memory_at: u64,
    sample_at: u64,
    /// When it was sampled last, ns of the full-size machine.
    sampled_at: u64,
    /// Rounds that each VM had ended when it was looked at last.
    rounds: Vec<u64>,
    /// Most bytes of state seen: the engine's, and all.
    state: (u64, u64),
    /// What each VM had at the last sample.
    sampled: Vec<Sampled>,
}

/// A VM's counts at a sample.
#[derive(Clone, Copy, Debug, Default)]
struct Sampled {
    accesses: u64,
    fast: u64,
    promoted: u64,
    demoted: u64,
}

impl Simulation {
    /// Sets the machine up; no time passes.
    ///
    /// # Errors
    /// Where something does not fit, or a file cannot be read.
    pub fn new(scenario: &Scenario, options: Options) -> Result<Self, RunError> {
        Self::start(scenario, options, false)
    }

    /// The same for [`Simulation::take_log`]: every page is re-armed in every window, and all that goes
    /// into the engine and comes out is kept until it is taken.
    ///
    /// # Errors
    /// As [`Simulation::new`].
    pub fn recorded(scenario: &Scenario, options: Options) -> Result<Self, RunError> {
        Self::start(scenario, options, true)
    }

    fn start(scenario: &Scenario, options: Options, recorded: bool) -> Result<Self, RunError> {
        let mut simulation = setup::simulation(scenario, options, recorded)?;
        simulation.tell_engine(Vec::new());
        // Where the engine has no VM, state does not grow, and is not counted again.
        simulation.count_state();
        Ok(simulation)
    }

    /// What went into the engine and came out since the last call.
    pub fn take_log(&mut self) -> Vec<(Tick, Record)> {
        let log = self.session.log_mut().as_mut();
        log.map(std::mem::take).unwrap_or_default()
    }

    /// The engine hears an event.
    fn hear(&mut self, event: Event) {
        for action in self.session.hear(self.now(), event) {
            if let Some(came) = self.act_on_sizes(&action) {
                self.hear(came);
                continue;
            }
            let batch = self.costs.move_batch;
            self.management.take(action, &self.vms, batch);
        }
    }

    /// Goes on until that time (ns of the full-size machine since the start) or the end of all loads;
    /// says whether some load still runs.
    pub fn advance(&mut self, until_ns: u64) -> bool {
        while self.now().0 < until_ns && self.vms.iter().any(|vm| vm.ended().is_none()) {
            self.quantum();
        }
        self.vms.iter().any(|vm| vm.ended().is_none())
    }

    fn quantum(&mut self) {
        self.wish_sizes();
        let end = self.now + self.quantum;
        let env = self.environment(end);
        let mut free = free_pages(&self.capacity, &self.vms);
        let before: u64 = self.vms.iter().map(|vm| vm.space.counts.accesses()).sum();
        for (number, vm) in self.vms.iter_mut().enumerate() {
            oracle::place_window(vm, self.now, env.now_ns);
            if let Some(cache) = &mut self.memory_mode {
                cache.serve(number);
            }
            vm.space.memory_mode = self.memory_mode.take();
            vm.run_within(&mut free, &env);
            self.memory_mode = vm.space.memory_mode.take();
        }
        free = free_pages(&self.capacity, &self.vms);
        let mut traffic = [Traffic::default(); TIERS];
        let mut memory = Memory {
            loads: &self.loads,
            traffic: &mut traffic,
            free: &mut free,
            costs: &self.costs,
        };
        let events = self
            .management
            .pass(end, self.quantum, &mut self.vms, &mut memory);
        for vm in &mut self.vms {
            provision::pass(vm, &mut memory, &env, self.quantum);
            placer::pass(vm, &mut memory, &env, self.quantum);
        }
        let after: u64 = self.vms.iter().map(|vm| vm.space.counts.accesses()).sum();
        self.load(traffic, after - before);
        self.now = end;
        self.balloons();
        self.tell_engine(events);
        self.sample();
    }

    fn environment(&self, end: u64) -> Environment {
        let mut env = Environment {
            costs: self.costs,
            read_ps: [0; TIERS],
            write_ps: [0; TIERS],
            line: [crate::words::access::LINE; TIERS],
            last_tier: u8::try_from(self.loads.len() - 1).unwrap_or(0),
            end_ps: end,
            now_ns: self.now().0,
            copy_ps: self.copy_ps(),
        };
        for (i, (load, tier)) in self
            .loads
            .iter()
            .zip(&self.scenario.machine.tiers)
            .enumerate()
        {
            env.read_ps[i] = load.read_ps();
            env.write_ps[i] = load.write_ps();
            env.line[i] = tier.line;
        }
        env
    }

    fn copy_ps(&self) -> [[u64; TIERS]; TIERS] {
        let tiers = self.loads.len();
        let mut all = [[0; TIERS]; TIERS];
        for (from, row) in (0_u8..).zip(all.iter_mut().take(tiers)) {
            for (to, ps) in (0_u8..).zip(row.iter_mut().take(tiers)) {
                *ps = travel::page_copy_ps(&self.loads, &self.costs, from, TierId(to));
            }
        }
        all
    }

    /// The tiers see what went over them.
    fn load(&mut self, mut traffic: [Traffic; TIERS], accesses: u64) {
        let mut running = 0;
        for vm in &mut self.vms {
            running += vm.vcpus.iter().filter(|v| v.ended.is_none()).count() as u64;
            for (sum, of_vm) in traffic.iter_mut().zip(&mut vm.space.traffic) {
                let of_vm = std::mem::take(of_vm);
                sum.read += of_vm.read;
                sum.written += of_vm.written;
            }
        }
        let ns = float(self.quantum) / float(PS);
        let access_ns = ns * float(running.max(1)) / float(accesses.max(1));
        for (load, traffic) in self.loads.iter_mut().zip(traffic) {
            load.pass(ns, traffic, access_ns.min(ns));
        }
    }

    fn balloons(&mut self) {
        let now = self.now().0;
        let scale = self.scenario.machine.scale;
        for vm in &mut self.vms {
            while vm.balloon.first().is_some_and(|step| step.at_ns <= now) {
                let step = vm.balloon.remove(0);
                if let Some(reclaim) = &mut vm.answers.reclaim {
                    // What the guest cannot give stays with it: the result's bytes show it.
                    let _ = reclaim.balloon(&mut vm.space, step.bytes / scale / PAGE_SIZE);
                    vm.shoot_down(&self.costs);
                }
            }
        }
    }

    /// The engine hears events, and is asked what to do.
    fn tell_engine(&mut self, events: Vec<Event>) {
        let now = self.now();
        let managed = self.vms.iter().any(|vm| vm.stages.is_some());
        if !managed && self.vms.iter().all(|vm| vm.provision.is_none()) {
            return;
        }
        if managed && now.0 >= self.memory_at {
            self.memory_at = now.0 + MEMORY_EVERY;
            self.hear(Event::Memory(self.free_memory()));
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
        let free = free_pages(&self.capacity, &self.vms);
        (0_u8..)
            .zip(self.capacity.iter().zip(free))
            .take(self.loads.len())
            .map(|(tier, (total, free))| TierMemory {
                tier: TierId(tier),
                total_bytes: total * PAGE_SIZE,
                free_bytes: free * PAGE_SIZE,
            })
            .collect()
    }

    /// A round that ended was ranked: that took its time.
    fn count_rounds(&mut self) {
        for (vm, seen) in self.vms.iter().zip(&mut self.rounds) {
            let Some(round) = self.session.engine().last_round(vm.id) else {
                continue;
            };
            if round.number > *seen {
                *seen = round.number;
                let ps = round.known_pages * self.costs.classify_page;
                self.management.rank(vm.id, ps);
            }
        }
    }

    fn count_state(&mut self) {
        let engine = self.engine().heap_bytes() as u64;
        let vms: u64 = self.vms.iter().map(Vm::heap_bytes).sum();
        let cache = self.memory_mode.as_ref().map_or(0, |m| m.heap_bytes());
        let all = engine + vms + self.management.heap_bytes() + cache;
        self.state = (self.state.0.max(engine), self.state.1.max(all));
    }

    /// Time of the full-size machine since the start, as the engine sees it.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(self.now / PS * self.scenario.machine.scale)
    }

    /// How much of the longest load is done, 0 to 1.
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

    /// The engine: the VMs that it manages have the numbers of the scenario's order, from 1.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        self.session.engine()
    }

    /// Passes an operator's wish to the engine.
    pub fn command(&mut self, command: Command) {
        self.hear(Event::Command(command));
    }

    /// The guest's page tables of a VM go to the first tier, at once and for free: the policy moves what
    /// programs map, and tables are a 512th of that.
    pub fn tables_to_first_tier(&mut self, vm: VmId) {
        if let Some(vm) = self.vms.get_mut(position(vm)) {
            for unit in 0..vm.space.second.tables() {
                vm.space.second.put(unit, Some(0));
            }
        }
    }

    /// A VM's exits so far without those by which the host flushes translations; of the full-size
    /// machine.
    #[must_use]
    pub fn exits_without_flushes(&self, vm: VmId) -> u64 {
        let counts = self.vms.get(position(vm)).map(|vm| vm.space.counts);
        counts.map_or(0, |c| {
            (c.exits - c.flush_exits) * self.scenario.machine.scale
        })
    }

    /// A VM's data accesses so far, and those that the first tier served; as simulated.
    #[must_use]
    pub fn accesses(&self, vm: VmId) -> (u64, u64) {
        let counts = self.vms.get(position(vm)).map(|vm| vm.space.counts);
        counts.map_or((0, 0), |c| (c.accesses(), c.reads[0] + c.writes[0]))
    }

    /// How it went so far.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    fn sample(&mut self) {
        let every = self.options.sample_every_ns;
        let now = self.now();
        if every == 0 || now.0 < self.sample_at {
            return;
        }
        self.sample_at += every;
        // Quanta seldom end where a sample is due.
        let stretch_ns = now.0 - std::mem::replace(&mut self.sampled_at, now.0);
        let scale = self.scenario.machine.scale;
        let tiers = self.loads.len();
        for (i, vm) in self.vms.iter_mut().enumerate() {
            let counts = &vm.space.counts;
            let seen = Sampled {
                accesses: counts.accesses(),
                fast: counts.reads[0] + counts.writes[0],
                promoted: vm.promoted,
                demoted: vm.demoted,
            };
            let old = std::mem::replace(&mut self.sampled[i], seen);
            let accesses = seen.accesses - old.accesses;
            let ratio = if accesses == 0 {
                1.0
            } else {
                float(seen.fast - old.fast) / float(accesses)
            };
            let held = vm.held_pages();
            let cells = &mut vm.space.heat.cells;
            self.timeline.vms[i].samples.push(Sample {
                at_s: float(now.0) / 1e9,
                ops_per_s: float(accesses * scale) * 1e9 / float(stretch_ns),
                fast_hit_ratio: ratio,
                promoted_pages: (seen.promoted - old.promoted) * scale,
                demoted_pages: (seen.demoted - old.demoted) * scale,
                tier_bytes: held
                    .iter()
                    .take(tiers)
                    .map(|p| p * PAGE_SIZE * scale)
                    .collect(),
                heat: cells.clone(),
            });
            cells.fill(0);
        }
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
            .map(|vm| vm.policy.name())
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
            vms: vms.map(|(vm, spec)| self.vm_result(vm, spec)).collect(),
        }
    }

    fn vm_result(&self, vm: &Vm, spec: &crate::scenario::Vm) -> VmResult {
        let scale = self.scenario.machine.scale;
        let seconds = |ps: u64| float(ps * scale) / float(PS) / 1e9;
        let runtime_s = seconds(vm.ended().unwrap_or(self.now));
        let counts = &vm.space.counts;
        let mut times = vm.vcpus[0].times.clone();
        vm.vcpus[1..]
            .iter()
            .for_each(|vcpu| times.merge(&vcpu.times));
        let tiers = 0..self.loads.len();
        let mean: Vec<u64> = tiers
            .clone()
            .map(|tier| crate::words::number::whole(vm.mean_bytes(tier)) * scale)
            .collect();
        let held = vm.held_pages();
        let end: Vec<u64> = tiers.map(|tier| held[tier] * PAGE_SIZE * scale).collect();
        let rounds = match &spec.policy {
            HostPolicy::Engine(..) => self.rounds[position(vm.id)],
            HostPolicy::Oracle => vm.windows,
            _ => vm.answers.rounds(),
        };
        VmResult {
            name: spec.name.clone(),
            policy: spec.policy.name(),
            guest_policy: spec.guest_policy.map(|name| name.name().into()),
            rounds,
            runtime_s,
            ops_per_s: float(counts.accesses() * scale) / runtime_s.max(1e-12),
            p50_ns: times.quantile_ns(0.5),
            p99_ns: times.quantile_ns(0.99),
            slowdown_vs_all_fast: None,
            max_slowdown: spec.max_slowdown,
            cost: cost(&paid(&mean, spec), &self.scenario.machine.tiers),
            performance_per_cost: None,
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
            promoted_pages: vm.promoted * scale,
            demoted_pages: vm.demoted * scale,
            vm_exits: (counts.exits - counts.scan_exits) * scale + counts.scan_exits,
            major_faults: counts.major_faults * scale,
            overhead_s: Overhead {
                track: seconds(vm.spent.track),
                classify: seconds(vm.spent.classify),
                migrate: seconds(vm.spent.migrate),
            },
            provision: vm.provision.as_deref().map(Provisioned::of),
        }
    }

    /// Name of a VM.
    #[must_use]
    pub fn vm_name(&self, vm: VmId) -> Option<&str> {
        let spec = self.scenario.vms.get(position(vm))?;
        Some(&spec.name)
    }

    /// Utilization of a tier's bandwidth now, 0 to 1.
    #[must_use]
    pub fn utilization(&self, tier: TierId) -> f64 {
        self.loads
            .get(place(u64::from(tier.0)))
            .map_or(0.0, Load::utilization)
    }
}

/// What a VM pays for, bytes per tier: what it holds. Under memory-mode also its size of the first tier,
/// which holds nothing but must be there.
fn paid(held: &[u64], spec: &crate::scenario::Vm) -> Vec<u64> {
    let mut paid = held.to_vec();
    if matches!(spec.policy, HostPolicy::MemoryMode(_)) {
        paid[0] += spec.sizes[0];
    }
    paid
}

/// GiB paid for per tier times the tier's price; none where such a tier has none.
fn cost(paid: &[u64], tiers: &[Tier]) -> Option<f64> {
    let paid = paid.iter().zip(tiers).filter(|(bytes, _)| **bytes > 0);
    let parts =
        paid.map(|(bytes, tier)| Some(float(*bytes) / float(1 << 30) * tier.price_per_gib?));
    parts.sum()
}

/// HMvisor's `DRAM_utility`: the first tier's part of the write traffic over its part of the memory; 1
/// where nothing was written, or nothing is held.
fn utility(written: &[u64; TIERS], mean: &[u64]) -> f64 {
    let all: u64 = written.iter().sum();
    let held: u64 = mean.iter().sum();
    if all == 0 || mean[0] == 0 {
        return 1.0;
    }
    (float(written[0]) / float(all)) / (float(mean[0]) / float(held))
}
