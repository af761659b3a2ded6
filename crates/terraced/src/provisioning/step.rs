//! A step that makes huge pages, on a thread of its own.
//!
//! The kernel may look for a huge page for long. Queries and orders of the VM do not wait for that: a step has a
//! deadline, an order on its way ends it before the next block, and the reconciler goes on meanwhile. An order is given
//! once the step has ended, so that no block is collapsed while the balloon takes pages of it.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use terrace_proto::ProviderId;
use terrace_proto::provision::{CollapseReport, CollapseRequest, Collapsed, NotCollapsed};

use super::provider::CollapseStep;
use super::reconciler::End;
use crate::confine::{self, Role};
use crate::messages::{Input, ProviderNews};

/// Time that a step may search and collapse. What it does not come to is the next one's.
pub const DEADLINE: Duration = Duration::from_millis(250);
/// Greatest time that an order waits for a step to end. A kernel that takes longer for a block holds no order up: it fills
/// at most that block, 2 MiB.
const LAST_BLOCK: Duration = Duration::from_secs(1);

/// The count of a VM's orders, which end the steps that were requested before them.
#[derive(Clone, Debug, Default)]
pub struct Orders(Arc<AtomicU64>);

impl Orders {
    /// Counts an order, before it is sent on its way.
    pub fn count(&self) {
        // Steps compare it for equality alone, so it may wrap.
        self.0.fetch_add(1, Ordering::AcqRel);
    }

    /// The orders up to now.
    pub fn so_far(&self) -> OrdersSoFar {
        OrdersSoFar {
            orders: self.clone(),
            count: self.0.load(Ordering::Acquire),
        }
    }
}

/// The orders up to the request for a step.
#[derive(Clone, Debug)]
pub struct OrdersSoFar {
    orders: Orders,
    count: u64,
}

impl OrdersSoFar {
    /// Whether another order came since.
    pub fn is_over(&self) -> bool {
        self.orders.0.load(Ordering::Acquire) != self.count
    }
}

/// A requested step.
pub struct StepRequest {
    /// The engine's request.
    pub request: CollapseRequest,
    /// The orders that it comes after.
    pub orders: OrdersSoFar,
}

/// The step of a VM that runs, if one does.
#[derive(Default)]
pub struct Running(Option<End>);

impl Running {
    /// Starts a step whose answer goes to the inbox, whatever becomes of it.
    pub fn start(&mut self, step: CollapseStep, asked: StepRequest, answer: Answer) {
        let (ends, ended) = channel::<Infallible>();
        let body = move || {
            let (mut answer, orders) = (answer, asked.orders);
            answer.result = step(&|| orders.is_over());
            drop(answer);
            // Closed when nothing is collapsed any more.
            drop(ends);
        };
        // If it cannot be started, the answer that goes down with it says so.
        if let Err(error) = confine::spawn(Role::Collapse, body) {
            tracing::warn!("no thread for huge pages: {error}");
        }
        self.0 = Some(End::new(ended));
    }

    /// Waits for the step to end, which an order told it to.
    pub fn wait(&mut self) {
        // Once: if the kernel does not let go of it, the orders that follow are not held up as well.
        if let Some(end) = self.0.take() {
            end.wait(Instant::now() + LAST_BLOCK);
        }
    }
}

/// The answer to a request for a step, which is sent when it is dropped: the engine asks for no other one before.
pub struct Answer {
    inbox: Sender<Input>,
    provider: ProviderId,
    number: u64,
    began: Instant,
    result: Result<Collapsed, NotCollapsed>,
}

impl Answer {
    /// An answer that says, until it has a result, that the step's thread is not there.
    pub fn new(request: &CollapseRequest, inbox: Sender<Input>) -> Self {
        let why = "its thread could not be started, or a fault of terraced's own ended it (see the journal)";
        Self {
            inbox,
            provider: request.provider,
            number: request.number,
            began: Instant::now(),
            result: Err(NotCollapsed::NotNow(why.into())),
        }
    }

    /// Answers that something is in the way.
    pub fn refuse(mut self, why: NotCollapsed) {
        self.result = Err(why);
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        let elapsed_ns = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let none = Err(NotCollapsed::NotNow(String::new()));
        let report = CollapseReport {
            provider: self.provider,
            number: self.number,
            result: std::mem::replace(&mut self.result, none),
            elapsed_ns,
        };
        // The daemon may have ended.
        let news = ProviderNews::Collapsed(Box::new(report));
        let _ = self.inbox.send(Input::Provider(news));
    }
}
