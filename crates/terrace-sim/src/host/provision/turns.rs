//! The order in which tiers are served, and the time that a device may work.

use crate::machine::TIERS;

/// The turns of the tiers; one whose allocation failed rests.
#[derive(Debug, Default)]
pub(super) struct Turns {
    /// The end of each tier's rest after a failed allocation, ns; the balloon has one for all tiers.
    rests_until: [u64; TIERS],
    /// The tier whose turn it is.
    next: usize,
}

impl Turns {
    /// The next of so many queues with work to do: it lacks pages, or gives some back, which needs no allocation.
    pub(super) fn next(
        &mut self,
        queues: usize,
        now_ns: u64,
        lacks: impl Fn(usize) -> i128,
    ) -> Option<usize> {
        let is_due = |tier: &usize| match lacks(*tier) {
            0 => false,
            lacks => lacks < 0 || self.rests_until[*tier] <= now_ns,
        };
        let mut turns = (0..queues).map(|i| (self.next + i) % queues);
        let tier = turns.find(is_due)?;
        self.next = tier + 1;
        Some(tier)
    }

    /// Lets a tier rest after a failed allocation.
    pub(super) fn rest(&mut self, tier: usize, until_ns: u64) {
        self.rests_until[tier] = until_ns;
    }

    /// Ends all rests, because there is a new order.
    pub(super) fn wake(&mut self) {
        self.rests_until = [0; TIERS];
    }
}

/// The time of a guest's worker and its device.
#[derive(Debug, Default)]
pub(super) struct Budget {
    /// Time left of the quanta so far, ps; negative: overdrawn.
    left: i64,
    /// Time spent so far, ps.
    spent: u64,
}

impl Budget {
    /// Adds a quantum, ps; time left of earlier ones is lost.
    pub(super) fn add(&mut self, quantum: u64) {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
        self.left = self.left.saturating_add(quantum).min(quantum);
    }

    /// Whether time is left.
    pub(super) fn is_left(&self) -> bool {
        self.left > 0
    }

    /// Spends so many ps of the time.
    pub(super) fn spend(&mut self, ps: u64) {
        self.spent += ps;
        self.left = self.left.saturating_sub_unsigned(ps);
    }

    /// Counts so many ps that were spent while nothing else ran.
    pub(super) fn spend_at_boot(&mut self, ps: u64) {
        self.spent += ps;
    }

    /// Time spent so far, ps.
    pub(super) fn spent(&self) -> u64 {
        self.spent
    }
}
