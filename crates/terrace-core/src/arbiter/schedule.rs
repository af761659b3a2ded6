//! The times at which sizes are decided.
//!
//! A decision is taken only when something changed since the last one, and no sooner than a cycle after it. What nobody
//! says (a demand that is observed, sizes that a provider reported) is looked at once a cycle at most.

use terrace_proto::Tick;

use crate::config::ArbiterConfig;

/// Least time between two calls for memory that was lent, ns.
const CALL_EVERY: u64 = 1_000_000_000;

/// When sizes are decided next, and when they were last.
#[derive(Clone, Debug, Default)]
pub(super) struct Schedule {
    /// When it is looked next; `None`: nothing was heard since.
    due: Option<Tick>,
    /// When it was looked last.
    seen: Option<Tick>,
    /// When sizes were decided last.
    decided: Option<Tick>,
    /// When memory that was lent was called back last.
    called: Option<Tick>,
    /// When something changes by itself.
    wakes: Option<Tick>,
    /// Something changed since the last decision.
    is_changed: bool,
    /// Decisions so far.
    decisions: u64,
}

impl Schedule {
    /// Takes in that sizes are to be decided anew.
    pub fn change(&mut self, now: Tick, config: &ArbiterConfig) {
        self.is_changed = true;
        self.be_due(now, self.decided, config);
    }

    /// Takes in that something may have changed that nobody says.
    pub fn look_at(&mut self, now: Tick, config: &ArbiterConfig) {
        self.be_due(now, self.decided.max(self.seen), config);
    }

    fn be_due(&mut self, now: Tick, last: Option<Tick>, config: &ArbiterConfig) {
        let cycle = ArbiterConfig::ns(config.cycle_ms);
        let next = last.map_or(now, |at| Tick(at.0.saturating_add(cycle)).max(now));
        self.due = Some(self.due.map_or(next, |due| due.min(next)));
    }

    /// Whether a look is due. It is not any more then.
    pub fn take_due(&mut self, now: Tick, config: &ArbiterConfig) -> bool {
        if self.wakes.is_some_and(|at| at <= now) {
            self.wakes = None;
            self.change(now, config);
        }
        let is_due = self.due.is_some_and(|due| due <= now);
        if is_due {
            (self.due, self.seen) = (None, Some(now));
        }
        is_due
    }

    /// Notes that something changed, as a look found.
    pub fn found(&mut self, is_changed: bool) {
        self.is_changed |= is_changed;
    }

    /// Whether something changed that is not decided.
    pub fn is_changed(&self) -> bool {
        self.is_changed
    }

    /// Begins a decision.
    pub fn decide(&mut self, now: Tick) {
        (self.due, self.decided, self.is_changed) = (None, Some(now), false);
        self.called = Some(now);
        self.decisions += 1;
    }

    /// Whether what was lent may be called back again. If so, it is.
    pub fn take_call(&mut self, now: Tick) -> bool {
        let waited = |at: Tick| now.0.saturating_sub(at.0) >= CALL_EVERY;
        let may = self.called.is_none_or(waited);
        if may {
            self.called = Some(now);
        }
        may
    }

    /// Sets when something changes by itself.
    pub fn wake_at(&mut self, at: Option<Tick>) {
        self.wakes = at;
    }

    /// Forgets what is due: nobody is left.
    pub fn rest(&mut self) {
        (self.due, self.wakes) = (None, None);
    }

    /// The latest time at which something is to be done.
    pub fn timeout(&self) -> Option<Tick> {
        self.due.into_iter().chain(self.wakes).min()
    }

    /// The number of decisions so far.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }
}
