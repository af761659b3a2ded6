//! Resizable memory: VMs whose memory changes size, tier by tier, while they run.
//!
//! Responsible for: one [`reconciler`] thread per VM that has a [`provider::Provider`] (a hung device or monitor blocks
//! that thread alone), the events that the engine gets from it, and carrying out the engine's decisions
//! ([`Provisioning`]). It leaves to others: every decision (`terrace_core::provision`: the time of a query, the sizes
//! that may be ordered, the meaning of a report), and the protocols of devices and monitors (providers).

mod finder;
pub mod findings;
mod guest;
mod host;
mod hyperflex;
mod lookout;
mod provider;
mod qemu;
mod reconciler;
mod step;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use terrace_api::provision::ProvisioningStatus;
use terrace_config::VmConfig;
use terrace_core::Engine;
use terrace_core::provision::ProvisionConfig;
use terrace_host::HostRoot;
use terrace_proto::provision::{
    CollapseRequest, NodeMemory, OrderOutcome, OrderWithdrawal, Origin, ProviderQuery,
    ProviderSpec, SizeOrder, SizesAnswer, SizesWanted,
};
use terrace_proto::{
    Action, Event, MemoryBalance, MemoryRights, OrderId, ProviderId, ResizeId, Tick, VmId,
};
use terrace_sys::ProcessId;
use tokio::sync::oneshot;

pub use finder::finder;
pub use host::{host_findings, host_memory, shortage_finding, swap_finding};
use provider::{Finder, VmContext};
pub use provider::{size as size_text, three_ways};

use crate::events::Events;
use crate::messages::{GuestSetup, Input, ProviderNews};
use crate::registry::{Registry, VmKey};
use crate::served::{ResizeAnswer, Resized};
use lookout::Lookout;
use reconciler::{End, Reconciler, Ticket};

/// All resizable memory of this host.
pub struct Provisioning {
    /// VMs that have a reconciler.
    provisioned: BTreeMap<VmKey, ProvisionedVm>,
    /// VMs without a provider, and their processes then: found again, they are not searched again.
    without: BTreeMap<VmKey, Option<ProcessId>>,
    /// Parameters of resizing.
    config: ProvisionConfig,
    finder: Finder,
    lookout: Lookout,
    last_provider: u32,
    last_resize: u64,
    /// The reply channels of requests that wait for an answer.
    waiting: BTreeMap<ResizeId, oneshot::Sender<Resized>>,
}

/// A VM that has a reconciler.
struct ProvisionedVm {
    reconciler: Reconciler,
    provider: ProviderId,
    /// The hypervisor's process when the VM was found.
    process: Option<ProcessId>,
    /// The last of the engine's reasons that is an event.
    last_reason: u64,
    /// Orders that may be taken back.
    tickets: BTreeMap<OrderId, Ticket>,
    /// How it is set up; `None`: nothing was read.
    setup: Option<GuestSetup>,
    /// The VM's rights in the sharing of memory, as the engine knows them.
    rights: Option<MemoryRights>,
}

/// No order outlives its VM: another one of that name may have its device's place.
impl Drop for ProvisionedVm {
    fn drop(&mut self) {
        for ticket in self.tickets.values() {
            ticket.withdraw();
        }
    }
}

/// A VM that may have resizable memory.
pub struct ResizeCandidate {
    /// The VM's key.
    pub vm: VmKey,
    /// The VM's name.
    pub name: String,
    /// The hypervisor's process; `None` if it is not known.
    pub process: Option<ProcessId>,
    /// The VM's monitor.
    pub monitor: PathBuf,
    /// The VM's configuration.
    pub config: VmConfig,
    /// Whether an operator requested that this VM be resized.
    pub is_asked_for: bool,
}

impl Provisioning {
    /// No VM yet.
    pub fn new(finder: Finder, config: ProvisionConfig) -> Self {
        Self {
            provisioned: BTreeMap::new(),
            without: BTreeMap::new(),
            config,
            finder,
            lookout: Lookout::default(),
            last_provider: 0,
            last_resize: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// Parameters of resizing.
    pub fn config(&self) -> ProvisionConfig {
        self.config
    }

    /// Whether no VM has a reconciler.
    pub fn is_empty(&self) -> bool {
        self.provisioned.is_empty()
    }

    /// The id of a VM's provider, by which the engine knows it.
    pub fn provider(&self, vm: VmKey) -> Option<ProviderId> {
        self.provisioned
            .get(&vm)
            .map(|provisioned| provisioned.provider)
    }

    /// The process of a VM that has a reconciler, as it was found.
    pub fn process(&self, vm: VmKey) -> Option<ProcessId> {
        self.provisioned.get(&vm)?.process
    }

    fn of(&mut self, provider: ProviderId) -> Option<&mut ProvisionedVm> {
        let mut all = self.provisioned.values_mut();
        all.find(|provisioned| provisioned.provider == provider)
    }

    /// Whether the search for a VM's provider is over: the VM has a reconciler, or nothing resizes it.
    pub fn is_settled(&self, vm: VmKey, process: Option<ProcessId>, is_asked_for: bool) -> bool {
        let provisioned = self.provisioned.get(&vm);
        // A search that could not find the process does not show another one.
        provisioned.is_some_and(|provisioned| {
            (provisioned.process == process || process.is_none())
                && !provisioned.reconciler.has_failed()
        }) || !is_asked_for && self.without.get(&vm) == Some(&process)
    }

    /// Looks after a VM if it may have resizable memory, and returns the events for the engine.
    ///
    /// # Errors
    /// If its thread cannot be started.
    pub fn keep(
        &mut self,
        candidate: ResizeCandidate,
        root: &HostRoot,
        inbox: &Sender<Input>,
    ) -> io::Result<Vec<Event>> {
        let ResizeCandidate { vm, process, .. } = candidate;
        let context = VmContext {
            name: candidate.name,
            pid: process.map(|process| process.pid),
            process,
            monitor: candidate.monitor,
            config: candidate.config,
            is_asked_for: candidate.is_asked_for,
            root: root.clone(),
            lookout: self.lookout.clone(),
        };
        let Some(find) = (self.finder)(&context) else {
            return Ok(Vec::new());
        };
        self.last_provider += 1;
        let provider = ProviderId(self.last_provider);
        let spec = ProviderSpec {
            provider,
            vm: context.name.clone(),
            is_configured: context.config.hyperflex.is_configured(),
            is_quiet: context.is_quiet(),
            host_nodes: context.config.hyperflex.nodes.clone(),
        };
        let reconciler = Reconciler::start(provider, context, find, self.config, inbox.clone())?;
        let rights = self.provisioned.get(&vm).and_then(|before| before.rights);
        let provisioned = ProvisionedVm {
            reconciler,
            provider,
            process,
            last_reason: 0,
            tickets: BTreeMap::new(),
            setup: None,
            // An operator's settings outlive the VM's process.
            rights,
        };
        let before = self
            .provisioned
            .insert(vm, provisioned)
            .map(|before| before.provider);
        let departed = before.map(Event::ProviderDeparted);
        Ok(departed
            .into_iter()
            .chain([Event::ProviderArrived(spec)])
            .collect())
    }

    /// Sets a VM's rights in the sharing of memory by its configuration, and returns the events for the engine. Settings of
    /// an operator are kept. `id`: the VM's id, if the engine observes it.
    pub fn enter_rights(&mut self, vm: VmKey, id: Option<VmId>, config: &VmConfig) -> Vec<Event> {
        let Some(provisioned) = self.provisioned.get_mut(&vm) else {
            return Vec::new();
        };
        let provider = provisioned.provider;
        let balance = config.balance;
        let known = provisioned.rights.as_ref();
        let is_new = known.is_none_or(|rights| rights.provider != provider);
        let rights = provisioned.rights.get_or_insert(MemoryRights {
            provider,
            vm: id,
            floor_bytes: balance.floor_bytes.unwrap_or(0),
            ceiling_bytes: balance.ceiling_bytes.unwrap_or(u64::MAX),
            weight: config.weight,
        });
        if !is_new && rights.vm == id {
            return Vec::new();
        }
        (rights.vm, rights.provider) = (id, provider);
        let off = MemoryBalance {
            provider,
            is_on: false,
            is_pause: false,
        };
        let off = (is_new && !balance.is_on).then_some(Event::MemoryBalance(off));
        let rights = Event::MemoryRights(*rights);
        [rights].into_iter().chain(off).collect()
    }

    /// Changes a VM's rights, and returns the event for the engine; `None` if it has none.
    pub fn change_rights(
        &mut self,
        vm: VmKey,
        change: impl FnOnce(&mut MemoryRights),
    ) -> Option<Event> {
        let rights = self.provisioned.get_mut(&vm)?.rights.as_mut()?;
        change(rights);
        Some(Event::MemoryRights(*rights))
    }

    /// The rights of a VM.
    pub fn rights(&self, vm: VmKey) -> Option<MemoryRights> {
        self.provisioned.get(&vm)?.rights
    }

    /// Takes in how a VM is set up.
    pub fn set_up(&mut self, provider: ProviderId, setup: GuestSetup) {
        if let Some(provisioned) = self.of(provider) {
            provisioned.setup = Some(setup);
        }
    }

    /// The set-up of a VM, if it was read.
    pub fn setup(&self, vm: VmKey) -> Option<&GuestSetup> {
        self.provisioned.get(&vm)?.setup.as_ref()
    }

    /// Ends the reconcilers of VMs that are gone, and returns the events for the engine.
    pub fn forget_all_but(&mut self, vms: &Registry) -> Vec<Event> {
        let gone = self.provisioned.extract_if(.., |vm, _| !vms.has(*vm));
        let gone = gone.map(|(_, provisioned)| Event::ProviderDeparted(provisioned.provider));
        let gone = gone.collect();
        self.without.retain(|vm, _| vms.has(*vm));
        gone
    }

    /// Ends all reconcilers, so that what they changed of their providers is put back. Returns how many of them had not ended
    /// after this time: their providers do not answer.
    pub fn shut_down(&mut self, within: Duration) -> usize {
        let provisioned = std::mem::take(&mut self.provisioned);
        let ends = provisioned
            .into_values()
            .filter_map(|mut vm| vm.reconciler.end());
        let ends: Vec<End> = ends.collect();
        let by = Instant::now() + within;
        let late = ends
            .into_iter()
            .filter_map(|end| (!end.wait(by)).then_some(()));
        late.count()
    }

    /// The event for the engine that follows from a reconciler's news. `host`: the host's free memory, read if a client
    /// waits for sizes.
    pub fn hear(&mut self, news: ProviderNews, host: impl FnOnce() -> Vec<NodeMemory>) -> Event {
        match news {
            ProviderNews::Seen(mut report, is_awaited) => {
                if is_awaited {
                    report.host = host();
                }
                Event::ProviderSeen(report)
            }
            ProviderNews::Collapsed(report) => Event::Collapsed(report),
            ProviderNews::Answered(outcome) => {
                if let Some(provisioned) = self.of(outcome.provider) {
                    provisioned.tickets.remove(&outcome.order);
                }
                Event::OrderOutcome(outcome)
            }
        }
    }

    /// Carries out the engine's decision about sizes. Answers that are known at once come in by the inbox like the
    /// rest: the current decision is carried out before the next event.
    pub fn act(&mut self, action: Action, inbox: &Sender<Input>) {
        let input = match action {
            Action::QueryProvider(request) => self.query(request),
            Action::Resize(order) => self.order(order),
            Action::Withdraw(provider, order) => Some(self.withdraw(provider, order)),
            Action::Collapse(request) => self.collapse(request),
            Action::Answer(answer) => {
                self.answer(answer);
                None
            }
            Action::LetGo(provider) => {
                self.let_go(provider);
                None
            }
            // The others are about pages.
            Action::Scan(_)
            | Action::ScanPart(_)
            | Action::NameTables(_)
            | Action::QueryPlacement(_)
            | Action::Move(_)
            | Action::Protect(_)
            | Action::Unprotect(_) => None,
        };
        if let Some(input) = input {
            // The loop that receives it is the one that calls this.
            let _ = inbox.send(input);
        }
    }

    fn query(&mut self, request: ProviderQuery) -> Option<Input> {
        let reconciler = &self.of(request.provider)?.reconciler;
        let trouble = reconciler.query(request).err()?;
        let report = reconciler::unanswered(&request, &trouble);
        let news = ProviderNews::Seen(Box::new(report), false);
        Some(Input::Provider(news))
    }

    fn collapse(&mut self, request: CollapseRequest) -> Option<Input> {
        let (provider, number) = (request.provider, request.number);
        let reconciler = &self.of(provider)?.reconciler;
        let trouble = reconciler.collapse(request).err()?;
        let news = reconciler::not_collapsed(provider, number, &trouble);
        Some(Input::Provider(news))
    }

    fn order(&mut self, order: SizeOrder) -> Option<Input> {
        let (number, provider) = (order.order, order.provider);
        let provisioned = self.of(provider)?;
        match provisioned.reconciler.order(order) {
            Ok(ticket) => {
                provisioned.tickets.insert(number, ticket);
                None
            }
            Err(trouble) => Some(Input::Provider(ProviderNews::Answered(OrderOutcome {
                order: number,
                provider,
                result: Err(trouble),
            }))),
        }
    }

    fn withdraw(&mut self, provider: ProviderId, order: OrderId) -> Input {
        let provisioned = self.of(provider);
        let ticket = provisioned.and_then(|provisioned| provisioned.tickets.remove(&order));
        Input::Event(Event::OrderWithdrawal(OrderWithdrawal {
            order,
            provider,
            in_time: ticket.is_some_and(|ticket| ticket.withdraw()),
        }))
    }

    fn answer(&mut self, answer: SizesAnswer) {
        if let Some(reply) = self.waiting.remove(&answer.id) {
            // The client may have gone.
            let _ = reply.send(answer.result);
        }
    }

    /// Ends a VM's reconciler: its monitor is left alone until an operator requests it again.
    fn let_go(&mut self, provider: ProviderId) {
        let of = self
            .provisioned
            .iter()
            .find(|(_, provisioned)| provisioned.provider == provider);
        let Some(vm) = of.map(|(vm, _)| *vm) else {
            return;
        };
        let process = self
            .provisioned
            .remove(&vm)
            .and_then(|provisioned| provisioned.process);
        self.without.insert(vm, process);
    }

    /// Makes a request for other sizes of a VM: the event for the engine, and the receiver of the answer.
    pub fn want(
        &mut self,
        provider: ProviderId,
        origin: Origin,
        size_bytes: Vec<Option<u64>>,
    ) -> (Event, ResizeAnswer) {
        self.last_resize += 1;
        let id = ResizeId(self.last_resize);
        let (reply, answered) = oneshot::channel();
        self.waiting.insert(id, reply);
        let wanted = SizesWanted {
            id,
            provider,
            origin,
            size_bytes,
        };
        (Event::SizesWanted(wanted), answered)
    }

    /// The view of a VM's resizable memory for people.
    pub fn view(&self, vm: VmKey, engine: &Engine, now: Tick) -> Option<ProvisioningStatus> {
        engine.provisioning(self.provider(vm)?, now)
    }

    /// Makes events of the engine's new reasons, VM by VM in the order of their names.
    pub fn tell_reasons(&mut self, engine: &Engine, vms: &Registry, events: &mut Events) {
        if self.provisioned.is_empty() {
            return;
        }
        for (vm, entry) in vms.iter() {
            let Some(provisioned) = self.provisioned.get_mut(&vm) else {
                continue;
            };
            let mut last_reason = provisioned.last_reason;
            for reason in engine
                .provision()
                .reasons(provisioned.provider, last_reason)
            {
                last_reason = reason.sequence;
                events.push(reason.at, Some(&entry.name), reason.text.clone());
            }
            provisioned.last_reason = last_reason;
        }
    }
}
