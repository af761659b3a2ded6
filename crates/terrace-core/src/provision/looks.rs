//! When a provider is looked at: one look at a time, soon while targets are not met, seldom otherwise.

use std::time::Duration;

use terrace_proto::Tick;

use super::config::ProvisionConfig;

/// What the next look is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LookReason {
    /// It is time.
    Due,
    /// An order was taken.
    Ordered,
    /// Targets are met: is what was given back gone?
    Met,
}

/// The looks at one provider.
#[derive(Debug)]
pub(super) struct Looks {
    /// Number of the last one that was asked for.
    asked: u64,
    /// When it was, if it is not over.
    under_way: Option<Tick>,
    /// Somebody wants one that begins later than that.
    again: bool,
    /// When the next one is due, and what it is for.
    next: Tick,
    reason: LookReason,
    /// Targets were met at the last one; an order makes them count as not.
    pub was_met: bool,
    /// How often nothing was found because the monitor did not answer.
    unfound: u32,
}

impl Looks {
    /// The first one is due now.
    pub fn new(now: Tick) -> Self {
        Self {
            asked: 0,
            under_way: None,
            again: false,
            next: now,
            reason: LookReason::Due,
            was_met: true,
            unfound: 0,
        }
    }

    /// Wants a look that begins from now on, and says its number.
    pub fn want(&mut self, now: Tick) -> u64 {
        if self.under_way.is_some() {
            self.again = true;
        } else {
            self.next = now;
        }
        self.asked + 1
    }

    /// The next one is for that, and due now.
    pub fn now(&mut self, now: Tick, reason: LookReason) {
        self.want(now);
        self.reason = reason;
    }

    /// When the next one is due; none: one is under way.
    pub fn due(&self) -> Option<Tick> {
        self.under_way.is_none().then_some(self.next)
    }

    /// Begins one, and says its number and what it is for.
    pub fn begin(&mut self, now: Tick) -> (u64, LookReason) {
        self.asked += 1;
        self.under_way = Some(now);
        let reason = std::mem::replace(&mut self.reason, LookReason::Due);
        (self.asked, reason)
    }

    /// Ends the one of that number, and says when it was asked for; none: it is none of these.
    pub fn end(&mut self, number: u64) -> Option<Tick> {
        if number != self.asked {
            return None;
        }
        self.under_way.take()
    }

    /// Says when the next one is due after one that ended now.
    pub fn pause(&mut self, now: Tick, config: &ProvisionConfig) {
        let pause = if std::mem::take(&mut self.again) {
            Duration::ZERO
        } else if self.unfound > 0 {
            // 5 s to 80 s.
            config.idle().saturating_mul(1 << self.unfound.min(5)) / 2
        } else if self.was_met {
            config.idle()
        } else {
            config.under_way()
        };
        self.next = now.after(pause);
    }

    /// Nothing was found, because another program may hold the monitor for now.
    pub fn not_found(&mut self) {
        self.unfound = self.unfound.saturating_add(1);
    }

    /// Something was.
    pub fn found(&mut self) {
        self.unfound = 0;
    }
}
