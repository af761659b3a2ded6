//! The traffic of an agent: how much it sends, and how much of that is no message of the channel.

use terrace_proto::Tick;
use terrace_proto::agent::{Allowance, Broken, Counts};

use super::Lie;

/// Messages in a second. An agent sends one or two; what waited while this program stood still may come at
/// once.
const MESSAGES_PER_S: u64 = 16;
const MESSAGES_AT_ONCE: u64 = 1024;
/// Hellos in a second, and at once.
const HELLOS_PER_S: u64 = 2;
const HELLOS_AT_ONCE: u64 = 32;
/// Bytes that are no message: an agent that was killed leaves half a frame.
const GARBAGE_PER_S: u64 = 64;
const GARBAGE_AT_ONCE: u64 = 16 << 10;

/// The traffic of an agent: counts of what came over its connections, and limits on what may still come.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Counts of the connection at hand.
    counts: Counts,
    /// Counts of connections that are over.
    earlier: Counts,
    messages: Allowance,
    hellos: Allowance,
    garbage: Allowance,
}

impl Traffic {
    pub(super) fn new(now: Tick) -> Self {
        Self {
            counts: Counts::default(),
            earlier: Counts::default(),
            messages: Allowance::new(MESSAGES_PER_S, MESSAGES_AT_ONCE, now),
            hellos: Allowance::new(HELLOS_PER_S, HELLOS_AT_ONCE, now),
            garbage: Allowance::new(GARBAGE_PER_S, GARBAGE_AT_ONCE, now),
        }
    }

    /// Another connection begins, whose decoder counts from 0.
    pub(super) fn connected(&mut self) {
        self.earlier = self.total();
        self.counts = Counts::default();
    }

    /// Fills all limits again; the counts stay.
    pub(super) fn allow_again(&mut self, now: Tick) {
        let Self {
            counts, earlier, ..
        } = *self;
        *self = Self {
            counts,
            earlier,
            ..Self::new(now)
        };
    }

    /// Takes in a hello, and checks whether there may be as many.
    pub(super) fn hello(&mut self, now: Tick) -> Result<(), Lie> {
        if self.hellos.take(now, 1) {
            Ok(())
        } else {
            Err(Lie::HelloFlood)
        }
    }

    /// Takes in the counters of this connection's decoder so far. The error is the first thing among them that no
    /// honest agent sends.
    pub(super) fn met(
        &mut self,
        now: Tick,
        counts: Counts,
        broken: Option<Broken>,
    ) -> Result<(), Lie> {
        let before = std::mem::replace(&mut self.counts, counts);
        let frames = |c: &Counts| c.messages.saturating_add(c.unknown);
        let more = |of: fn(&Counts) -> u64| of(&counts).saturating_sub(of(&before));
        // Both are taken from, whatever is found first.
        let more_frames = frames(&counts).saturating_sub(frames(&before));
        let is_flood = !self.messages.take(now, more_frames);
        let is_garbage = broken.is_none() && !self.garbage.take(now, more(|c| c.garbage_bytes));
        if more(|c| c.malformed) > 0 {
            return Err(Lie::Malformed);
        }
        if is_flood {
            return Err(Lie::Flood {
                per_s: MESSAGES_PER_S,
            });
        }
        if let Some(broken) = broken {
            return Err(Lie::Garbage(broken.to_string()));
        }
        if is_garbage {
            let bytes = self.total().garbage_bytes;
            return Err(Lie::Garbage(format!("{bytes} bytes that are no message")));
        }
        Ok(())
    }

    /// Counts of all connections.
    pub(super) fn total(&self) -> Counts {
        let (a, b) = (&self.earlier, &self.counts);
        Counts {
            messages: a.messages.saturating_add(b.messages),
            unknown: a.unknown.saturating_add(b.unknown),
            malformed: a.malformed.saturating_add(b.malformed),
            bad_checks: a.bad_checks.saturating_add(b.bad_checks),
            too_long: a.too_long.saturating_add(b.too_long),
            garbage_bytes: a.garbage_bytes.saturating_add(b.garbage_bytes),
        }
    }
}
