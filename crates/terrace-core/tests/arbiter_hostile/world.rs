//! VMs, their guests and their providers, beside an engine whose arbiter shares their memory: each may lie, answer late or
//! not at all. No thread, no clock.

use std::collections::BTreeMap;

use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::{Engine, EngineConfig, Session};
use terrace_proto::log::{Record, Start};
use terrace_proto::provision::{
    Mechanism, NodeMemory, OrderOutcome, OrderWithdrawal, Origin, OtherUsers, ProviderError,
    ProviderKind, ProviderQuery, ProviderReport, ProviderSpec, ProviderStatus, SizeOrder,
    SizesWanted, TierStatus, Verified,
};
use terrace_proto::{
    Action, Event, MemoryNeed, MemoryRights, MemoryTiers, OrderId, ProviderId, ResizeId, Tick,
};

use crate::price::ends;

pub const MIB: u64 = 1 << 20;
pub const GIB: u64 = 1 << 30;
/// Nanoseconds of a second.
pub const SECOND: u64 = 1_000_000_000;
/// The most timers that an engine may want while time passes: one that wants more never ends.
const TIMERS: u32 = 1_000;
/// The most events that may follow one after the other at one time: an engine that makes more never ends.
const AT_ONCE: u32 = 10_000;

/// The way in which a VM's provider carries out orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ways {
    /// At once.
    Obeys,
    /// Takes the order, and its guest does nothing.
    Stalls,
    /// So much of each order, in sixteenths; the rest never comes.
    Part(u8),
    /// Refuses the order.
    Refuses,
    /// The answer is lost, and the order is carried out.
    Loses,
    /// Does not answer, and takes nothing.
    Hangs,
}

/// A VM with its provider.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Tiers, fastest first.
    pub tiers: Vec<TierStatus>,
    pub ways: Ways,
    /// Time until a query is answered, ns.
    pub delay: u64,
    /// The guest's last words.
    pub need: MemoryNeed,
    pub floor: u64,
    pub ceiling: u64,
    /// The kind of its device.
    pub kind: ProviderKind,
    order: OrderId,
    /// The size in the last report that arrived, bytes: with a delay it is an old one.
    reported: u64,
}

impl Machine {
    /// A VM that has a size, of so much that it was started with.
    pub fn new(id: u32, size: u64, whole: u64) -> Self {
        Self {
            tiers: vec![tier(0, size, whole)],
            ways: Ways::Obeys,
            delay: 0,
            need: MemoryNeed {
                provider: ProviderId(id),
                free_bytes: 0,
                used_swap_bytes: 0,
                major_faults: 0,
                lost_ns: 0,
                huge_percent: 0,
            },
            floor: 0,
            ceiling: u64::MAX,
            // What is unplugged is bounded by what the guest calls free: a balloon is not.
            kind: ProviderKind::HyperFlex,
            order: OrderId(0),
            reported: size,
        }
    }

    pub fn size(&self) -> u64 {
        sum(self.tiers.iter().map(|tier| tier.size_bytes))
    }

    pub fn sizes(&self) -> Vec<u64> {
        self.tiers.iter().map(|tier| tier.size_bytes).collect()
    }

    pub fn target(&self) -> u64 {
        sum(self.tiers.iter().map(|tier| tier.target_bytes))
    }

    pub fn most(&self) -> u64 {
        let most = |tier: &TierStatus| tier.size_bytes.max(tier.target_bytes);
        sum(self.tiers.iter().map(most))
    }

    /// The kind of one of its tiers.
    pub fn kind(&self, tier: usize) -> usize {
        if self.tiers.len() < 2 { 0 } else { tier + 1 }
    }

    /// Says that so much is free, and that used swap is as large as that.
    pub fn says(&mut self, free: u64, used_swap: u64) {
        (self.need.free_bytes, self.need.used_swap_bytes) = (free, used_swap);
    }

    /// Brings the VM as near to its target as its ways allow.
    fn work(&mut self) {
        for tier in &mut self.tiers {
            match self.ways {
                Ways::Stalls | Ways::Hangs => continue,
                Ways::Part(part) if tier.target_bytes != tier.size_bytes => {
                    let way = tier.target_bytes.abs_diff(tier.size_bytes) / 16 * u64::from(part);
                    match tier.target_bytes > tier.size_bytes {
                        true => tier.size_bytes += way,
                        false => tier.size_bytes -= way,
                    }
                    tier.stuck = Some("its guest has no more".into());
                }
                _ => {
                    tier.size_bytes = tier.target_bytes;
                    tier.stuck = None;
                }
            }
            tier.verified = Some(Verified {
                present_bytes: tier.size_bytes,
                claimed_bytes: tier.whole_bytes.saturating_sub(tier.size_bytes),
                retained_bytes: 0,
            });
        }
    }
}

/// Lies are large.
pub fn sum(of: impl Iterator<Item = u64>) -> u64 {
    of.fold(0, u64::saturating_add)
}

/// A tier of a VM that has a size.
pub fn tier(node: u32, size: u64, whole: u64) -> TierStatus {
    TierStatus {
        node: Some(node),
        host_nodes: vec![node],
        whole_bytes: whole,
        target_bytes: size,
        size_bytes: size,
        verified: Some(Verified {
            present_bytes: size,
            claimed_bytes: whole.saturating_sub(size),
            retained_bytes: 0,
        }),
        ..TierStatus::default()
    }
}

/// An order that a VM was given: all its tiers together, bytes.
#[derive(Clone, Copy, Debug)]
pub struct Given {
    pub vm: u32,
    /// The size then, bytes.
    pub has: u64,
    /// The size then by the last report, bytes.
    pub reported: u64,
    pub to: u64,
    /// The time of the order.
    pub at: u64,
    /// Memory of each kind beyond what the VM had or was on its way to.
    pub more: Kinds,
    /// The targets of the first and of the last tier, before it and with it.
    pub ends: [[u64; 2]; 2],
    /// Memory of each kind that all have or are on their way to, with this order.
    pub held: Kinds,
}

/// Bytes of memory of VMs with one tier, then of each tier of others.
pub type Kinds = [u64; 5];

/// The host with all VMs.
pub struct World {
    pub session: Session<Vec<(Tick, Record)>>,
    pub vms: BTreeMap<u32, Machine>,
    /// Events on their way, by the time when they come and their number.
    coming: BTreeMap<(u64, u64), Event>,
    pub now: u64,
    numbers: u64,
    requests: u64,
    /// Orders so far.
    pub orders: Vec<Given>,
    /// The most that all had, or were on their way to, together.
    pub peak: u64,
    /// The same of each kind.
    pub peaks: Kinds,
    /// Memory of each kind that VMs came with.
    pub began: Kinds,
    /// Free memory of each node.
    pub free: u64,
}

impl World {
    pub fn new(config: ArbiterConfig) -> Self {
        let config = EngineConfig {
            arbiter: ArbiterConfig {
                rule: match config.rule {
                    Rule::Off => Rule::Dp,
                    rule => rule,
                },
                ..config
            },
            ..EngineConfig::default()
        };
        let start = Start {
            version: "test".into(),
            config: serde_json::to_string(&config).unwrap(),
        };
        let log = vec![(Tick(0), Record::Start(start))];
        Self {
            session: Session::new(Engine::new(config).unwrap(), log),
            vms: BTreeMap::new(),
            coming: BTreeMap::new(),
            now: 0,
            numbers: 0,
            requests: 0,
            orders: Vec::new(),
            peak: 0,
            peaks: [0; 5],
            began: [0; 5],
            free: 1 << 50,
        }
    }

    /// VMs that have what they brought, may have 8 GiB, and no less than the floor.
    pub fn of(config: ArbiterConfig, sizes: &[u64], floor: u64) -> Self {
        let mut world = Self::new(config);
        for (id, size) in (1..).zip(sizes) {
            let mut vm = Machine::new(id, *size, 8 * GIB);
            vm.floor = floor;
            world.arrive(id, vm, 1000);
        }
        world
    }

    pub fn vm(&mut self, id: u32) -> &mut Machine {
        self.vms.get_mut(&id).unwrap()
    }

    pub fn arrive(&mut self, id: u32, vm: Machine, weight: u32) {
        let rights = MemoryRights {
            provider: ProviderId(id),
            vm: None,
            floor_bytes: vm.floor,
            ceiling_bytes: vm.ceiling,
            weight,
        };
        self.vms.insert(id, vm);
        self.hear(Event::ProviderArrived(ProviderSpec {
            provider: ProviderId(id),
            vm: format!("vm{id}"),
            is_configured: true,
            is_quiet: false,
            host_nodes: Vec::new(),
        }));
        self.hear(Event::MemoryRights(rights));
    }

    pub fn depart(&mut self, id: u32) {
        self.vms.remove(&id);
        self.hear(Event::ProviderDeparted(ProviderId(id)));
    }

    /// The operator wants a size.
    pub fn resize(&mut self, id: u32, sizes: &[u64]) {
        self.requests += 1;
        self.hear(Event::SizesWanted(SizesWanted {
            id: ResizeId(self.requests),
            provider: ProviderId(id),
            origin: Origin::Operator,
            size_bytes: sizes.iter().copied().map(Some).collect(),
        }));
    }

    /// Lets guests say what they said last, VMs work, and a second pass.
    pub fn second(&mut self) {
        self.say_all();
        self.pass(SECOND);
    }

    pub fn seconds(&mut self, seconds: u32) {
        (0..seconds).for_each(|_| self.second());
    }

    pub fn say_all(&mut self) {
        let needs: Vec<MemoryNeed> = self.vms.values().map(|vm| vm.need).collect();
        for need in needs {
            self.hear(Event::MemoryNeed(need));
        }
    }

    /// Lets all guests obey and say that half of their memory is free, and nothing lacks.
    pub fn rest(&mut self) {
        let mut said = Vec::new();
        for vm in self.vms.values_mut() {
            (vm.ways, vm.delay) = (Ways::Obeys, 0);
            vm.says(vm.size() / 2, 0);
            said.push(vm.need);
        }
        for need in said {
            self.hear(Event::MemoryNeed(need));
            self.hear(Event::MemoryTiers(MemoryTiers {
                provider: need.provider,
                free_bytes: [0; 4],
                waiting_hot_bytes: 0,
            }));
        }
    }

    /// Lets so much time pass, ns.
    pub fn pass(&mut self, ns: u64) {
        self.vms.values_mut().for_each(Machine::work);
        let until = self.now + ns;
        let mut timers = 0;
        loop {
            let timer = self.session.engine().poll_timeout().map(|at| at.0);
            let comes = self.coming.keys().next().copied();
            let first = comes.map(|(at, _)| at).into_iter().chain(timer).min();
            let Some(at) = first.filter(|at| *at <= until) else {
                break;
            };
            self.now = self.now.max(at);
            match comes.filter(|(comes, _)| *comes == at) {
                Some(key) => {
                    let event = self.coming.remove(&key).unwrap();
                    self.hear(event);
                }
                None => {
                    timers += 1;
                    assert!(timers < TIMERS, "a timer at {at} is wanted without end");
                    self.hear(Event::Timer);
                }
            }
        }
        self.now = until;
    }

    /// Gives the engine an event, then those that follow at once.
    pub fn hear(&mut self, event: Event) {
        let mut events = vec![event];
        for number in 0.. {
            let Some(event) = events.pop() else {
                break;
            };
            assert!(number < AT_ONCE, "events without end: {event:?}");
            self.note(&event);
            let actions = self.session.hear(Tick(self.now), event);
            for action in actions {
                if let Some((delay, event)) = self.act(action) {
                    match delay {
                        0 => events.insert(0, event),
                        delay => {
                            self.numbers += 1;
                            self.coming.insert((self.now + delay, self.numbers), event);
                        }
                    }
                }
            }
        }
    }

    /// Notes what the engine knows of a size from now on.
    fn note(&mut self, event: &Event) {
        let Event::ProviderSeen(report) = event else {
            return;
        };
        let vm = self.vms.get_mut(&report.provider.0);
        if let (Some(vm), Ok(status)) = (vm, &report.status) {
            vm.reported = sum(status.tiers.iter().map(|tier| tier.size_bytes));
        }
    }

    fn act(&mut self, action: Action) -> Option<(u64, Event)> {
        match action {
            Action::QueryProvider(query) => {
                let vm = self.vms.get(&query.provider.0)?;
                let report = report(vm, query, self.free);
                let hangs = vm.ways == Ways::Hangs;
                (!hangs).then(|| (vm.delay, Event::ProviderSeen(Box::new(report))))
            }
            Action::Resize(order) => self.order(&order),
            Action::Withdraw(provider, order) => Some((
                0,
                Event::OrderWithdrawal(OrderWithdrawal {
                    order,
                    provider,
                    in_time: self.vms.get(&provider.0).is_some_and(|vm| vm.order < order),
                }),
            )),
            _ => None,
        }
    }

    fn order(&mut self, order: &SizeOrder) -> Option<(u64, Event)> {
        let vm = self.vms.get_mut(&order.provider.0)?;
        let is_taken = !matches!(vm.ways, Ways::Refuses | Ways::Hangs);
        let of = vm.tiers.iter().zip(&order.size_bytes);
        let to = sum(of.map(|(tier, size)| size.unwrap_or(tier.target_bytes)));
        let (has, reported) = (vm.size(), vm.reported);
        let mut more = Kinds::default();
        for (i, (tier, size)) in vm.tiers.iter().zip(&order.size_bytes).enumerate() {
            let most = tier.size_bytes.max(tier.target_bytes);
            more[vm.kind(i)] = size.unwrap_or(0).saturating_sub(most);
        }
        let before: Vec<u64> = vm.tiers.iter().map(|tier| tier.target_bytes).collect();
        let after = before.iter().zip(&order.size_bytes);
        let after: Vec<u64> = after.map(|(is, to)| to.unwrap_or(*is)).collect();
        if is_taken {
            vm.order = order.order;
            for (tier, size) in vm.tiers.iter_mut().zip(&order.size_bytes) {
                tier.target_bytes = size.unwrap_or(tier.target_bytes);
            }
        }
        let ways = vm.ways;
        self.peak = self.peak.max(self.held());
        let held = self.kinds();
        for (peak, held) in self.peaks.iter_mut().zip(held) {
            *peak = (*peak).max(held);
        }
        self.orders.push(Given {
            vm: order.provider.0,
            has,
            reported,
            to,
            at: self.now,
            more,
            ends: [ends(&before), ends(&after)],
            held,
        });
        let result = match ways {
            Ways::Hangs => return None,
            Ways::Refuses => Err(ProviderError::Refused("it does not want to".into())),
            Ways::Loses => Err(ProviderError::Gone("the answer was lost".into())),
            Ways::Obeys | Ways::Stalls | Ways::Part(_) => Ok(()),
        };
        let outcome = Event::OrderOutcome(OrderOutcome {
            order: order.order,
            provider: order.provider,
            result,
        });
        Some((0, outcome))
    }

    /// The sentences about a VM.
    pub fn said(&self, id: u32) -> Vec<String> {
        let provision = self.session.engine().provision();
        let reasons = provision.reasons(ProviderId(id), 0);
        reasons.map(|reason| reason.text.clone()).collect()
    }

    /// Sizes of all, or those that they are on their way to, of each kind.
    pub fn kinds(&self) -> Kinds {
        let mut kinds = Kinds::default();
        for vm in self.vms.values() {
            for (tier, of) in vm.tiers.iter().enumerate() {
                let kind = vm.kind(tier);
                kinds[kind] = sum([kinds[kind], of.size_bytes.max(of.target_bytes)].into_iter());
            }
        }
        kinds
    }

    /// Sizes of all, or those that they are on their way to.
    pub fn held(&self) -> u64 {
        sum(self.vms.values().map(Machine::most))
    }
}

fn report(vm: &Machine, query: ProviderQuery, free: u64) -> ProviderReport {
    let nodes = (0..4).map(|node| NodeMemory {
        node,
        tier: None,
        page_bytes: 0,
        free_bytes: free,
    });
    ProviderReport {
        provider: query.provider,
        number: query.number,
        mechanism: Some(Mechanism {
            kind: vm.kind,
            name: "a device".into(),
            at: "a test".into(),
        }),
        status: Ok(ProviderStatus {
            connected: true,
            targets_sent: true,
            tiers: vm.tiers.clone(),
            ..ProviderStatus::default()
        }),
        verify: query.verify,
        resident: None,
        pinned_by: Ok(None),
        held_by: OtherUsers::Nobody,
        order: vm.order,
        host: nodes.collect(),
    }
}
