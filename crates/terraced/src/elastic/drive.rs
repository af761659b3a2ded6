//! The daemon's side: which VMs are looked after, what the engine hears of them, and what it has done.

use std::collections::BTreeMap;

use terrace_api::elastic::{Elastic, Ordered, Resize};
use terrace_core::provision::ProvisionConfig;
use terrace_host::{Finding, node_memory};
use terrace_proto::provision::{
    LookRequest, NodeMemory, NotOrdered, OrderOutcome, OrderWithdrawal, Origin, OtherUsers,
    ProviderReport, ProviderSpec, SizeOrder, SizesAnswer, SizesWanted,
};
use terrace_proto::{Action, Event, OrderId, ProviderId, ResizeId};
use terrace_sys::ProcessId;
use tokio::sync::oneshot;

use super::keeper::{Keeper, News, Ticket};
use super::lookout::Lookout;
use super::{Finder, Place, three_ways};
use crate::api::{Failure, Served as _};
use crate::daemon::{Daemon, Input};

/// What comes of a resize.
pub type Resized = Result<Ordered, Failure>;

/// All elastic memory of this host.
pub struct Elastics {
    /// By the VM's name.
    pub vms: BTreeMap<String, Kept>,
    /// VMs, by name, with nothing that resizes them, and their processes then: found again, they are not asked again.
    without: BTreeMap<String, Option<ProcessId>>,
    /// How VMs are looked after.
    pub config: ProvisionConfig,
    finder: Finder,
    lookout: Lookout,
    last_provider: u32,
    last_resize: u64,
    /// Those who wait for an answer.
    waiting: BTreeMap<ResizeId, oneshot::Sender<Resized>>,
}

/// A VM that is looked after.
pub struct Kept {
    keeper: Keeper,
    provider: ProviderId,
    /// The hypervisor's process when it was found.
    pub process: Option<ProcessId>,
    /// The last of the engine's reasons that is an event.
    reasons_told: u64,
    /// Orders that may be taken back.
    tickets: BTreeMap<OrderId, Ticket>,
}

/// No order outlives its VM: another one of that name may have its device's place.
impl Drop for Kept {
    fn drop(&mut self) {
        for ticket in self.tickets.values() {
            ticket.withdraw();
        }
    }
}

impl Elastics {
    /// No VM yet.
    pub fn new(finder: Finder, config: ProvisionConfig) -> Self {
        Self {
            vms: BTreeMap::new(),
            without: BTreeMap::new(),
            config,
            finder,
            lookout: Lookout::default(),
            last_provider: 0,
            last_resize: 0,
            waiting: BTreeMap::new(),
        }
    }

    fn kept(&mut self, provider: ProviderId) -> Option<&mut Kept> {
        let mut all = self.vms.values_mut();
        all.find(|kept| kept.provider == provider)
    }
}

impl Daemon {
    /// Looks after a VM that was found, or that an operator asks for, if it has elastic memory.
    pub fn keep_elastic(&mut self, name: &str, is_asked_for: bool) {
        let Some(entry) = self.vms.get(name) else {
            return;
        };
        let process = entry.process;
        let kept = self.elastics.vms.get(name);
        // A look that could not find out the process says nothing of another one.
        if kept.is_some_and(|kept| kept.process == process || process.is_none()) {
            return;
        }
        if !is_asked_for && self.elastics.without.get(name) == Some(&process) {
            return;
        }
        let Ok(config) = self.config.vm(name) else {
            return;
        };
        let place = Place {
            name: name.to_owned(),
            pid: process.map(|process| process.pid),
            monitor: entry.socket.clone(),
            config,
            is_asked_for,
            root: self.root.clone(),
            lookout: self.elastics.lookout.clone(),
        };
        let Some(find) = (self.elastics.finder)(&place) else {
            return;
        };
        self.elastics.last_provider += 1;
        let provider = ProviderId(self.elastics.last_provider);
        let spec = ProviderSpec {
            provider,
            vm: name.to_owned(),
            is_configured: place.config.hyperflex.is_some(),
            is_quiet: place.is_quiet(),
            host_nodes: place.config.hyperflex_nodes.clone(),
        };
        let config = self.elastics.config;
        match Keeper::start(provider, place, find, config, self.inbox.clone()) {
            Ok(keeper) => self.start_keeping(name, process, keeper, spec),
            Err(error) => self.tell(
                Some(name),
                format!("its elastic memory is not looked after: no thread: {error}"),
            ),
        }
    }

    fn start_keeping(
        &mut self,
        name: &str,
        process: Option<ProcessId>,
        keeper: Keeper,
        spec: ProviderSpec,
    ) {
        let kept = Kept {
            keeper,
            provider: spec.provider,
            process,
            reasons_told: 0,
            tickets: BTreeMap::new(),
        };
        let before = self.elastics.vms.insert(name.to_owned(), kept);
        if let Some(before) = before.map(|before| before.provider) {
            self.handle(Event::ProviderDeparted(before));
        }
        self.handle(Event::ProviderArrived(spec));
    }

    /// What resizes a VM may have another size, or be gone.
    pub fn elastic_changed(&mut self, name: &str) {
        if let Some(kept) = self.elastics.vms.get(name) {
            self.handle(Event::ProviderChanged(kept.provider));
        }
    }

    /// Ends the keepers of VMs that are gone.
    pub fn forget_elastic(&mut self) {
        let vms = &self.vms;
        let gone = self.elastics.vms.iter();
        let gone = gone.filter(|(name, _)| !vms.contains_key(*name));
        let gone: Vec<ProviderId> = gone.map(|(_, kept)| kept.provider).collect();
        self.elastics.vms.retain(|name, _| vms.contains_key(name));
        let without = &mut self.elastics.without;
        without.retain(|name, _| vms.contains_key(name));
        for provider in gone {
            self.handle(Event::ProviderDeparted(provider));
        }
    }

    /// Hands a keeper's news to the engine.
    pub fn elastic_news(&mut self, news: News) {
        match news {
            News::Seen(mut report, is_awaited) => {
                if is_awaited {
                    report.host = self.host_memory();
                }
                self.handle(Event::ProviderSeen(report));
            }
            News::Answered(outcome) => {
                if let Some(kept) = self.elastics.kept(outcome.provider) {
                    kept.tickets.remove(&outcome.order);
                }
                self.handle(Event::OrderOutcome(outcome));
            }
            News::Ended(provider) => self.keeper_ended(provider),
        }
    }

    fn keeper_ended(&mut self, provider: ProviderId) {
        let Some(name) = self.let_go(provider) else {
            return;
        };
        let text = "a fault of terraced's own ended the thread that looks after its elastic memory (see the journal): \
                    `terrace resize` starts another";
        self.tell(Some(&name), text.into());
        self.handle(Event::ProviderDeparted(provider));
    }

    /// Does what the engine decided about elastic memory.
    pub fn act_elastic(&mut self, action: Action) {
        match action {
            Action::Look(request) => self.look_elastic(request),
            Action::Resize(order) => self.send_order(order),
            Action::Withdraw(provider, order) => self.withdraw_order(provider, order),
            Action::Answer(answer) => self.answer_resize(answer),
            Action::LetGo(provider) => drop(self.let_go(provider)),
            // The others are about pages.
            Action::Scan(_) | Action::QueryPlacement(_) | Action::Move(_) => {}
        }
    }

    fn look_elastic(&mut self, request: LookRequest) {
        let kept = self.elastics.kept(request.provider);
        let Some(Err(trouble)) = kept.map(|kept| kept.keeper.look(request)) else {
            return;
        };
        let report = ProviderReport {
            provider: request.provider,
            number: request.number,
            mechanism: None,
            status: Err(trouble.clone()),
            verify: request.verify,
            resident: None,
            pinned_by: Err(trouble.to_string()),
            held_by: OtherUsers::Unknown(trouble.to_string()),
            order: OrderId(0),
            host: Vec::new(),
        };
        self.hear_later(News::Seen(Box::new(report), false));
    }

    fn send_order(&mut self, order: SizeOrder) {
        let (number, provider) = (order.order, order.provider);
        let Some(kept) = self.elastics.kept(provider) else {
            return;
        };
        match kept.keeper.order(order) {
            Ok(ticket) => {
                kept.tickets.insert(number, ticket);
            }
            Err(trouble) => self.hear_later(News::Answered(OrderOutcome {
                order: number,
                provider,
                result: Err(trouble),
            })),
        }
    }

    fn withdraw_order(&mut self, provider: ProviderId, order: OrderId) {
        let kept = self.elastics.kept(provider);
        let ticket = kept.and_then(|kept| kept.tickets.remove(&order));
        let withdrawal = OrderWithdrawal {
            order,
            provider,
            in_time: ticket.is_some_and(|ticket| ticket.withdraw()),
        };
        let told = Input::Event(Event::OrderWithdrawal(withdrawal));
        // The loop that hears it is this one.
        let _ = self.inbox.send(told);
    }

    /// What is decided now is done before anything else is heard.
    fn hear_later(&self, news: News) {
        let _ = self.inbox.send(Input::Elastic(news));
    }

    fn answer_resize(&mut self, answer: SizesAnswer) {
        let Some(reply) = self.elastics.waiting.remove(&answer.id) else {
            return;
        };
        let result = answer.result.map_err(|not| match not {
            NotOrdered::Invalid(why) => Failure::Invalid(why),
            NotOrdered::NotNow(why) => Failure::NotNow(why),
        });
        // Whoever asked may have gone.
        let _ = reply.send(result);
    }

    /// Its monitor is left alone until an operator asks for it again. Gives its VM's name.
    fn let_go(&mut self, provider: ProviderId) -> Option<String> {
        let vms = &mut self.elastics.vms;
        let name = vms.iter().find(|(_, kept)| kept.provider == provider);
        let name = name?.0.clone();
        let process = vms.remove(&name).and_then(|kept| kept.process);
        self.elastics.without.insert(name.clone(), process);
        Some(name)
    }

    /// Wants a VM to have other sizes; what comes of it is told once.
    ///
    /// # Errors
    /// If nothing could resize it, or the sizes make no sense.
    pub fn want_sizes(
        &mut self,
        name: &str,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<oneshot::Receiver<Resized>, Failure> {
        let size_bytes = sizes.list().map_err(Failure::Invalid)?;
        self.keep_elastic(name, true);
        let kept = self.elastics.vms.get(name);
        let Some(provider) = kept.map(|kept| kept.provider) else {
            return Err(Failure::NotNow(three_ways(name)));
        };
        self.elastics.last_resize += 1;
        let id = ResizeId(self.elastics.last_resize);
        let (reply, answered) = oneshot::channel();
        self.elastics.waiting.insert(id, reply);
        self.handle(Event::SizesWanted(SizesWanted {
            id,
            provider,
            origin,
            size_bytes,
        }));
        Ok(answered)
    }

    /// A VM's elastic memory as people see it.
    pub fn elastic_view(&self, name: &str) -> Option<Elastic> {
        let kept = self.elastics.vms.get(name)?;
        self.session
            .engine()
            .provision()
            .view(kept.provider, self.now())
    }

    /// Makes events of what the engine said since.
    pub fn tell_elastic(&mut self) {
        for (name, kept) in &mut self.elastics.vms {
            let mut told = kept.reasons_told;
            for reason in self
                .session
                .engine()
                .provision()
                .reasons(kept.provider, told)
            {
                told = reason.sequence;
                self.events.push(reason.at, Some(name), reason.text.clone());
            }
            kept.reasons_told = told;
        }
    }

    /// Free memory of each node, with page cache that nobody used lately, and of the pools that VMs' memory comes from.
    fn host_memory(&self) -> Vec<NodeMemory> {
        let topology = &self.topology;
        let plain = node_memory::available(&self.root, topology);
        let plain = plain.into_iter().map(|(node, bytes)| (node, 0, bytes));
        let pools = self.session.engine().provision().pools().into_iter();
        let huge = pools.flat_map(|page| {
            let nodes = node_memory::available_huge(&self.root, topology, page);
            nodes
                .into_iter()
                .map(move |(node, bytes)| (node, page, bytes))
        });
        let each = plain.chain(huge);
        each.map(|(node, page_bytes, free_bytes)| NodeMemory {
            node: node.0,
            tier: topology.tier_of(node),
            page_bytes,
            free_bytes,
        })
        .collect()
    }

    /// What there is to say about the host's elastic memory, for `doctor`.
    pub fn elastic_host_findings(&self) -> Vec<Finding> {
        if self.elastics.vms.is_empty() {
            return Vec::new();
        }
        let over = self
            .session
            .engine()
            .provision()
            .overcommitted(&self.host_memory());
        if over.is_empty() {
            let found = "what VMs with elastic memory may still take is free";
            return vec![Finding::ok("elastic-memory", found)];
        }
        let advice = "shrink VMs (`terrace resize`), or load the driver in the guests that are counted whole";
        let each = over.into_iter();
        each.map(|found| Finding::degraded("elastic-memory", found, advice))
            .collect()
    }
}
