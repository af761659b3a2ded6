//! Provisioning: what size each tier of a VM shall have, and how far it is.
//!
//! Responsible for: when each provider is looked at, what its reports mean, which sizes may be ordered
//! ([`admission`]), one answer to whoever wants some, and holding back what may be pinned. It leaves to others: how a
//! device or a monitor is asked (the daemon's keepers, the simulator's devices), and which sizes are good.
//!
//! **Invariant:** nothing else resizes a VM. Each order has an origin: the operator, or the engine itself, which takes a
//! target back that a device or another process would suffer from. An arbiter that shares memory between VMs gives its
//! orders by the same event.

pub mod admission;
mod config;
mod looks;
mod order;
mod provider;
mod report;
mod requests;
mod rules;
mod verdicts;
mod view;
mod words;

use std::collections::{BTreeMap, VecDeque};

use terrace_proto::provision::{
    Elastic, LookRequest, NodeMemory, OrderOutcome, OrderWithdrawal, Origin, ProviderError,
    ProviderReport, ProviderSpec, ProviderStatus, SizeOrder, SizesWanted,
};
use terrace_proto::{Action, OrderId, ProviderId, ResizeId, Tick};

pub use config::ProvisionConfig;
pub use words::tier_name;

use crate::reasons::{Reason, Reasons};
use crate::tier::TierConfig;
use looks::LookReason;
use order::words as order_words;
use provider::Provider;
use requests::Request;

/// Sentences that are kept of each provider.
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

    /// When something is to be done at the latest.
    pub(crate) fn timeout(&self) -> Option<Tick> {
        let providers = self.providers.values();
        let providers = providers.flat_map(|p| [p.looks.due(), p.hangs_at(&self.config)]);
        let requests = self.requests.values().map(Request::until);
        providers.chain(requests).flatten().min()
    }

    /// What resizes a VM was found.
    pub(crate) fn arrive(&mut self, now: Tick, spec: ProviderSpec) {
        let id = spec.provider;
        let new = || Provider::new(now, spec, Reasons::new(REASONS));
        self.providers.entry(id).or_insert_with(new);
    }

    /// It may stand otherwise than it was seen.
    pub(crate) fn changed(&mut self, now: Tick, id: ProviderId) {
        if let Some(provider) = self.providers.get_mut(&id) {
            provider.looks.want(now);
        }
    }

    /// It is gone.
    pub(crate) fn depart(&mut self, id: ProviderId) {
        if let Some(gone) = self.providers.remove(&id) {
            let vm = gone.spec.vm;
            let why =
                format!("{vm}: the VM is gone, or the thread that looks after its memory ended");
            self.refuse_all(id, &why);
        }
    }

    /// Takes a report in.
    pub(crate) fn seen(&mut self, now: Tick, report: &ProviderReport) {
        let id = report.provider;
        let Some(provider) = self.providers.get_mut(&id) else {
            return;
        };
        let Some(asked) = provider.looks.end(report.number) else {
            return;
        };
        if let Err(ProviderError::Nothing(why)) = &report.status {
            self.providers.remove(&id);
            self.actions.push_back(Action::LetGo(id));
            self.refuse_all(id, why);
            return;
        }
        let was_met = provider.looks.was_met;
        provider.take(now, report, asked, &self.config);
        provider.looks.pause(now, &self.config);
        let status = report.status.as_ref();
        let is_met = status.is_ok_and(ProviderStatus::is_met);
        if is_met && !was_met && !report.verify {
            provider.looks.now(now, LookReason::Met);
        }
        if report.status.is_ok() {
            self.hold(now, id, report.order);
        }
        self.serve(now, report);
    }

    /// Takes back a target that stands from before a device was passed through, or before the guest started anew.
    fn hold(&mut self, now: Tick, id: ProviderId, given: OrderId) {
        let Some(provider) = self.providers.get(&id) else {
            return;
        };
        let Some((held, status)) = provider.held(now, given).zip(provider.status()) else {
            return;
        };
        let origin = provider.holding();
        let words = order_words(provider.kind(), status, &held, &[]);
        self.order(now, id, origin, held, &words);
    }

    /// Gives an order that was checked, and says its number.
    fn order(
        &mut self,
        now: Tick,
        id: ProviderId,
        origin: Origin,
        size_bytes: Vec<Option<u64>>,
        words: &str,
    ) -> OrderId {
        self.last_order += 1;
        let order = OrderId(self.last_order);
        if let Some(provider) = self.providers.get_mut(&id) {
            provider.ordered(now, order, origin, size_bytes.clone());
            let said = format!(
                "{words} ordered by {}, by {}",
                origin.words(),
                provider.words()
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

    /// Takes in what came of an order.
    pub(crate) fn outcome(&mut self, now: Tick, outcome: &OrderOutcome) {
        if let Some(provider) = self.providers.get_mut(&outcome.provider) {
            provider.answers(now);
            provider.answered(now, outcome.order, &outcome.result);
            // A target may be met before it is seen not to be.
            provider.looks.was_met = false;
            provider.looks.now(now, LookReason::Ordered);
        }
        self.answered(outcome);
    }

    /// Takes in what came of taking an order back.
    pub(crate) fn withdrawn(&mut self, now: Tick, withdrawal: OrderWithdrawal) {
        if let Some(provider) = self.providers.get_mut(&withdrawal.provider)
            && withdrawal.in_time
        {
            let why = "what resizes it hangs; the order was taken back".to_owned();
            let result = Err(ProviderError::Refused(why));
            provider.answered(now, withdrawal.order, &result);
        }
        self.taken_back(withdrawal);
    }

    /// Somebody wants a VM to have other sizes: it is looked at first, so that they are checked against what is so now.
    pub(crate) fn wanted(&mut self, now: Tick, wanted: SizesWanted) {
        let Some(provider) = self.providers.get_mut(&wanted.provider) else {
            self.answer(wanted.id, Err(requests::gone()));
            return;
        };
        // That somebody asks is no word of the provider.
        if provider.is_quiet {
            provider.heard_of(now);
        }
        let look = provider.looks.want(now);
        let until = now.after(self.config.patience());
        let request = Request::new(&wanted, look, until);
        self.requests.insert(wanted.id, request);
    }

    /// Does what is due.
    pub(crate) fn advance(&mut self, now: Tick) {
        self.give_up(now);
        for (id, provider) in &mut self.providers {
            provider.watch_silence(now, &self.config);
            if provider.looks.due().is_none_or(|due| due > now) {
                continue;
            }
            let is_awaited = self.requests.values().any(|request| request.looks_at(*id));
            let tried = provider.verdicts.tried;
            let (number, reason) = provider.looks.begin(now);
            let verify = match reason {
                _ if is_awaited => tried.is_none(),
                LookReason::Due => tried.is_none_or(|at| now.since(at) >= self.config.verify()),
                LookReason::Ordered => false,
                LookReason::Met => true,
            };
            self.actions.push_back(Action::Look(LookRequest {
                provider: *id,
                number,
                verify,
                is_awaited,
            }));
        }
    }

    /// A provider's part of what people see; none: nobody is to see it.
    #[must_use]
    pub fn view(&self, id: ProviderId, now: Tick) -> Option<Elastic> {
        let provider = self.providers.get(&id)?;
        (!provider.is_quiet).then(|| view::view(provider, now))
    }

    /// What was said of a provider after the reason of that number, oldest first.
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

    /// If VMs may together take more than there is, that in sentences.
    #[must_use]
    pub fn overcommitted(&self, memory: &[NodeMemory]) -> Vec<String> {
        rules::overcommitted(&self.providers, memory, &self.tiers)
    }
}
