//! The engine: events in, actions out, time as an argument.
//!
//! Responsible for: the set of VMs, which VM an event is for, and the order of actions. It owns the
//! mechanism: capacity, floors and ceilings, moves under way, budgets, pause, cool-down. It leaves to
//! others: what policies rank and propose ([`crate::track`], [`crate::estimate`], [`crate::place`]),
//! and doing anything.
//!
//! **Invariant:** decisions fall only in [`Engine::handle`]; polling and views change none. The same
//! events at the same ticks give the same actions: no clock, no hash order, no float.

mod ages;
mod arbiter;
mod budget;
mod by_guest;
mod check;
mod classify;
mod demand;
mod explain;
mod fast_heat;
pub mod heat;
mod history;
mod hot_pages;
mod huge;
mod intermittent;
mod known_places;
mod landing;
mod migration;
mod moves;
mod neighbours;
mod parts;
mod pause;
mod plan_only;
mod pool;
mod ram_changed;
pub mod refusal;
mod rhythm;
mod round;
mod rounds;
mod samples;
mod scan_cpu;
mod settings;
mod show;
mod tables;
mod tiers;
mod turns;
pub mod view;
mod vm;
mod waiting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use terrace_proto::{
    Action, BackingChange, Command, Event, Gfn, PageSize, PlanId, RequestId, Tick, VmId, VmSpec,
};

use terrace_proto::snapshot::{HeatMap, PageExplanation, Round};

pub use by_guest::{Stand, report_of_count};
pub use hot_pages::HotPages;

use crate::arbiter::Arbiter;
use crate::config::EngineConfig;
use crate::error::ConfigError;
use crate::place::PlaceStage;
use crate::provision::Provision;
use crate::reasons::{Reason, Reasons};
use budget::TokenBucket;
use heat::{HeatMaking, HeatPages};
use pool::Pool;
use scan_cpu::ScanBudget;
use tiers::Tiers;
use turns::MoveBudget;
use view::VmView;
use vm::Vm;

/// State that all VMs share.
pub(crate) struct Shared {
    pub config: EngineConfig,
    pub tiers: Tiers,
    pub budget: MoveBudget,
    pub scans: ScanBudget,
    pub pool: Pool,
    pub now: Tick,
    actions: VecDeque<Action>,
    requests: u64,
    plans: u64,
}

impl Shared {
    pub fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    pub fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId(self.requests)
    }

    pub fn plan(&mut self) -> PlanId {
        self.plans += 1;
        PlanId(self.plans)
    }
}

/// Makes the placing stage of each VM that arrives.
pub type PlaceFactory = Box<dyn Fn(&VmSpec) -> Box<dyn PlaceStage> + Send>;

/// The engine.
pub struct Engine {
    shared: Shared,
    vms: BTreeMap<VmId, Vm>,
    /// Reasons that concern no single VM.
    reasons: Reasons,
    place: Option<PlaceFactory>,
    provision: Provision,
    arbiter: Arbiter,
    /// VMs that arrive are paused.
    paused: bool,
    /// The VM whose plans were issued last: the next one is served first.
    served: Option<VmId>,
    /// The demand of VMs is tracked.
    tracks: bool,
    /// Until when the ages of VMs' memory are scanned.
    ages_until: Option<Tick>,
}

impl Engine {
    /// An engine without VMs.
    ///
    /// # Errors
    /// If a value of the configuration is out of range.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        let bucket = TokenBucket::new(config.move_budget_bytes_per_s, config.plan_max_bytes);
        Ok(Self {
            reasons: Reasons::new(config.max_reasons),
            provision: Provision::new(config.provision, config.tiers.clone()),
            arbiter: Arbiter::new(config.arbiter.clone()),
            shared: Shared {
                tiers: Tiers::new(&config),
                budget: MoveBudget::new(bucket, config.fair_shares),
                scans: ScanBudget::default(),
                pool: Pool::default(),
                now: Tick(0),
                actions: VecDeque::new(),
                requests: 0,
                plans: 0,
                config,
            },
            vms: BTreeMap::new(),
            place: None,
            paused: false,
            served: None,
            tracks: false,
            ages_until: None,
        })
    }

    /// The same with a placing stage from outside instead of the policies' own.
    ///
    /// # Errors
    /// If a value of the configuration is out of range.
    pub fn with_place(config: EngineConfig, place: PlaceFactory) -> Result<Self, ConfigError> {
        let mut engine = Self::new(config)?;
        engine.place = Some(place);
        Ok(engine)
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Takes an event in. Time never goes back: an earlier tick counts as the latest one.
    pub fn handle(&mut self, now: Tick, event: Event) {
        let now = self.now().max(now);
        self.shared.now = now;
        self.shared.budget.refill(now);
        self.hear_of_sharing(now, &event);
        match event {
            Event::VmArrived(spec) => self.arrive(&spec),
            Event::VmDeparted(vm) => self.depart(vm),
            Event::Memory(memory) => self.shared.tiers.report(&memory),
            Event::Command(command) => self.command(command),
            Event::Timer => {}
            Event::RamChanged(c) => self.with(c.vm, |vm, shared| vm.ram_changed(now, &c, shared)),
            Event::BackingChanged(change) => self.with(change.vm, |vm, _| vm.backing(change)),
            Event::Placement(r) => self.with(r.vm, |vm, shared| vm.placement(now, &r, shared)),
            Event::Scanned(a) => {
                self.with(a.space.vm(), |vm, shared| vm.scanned(now, &a, shared));
            }
            Event::ScannedPart(a) => {
                self.with(a.space.vm(), |vm, shared| vm.scanned_part(now, &a, shared));
            }
            Event::Tables(a) => {
                self.with(a.space.vm(), |vm, shared| vm.tables_named(&a, shared));
            }
            Event::ScanFailed(f) => {
                self.with(f.vm, |vm, shared| vm.scan_failed(now, &f, shared));
            }
            Event::Moved(r) => self.with(r.vm, |vm, shared| vm.moved(now, &r, shared)),
            Event::ScanSpent(s) => self.with(s.vm, |vm, shared| vm.scan_spent(&s, shared)),
            Event::Processors(p) => self.with(p.vm, |vm, _| vm.rounds.scans.vcpus = p.vcpus),
            Event::ProviderArrived(spec) => self.provision.arrive(now, spec),
            Event::ProviderDeparted(provider) => self.provision.depart(provider),
            Event::ProviderSeen(report) => self.provision.seen(now, &report),
            Event::SizesWanted(wanted) => self.provision.wanted(now, wanted, None),
            Event::OrderOutcome(outcome) => self.provision.outcome(now, &outcome),
            Event::OrderWithdrawal(withdrawal) => self.provision.withdrawn(now, withdrawal),
            Event::ProviderChanged(provider) => self.provision.changed(now, provider),
            Event::Collapsed(report) => self.collapsed(now, &report),
            Event::Faulted(report) => self.faulted(&report),
            Event::Statistics(seen) => self.statistics(now, &seen),
            Event::MemoryTraffic(seen) => self.with(seen.vm, |vm, _| vm.size.traffic(now, seen)),
            Event::GuestMoves(m) => self.with(m.vm, |vm, shared| vm.set_by_guest(now, &m, shared)),
            Event::GuestNodes(n) => self.with(n.vm, |vm, shared| vm.set_nodes(now, &n, shared)),
            Event::Samples(s) => {
                self.with(s.vm, |vm, shared| vm.sampled(now, &s, &shared.config));
            }
            Event::MemoryRights(_)
            | Event::MemoryNeed(_)
            | Event::MemoryTiers(_)
            | Event::SpeedRights(_)
            | Event::MemoryStanding(_)
            | Event::MemoryBalance(_)
            | Event::GuestMemory(_)
            | Event::HostMemory(_)
            | Event::AgentMemory(_)
            | Event::GuestWalks(_) => {}
        }
        self.arbitrate(now);
        self.collapse(now);
        self.provision.advance(now);
        // The changes of an event count for the moves that it lets continue.
        self.share_out();
        self.advance();
        self.share_out();
    }

    /// The next action, oldest first.
    pub fn poll_action(&mut self) -> Option<Action> {
        let action = self.shared.actions.pop_front();
        action.or_else(|| self.provision.next_action())
    }

    /// When the engine wants a [`Event::Timer`] at the latest.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Tick> {
        let vms = self.vms.values();
        let vms = vms.filter_map(|vm| vm.timeout(&self.shared.config));
        vms.chain(self.provision.timeout())
            .chain(self.arbiter.timeout())
            .min()
    }

    /// The VMs under management, by id.
    #[must_use]
    pub fn vms(&self) -> Vec<VmId> {
        self.vms.keys().copied().collect()
    }

    /// Whether moves are on for some VM now.
    #[must_use]
    pub fn moves_some(&self) -> bool {
        self.vms.values().any(|vm| vm.settings.moves_on)
    }

    /// Everything about one VM.
    #[must_use]
    pub fn vm(&self, vm: VmId) -> Option<VmView> {
        self.vms.get(&vm).map(|vm| vm.view(&self.shared))
    }

    /// The sizes of VMs.
    #[must_use]
    pub fn provision(&self) -> &Provision {
        &self.provision
    }

    /// The reasons of a VM after the one with that sequence number, oldest first.
    pub fn vm_reasons(&self, vm: VmId, after: u64) -> impl Iterator<Item = &Reason> {
        self.vms
            .get(&vm)
            .into_iter()
            .flat_map(move |vm| vm.history.reasons_after(after))
    }

    /// Bytes on the heap that grow with the number of pages.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let vm = |vm: &Vm| {
            let demand = vm
                .observer
                .demand
                .as_ref()
                .map_or(0, |demand| demand.heap_bytes());
            let ages = vm.observer.ages.as_ref();
            let ages = ages.map_or(0, |ages| ages.heap_bytes());
            let coarse = vm.observer.coarse.heap_bytes() + vm.observer.tables.heap_bytes();
            let sampled = vm.observer.sampled.as_ref();
            let coarse = coarse + sampled.map_or(0, |sampled| sampled.heap_bytes());
            let parts = vm.rounds.parts.as_ref();
            let parts = parts.map_or(0, |parts| parts.heap_bytes());
            coarse + parts + vm.pages.heap_bytes() + vm.moving.heap_bytes() + demand + ages
        };
        self.vms.values().map(vm).sum()
    }

    /// A VM's last round that ended.
    #[must_use]
    pub fn last_round(&self, vm: VmId) -> Option<&Round> {
        self.vms.get(&vm)?.rounds.last.as_ref()
    }

    /// How often the samples of a VM are to be halved: more of them take more time than their moves are expected to save.
    #[must_use]
    pub fn sample_halvings(&self, vm: VmId) -> u32 {
        self.vms.get(&vm).map_or(0, |vm| vm.rounds.worth.halvings)
    }

    /// Bytes of a VM outside of the first tier that are on its top hot list: hot pages that wait. 0 under a policy without
    /// lists.
    #[must_use]
    pub fn waiting_hot_bytes(&self, vm: VmId) -> u64 {
        self.vms.get(&vm).map_or(0, Vm::waiting_hot_bytes)
    }

    /// A VM's guest-physical memory in at most `cells` pieces of one size.
    #[must_use]
    pub fn heat_map(&self, vm: VmId, cells: u64) -> Option<HeatMap> {
        let vm = self.vms.get(&vm)?;
        Some(vm.heat_map(cells, &self.shared.config))
    }

    /// Begins such a map, to be made elsewhere from [`Engine::heat_pages`].
    #[must_use]
    pub fn heat_making(&self, vm: VmId, cells: u64) -> Option<HeatMaking> {
        let vm = self.vms.get(&vm)?;
        Some(vm.heat_making(cells, &self.shared.config))
    }

    /// A copy of the state of a bounded number of units of a VM, from unit `first` on.
    #[must_use]
    pub fn heat_pages(&self, vm: VmId, first: u64) -> Option<HeatPages> {
        Some(self.vms.get(&vm)?.heat_pages(first))
    }

    /// Who moves a VM's pages.
    #[must_use]
    pub fn stand(&self, vm: VmId) -> Option<&Stand> {
        self.vms.get(&vm).map(Vm::stand)
    }

    /// Whether a plan under way is for the VM's guest, not for the host's kernel.
    #[must_use]
    pub fn is_for_guest(&self, vm: VmId, plan: PlanId) -> bool {
        let plans = self.vms.get(&vm).map(|vm| &vm.moving.plans);
        plans.is_some_and(|plans| plans.get(&plan).is_some_and(|plan| plan.by_guest))
    }

    /// The reason for a page's place; none if the VM has no RAM there.
    #[must_use]
    pub fn explain_page(&self, vm: VmId, gfn: Gfn, now: Tick) -> Option<PageExplanation> {
        self.vms.get(&vm)?.explain(gfn, now, &self.shared.config)
    }

    /// The reasons that concern no single VM, oldest first.
    #[must_use]
    pub fn reasons(&self) -> Vec<Reason> {
        self.reasons.list()
    }

    fn with(&mut self, id: VmId, act: impl FnOnce(&mut Vm, &mut Shared)) {
        if let Some(vm) = self.vms.get_mut(&id) {
            act(vm, &mut self.shared);
            vm.tell_pool(&mut self.shared);
            vm.tell_scans(&mut self.shared);
        }
    }

    fn now(&self) -> Tick {
        self.shared.now
    }

    fn arrive(&mut self, spec: &VmSpec) {
        let refused = if self.vms.contains_key(&spec.vm) {
            Err("a VM with that id is here already".into())
        } else {
            let place = self.place.as_ref().map(|make| make(spec));
            Vm::arrive(self.now(), spec, &self.shared.config, place)
        };
        match refused {
            Ok(mut vm) => {
                vm.settings.paused = self.paused;
                self.vms.insert(spec.vm, vm);
            }
            Err(why) => {
                let text = format!("VM {} ({}) is not taken: {why}", spec.vm, spec.name);
                self.reasons.say(self.shared.now, text);
            }
        }
    }

    fn depart(&mut self, id: VmId) {
        let Some(vm) = self.vms.remove(&id) else {
            return;
        };
        for (tier, held) in vm.tiers().zip(vm.held()) {
            self.shared.tiers.found(tier, held, 0);
        }
        for (tier, bytes) in vm.tiers().zip(vm.moving.coming) {
            self.shared.tiers.orphan(tier, bytes);
        }
        self.shared.actions.retain(|action| action.vm() != Some(id));
        self.shared.pool.remove(id);
        self.shared.budget.remove(id);
        self.shared.scans.remove(id);
    }

    fn command(&mut self, command: Command) {
        let now = self.now();
        match command {
            Command::Pause(Some(vm)) => self.with(vm, |vm, _| vm.pause(now)),
            Command::Resume(Some(vm)) => self.with(vm, |vm, shared| {
                vm.resume(now);
                vm.believe_guest(now, shared);
            }),
            Command::Pause(None) => {
                self.paused = true;
                self.vms.values_mut().for_each(|vm| vm.pause(now));
            }
            Command::Resume(None) => {
                self.paused = false;
                self.vms.values_mut().for_each(|vm| vm.resume(now));
            }
            Command::Moves(vm, on) => self.with(vm, |vm, shared| vm.set_moves(now, on, shared)),
            Command::Limits(vm, limits) => {
                self.with(vm, |vm, shared| {
                    vm.set_limits(now, limits, shared.config.tiers.len());
                });
            }
            Command::RoundNow(vm) => self.with(vm, |vm, shared| vm.round_now(now, false, shared)),
            Command::FastSize(vm, bytes) => self.with(vm, |vm, _| vm.set_fast_size(now, bytes)),
            Command::Weight(vm, weight) => self.with(vm, |vm, _| vm.set_weight(now, weight)),
            Command::PlanRound(vm) => self.with(vm, |vm, shared| vm.plan_round(now, shared)),
        }
    }

    /// Does what is due. As long as some wait for the budget and plans go out, it may be another one's turn.
    fn advance(&mut self) {
        loop {
            let plans = self.shared.plans;
            let vms = &self.vms;
            let waits = |id| vms.get(&id).is_some_and(Vm::waits_for_budget);
            self.shared.budget.only_waits(waits);
            for id in self.order() {
                self.advance_one(id);
            }
            if self.shared.plans == plans || self.shared.budget.turns().is_empty() {
                return;
            }
        }
    }

    fn advance_one(&mut self, id: VmId) {
        let plans = self.shared.plans;
        let now = self.now();
        self.with(id, |vm, shared| vm.advance(now, shared));
        if self.shared.plans > plans {
            self.served = Some(id);
        }
    }

    /// Those that wait for the budget in the order of their turns, then the VM after the last one served and
    /// so on, so that one VM's moves don't take the whole budget.
    fn order(&self) -> Vec<VmId> {
        let mut order = self.shared.budget.turns();
        let waiting: BTreeSet<VmId> = order.iter().copied().collect();
        let served = self.served;
        let after = |id: &VmId| Some(*id) > served;
        let others = self.vms.keys().copied();
        let others = others.filter(|id| !waiting.contains(id));
        let (first, then): (Vec<VmId>, Vec<VmId>) = others.partition(after);
        order.extend(first.into_iter().chain(then));
        order
    }
}

impl Engine {
    /// Divides the pool if something changed, and notifies the VMs.
    fn share_out(&mut self) {
        if self.shared.divide_if_stale() {
            for vm in self.vms.values_mut() {
                vm.size_changed(self.shared.now, &self.shared);
            }
        }
    }
}

impl Vm {
    fn backing(&mut self, change: BackingChange) {
        let first = match self.pages.ram().unit() {
            PageSize::Base => change.start(),
            PageSize::Huge => Gfn(change.block),
        };
        match u32::try_from(first.0) {
            Ok(first) => self.pages.set_huge_block(first, change.huge),
            Err(_) => self.history.counters.malformed_answers += 1,
        }
    }
}
