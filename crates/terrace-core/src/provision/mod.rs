//! Provisioning: the size that each tier of a VM is to have, and the progress towards it.
//!
//! Responsible for: when each provider is queried, what its reports mean, which sizes may be ordered
//! ([`admission`]), one answer to each request for sizes, and holding back memory that may be pinned. It leaves to
//! others: how a device or a monitor is asked (the daemon's reconcilers, the simulator's devices), and which sizes are
//! good.
//!
//! **Invariant:** nothing else resizes a VM. Each order has an origin: the operator, or the engine itself, which takes
//! a target back that a device or another process would suffer from, and the arbiter that shares memory between VMs
//! ([`crate::arbiter`]), whose orders are admitted as the operator's are.

pub mod admission;
mod config;
mod guest;
mod huge;
mod liveness;
mod order;
mod pins;
mod provider;
mod queries;
mod report;
mod requests;
mod rules;
mod sharing;
mod text;
mod verdicts;
mod view;

use std::collections::{BTreeMap, VecDeque};

use terrace_proto::provision::{
    NodeMemory, OrderOutcome, OrderWithdrawal, Origin, ProviderError, ProviderQuery,
    ProviderReport, ProviderSpec, ProviderStatus, ProvisioningStatus, SizeOrder, SizesAnswer,
    SizesWanted,
};
use terrace_proto::{Action, OrderId, ProviderId, ResizeId, Tick, VmId};

pub use config::ProvisionConfig;
pub(crate) use sharing::{ARBITERS, ON_ITS_WAY, STUCK};
pub use sharing::{Sizes, TierSize};
pub(crate) use text::size as size_text;
pub use text::tier_name;

use crate::reasons::{Reason, Reasons};
use crate::tier::TierConfig;
use huge::Huge;
use order::text as order_text;
use provider::Provider;
use queries::QueryReason;
use requests::{Basis, Request};

/// Sentences that are stored of each provider.
const REASONS: usize = 256;

/// All providers of a host.
#[derive(Default)]
pub struct Provision {
    config: ProvisionConfig,
    tiers: Vec<TierConfig>,
    providers: BTreeMap<ProviderId, Provider>,
    requests: BTreeMap<ResizeId, Request>,
    last_order: u64,
    actions: VecDeque<Action>,
    /// Answers to the arbiter.
    answers: Vec<SizesAnswer>,
    /// Huge pages behind VMs with balloons.
    huge: BTreeMap<ProviderId, Huge>,
    /// The ids of providers' VMs in the engine, of those that it observes.
    vms: BTreeMap<ProviderId, VmId>,
}

impl Provision {
    /// No provider yet.
    pub(crate) fn new(config: ProvisionConfig, tiers: Vec<TierConfig>) -> Self {
        Self {
            config,
            tiers,
            ..Self::default()
        }
    }

    /// The next action, oldest first.
    pub(crate) fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The latest time at which something is to be done.
    pub(crate) fn timeout(&self) -> Option<Tick> {
        let providers = self.providers.values();
        let providers =
            providers.flat_map(|p| [p.queries.due(), p.liveness.hangs_at(&self.config)]);
        let providers = providers.chain(self.huge.values().map(Huge::due));
        let requests = self.requests.values().map(Request::until);
        providers.chain(requests).flatten().min()
    }

    /// Takes in that the provider of a VM was found.
    pub(crate) fn arrive(&mut self, now: Tick, spec: ProviderSpec) {
        let id = spec.provider;
        let new = || Provider::new(now, spec, Reasons::new(REASONS));
        self.providers.entry(id).or_insert_with(new);
    }

    /// Takes in that a provider's state may differ from the one that was seen.
    pub(crate) fn changed(&mut self, now: Tick, id: ProviderId) {
        if let Some(provider) = self.providers.get_mut(&id) {
            provider.queries.want(now);
        }
    }

    /// Takes in that a VM's memory is balanced: it is queried more often.
    pub(crate) fn balanced(&mut self, id: ProviderId) {
        if let Some(provider) = self.providers.get_mut(&id) {
            provider.queries.is_balanced = true;
        }
    }

    /// Takes in which VM of the engine's a provider is of, if it observes that one.
    pub(crate) fn observed(&mut self, id: ProviderId, vm: Option<VmId>) {
        match vm {
            Some(vm) => self.vms.insert(id, vm),
            None => self.vms.remove(&id),
        };
    }

    /// The id in the engine of a provider's VM, if it observes that: whether memory is shared or not.
    pub(crate) fn vm(&self, id: ProviderId) -> Option<VmId> {
        self.vms.get(&id).copied()
    }

    /// Takes in that a provider is gone.
    pub(crate) fn depart(&mut self, id: ProviderId) {
        self.huge.remove(&id);
        self.vms.remove(&id);
        if let Some(gone) = self.providers.remove(&id) {
            let vm = gone.spec.vm;
            // A request for this VM would wait until the time-out for an answer that cannot come.
            let why = format!("{vm}: the VM is gone, or the thread of its provider ended");
            self.refuse_all(id, &why);
        }
    }

    /// Takes a report in.
    pub(crate) fn seen(&mut self, now: Tick, report: &ProviderReport) {
        let id = report.provider;
        let Some(provider) = self.providers.get_mut(&id) else {
            return;
        };
        // A report of an older query may be from before an order: it would count as an answer to it.
        let Some(asked) = provider.queries.end(report.number) else {
            return;
        };
        if let Err(ProviderError::Nothing(why)) = &report.status {
            // Nothing resizes this VM now, so its thread is ended. A device may be plugged in later: the next request
            // to resize inspects the VM again.
            self.providers.remove(&id);
            self.huge.remove(&id);
            self.actions.push_back(Action::LetGo(id));
            self.refuse_all(id, why);
            return;
        }
        let was_met = provider.queries.was_met;
        provider.take(now, report, asked, &self.config);
        provider.queries.pause(now, &self.config);
        self.size_seen(now, id);
        let Some(provider) = self.providers.get_mut(&id) else {
            return;
        };
        let status = report.status.as_ref();
        let is_met = status.is_ok_and(ProviderStatus::is_met);
        // The guest reports that it is done. Before that counts, the host's memory is verified once.
        if is_met && !was_met && !report.verify {
            provider.queries.now(now, QueryReason::Met);
        }
        // Before requests are served: a target that endangers pinned memory goes first.
        if report.status.is_ok() {
            self.hold(now, id, report.order);
        }
        self.serve(now, report);
    }

    /// Takes back a target that was set before a device was passed through, another process came or the guest started
    /// anew.
    fn hold(&mut self, now: Tick, id: ProviderId, given: OrderId) {
        let Some(provider) = self.providers.get(&id) else {
            return;
        };
        let Some((held, status)) = provider.held(now, given).zip(provider.status()) else {
            return;
        };
        let origin = provider.pins.holding();
        let text = order_text(provider.kind(), status, &held, &[]);
        self.order(now, id, origin, held, &text);
    }

    /// Gives an order that was checked, and returns its number.
    fn order(
        &mut self,
        now: Tick,
        id: ProviderId,
        origin: Origin,
        size_bytes: Vec<Option<u64>>,
        text: &str,
    ) -> OrderId {
        self.last_order += 1;
        let order = OrderId(self.last_order);
        if let Some(provider) = self.providers.get_mut(&id) {
            provider.ordered(now, order, origin, size_bytes.clone());
            let said = format!(
                "{text} ordered by {}, by {}",
                origin.text(),
                provider.text()
            );
            provider.reasons.say(now, said);
        }
        self.actions.push_back(Action::Resize(SizeOrder {
            order,
            provider: id,
            size_bytes,
        }));
        order
    }

    /// Takes in the outcome of an order.
    pub(crate) fn outcome(&mut self, now: Tick, outcome: &OrderOutcome) {
        if let Some(provider) = self.providers.get_mut(&outcome.provider) {
            provider.answers(now);
            provider.answered(now, outcome.order, &outcome.result);
            // The new target may be met at the next query already: that counts as newly met, so that the host's memory
            // is verified.
            provider.queries.was_met = false;
            provider.queries.now(now, QueryReason::Ordered);
        }
        self.answered(outcome);
    }

    /// Takes in the outcome of taking an order back.
    pub(crate) fn withdrawn(&mut self, now: Tick, withdrawal: OrderWithdrawal) {
        if let Some(provider) = self.providers.get_mut(&withdrawal.provider)
            && withdrawal.in_time
        {
            let why = "its provider hangs; the order was cancelled".to_owned();
            let result = Err(ProviderError::Refused(why));
            provider.answered(now, withdrawal.order, &result);
        }
        self.taken_back(withdrawal);
    }

    /// Takes in that a request wants other sizes for a VM. The provider is queried first, so that the sizes are
    /// checked against its present state. `why`: the reason, if the engine itself wants them.
    pub(crate) fn wanted(&mut self, now: Tick, wanted: SizesWanted, why: Option<String>) {
        // Each request has exactly one answer, this one too.
        let Some(provider) = self.providers.get_mut(&wanted.provider) else {
            self.answer(wanted.id, Err(requests::gone()));
            return;
        };
        // A request is no word of the provider.
        if provider.liveness.is_quiet() {
            provider.liveness.heard_of(now);
        }
        let query = provider.queries.want(now);
        let until = now.after(self.config.patience());
        let after = Basis::of(provider);
        let request = Request::new(&wanted, why, after, (query, until));
        self.requests.insert(wanted.id, request);
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Tick) {
        self.give_up(now);
        for (id, provider) in &mut self.providers {
            provider.watch_silence(now, &self.config);
            if provider.queries.due().is_none_or(|due| due > now) {
                continue;
            }
            // A query that a request waits for reads files only if nothing is known of them: on a large VM that takes
            // longer than people wait.
            let is_awaited = self
                .requests
                .values()
                .any(|request| request.awaits_query_of(*id));
            let tried = provider.verdicts.tried;
            let (number, reason) = provider.queries.begin(now);
            let verify = match reason {
                _ if is_awaited => tried.is_none(),
                QueryReason::Due => tried.is_none_or(|at| now.since(at) >= self.config.verify()),
                QueryReason::Ordered => false,
                QueryReason::Met => true,
            };
            self.actions.push_back(Action::QueryProvider(ProviderQuery {
                provider: *id,
                number,
                verify,
                is_awaited,
            }));
        }
    }

    /// The view of a provider for people; `None` if it is not to be shown.
    #[must_use]
    pub fn view(&self, id: ProviderId, now: Tick) -> Option<ProvisioningStatus> {
        let provider = self.providers.get(&id)?;
        let huge = self.huge.get(&id).and_then(Huge::view);
        (!provider.liveness.is_quiet()).then(|| ProvisioningStatus {
            huge,
            ..view::view(provider, now)
        })
    }

    /// The reasons of a provider after the one of that number, oldest first.
    pub fn reasons(&self, id: ProviderId, after: u64) -> impl Iterator<Item = &Reason> {
        let provider = self.providers.get(&id).into_iter();
        provider.flat_map(move |provider| provider.reasons.after(after))
    }

    /// The page sizes of the pools that VMs' memory comes from, bytes.
    #[must_use]
    pub fn pools(&self) -> Vec<u64> {
        let claims = self.providers.values().flat_map(Provider::claims);
        let pools = claims.map(|claim| claim.pool).filter(|pool| *pool > 0);
        let mut pools: Vec<u64> = pools.collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// The nodes (or the host as a whole) of which VMs may together take more than is free, in sentences; empty if
    /// there are none.
    #[must_use]
    pub fn overcommitted(&self, memory: &[NodeMemory]) -> Vec<String> {
        rules::overcommitted(&self.providers, memory, &self.tiers)
    }
}
