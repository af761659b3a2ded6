//! Providers by which a test resizes VMs, beside an engine: no thread, no clock.

use std::collections::{BTreeMap, VecDeque};

use terrace_core::{EngineConfig, Session};
use terrace_proto::log::{Record, Start};
use terrace_proto::provision::{
    BlockOutcome, BlockStatus, CollapseReport, CollapseRequest, Collapsed, HugeBacking, Mechanism,
    NodeMemory, NotOrdered, OrderOutcome, OrderWithdrawal, Ordered, Origin, OtherUsers,
    ProviderError, ProviderKind, ProviderReport, ProviderSpec, ProviderStatus, SizesWanted,
    TierStatus, Verified,
};
use terrace_proto::{Action, Event, OrderId, ProviderId, ResizeId, Tick};

/// 1 GiB.
pub const GIB: u64 = 1 << 30;

/// A VM with a provider.
pub struct Provided {
    /// The provider's report, or its error.
    pub status: Result<ProviderStatus, ProviderError>,
    /// The mechanism.
    pub kind: ProviderKind,
    /// Blocks of 2 MiB that huge pages can be made of, from the first one on.
    pub single_blocks: u64,
    /// Requests to make huge pages.
    pub collapses: Vec<CollapseRequest>,
    /// Whether looks remain unanswered.
    pub hangs: bool,
    /// Whether orders are neither answered nor taken.
    pub hangs_at_orders: bool,
    /// Orders that the provider took.
    pub ordered: Vec<Vec<Option<u64>>>,
    /// The device or process that pins the VM's memory.
    pub pinned_by: Option<String>,
    /// Blocks that are huge pages by now.
    huge_blocks: u64,
    order: OrderId,
    unanswered: Option<OrderId>,
}

impl Provided {
    /// A HyperFlex VM that has these sizes of 4 GiB each, tier `i` on node `i`.
    #[must_use]
    pub fn settled(sizes: &[u64]) -> Self {
        let tiers = (0..).zip(sizes).map(|(node, size)| tier(node, *size));
        Self {
            status: Ok(ProviderStatus {
                connected: true,
                targets_sent: true,
                tiers: tiers.collect(),
                ..ProviderStatus::default()
            }),
            kind: ProviderKind::HyperFlex,
            single_blocks: 0,
            collapses: Vec::new(),
            hangs: false,
            hangs_at_orders: false,
            ordered: Vec::new(),
            pinned_by: None,
            huge_blocks: 0,
            order: OrderId(0),
            unanswered: None,
        }
    }

    /// Lets the guest do as it is told.
    pub fn obey(&mut self) {
        for tier in self.status.iter_mut().flat_map(|status| &mut status.tiers) {
            *tier = TierStatus {
                whole_bytes: tier.whole_bytes,
                block_bytes: tier.block_bytes,
                least_bytes: tier.least_bytes,
                ..self::tier(tier.node.unwrap_or(0), tier.target_bytes)
            };
        }
    }
}

fn tier(node: u32, size: u64) -> TierStatus {
    TierStatus {
        node: Some(node),
        host_nodes: vec![node],
        whole_bytes: 4 * GIB,
        target_bytes: size,
        size_bytes: size,
        verified: Some(Verified {
            present_bytes: size,
            claimed_bytes: 4 * GIB - size,
            retained_bytes: 0,
        }),
        ..TierStatus::default()
    }
}

/// An engine whose VMs change size.
pub struct Providers {
    session: Session<Vec<(Tick, Record)>>,
    /// The VMs, by their provider.
    pub vms: BTreeMap<u32, Provided>,
    /// Free memory of the host's nodes.
    pub memory: Vec<NodeMemory>,
    /// The engine's answers to resizes, oldest first.
    pub answers: VecDeque<Result<Ordered, NotOrdered>>,
    now: Tick,
    requests: u64,
}

impl Providers {
    /// An engine without VMs, and so much free on each node.
    ///
    /// # Panics
    /// If the configuration is not valid.
    #[must_use]
    pub fn new(config: EngineConfig, free: &[u64]) -> Self {
        let start = Start {
            version: "test".into(),
            config: serde_json::to_string(&config).expect("a configuration"),
        };
        let engine = terrace_core::Engine::new(config).expect("a valid configuration");
        let log = vec![(Tick(0), Record::Start(start))];
        let memory = (0..).zip(free).map(|(node, free)| NodeMemory {
            node,
            tier: None,
            page_bytes: 0,
            free_bytes: *free,
        });
        Self {
            session: Session::new(engine, log),
            vms: BTreeMap::new(),
            memory: memory.collect(),
            answers: VecDeque::new(),
            now: Tick(0),
            requests: 0,
        }
    }

    /// The events and the actions.
    #[must_use]
    pub fn log(&self) -> &[(Tick, Record)] {
        self.session.log()
    }

    /// The engine.
    #[must_use]
    pub fn engine(&self) -> &terrace_core::Engine {
        self.session.engine()
    }

    /// Adds a VM.
    pub fn arrive(&mut self, id: u32, vm: Provided) {
        self.vms.insert(id, vm);
        self.hear(Event::ProviderArrived(ProviderSpec {
            provider: ProviderId(id),
            vm: format!("vm{id}"),
            is_configured: true,
            is_quiet: false,
            host_nodes: Vec::new(),
        }));
    }

    /// Tells the engine the sizes that the operator wants.
    pub fn resize(&mut self, id: u32, size_bytes: &[Option<u64>]) {
        self.requests += 1;
        self.hear(Event::SizesWanted(SizesWanted {
            id: ResizeId(self.requests),
            provider: ProviderId(id),
            origin: Origin::Operator,
            size_bytes: size_bytes.to_vec(),
        }));
    }

    /// Lets time pass.
    pub fn run_for(&mut self, seconds: u64) {
        let until = Tick(self.now.0 + seconds * 1_000_000_000);
        while let Some(at) = self.engine().poll_timeout().filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.hear(Event::Timer);
        }
        self.now = until;
    }

    /// The texts of the reasons about a VM.
    #[must_use]
    pub fn said(&self, id: u32) -> Vec<String> {
        let reasons = self.engine().provision().reasons(ProviderId(id), 0);
        reasons.map(|reason| reason.text.clone()).collect()
    }

    /// Gives the engine an event, then the events that follow from its decisions.
    pub fn hear(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let actions = self.session.hear(self.now, event);
            events.extend(actions.into_iter().filter_map(|action| self.act(action)));
        }
    }

    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::QueryProvider(request) => {
                let host = self.memory.clone();
                let vm = self.vms.get_mut(&request.provider.0)?;
                let report = ProviderReport {
                    provider: request.provider,
                    number: request.number,
                    mechanism: Some(Mechanism {
                        kind: vm.kind,
                        name: "HyperFlex".into(),
                        at: "a test".into(),
                    }),
                    status: vm.status.clone(),
                    verify: request.verify,
                    resident: None,
                    pinned_by: Ok(vm.pinned_by.clone()),
                    held_by: OtherUsers::Nobody,
                    order: vm.order,
                    host,
                };
                (!vm.hangs).then(|| Event::ProviderSeen(Box::new(report)))
            }
            Action::Resize(order) => {
                let vm = self.vms.get_mut(&order.provider.0)?;
                vm.unanswered = Some(order.order);
                if vm.hangs_at_orders {
                    return None;
                }
                vm.take(order.order, &order.size_bytes);
                Some(Event::OrderOutcome(OrderOutcome {
                    order: order.order,
                    provider: order.provider,
                    result: Ok(()),
                }))
            }
            Action::Withdraw(provider, order) => {
                let vm = self.vms.get_mut(&provider.0)?;
                Some(Event::OrderWithdrawal(OrderWithdrawal {
                    order,
                    provider,
                    in_time: vm.unanswered == Some(order),
                }))
            }
            Action::Answer(answer) => {
                self.answers.push_back(answer.result);
                None
            }
            Action::Collapse(request) => {
                let vm = self.vms.get_mut(&request.provider.0)?;
                Some(vm.collapse(request))
            }
            Action::LetGo(_)
            | Action::Scan(_)
            | Action::ScanPart(_)
            | Action::NameTables(_)
            | Action::QueryPlacement(_)
            | Action::Move(_)
            | Action::Protect(_)
            | Action::Unprotect(_) => None,
        }
    }
}

impl Provided {
    /// Makes huge pages of as many blocks as it may.
    fn collapse(&mut self, request: CollapseRequest) -> Event {
        let (all, was) = (self.single_blocks, self.huge_blocks);
        let from = request.from.max(was);
        let end = from.saturating_add(request.blocks.into()).min(all);
        self.huge_blocks = end;
        let outcome = |block| BlockOutcome {
            block,
            status: BlockStatus::Collapsed,
        };
        let backing = |blocks: u64| HugeBacking {
            present_bytes: all << 21,
            huge_bytes: blocks << 21,
        };
        let done = Collapsed {
            before: request.is_first.then(|| backing(was)),
            after: (end >= all).then(|| backing(end)),
            blocks: (from..end).map(outcome).collect(),
            next: (end < all).then_some(end),
        };
        let report = CollapseReport {
            provider: request.provider,
            number: request.number,
            result: Ok(done),
            elapsed_ns: 0,
        };
        self.collapses.push(request);
        Event::Collapsed(Box::new(report))
    }

    fn take(&mut self, order: OrderId, size_bytes: &[Option<u64>]) {
        (self.order, self.unanswered) = (order, None);
        self.ordered.push(size_bytes.to_vec());
        let tiers = self.status.iter_mut().flat_map(|status| &mut status.tiers);
        for (tier, size) in tiers.zip(size_bytes) {
            tier.target_bytes = size.unwrap_or(tier.target_bytes);
        }
    }
}
