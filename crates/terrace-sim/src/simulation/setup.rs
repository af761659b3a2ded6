//! Setup of a simulation: the scenario at its scale, the machine, the engine and its VMs.
//!
//! The scenario itself is proved already ([`crate::scenario`]). Only errors that setup alone can show are left: a
//! file of the load, the engine's own rules, sizes that are refused.

use terrace_core::policy::{Move, Observe, Policy, Share};
use terrace_core::provision::ProvisionConfig;
use terrace_core::{Engine, EngineConfig, Log, PolicyChoice, Session, TierConfig};
use terrace_pagetable::Scanner;
use terrace_proto::{
    Command, Event, Gfn, PAGE_SIZE, PAGES_PER_HUGE, PageSize, Processors, RamRange, TierLimit,
    VmId, VmSpec,
};

use super::clock::Clock;
use super::demand_result::WorkingSets;
use super::machine::Machine;
use super::recorder::Recorder;
use super::sharing;
use super::timeline::{Timeline, VmTimeline};
use super::{Options, Profiles, Reports, RunError, Simulation, memory, sizes};
use crate::base::access::Access;
use crate::base::load::{Context, Stop};
use crate::base::number::{float, to_usize, whole};
use crate::base::side::Side;
use crate::base::tier::Tier;
use crate::host::account::Account;
use crate::host::bounds::clairvoyant::Clairvoyant;
use crate::host::bounds::profiled;
use crate::host::management::Management;
use crate::host::placer::{Answers, GuestThread};
use crate::host::provision::Provisioned;
use crate::host::schedule::{Begins, Schedule};
use crate::host::start::{self, Deal, Start, Tables};
use crate::host::vm::Vm;
use crate::machine::caches::Caches;
use crate::machine::costs::Costs;
use crate::machine::last_level::LastLevel;
use crate::machine::lines::Lines;
use crate::machine::memory_mode::{Frames, MemoryMode};
use crate::machine::permissions::Permissions;
use crate::machine::second_stage::SecondStage;
use crate::machine::space::{Heat, Space};
use crate::machine::tables::Guest;
use crate::machine::vcpu::Vcpu;
use crate::machine::{PS, TIERS};
use crate::mechanisms::attached::Attached;
use crate::mechanisms::gpac::Gatherer;
use crate::mechanisms::{self, Name};
use crate::scenario::{self, HostPolicy, Scenario};

/// Free memory of a tier beyond the sizes of its VMs, as a share: the memory that a kernel keeps between its
/// watermarks. In the first tier the engine leaves it alone, so that no policy has more of it than another.
const HEADROOM: f64 = 0.01;

/// Least headroom of the first tier, in pages of the VMs' largest size.
const MIN_HEADROOM: u64 = 2;

/// Least headroom of slower tiers, 4 KiB pages: exchanges begin with the pages that it holds, and must not come in
/// smaller steps the larger the scale is.
const MIN_SLOW_HEADROOM: u64 = 4 * PAGES_PER_HUGE;

/// Sets a simulation up.
pub(super) fn simulation(
    scenario: &Scenario,
    options: Options,
    recorded: bool,
) -> Result<Simulation, RunError> {
    let scale = scenario.machine.scale;
    let config = EngineConfig {
        rearm_all: recorded,
        ..engine_config(scenario)
    };
    let engine = Engine::new(config).map_err(|error| RunError(error.to_string()))?;
    let mut session = Session::new(engine, recorded.then(Vec::new));
    let mut vms = Vec::new();
    for (number, spec) in (1_u32..).zip(&scenario.vms) {
        let vm = vm(scenario, options, spec, VmId(number), &mut session);
        vms.push(vm.map_err(|error| RunError(format!("vm {}: {error}", spec.name)))?);
    }
    let mut capacity = [0; TIERS];
    for (at, tier) in scenario.machine.tiers.iter().enumerate() {
        capacity[at] = (tier.bytes / scale + headroom(scenario, at)) / PAGE_SIZE;
    }
    let cpus = to_usize(u64::from(scenario.machine.management_cpus));
    let costs = Costs {
        move_batch: to_usize(u64::from(scenario.machine.migrate_batch)),
        swap_write: scenario.machine.swap_write_ns * PS,
        swap_next_write: match scenario.machine.swap_write_ns {
            0 => 0,
            _ => Costs::default().swap_next_write,
        },
        ..Costs::default()
    };
    let caches = Caches {
        last_level: last_level(scenario, &vms),
        memory_mode: memory_mode(scenario, &vms, &capacity)?,
    };
    let mut simulation = Simulation {
        clock: Clock::new(options.quantum_divisor.unwrap_or(1), scale),
        machine: Machine::new(costs, &scenario.machine.tiers, capacity, caches),
        session,
        management: Management::new(cpus, scale),
        recorder: Recorder::new(timeline(scenario, &vms), options.sample_every_ns),
        due: Reports::default(),
        working_sets: vec![WorkingSets::default(); vms.len()],
        rounds: vec![0; vms.len()],
        fast_sizes: vec![0; vms.len()],
        state: (0, 0),
        vms,
        scenario: scenario.clone(),
    };
    arrive(&mut simulation);
    Ok(simulation)
}

/// The last-level cache of the machine's processor.
fn last_level(scenario: &Scenario, vms: &[Vm]) -> Option<Box<LastLevel>> {
    let cache = scenario.machine.cache?;
    let bytes = cache.data_bytes(scenario.machine.scale);
    let pages = vms.iter().map(|vm| vm.space.guest.pages());
    Some(Box::new(LastLevel::new(bytes, cache.ways, pages)))
}

/// The DRAM cache of a machine whose VMs are under memory mode.
fn memory_mode(
    scenario: &Scenario,
    vms: &[Vm],
    capacity: &[u64; TIERS],
) -> Result<Option<Box<MemoryMode>>, RunError> {
    if !scenario.has_memory_mode() {
        return Ok(None);
    }
    let scale = scenario.machine.scale;
    let frames = |vm: &Vm| Frames {
        tables: vm.space.guest.table_frames(),
        first_data: vm.space.guest.first_data(),
        all: vm.space.guest.frames(),
    };
    let frames: Vec<Frames> = vms.iter().map(frames).collect();
    let dram = scenario.machine.tiers[0].bytes / scale / PAGE_SIZE;
    let huge = vms.iter().any(|vm| vm.space.second.huge());
    let how = (scenario.seed, scale, huge);
    match MemoryMode::new(dram, capacity[1], &frames, how) {
        Some(cache) => Ok(Some(Box::new(cache))),
        None => Err(RunError(
            "memory-mode: the second tier is more than 32,767 times as large as the first, more than its tags \
             can distinguish: make the first tier larger"
                .into(),
        )),
    }
}

/// Free bytes of a tier beyond the sizes of its VMs, as simulated.
fn headroom(scenario: &Scenario, at: usize) -> u64 {
    let tier = &scenario.machine.tiers[at];
    let least = if at == 0 {
        let largest = scenario.vms.iter().map(|vm| vm.pages.host.bytes()).max();
        MIN_HEADROOM * largest.unwrap_or(PAGE_SIZE)
    } else {
        slow_room(scenario).max(MIN_SLOW_HEADROOM * PAGE_SIZE)
    };
    let share = whole(float(tier.bytes / scenario.machine.scale) * HEADROOM);
    share.max(least)
}

/// Free bytes of each slower tier that the VMs have to demote to, as simulated. Under memory mode nothing is demoted.
fn slow_room(scenario: &Scenario) -> u64 {
    if scenario.has_memory_mode() {
        return 0;
    }
    let given = scenario.machine.slow_room;
    let of = |vm: &scenario::Vm| given.unwrap_or_else(|| vm.room_to_demote());
    scenario.vms.iter().map(of).sum::<u64>() / scenario.machine.scale
}

fn timeline(scenario: &Scenario, vms: &[Vm]) -> Timeline {
    let scale = scenario.machine.scale;
    let vm = |(spec, vm): (&scenario::Vm, &Vm)| VmTimeline {
        name: spec.name.clone(),
        memory_bytes: vm.space.guest.pages() * PAGE_SIZE * scale,
        samples: Vec::new(),
    };
    Timeline {
        tiers: scenario
            .machine
            .tiers
            .iter()
            .map(|t| t.name.clone())
            .collect(),
        vms: scenario.vms.iter().zip(vms).map(vm).collect(),
    }
}

/// The engine's configuration. The engine lives in the full-size machine's time, but its numbers of bytes are divided
/// by the scale.
fn engine_config(scenario: &Scenario) -> EngineConfig {
    let scale = scenario.machine.scale;
    let given = scenario.engine.clone();
    let several = scenario.vms.len() > 1;
    let tier = |(at, tier): (usize, &Tier)| {
        let bytes = tier.bytes / scale;
        let kernel_reserve = if at == 0 { headroom(scenario, at) } else { 0 };
        // A rule that sizes VMs keeps its reserve itself.
        let reserve = if several && at == 0 && !scenario.host.share.sizes_vms() {
            scenario.host.reserve
        } else {
            0.0
        };
        TierConfig {
            name: tier.name.clone(),
            kind: tier.kind,
            // Memory that the kernel reserves is not the pool's either; in slower tiers it is what lets
            // exchanges begin.
            reserve_bytes: whole(float(bytes) * reserve) + kernel_reserve,
            ..TierConfig::default()
        }
    };
    let policies = scenario.vms.iter().filter_map(|vm| match &vm.policy {
        HostPolicy::Engine(_, choice) => Some((vm.name.clone(), stages(scenario, vm, choice))),
        _ => None,
    });
    EngineConfig {
        tiers: scenario
            .machine
            .tiers
            .iter()
            .enumerate()
            .map(tier)
            .collect(),
        vm_policies: policies.collect(),
        quiet_bytes: given.quiet_bytes / scale,
        move_budget_bytes_per_s: given.move_budget_bytes_per_s / scale,
        list_bytes_per_s: (given.list_bytes_per_s / scale).max(1),
        plan_max_pages: match scenario.vms.iter().any(scenario::Vm::moves_in_guest) {
            // What is named at once: a guest that moves its pages is slow, and has a scaled number of them.
            true => (given.plan_max_pages / scale).max(2),
            false => given.plan_max_pages,
        },
        plan_max_bytes: (given.plan_max_bytes / scale).max(2 << 20),
        random_seed: scenario.seed,
        demand: given.demand.scaled(scale),
        arbiter: sharing::config(scenario, given.arbiter),
        provision: ProvisionConfig {
            // Tiers of a simulated VM may be as small as one likes.
            least_first_tier_bytes: 0,
            ..given.provision
        },
        ..given
    }
}

/// A VM's policy with the stages that follow from the host and from the VM's device.
fn stages(scenario: &Scenario, vm: &scenario::Vm, choice: &PolicyChoice) -> PolicyChoice {
    let by_guest = vm.moves_in_guest();
    let choice = match by_guest {
        true => vm.observed_as_live(choice).with_move(Move::Guest),
        false => choice.clone(),
    };
    let own = matches!(&choice, PolicyChoice::Composed(stages) if stages.share.is_some());
    match own {
        true => choice,
        // The device shares what such a VM has.
        false if by_guest && vm.provision.is_some() => choice.with_share(Share::Island),
        false => choice.with_share(scenario.host.share.of_policies()),
    }
}

/// The stages of a VM's policy, if the engine has the VM: the scenario has proved their names.
fn policy(spec: &scenario::Vm, config: &EngineConfig) -> Option<Policy> {
    if !matches!(spec.policy, HostPolicy::Engine(..)) {
        return None;
    }
    config.vm_policies.get(&spec.name)?.resolve("policy").ok()
}

fn vm(
    scenario: &Scenario,
    options: Options,
    spec: &scenario::Vm,
    id: VmId,
    session: &mut Session<impl Log>,
) -> Result<Vm, RunError> {
    let scale = scenario.machine.scale;
    let config = session.engine().config();
    let (stages, window_ms) = (policy(spec, config), config.window_ms);
    let mut space = space(scenario, spec, options)?;
    let logs = stages.is_some_and(|s| s.observe == Observe::PmlLog || s.moves == Move::PmlCopy);
    space.pml.switch(logs);
    if stages.is_some_and(|s| s.observe == Observe::ProtectionFaults) {
        let (frames, first_data) = (space.guest.frames(), space.guest.first_data());
        space.second.permissions = Some(Box::new(Permissions::new(frames, first_data)));
    }
    let mut fit = fit(spec, scale);
    let (provision, begins) = provision(spec, id, scale, &mut space, session)?;
    let mut answers = Answers::default();
    if let Some(device) = &provision {
        (fit, answers.reclaim) = memory::first_memory(spec, scale, device, &mut space);
    } else if spec.moves_in_guest() {
        answers.reclaim = Some(memory::of_own_nodes(spec, scale, &fit, &mut space));
    }
    let tables = spec.initial.tables;
    start::back(&space.guest, &mut space.second, deal(spec), tables, &fit);
    split_by_balloon(spec, provision.as_deref(), &mut space);
    memory::begin_programs(scenario, spec, &mut space, &mut answers)?;
    if let Some((name, side)) = spec.baseline() {
        if spec.splits() {
            space.second = space.second.splittable(side == Side::Host);
        }
        let attached = attach(&mut space, scenario, spec, name, side, provision.as_deref());
        answers.placer = Some(Box::new(attached));
    }
    answers.gatherer = gatherer(spec, &space);
    let clairvoyant = clairvoyant(spec, &fit, window_ms * 1_000_000 / scale * PS);
    if options.profile || clairvoyant.is_some() {
        space.profile = Some(profiled::empty(&space));
    }
    let mut scanner = Scanner::new(space.guest.frames());
    // Simulated guests are of a kernel that keeps D's copy in bit 58.
    scanner.tell_writes(true);
    let duration = match spec.stop {
        Stop::Duration(ns) => Some((ns / scale).max(1) * PS),
        Stop::Ops(_) | Stop::Trace => None,
    };
    Ok(Vm {
        id,
        vcpus: vcpus(scenario, spec, &space, begins.ps)?,
        provision,
        space,
        answers,
        scanner,
        stages,
        clairvoyant,
        schedule: Schedule::new(begins, duration),
        account: Account::default(),
        balloon: spec.shortage.balloon.clone(),
        endless: endless(spec, &fit),
    })
}

/// The tier that has no end under a bound.
fn endless(spec: &scenario::Vm, fit: &[u64]) -> Option<u8> {
    match spec.policy {
        HostPolicy::AllFast => Some(0),
        HostPolicy::AllSlow => Some(start::last(fit)),
        _ => None,
    }
}

/// The guest's own thread, if it gathers.
fn gatherer(spec: &scenario::Vm, space: &Space) -> Option<Box<dyn GuestThread>> {
    let cl = spec.gathers()?;
    Some(Box::new(Gatherer::new(space, cl)))
}

/// The bound that knows each window beforehand, if it is the policy.
fn clairvoyant(spec: &scenario::Vm, fit: &[u64], window_ps: u64) -> Option<Clairvoyant> {
    match &spec.policy {
        HostPolicy::Clairvoyant(_, by) => Some(Clairvoyant::new(*by, fit.to_vec(), window_ps)),
        _ => None,
    }
}

/// Lets the host split the pages that a balloon of 4 KiB pages takes from a guest of 2 MiB ones.
fn split_by_balloon(spec: &scenario::Vm, device: Option<&Provisioned>, space: &mut Space) {
    if let Some(device) = device.filter(|_| spec.is_split_by_balloon()) {
        let whole = second_stage(&space.guest, spec.pages.host);
        let second = std::mem::replace(&mut space.second, whole);
        space.second = second.splittable(true);
        device.limit(space);
    }
}

/// Places the pages of the VMs under `static-best`.
pub(super) fn place_profiled(simulation: &mut Simulation, profiles: &Profiles) {
    let scale = simulation.scenario.machine.scale;
    let specs = simulation.scenario.vms.iter().zip(&profiles.0);
    let mut placed = Vec::new();
    for (vm, (spec, run)) in simulation.vms.iter_mut().zip(specs) {
        if spec.policy == HostPolicy::StaticBest {
            let fit = match &vm.provision {
                Some(device) => {
                    let pages = vm.space.guest.pages() + memory::counted_tables(spec, &vm.space);
                    let unit = vm.space.second.pages_per_unit();
                    device.fit(pages).iter().map(|pages| pages / unit).collect()
                }
                None => fit(spec, scale),
            };
            placed.push((vm, run, fit));
        }
    }
    let bytes = profiled::place(&mut placed, &simulation.scenario.machine.tiers);
    let vms: u64 = simulation.vms.iter().map(Vm::heap_bytes).sum();
    simulation.state.1 = vms + bytes as u64;
}

/// The way in which a VM's pages are dealt to the tiers at first.
fn deal(spec: &scenario::Vm) -> Deal {
    match spec.policy {
        HostPolicy::AllFast => Deal::First,
        HostPolicy::AllSlow | HostPolicy::MemoryMode(_) => Deal::Last,
        HostPolicy::Interleave => Deal::InTurn,
        HostPolicy::Engine(..)
        | HostPolicy::Baseline(..)
        | HostPolicy::FirstTouch
        | HostPolicy::StaticBest
        | HostPolicy::Clairvoyant(..) => Deal::InOrder(spec.initial.start),
    }
}

/// The device that sizes a VM's nodes, if one does, after the guest's first resize, and the time at which that is
/// over. Under a bound, tiers have no end.
fn provision(
    spec: &scenario::Vm,
    id: VmId,
    scale: u64,
    space: &mut Space,
    session: &mut Session<impl Log>,
) -> Result<(Option<Box<Provisioned>>, Begins), RunError> {
    let bound = matches!(spec.policy, HostPolicy::AllFast | HostPolicy::AllSlow);
    let Some(how) = spec.provision.as_ref().filter(|_| !bound) else {
        return Ok((None, Begins::default()));
    };
    let baseline = spec.baseline();
    let demotes = baseline.is_none_or(|(name, _)| name.demotes());
    let leaf = spec.pages.guest.bytes() / PAGE_SIZE;
    let mut device = Provisioned::new(how, &spec.sizes, scale, demotes).of_leaves(leaf);
    sizes::boot(session, id, &spec.name, &spec.sizes, &mut device)?;
    let ps = device.begin(space, &Costs::default());
    device.keep_sizes(0);
    let ns = ps / PS * scale;
    Ok((Some(Box::new(device)), Begins { ps, ns }))
}

/// Attaches a mechanism to a VM.
fn attach(
    space: &mut Space,
    scenario: &Scenario,
    spec: &scenario::Vm,
    name: Name,
    side: Side,
    device: Option<&Provisioned>,
) -> Attached {
    let scale = scenario.machine.scale;
    let tiers = scenario.machine.tiers.len();
    let unit = space.second.pages_per_unit() * PAGE_SIZE;
    let mut capacity = [0; TIERS];
    for (at, most) in capacity.iter_mut().enumerate().take(tiers) {
        *most = match side {
            Side::Guest => spec.sizes[at] / scale / unit,
            Side::Host => scenario.machine.tiers[at].bytes / scale / unit,
        };
    }
    // Memory that the machine reserves beside its tiers' sizes is no mechanism's to fill, but for the last tier's:
    // there must be room to demote.
    if device.is_none() {
        space.quota.limit_to(&capacity[..tiers - 1]);
    }
    let first = space.second.first_data();
    let setup = mechanisms::Setup {
        units: space.second.len() - first,
        tiers,
        pages_per_unit: space.second.pages_per_unit(),
        scale,
        seed: scenario.seed,
        vm: spec.name.clone(),
        vcpus: spec.vcpus,
        side,
    };
    let nodes = device.map_or(capacity, Provisioned::booted);
    Attached::new(name.begin(&setup), setup, first, capacity).with_nodes(nodes)
}

/// Number of units that the VM has in each tier.
fn fit(spec: &scenario::Vm, scale: u64) -> Vec<u64> {
    let unit = spec.pages.host.bytes();
    spec.sizes
        .iter()
        .map(|bytes| bytes / scale / unit)
        .collect()
}

fn space(scenario: &Scenario, spec: &scenario::Vm, options: Options) -> Result<Space, RunError> {
    let scale = scenario.machine.scale;
    let pages = spec.workload.pages(scale, &scenario.folder);
    let pages = pages.map_err(|error| RunError(error.to_string()))?;
    let ram = memory::ram(spec, scale);
    let guest = if spec.gathers().is_some() {
        Guest::with_spare(pages, memory::spare_blocks(pages, ram)?)
    } else if spec.splits() {
        Guest::splittable(pages, ram)
    } else {
        Guest::new(pages, spec.pages.guest, ram)
    };
    let mut guest = guest.map_err(|e| RunError(e.to_string()))?;
    if spec.moves_in_guest() {
        let spare = memory::spare_frames(spec, &guest, scale)?;
        guest = guest.and_spare(spare);
    }
    let costs = Costs::default();
    let table_cache = costs.table_cache_bytes / scale / scenario.vms.len() as u64;
    let mut second = second_stage(&guest, spec.pages.host);
    if spec.initial.tables == Tables::Along {
        second = second.counting_tables();
    }
    let heat = Heat::new(options.heat_cells, pages);
    Ok(Space::new(guest, second, Lines::new(table_cache), heat))
}

fn second_stage(guest: &Guest, unit: PageSize) -> SecondStage {
    let (tables, data) = (guest.table_frames(), guest.first_data());
    SecondStage::new(guest.frames(), unit, tables, data)
}

fn vcpus(
    scenario: &Scenario,
    spec: &scenario::Vm,
    space: &Space,
    begins: u64,
) -> Result<Vec<Vcpu>, RunError> {
    let scale = scenario.machine.scale;
    let context = Context {
        scale,
        seed: scenario.seed,
        vm: &spec.name,
        vcpus: spec.vcpus,
        is_cached: scenario.machine.cache.is_some(),
        folder: &scenario.folder,
    };
    let sources = spec.workload.sources(&context);
    let sources = sources.map_err(|error| RunError(error.to_string()))?;
    let huge = space.guest.huge() && space.second.huge();
    // A trace is that of some vCPUs: the others take no part of the operations.
    let plays: Vec<bool> = sources
        .iter()
        .map(|source| source.fork().fill(0, &mut [Access::default()]) > 0)
        .collect();
    let count = (plays.iter().filter(|plays| **plays).count() as u64).max(1);
    let share = |at: u64| match spec.stop {
        Stop::Ops(ops) => {
            let ops = ops / scale;
            ops / count + u64::from(at < ops % count)
        }
        Stop::Duration(_) | Stop::Trace => u64::MAX,
    };
    let mut next = 0;
    let vcpu = |(number, (source, plays))| {
        let left = if plays { share(next) } else { 0 };
        next += u64::from(plays);
        let vcpu = Vcpu::new(source, left, &Costs::default(), scale, huge).numbered(number);
        let mut vcpu = vcpu.beginning(begins);
        if space.second.can_split() {
            vcpu = vcpu.with_small_pages(&Costs::default(), scale);
        }
        if left == 0 {
            vcpu.progress_mut().end();
        }
        vcpu
    };
    let sources = sources.into_iter().zip(plays);
    Ok((0_u32..).zip(sources).map(vcpu).collect())
}

/// Bytes of the guest's tables in the first tier that come on top of the VM's sizes: the engine counts them.
pub(super) fn tables_above(vm: &Vm, spec: &scenario::Vm) -> u64 {
    match (spec.initial.start, spec.initial.tables) {
        (Start::FirstTouch, Tables::First) => {
            u64::from(vm.space.second.tables()) * spec.pages.host.bytes()
        }
        _ => 0,
    }
}

/// Reports to the engine the VMs that it manages.
fn arrive(simulation: &mut Simulation) {
    let scale = simulation.scenario.machine.scale;
    let mut events = Vec::new();
    for (vm, spec) in simulation.vms.iter().zip(&simulation.scenario.vms) {
        if vm.stages.is_none() {
            continue;
        }
        let mut limits = vec![
            TierLimit {
                floor_bytes: 0,
                ceiling_bytes: u64::MAX,
            };
            spec.sizes.len()
        ];
        let tables = tables_above(vm, spec);
        let scaled = |bytes: u64| bytes / scale + tables;
        limits[0] = TierLimit {
            floor_bytes: spec.claim.floor.map_or(0, scaled),
            ceiling_bytes: spec.claim.ceiling.map_or(u64::MAX, scaled),
        };
        let arrived = VmSpec {
            vm: vm.id,
            name: spec.name.clone(),
            ram: vec![RamRange {
                start: Gfn(0),
                pages: vm.space.guest.frames(),
            }],
            unit: spec.pages.host,
            limits,
            weight: spec.claim.weight,
            moves: true,
        };
        events.push(Event::VmArrived(arrived));
        events.push(Event::Processors(Processors {
            vm: vm.id,
            vcpus: spec.vcpus,
        }));
        let size = Command::FastSize(vm.id, scaled(spec.sizes[0]));
        events.push(Event::Command(size));
    }
    events.into_iter().for_each(|event| simulation.hear(event));
}
