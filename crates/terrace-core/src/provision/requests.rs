//! Requests for sizes, and the one answer to each: after a query and an order, or as soon as one of them fails or
//! takes too long.

use terrace_proto::provision::{
    NotOrdered, OrderOutcome, OrderWithdrawal, Ordered, Origin, ProviderError, ProviderReport,
    SizesAnswer, SizesWanted,
};
use terrace_proto::{Action, OrderId, ProviderId, ResizeId, Tick};

use super::Provision;
use super::order::text as order_text;
use super::provider::Provider;
use super::rules::{Admission, ResizeRefusal, known};
use super::sharing::ARBITERS;

/// A request that is not answered yet.
pub(super) struct Request {
    provider: ProviderId,
    origin: Origin,
    asked: Vec<Option<u64>>,
    /// The provider's last order and its sizes when the request came.
    after: Basis,
    /// The reason, if the engine itself wants the sizes.
    why: Option<String>,
    stage: Stage,
}

/// A provider's last order, and its tiers' sizes.
#[derive(PartialEq, Eq)]
pub(super) struct Basis(Option<OrderId>, Vec<u64>);

impl Basis {
    pub fn of(provider: &Provider) -> Self {
        let tiers = provider.status().into_iter().flat_map(|s| &s.tiers);
        let last = provider.orders.last().map(|order| order.number);
        Self(last, tiers.map(|tier| tier.size_bytes).collect())
    }
}

/// The event that a request waits for.
enum Stage {
    /// A report of that number, or a later one.
    Query { number: u64, until: Tick },
    /// The outcome of an order.
    Order {
        ordered: Box<Ordered>,
        order: OrderId,
        until: Tick,
    },
    /// Whether that order could be taken back.
    Withdrawal {
        ordered: Box<Ordered>,
        order: OrderId,
    },
}

impl Request {
    /// A request that waits for the query of that number.
    pub fn new(
        wanted: &SizesWanted,
        why: Option<String>,
        after: Basis,
        (number, until): (u64, Tick),
    ) -> Self {
        Self {
            after,
            provider: wanted.provider,
            origin: wanted.origin,
            asked: wanted.size_bytes.clone(),
            why,
            stage: Stage::Query { number, until },
        }
    }

    /// Whether what was decided holds no more: the arbiter decided by sizes that have changed since.
    fn is_outdated(&self, provider: &Provider) -> bool {
        self.origin == Origin::Arbiter && self.after != Basis::of(provider)
    }

    /// Whether the request waits for a query of that provider.
    pub fn awaits_query_of(&self, provider: ProviderId) -> bool {
        self.provider == provider && matches!(self.stage, Stage::Query { .. })
    }

    /// The time at which the request has waited long enough; `None` if it waits for a withdrawal.
    pub fn until(&self) -> Option<Tick> {
        match self.stage {
            Stage::Query { until, .. } | Stage::Order { until, .. } => Some(until),
            Stage::Withdrawal { .. } => None,
        }
    }

    fn ordered(self) -> Option<Ordered> {
        match self.stage {
            Stage::Order { ordered, .. } | Stage::Withdrawal { ordered, .. } => Some(*ordered),
            Stage::Query { .. } => None,
        }
    }

    fn has(&self, order: OrderId) -> bool {
        match &self.stage {
            Stage::Order { order: of, .. } | Stage::Withdrawal { order: of, .. } => *of == order,
            Stage::Query { .. } => false,
        }
    }
}

/// The answer to a request for a VM that is unknown.
pub(super) fn gone() -> NotOrdered {
    NotOrdered::NotNow("the VM's provider is gone".into())
}

impl Provision {
    pub(super) fn answer(&mut self, id: ResizeId, result: Result<Ordered, NotOrdered>) {
        self.requests.remove(&id);
        let answer = SizesAnswer { id, result };
        match id.0 & ARBITERS != 0 {
            true => self.answers.push(answer),
            false => self.actions.push_back(Action::Answer(answer)),
        }
    }

    /// Refuses all requests to a provider.
    pub(super) fn refuse_all(&mut self, provider: ProviderId, why: &str) {
        for id in self.ids(|request| request.provider == provider) {
            self.answer(id, Err(NotOrdered::NotNow(why.to_owned())));
        }
    }

    fn ids(&self, which: impl Fn(&Request) -> bool) -> Vec<ResizeId> {
        let requests = self.requests.iter();
        let which = requests.filter(|(_, request)| which(request));
        which.map(|(id, _)| *id).collect()
    }

    /// Gives the orders for the requests that waited for this report.
    pub(super) fn serve(&mut self, now: Tick, report: &ProviderReport) {
        let waited = |request: &Request| {
            let was =
                matches!(request.stage, Stage::Query { number, .. } if number <= report.number);
            was && request.provider == report.provider
        };
        // One after the other: each order counts for the admission of the next, though all waited for one report.
        for id in self.ids(waited) {
            if let Err(why) = self.try_order(now, id, report) {
                self.answer(id, Err(why));
            }
        }
    }

    fn try_order(
        &mut self,
        now: Tick,
        id: ResizeId,
        report: &ProviderReport,
    ) -> Result<(), NotOrdered> {
        let request = self.requests.get(&id).ok_or_else(gone)?;
        let (of, origin) = (request.provider, request.origin);
        let (asked, why) = (request.asked.clone(), request.why.clone());
        let provider = self.providers.get(&of).ok_or_else(gone)?;
        if request.is_outdated(provider) {
            let why = "its sizes have changed since that was decided";
            return Err(NotOrdered::NotNow(why.into()));
        }
        let size_bytes = known(provider, &asked).map_err(|refusal| {
            let what = format!("an order of {}", origin.text());
            (what, refusal)
        });
        let size_bytes = match size_bytes {
            Ok(size_bytes) => size_bytes,
            Err((what, refusal)) => return Err(self.refuse(now, of, &what, &refusal)),
        };
        let status = provider.status().ok_or_else(gone)?;
        let text = order_text(provider.kind(), status, &size_bytes, &asked);
        let text = why.map_or(text.clone(), |why| format!("{why}: {text}"));
        let by = provider.text().to_owned();
        let host = Admission {
            providers: &self.providers,
            memory: &report.host,
            tiers: &self.tiers,
            least_first_tier_bytes: self.config.least_first_tier_bytes,
        };
        if let Err(refusal) = host.check(of, &size_bytes) {
            let what = format!("{text} ordered by {}, by {by}", origin.text());
            return Err(self.refuse(now, of, &what, &refusal));
        }
        let (vm, kind) = (provider.spec.vm.clone(), provider.kind());
        let order = self.order(now, of, origin, size_bytes.clone(), &text);
        let ordered = Box::new(Ordered {
            done: format!("{vm}: {text} ordered by {by}; `terrace show {vm}` shows the progress"),
            number: order.0,
            by: kind.name().into(),
            by_name: by,
            size_bytes,
        });
        let until = now.after(self.config.patience());
        if let Some(request) = self.requests.get_mut(&id) {
            request.stage = Stage::Order {
                ordered,
                order,
                until,
            };
        }
        Ok(())
    }

    /// Records that something is not ordered.
    fn refuse(
        &mut self,
        now: Tick,
        of: ProviderId,
        what: &str,
        refusal: &ResizeRefusal,
    ) -> NotOrdered {
        let why = refusal.why();
        let Some(provider) = self.providers.get_mut(&of) else {
            return gone();
        };
        refusal.count(&mut provider.orders.counts);
        provider.reasons.say(now, format!("{what}: refused: {why}"));
        let vm = &provider.spec.vm;
        // Some reasons begin with the VM's name by themselves.
        let why = if why.starts_with(vm.as_str()) {
            why.to_owned()
        } else {
            format!("{vm}: {why}")
        };
        match refusal {
            ResizeRefusal::Invalid(_) => NotOrdered::Invalid(why),
            ResizeRefusal::Absent(_) | ResizeRefusal::Pinned(_) | ResizeRefusal::Full(_) => {
                NotOrdered::NotNow(why)
            }
        }
    }

    /// Answers the requests that wait for this order with its outcome.
    pub(super) fn answered(&mut self, outcome: &OrderOutcome) {
        for id in self.ids(|request| request.has(outcome.order)) {
            let request = self.requests.remove(&id);
            let result = match &outcome.result {
                Ok(()) => request.and_then(Request::ordered).ok_or_else(gone),
                Err(ProviderError::Refused(why)) => Err(NotOrdered::Invalid(why.clone())),
                Err(ProviderError::Gone(why) | ProviderError::Nothing(why)) => {
                    Err(NotOrdered::NotNow(why.clone()))
                }
            };
            self.answer(id, result);
        }
    }

    /// Answers the requests that wait for a withdrawal: whether the order was cancelled.
    pub(super) fn taken_back(&mut self, withdrawal: OrderWithdrawal) {
        let waited = |request: &Request| matches!(request.stage, Stage::Withdrawal { order, .. } if order == withdrawal.order);
        for id in self.ids(waited) {
            let so = if withdrawal.in_time {
                "the order was cancelled"
            } else {
                "it has the order and may still carry it out"
            };
            let why = self.hangs(withdrawal.provider, so);
            self.answer(id, Err(why));
        }
    }

    /// Ends the wait of requests that waited long enough.
    pub(super) fn give_up(&mut self, now: Tick) {
        for id in self.ids(|request| request.until().is_some_and(|until| until <= now)) {
            let Some(mut request) = self.requests.remove(&id) else {
                continue;
            };
            let of = request.provider;
            // The order may be with the provider already. It is taken back first, so that the answer is true: a
            // client that hears "nothing was ordered" may order something else.
            if let Stage::Order { ordered, order, .. } = request.stage {
                request.stage = Stage::Withdrawal { ordered, order };
                self.requests.insert(id, request);
                self.actions.push_back(Action::Withdraw(of, order));
            } else {
                let why = self.hangs(of, "nothing was ordered");
                self.answer(id, Err(why));
            }
        }
    }

    fn hangs(&self, of: ProviderId, so: &str) -> NotOrdered {
        let Some(provider) = self.providers.get(&of) else {
            return gone();
        };
        let by = match &provider.mechanism {
            None => "its provider".to_owned(),
            Some(mechanism) => format!("{} ({})", mechanism.name, mechanism.at),
        };
        let (vm, tenths) = (&provider.spec.vm, self.config.patience_ms / 100);
        NotOrdered::NotNow(format!(
            "{vm}: {by} hangs: no answer for {}.{} s; {so}. `terrace show {vm}` has its last report",
            tenths / 10,
            tenths % 10
        ))
    }
}
