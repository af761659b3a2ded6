//! The reconciler: the thread that queries one VM's provider.
//!
//! Responsible for: the queries and orders that the engine decides, one after the other, and leases: a device that
//! waits for a pin check gets one. A provider that hangs blocks this thread and nothing else: an order that was not
//! given yet is taken back by [`Ticket::withdraw`]. It leaves to others: the time of a query, the meaning of its
//! result, and which orders are admitted (`terrace_core::provision`).

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use terrace_core::provision::ProvisionConfig;
use terrace_host::process_memory;
use terrace_host::sharers::Holders;
use terrace_hyperflex::lease;
use terrace_proto::provision::{
    CollapseReport, CollapseRequest, NotCollapsed, OrderOutcome, OtherUsers, ProviderError,
    ProviderQuery, ProviderReport, ProviderStatus, ResidentMemory, SizeOrder,
};
use terrace_proto::{OrderId, ProviderId};

use super::lookout::Sharers;
use super::provider::{Find, Provider, VmContext, Wanted, three_ways};
use super::step::{Answer, Orders, Running, StepRequest};
use crate::confine::{self, Role};
use crate::messages::{Input, ProviderNews};

/// A question to a reconciler.
enum Ask {
    Query(ProviderQuery),
    Resize(Resize),
    Collapse(StepRequest),
}

/// An order on its way.
struct Resize {
    order: SizeOrder,
    ticket: Ticket,
}

/// The race for an order, which one of two wins: the reconciler that gives the order to the provider, or the client
/// that takes it back because it does not wait any longer.
#[derive(Clone, Debug, Default)]
pub struct Ticket(Arc<AtomicBool>);

impl Ticket {
    /// Takes the order back, and returns whether it will never be given.
    pub fn withdraw(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }

    /// Marks the order as given, and returns whether it may be given: it was not taken back.
    fn begin(&self) -> bool {
        !self.0.swap(true, Ordering::AcqRel)
    }
}

/// The end of a reconciler's thread: a channel that it closes.
#[derive(Debug)]
pub struct End(Receiver<Infallible>);

impl End {
    /// The end of a thread that has the other side of this channel.
    pub fn new(ended: Receiver<Infallible>) -> Self {
        Self(ended)
    }

    /// Waits until the thread has put back what it changed of its provider. Returns whether it had by this time.
    pub fn wait(self, by: Instant) -> bool {
        let left = by.saturating_duration_since(Instant::now());
        self.0.recv_timeout(left) == Err(RecvTimeoutError::Disconnected)
    }
}

/// A reconciler's thread. It ends when this is dropped, as soon as its provider lets it.
pub struct Reconciler {
    asks: Sender<Ask>,
    orders: Orders,
    /// Whether a fault of its own ended the thread.
    has_failed: Arc<AtomicBool>,
    /// `None` once somebody waits for it.
    end: Option<End>,
}

impl Reconciler {
    /// Starts the thread.
    pub fn start(
        id: ProviderId,
        context: VmContext,
        find: Find,
        pace: ProvisionConfig,
        inbox: Sender<Input>,
    ) -> std::io::Result<Self> {
        let (asks, asked) = channel();
        let (ends, ended) = channel();
        let has_failed = Arc::new(AtomicBool::new(false));
        let sharers = Sharers::new(
            u64::from(id.0),
            context.lookout.clone(),
            context.root.clone(),
            context.config.pins.clone(),
        );
        let body = Body {
            questions: Questions {
                id,
                inbox,
                asked,
                at_hand: None,
                has_failed: Arc::clone(&has_failed),
            },
            context,
            sought: Sought {
                find,
                provider: None,
            },
            pace,
            was_met: true,
            order: OrderId(0),
            is_order_new: false,
            sharers,
            has_answered: false,
            is_held: false,
            lease_at: None,
            step: Running::default(),
        };
        confine::spawn(Role::Reconciler, move || {
            // Closed after the provider was put back as it was.
            let _ends = ends;
            body.run();
        })?;
        Ok(Self {
            asks,
            orders: Orders::default(),
            has_failed,
            end: Some(End(ended)),
        })
    }

    /// Whether a fault of its own ended the thread.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The end of the thread, to be waited for when this has been dropped.
    pub fn end(&mut self) -> Option<End> {
        self.end.take()
    }

    /// Requests a query of the provider.
    ///
    /// # Errors
    /// If the thread ended.
    pub fn query(&self, request: ProviderQuery) -> Result<(), ProviderError> {
        self.send(Ask::Query(request))
    }

    /// Sends an order, and returns the ticket to take it back.
    ///
    /// # Errors
    /// If the thread ended.
    pub fn order(&self, order: SizeOrder) -> Result<Ticket, ProviderError> {
        let ticket = Ticket::default();
        let order = Resize {
            order,
            ticket: ticket.clone(),
        };
        // A step that runs ends meanwhile.
        self.orders.count();
        self.send(Ask::Resize(order)).map(|()| ticket)
    }

    /// Requests that huge pages are made.
    ///
    /// # Errors
    /// If the thread ended.
    pub fn collapse(&self, request: CollapseRequest) -> Result<(), ProviderError> {
        let orders = self.orders.so_far();
        self.send(Ask::Collapse(StepRequest { request, orders }))
    }

    fn send(&self, ask: Ask) -> Result<(), ProviderError> {
        if self.has_failed() {
            return Err(ended());
        }
        self.asks.send(ask).map_err(|_| ended())
    }
}

/// Nothing is collapsed of a VM that nobody looks after.
impl Drop for Reconciler {
    fn drop(&mut self) {
        self.orders.count();
    }
}

fn ended() -> ProviderError {
    ProviderError::Gone(
        "a fault of terraced's own ended the thread of its provider (see the journal): `terrace resize` \
         starts another"
            .into(),
    )
}

/// The report of a query that is not made any more: the known figures stay, and are counted with the least trust.
pub fn unanswered(request: &ProviderQuery, trouble: &ProviderError) -> ProviderReport {
    ProviderReport {
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
    }
}

/// The report on huge pages that are not made.
pub fn not_collapsed(provider: ProviderId, number: u64, why: &ProviderError) -> ProviderNews {
    ProviderNews::Collapsed(Box::new(CollapseReport {
        provider,
        number,
        result: Err(NotCollapsed::NotNow(why.to_string())),
        elapsed_ns: 0,
    }))
}

/// The question that a reconciler is answering.
enum AtHand {
    Query(ProviderQuery),
    Resize(OrderId),
    /// Its number.
    Collapse(u64),
}

impl AtHand {
    fn of(ask: &Ask) -> Self {
        match ask {
            Ask::Query(request) => Self::Query(*request),
            Ask::Resize(order) => Self::Resize(order.order.order),
            Ask::Collapse(asked) => Self::Collapse(asked.request.number),
        }
    }
}

/// Greatest time between two questions to a device whether memory waits, which its guest may give back by itself:
/// sooner than it is refused.
const SELDOM: Duration = Duration::from_millis(250);
/// The same while a target is not met.
const OFTEN: Duration = Duration::from_millis(50);

/// The VM's provider, found at the first query.
struct Sought {
    find: Find,
    provider: Option<Box<dyn Provider>>,
}

impl Sought {
    fn ask(&mut self, name: &str) -> Result<&mut Box<dyn Provider>, ProviderError> {
        if self.provider.is_none() {
            self.provider = (self.find)()?;
        }
        let provider = self.provider.as_mut();
        provider.ok_or_else(|| ProviderError::Nothing(three_ways(name)))
    }
}

/// The questions of the daemon's loop to a reconciler, and the way of the answers.
struct Questions {
    id: ProviderId,
    inbox: Sender<Input>,
    asked: Receiver<Ask>,
    at_hand: Option<AtHand>,
    has_failed: Arc<AtomicBool>,
}

struct Body {
    questions: Questions,
    context: VmContext,
    sought: Sought,
    pace: ProvisionConfig,
    was_met: bool,
    /// The last order that the reconciler was given.
    order: OrderId,
    /// Whether no query came after that order.
    is_order_new: bool,
    sharers: Sharers,
    /// Whether the provider answered at the last query.
    has_answered: bool,
    /// Whether another process may have had the RAM at the last pin check: a lease of before is taken back.
    is_held: bool,
    /// The time when the device is asked next whether memory waits for a pin check; `None` if it needs none.
    lease_at: Option<Instant>,
    /// The step that makes huge pages.
    step: Running,
}

/// A reconciler that panics answers the questions that it was asked, or its VM would be reported as hung for ever.
impl Drop for Questions {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            return;
        }
        // From here on no more questions come.
        self.has_failed.store(true, Ordering::Release);
        let at_hand = self.at_hand.take().into_iter();
        let waiting: Vec<AtHand> = self.asked.try_iter().map(|ask| AtHand::of(&ask)).collect();
        for asked in at_hand.chain(waiting) {
            self.tell(match asked {
                AtHand::Query(request) => {
                    let report = unanswered(&request, &ended());
                    ProviderNews::Seen(Box::new(report), request.is_awaited)
                }
                AtHand::Collapse(number) => not_collapsed(self.id, number, &ended()),
                AtHand::Resize(order) => ProviderNews::Answered(OrderOutcome {
                    order,
                    provider: self.id,
                    result: Err(ended()),
                }),
            });
        }
    }
}

impl Questions {
    /// The next question; waits until this time at most, if there is one.
    fn next(&mut self, until: Option<Instant>) -> Result<Ask, RecvTimeoutError> {
        let next = match until {
            None => self
                .asked
                .recv()
                .map_err(|_| RecvTimeoutError::Disconnected),
            Some(at) => self
                .asked
                .recv_timeout(at.saturating_duration_since(Instant::now())),
        };
        self.at_hand = next.as_ref().ok().map(AtHand::of);
        next
    }

    /// Answers the current question. `false` if the receiver is gone.
    fn tell(&mut self, news: ProviderNews) -> bool {
        self.at_hand = None;
        self.inbox.send(Input::Provider(news)).is_ok()
    }
}

impl Body {
    fn run(mut self) {
        loop {
            let has_listener = match self.questions.next(self.lease_at) {
                Err(RecvTimeoutError::Disconnected) => return,
                Err(RecvTimeoutError::Timeout) => {
                    self.lease();
                    continue;
                }
                Ok(ask) => self.answer(ask),
            };
            if !has_listener {
                return;
            }
            // A provider that has just not answered is not queried again.
            if self.has_answered {
                self.lease();
            }
        }
    }

    /// Answers a question. `false` if the receiver is gone.
    fn answer(&mut self, ask: Ask) -> bool {
        match ask {
            Ask::Query(request) => self.query(request),
            Ask::Resize(order) => self.take(order),
            Ask::Collapse(asked) => self.collapse(asked),
        }
    }

    /// Begins a step that makes huge pages, and goes on: its thread answers. `true`: whether there is a receiver, the next
    /// answer shows.
    fn collapse(&mut self, asked: StepRequest) -> bool {
        let answer = Answer::new(&asked.request, self.questions.inbox.clone());
        // From here on it is the one that answers, even if this panics.
        self.questions.at_hand = None;
        if asked.orders.is_over() {
            let why = "it is on its way to another size";
            answer.refuse(NotCollapsed::NotNow(why.into()));
            return true;
        }
        let prepared = match self.provider() {
            Ok(provider) => provider.collapse(&asked.request),
            Err(trouble) => Err(NotCollapsed::NotNow(trouble.to_string())),
        };
        match prepared {
            Ok(step) => self.step.start(step, asked, answer),
            Err(why) => answer.refuse(why),
        }
        true
    }

    /// Gives an order that was not taken back. `false` if the receiver is gone.
    fn take(&mut self, Resize { order, ticket }: Resize) -> bool {
        // Before the order counts as given: until then it may be taken back.
        self.step.wait();
        if !ticket.begin() {
            return true;
        }
        let result = match self.provider() {
            Ok(provider) => provider.order(&order.size_bytes),
            Err(trouble) => Err(trouble),
        };
        (self.order, self.is_order_new, self.was_met) = (order.order, true, false);
        self.questions.tell(ProviderNews::Answered(OrderOutcome {
            order: order.order,
            provider: self.questions.id,
            result,
        }))
    }

    fn provider(&mut self) -> Result<&mut Box<dyn Provider>, ProviderError> {
        self.sought.ask(&self.context.name)
    }

    /// Does a pin check of the VM's RAM, if the device waits for one.
    fn lease(&mut self) {
        self.lease_at = None;
        let Some(wanted) = self.ask(None) else {
            return;
        };
        let Some(number) = wanted.number else {
            return;
        };
        if !wanted.waits && !self.is_held {
            let pause = if self.was_met { SELDOM } else { OFTEN };
            self.lease_at = Some(Instant::now() + pause.min(self.pace.idle()));
            return;
        }
        let found = self.sharers.check(self.context.pid, Instant::now());
        let pause = match found {
            Holders::Nobody => self.sharers.pause(lease::WAITING),
            // The guest takes a while to try again.
            Holders::Somebody(_) | Holders::Unknown(_) => {
                self.sharers.may_be_old(SELDOM.min(self.pace.idle()))
            }
        };
        // The next pin check is requested after the holes that this one allows.
        if self.ask(Some((number, found))).is_some() {
            self.lease_at = Some(Instant::now() + pause);
        }
    }

    /// Asks the device for the pin check that it wants. A device that does not answer gets the result with the next
    /// one.
    fn ask(&mut self, pin_checked: Option<(u64, Holders)>) -> Option<Wanted> {
        let wanted = self.sought.provider.as_mut()?.lease(pin_checked).ok()??;
        let files = wanted.files.clone();
        self.sharers.hear(wanted.process, files);
        Some(wanted)
    }

    /// Queries the state of the VM's memory, and which processes have its RAM: now, if a client waits or an order was
    /// given. `false` if the receiver is gone.
    fn query(&mut self, request: ProviderQuery) -> bool {
        let asked = Instant::now();
        let is_new = request.is_awaited || std::mem::take(&mut self.is_order_new);
        let old = (!is_new).then(|| self.sharers.may_be_old(self.pace.idle()));
        let since = old.and_then(|old| asked.checked_sub(old)).unwrap_or(asked);
        let status = self.provider().and_then(|p| p.query(request.verify));
        self.has_answered = status.is_ok();
        if let Ok(status) = &status {
            self.was_met = status.is_met();
            // Which process it is the device knows better than the VM's name.
            self.context.pid = status.hypervisor_pid.or(self.context.pid);
            // The device's process: it has the RAM too, and does not count as another one.
            self.ask(None);
        }
        let held_by = self.sharers.check(self.context.pid, since);
        self.is_held = held_by != Holders::Nobody;
        let has_answered = status.is_ok();
        let report = self.report(request, status, held_by);
        let is_heard = self
            .questions
            .tell(ProviderNews::Seen(Box::new(report), request.is_awaited));
        is_heard && (!has_answered || self.tell_of_guest())
    }

    /// Tells the engine what else was read of the VM. `false` if the receiver is gone.
    fn tell_of_guest(&mut self) -> bool {
        let balance = self.context.config.balance;
        let readings = self.sought.provider.as_mut().and_then(|p| p.guest());
        if let Some(readings) = &readings {
            // Whether anybody receives it, the events after it tell.
            let input = Input::GuestSetup(self.questions.id, readings.setup.clone());
            let _ = self.questions.inbox.send(input);
        }
        let readings = readings.unwrap_or_default();
        let (root, pid) = (&self.context.root, self.context.pid);
        let events = readings.events(self.questions.id, balance.takes_part(), root, pid);
        events
            .into_iter()
            .all(|event| self.questions.inbox.send(Input::Event(event)).is_ok())
    }

    fn report(
        &self,
        request: ProviderQuery,
        status: Result<ProviderStatus, ProviderError>,
        held_by: Holders,
    ) -> ProviderReport {
        let (root, pid) = (&self.context.root, self.context.pid);
        let resident = pid.and_then(|pid| process_memory::resident(root, pid));
        ProviderReport {
            provider: self.questions.id,
            number: request.number,
            mechanism: self.sought.provider.as_ref().map(|p| p.mechanism()),
            status,
            verify: request.verify,
            resident: resident.map(|resident| ResidentMemory {
                shared_bytes: resident.shared_bytes,
                private_bytes: resident.private_bytes,
            }),
            pinned_by: pid.map_or_else(
                || Err("the hypervisor's process is not known".into()),
                |pid| process_memory::pinned_by(root, pid).map_err(|error| error.to_string()),
            ),
            held_by: match held_by {
                Holders::Nobody => OtherUsers::Nobody,
                Holders::Somebody(who) => OtherUsers::Somebody(who),
                Holders::Unknown(why) => OtherUsers::Unknown(why),
            },
            order: self.order,
            host: Vec::new(),
        }
    }
}
