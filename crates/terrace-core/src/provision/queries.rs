//! The times of queries of a provider: one query at a time, soon while targets are not met, seldom otherwise.

use std::time::Duration;

use terrace_proto::Tick;

use super::config::ProvisionConfig;

/// The reason for the next query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueryReason {
    /// The time for a regular query has come.
    Due,
    /// An order was taken.
    Ordered,
    /// Targets are met: the query checks whether the memory that was given back is gone.
    Met,
}

/// The queries of one provider.
#[derive(Debug)]
pub(super) struct Queries {
    /// Number of the last query that was asked for.
    asked: u64,
    /// The time when it was asked for; `None` if it is over.
    under_way: Option<Tick>,
    /// Whether a request wants a query that begins later than that.
    again: bool,
    /// The time when the next query is due, and its reason.
    next: Tick,
    reason: QueryReason,
    /// Whether targets were met at the last query; an order makes them count as not met.
    pub was_met: bool,
    /// Whether the VM's memory is balanced, so that it is queried more often.
    pub is_balanced: bool,
    /// Number of times that nothing was found because the monitor did not answer.
    unfound: u32,
}

impl Queries {
    /// The queries of a new provider: the first one is due now.
    pub fn new(now: Tick) -> Self {
        Self {
            asked: 0,
            under_way: None,
            again: false,
            next: now,
            reason: QueryReason::Due,
            was_met: true,
            is_balanced: false,
            unfound: 0,
        }
    }

    /// Wants a query that begins from now on, and returns its number.
    pub fn want(&mut self, now: Tick) -> u64 {
        // A query that has begun may have read its figures before what this one is wanted for.
        if self.under_way.is_some() {
            self.again = true;
        } else {
            self.next = now;
        }
        self.asked + 1
    }

    /// Makes the next query due now, for this reason.
    pub fn now(&mut self, now: Tick, reason: QueryReason) {
        self.want(now);
        self.reason = reason;
    }

    /// The time when the next query is due; `None` if one is under way.
    pub fn due(&self) -> Option<Tick> {
        self.under_way.is_none().then_some(self.next)
    }

    /// Begins a query, and returns its number and reason.
    pub fn begin(&mut self, now: Tick) -> (u64, QueryReason) {
        self.asked += 1;
        self.under_way = Some(now);
        let reason = std::mem::replace(&mut self.reason, QueryReason::Due);
        (self.asked, reason)
    }

    /// Ends the query of that number, and returns when it was asked for; `None` if it is not the last one, or is over
    /// already.
    pub fn end(&mut self, number: u64) -> Option<Tick> {
        // An older query, ended late, shows what was so before; a newer one was never asked for.
        if number != self.asked {
            return None;
        }
        self.under_way.take()
    }

    /// Sets when the next query is due after one that ended now.
    pub fn pause(&mut self, now: Tick, config: &ProvisionConfig) {
        let pause = if std::mem::take(&mut self.again) {
            Duration::ZERO
        } else if self.unfound > 0 {
            // 5 s to 80 s: another program may hold the monitor for as long as it lives.
            config.idle().saturating_mul(1 << self.unfound.min(5)) / 2
        } else if self.was_met && self.is_balanced {
            config.balanced().min(config.idle())
        } else if self.was_met {
            config.idle()
        } else {
            config.under_way()
        };
        self.next = now.after(pause);
    }

    /// Takes in that nothing was found, because another program may hold the monitor for now.
    pub fn not_found(&mut self) {
        self.unfound = self.unfound.saturating_add(1);
    }

    /// Takes in that something was found.
    pub fn found(&mut self) {
        self.unfound = 0;
    }
}
