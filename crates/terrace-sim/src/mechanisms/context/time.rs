//! Processor time of a mechanism.

use super::Stage;
use crate::host::account::Spent;

/// The time that a mechanism spent, and the time that its thread has left.
#[derive(Debug, Default)]
pub(super) struct ThreadTime {
    /// Time spent since it was last taken, by stage.
    spent: Spent,
    /// Time spent in the present call, ps.
    in_call: u64,
    /// Time that the thread has left in this quantum, ps; negative: overdrawn.
    left: i64,
}

impl ThreadTime {
    /// Begins a quantum; overdrawn time is paid first.
    pub(super) fn refill(&mut self, quantum: u64) {
        let quantum = i64::try_from(quantum).unwrap_or(i64::MAX);
        self.left = (self.left + quantum).min(quantum);
    }

    pub(super) fn has_left(&self) -> bool {
        self.left > 0
    }

    /// The time left, to be given back after a call whose time is not the thread's.
    pub(super) fn left(&self) -> i64 {
        self.left
    }

    pub(super) fn give_back(&mut self, left: i64) {
        self.left = left;
    }

    pub(super) fn begin_call(&mut self) {
        self.in_call = 0;
    }

    /// Time spent since the call began, ps.
    pub(super) fn in_call(&self) -> u64 {
        self.in_call
    }

    pub(super) fn spend(&mut self, stage: Stage, ps: u64) {
        self.add(stage, ps);
        self.in_call += ps;
        self.left = self.left.saturating_sub_unsigned(ps);
    }

    /// Adds time that another thread spent because of the mechanism.
    pub(super) fn add(&mut self, stage: Stage, ps: u64) {
        match stage {
            Stage::Track => self.spent.track += ps,
            Stage::Classify => self.spent.classify += ps,
            Stage::Migrate => self.spent.migrate += ps,
        }
    }

    pub(super) fn take_spent(&mut self) -> Spent {
        std::mem::take(&mut self.spent)
    }
}
