//! Sizes of simulated VMs: the engine decides them, as it does live, and the devices carry them out.
//!
//! Sizes are those of the full-size machine, so that the engine's texts about them read as the scenario does. A
//! device has an order as soon as it is given, and its guest's driver knows it.

use terrace_core::policy::Move;
use terrace_core::{Engine, Log, Session};
use terrace_proto::provision::{
    Mechanism, NodeMemory, OrderOutcome, OrderWithdrawal, Origin, OtherUsers, ProviderKind,
    ProviderQuery, ProviderReport, ProviderSpec, ProviderStatus, SizeOrder, SizesAnswer,
    SizesWanted, TierStatus, Verified,
};
use terrace_proto::{Action, Command, Event, PAGE_SIZE, ProviderId, ResizeId, Tick, VmId};

use super::setup::tables_above;
use super::{RunError, Simulation};
use crate::host::device::{BLOCK, Device};
use crate::host::moves::position;
use crate::host::provision::Provisioned;
use crate::host::vm::Vm;
use crate::machine::TIERS;

/// The provider of a VM, which has the VM's number.
fn provider(vm: VmId) -> ProviderId {
    ProviderId(vm.0)
}

/// The id of a request; requests are numbered VM by VM.
fn request_id(vm: VmId, number: u32) -> ResizeId {
    ResizeId(u64::from(vm.0) << 32 | u64::from(number))
}

fn vm_of_request(id: ResizeId) -> Option<VmId> {
    u32::try_from(id.0 >> 32).ok().map(VmId)
}

/// Boots a guest: its device is found, and given the sizes that the VM is to begin with.
///
/// # Errors
/// If the sizes are refused.
pub fn boot<L: Log>(
    session: &mut Session<L>,
    id: VmId,
    name: &str,
    sizes: &[u64],
    device: &mut Provisioned,
) -> Result<(), RunError> {
    let spec = ProviderSpec {
        provider: provider(id),
        vm: name.into(),
        is_configured: true,
        is_quiet: false,
        host_nodes: nodes(device.tiers()),
    };
    let wanted = SizesWanted {
        id: request_id(id, 0),
        provider: provider(id),
        origin: Origin::Operator,
        size_bytes: sizes.iter().copied().map(Some).collect(),
    };
    device.ask(sizes);
    let mut events = vec![Event::SizesWanted(wanted), Event::ProviderArrived(spec)];
    while let Some(event) = events.pop() {
        for action in session.hear(Tick(0), event) {
            match action {
                Action::QueryProvider(request) => {
                    let report = report(device, request, [0; TIERS], Vec::new());
                    events.push(Event::ProviderSeen(Box::new(report)));
                }
                Action::Resize(order) => {
                    let why = why(session.engine(), order.provider, Tick(0));
                    device.keep_order(0, &order.size_bytes, why);
                    events.push(taken(device, &order));
                }
                Action::Answer(answer) => answer
                    .result
                    .map_err(|why| RunError(why.text().to_owned()))
                    .map(drop)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// The origin and the reason of the last order to a provider.
fn why(engine: &Engine, provider: ProviderId, now: Tick) -> (String, String) {
    let view = engine.provision().view(provider, now);
    let order = view.and_then(|view| view.order);
    let origin = order.map_or_else(String::new, |order| order.origin);
    let reasons = engine.provision().reasons(provider, 0);
    let reason = reasons.filter(|reason| reason.at == now).last();
    (origin, reason.map_or_else(String::new, |r| r.text.clone()))
}

fn nodes(tiers: usize) -> Vec<u32> {
    (0..u32::try_from(tiers).unwrap_or(0)).collect()
}

/// Gives a device an order, which it has at once.
fn taken(device: &mut Provisioned, order: &SizeOrder) -> Event {
    device.order(order.order, &order.size_bytes);
    Event::OrderOutcome(OrderOutcome {
        order: order.order,
        provider: order.provider,
        result: Ok(()),
    })
}

/// The report of a device's state. `held`: pages behind each tier, as simulated.
fn report(
    device: &Provisioned,
    request: ProviderQuery,
    held: [u64; TIERS],
    host: Vec<NodeMemory>,
) -> ProviderReport {
    let kind = match device.by() {
        Device::VirtioMem => ProviderKind::VirtioMem,
        Device::Balloon => ProviderKind::Balloon,
        Device::Hyperflex => ProviderKind::HyperFlex,
    };
    let tiers = (0..device.tiers()).map(|tier| tier_status(device, tier, held[tier]));
    let mut tiers: Vec<TierStatus> = tiers.collect();
    if !kind.knows_tiers() {
        tiers = vec![whole(&tiers)];
    }
    ProviderReport {
        provider: request.provider,
        number: request.number,
        mechanism: Some(Mechanism {
            kind,
            name: device.by().name().into(),
            at: "the simulator".into(),
        }),
        status: Ok(ProviderStatus {
            connected: true,
            targets_sent: true,
            tiers,
            ..ProviderStatus::default()
        }),
        verify: request.verify,
        resident: None,
        pinned_by: Ok(None),
        held_by: OtherUsers::Nobody,
        order: device.last_order(),
        host,
    }
}

fn tier_status(device: &Provisioned, tier: usize, held: u64) -> TierStatus {
    let full = |pages: u64| pages * PAGE_SIZE * device.scale();
    let node = u32::try_from(tier).ok();
    let [whole, target, size] = [device.nodes(), device.wanted(), device.given()].map(|p| p[tier]);
    TierStatus {
        node,
        host_nodes: node.into_iter().collect(),
        whole_bytes: full(whole),
        block_bytes: match device.by() {
            Device::VirtioMem => BLOCK,
            Device::Balloon | Device::Hyperflex => full(device.leaf()),
        },
        page_bytes: PAGE_SIZE,
        target_bytes: full(target),
        size_bytes: full(size),
        verified: Some(Verified {
            present_bytes: full(held),
            claimed_bytes: full(whole - size),
            retained_bytes: 0,
        }),
        ..TierStatus::default()
    }
}

/// The status of all tiers together, because the balloon knows only the sum.
fn whole(tiers: &[TierStatus]) -> TierStatus {
    let sum = |of: fn(&TierStatus) -> u64| tiers.iter().map(of).sum::<u64>();
    let seen = |of: fn(&Verified) -> u64| {
        let seen = tiers.iter().filter_map(|tier| tier.verified.as_ref());
        seen.map(of).sum::<u64>()
    };
    TierStatus {
        host_nodes: tiers.iter().filter_map(|tier| tier.node).collect(),
        whole_bytes: sum(|tier| tier.whole_bytes),
        block_bytes: tiers.first().map_or(0, |tier| tier.block_bytes),
        page_bytes: PAGE_SIZE,
        target_bytes: sum(|tier| tier.target_bytes),
        size_bytes: sum(|tier| tier.size_bytes),
        verified: Some(Verified {
            present_bytes: seen(|seen| seen.present_bytes),
            claimed_bytes: seen(|seen| seen.claimed_bytes),
            retained_bytes: 0,
        }),
        ..TierStatus::default()
    }
}

impl Simulation {
    /// A VM's provider, as the engine knows it.
    #[must_use]
    pub fn provider(vm: VmId) -> ProviderId {
        provider(vm)
    }

    /// Sends the engine the requests for sizes whose time has come.
    pub(super) fn request_sizes(&mut self) {
        let now = self.now().0;
        for vm in 0..self.vms.len() {
            while let Some(wanted) = self.wanted(vm, now) {
                self.hear(Event::SizesWanted(wanted));
            }
        }
    }

    /// Keeps the sizes of all VMs that a device sizes.
    pub(super) fn keep_sizes(&mut self) {
        let now = self.now().0;
        let devices = self.vms.iter_mut().filter_map(|vm| vm.provision.as_mut());
        devices.for_each(|device| device.keep_sizes(now));
    }

    /// Tells the engine, once a second, how much of the first tier each VM may have whose guest moves pages between nodes that
    /// a device sizes: what the node has, and what is free there with the host's memory behind it, which the engine
    /// counts as held.
    pub(super) fn follow_nodes(&mut self) {
        let now = self.now().0;
        if now < self.due.nodes {
            return;
        }
        self.due.nodes = now + 1_000_000_000;
        for at in 0..self.vms.len() {
            let vm = &self.vms[at];
            let by_guest = vm.stages.is_some_and(|stages| stages.moves == Move::Guest);
            let Some(device) = vm.provision.as_ref().filter(|_| by_guest) else {
                continue;
            };
            let idle = vm.space.quota.idle()[0] * vm.space.second.pages_per_unit();
            let tables = tables_above(vm, &self.scenario.vms[at]);
            let bytes = (device.given()[0] + idle) * PAGE_SIZE + tables;
            if std::mem::replace(&mut self.fast_sizes[at], bytes) != bytes {
                let size = Command::FastSize(vm.id, bytes);
                self.hear(Event::Command(size));
            }
        }
    }

    fn wanted(&mut self, vm: usize, now: u64) -> Option<SizesWanted> {
        let vm = self.vms.get_mut(vm)?;
        let (number, sizes) = vm.provision.as_mut()?.next_resize(now)?;
        Some(SizesWanted {
            id: request_id(vm.id, number),
            provider: provider(vm.id),
            origin: Origin::Operator,
            size_bytes: sizes.into_iter().map(Some).collect(),
        })
    }

    /// Carries out an action about sizes, and gives the event that follows; `None` if the action is about pages or
    /// has no event.
    pub(super) fn act_on_sizes(&mut self, action: &Action) -> Option<Event> {
        match action {
            Action::QueryProvider(request) => self.query_provider(*request),
            Action::Resize(order) => {
                let now = self.now();
                let why = why(self.session.engine(), order.provider, now);
                let vm = self.vm_of(order.provider)?;
                let device = vm.provision.as_mut()?;
                device.keep_order(now.0, &order.size_bytes, why);
                let taken = taken(device, order);
                let wanted = device.wanted();
                if let Some(placer) = &mut vm.answers.placer {
                    placer.resized(wanted);
                }
                Some(taken)
            }
            Action::Withdraw(provider, order) => Some(Event::OrderWithdrawal(OrderWithdrawal {
                order: *order,
                provider: *provider,
                in_time: false,
            })),
            Action::Answer(answer) => {
                self.answered(answer);
                None
            }
            // Never decided: its configuration names no rate.
            Action::Collapse(_)
            | Action::LetGo(_)
            | Action::Scan(_)
            | Action::ScanPart(_)
            | Action::NameTables(_)
            | Action::QueryPlacement(_)
            | Action::Move(_)
            | Action::Protect(_)
            | Action::Unprotect(_) => None,
        }
    }

    fn vm_of(&mut self, provider: ProviderId) -> Option<&mut Vm> {
        self.vms.get_mut(position(VmId(provider.0)))
    }

    fn query_provider(&mut self, request: ProviderQuery) -> Option<Event> {
        let host = self.host_memory();
        let vm = self.vm_of(request.provider)?;
        let held = vm.held_pages();
        let report = report(vm.provision.as_deref()?, request, held, host);
        Some(Event::ProviderSeen(Box::new(report)))
    }

    /// Free memory of the machine, less what the kernel and the operator keep back.
    fn host_memory(&self) -> Vec<NodeMemory> {
        let free = self.machine.free(&self.vms);
        let tiers = &self.session.engine().config().tiers;
        let each = (0_u32..).zip(tiers.iter().zip(free));
        each.map(|(node, (tier, free))| NodeMemory {
            node,
            // Its reserve is one of the scaled machine.
            tier: None,
            page_bytes: 0,
            free_bytes: (free * PAGE_SIZE).saturating_sub(tier.reserve_bytes)
                * self.scenario.machine.scale,
        })
        .collect()
    }

    fn answered(&mut self, answer: &SizesAnswer) {
        let at_ns = self.now().0;
        let vm = vm_of_request(answer.id).and_then(|id| self.vms.get_mut(position(id)));
        let device = vm.and_then(|vm| vm.provision.as_mut());
        if let (Some(device), Err(why)) = (device, &answer.result) {
            device.refused(at_ns, why.text());
        }
    }
}
