//! A VM's history since it arrived: counters, the newest reasons, and how the newest moves ended.
//!
//! Responsible for: keeping a bounded part of it. It leaves to others: what it means.

use std::collections::VecDeque;

use terrace_proto::{MoveStatus, PAGE_SIZE, Tick, TierId};

use super::refusal::Refusals;
use super::view::Counters;
use crate::reasons::{Reason, Reasons};

/// Outcomes of single moves that are remembered, for people who ask about a page.
const MAX_OUTCOMES: usize = 1024;

/// The outcome of a unit's newest move.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastMove {
    /// When it was reported.
    pub at: Tick,
    /// The target tier.
    pub to: TierId,
    /// How it ended.
    pub status: MoveStatus,
}

/// A VM's past.
#[derive(Debug)]
pub(crate) struct History {
    /// All but the refusals.
    pub counters: Counters,
    /// Refusals of all rounds.
    pub refused: Refusals,
    reasons: Reasons,
    outcomes: VecDeque<(u32, LastMove)>,
}

impl History {
    /// An empty history, for so many reasons.
    pub fn new(max_reasons: usize) -> Self {
        Self {
            counters: Counters::default(),
            refused: Refusals::default(),
            reasons: Reasons::new(max_reasons),
            outcomes: VecDeque::new(),
        }
    }

    /// Notes what was done and why.
    pub fn say(&mut self, at: Tick, text: impl Into<String>) {
        self.reasons.say(at, text);
    }

    /// The reasons after a number, oldest first.
    pub fn reasons_after(&self, sequence: u64) -> impl Iterator<Item = &Reason> {
        self.reasons.after(sequence)
    }

    /// All reasons that are stored, oldest first.
    pub fn reasons(&self) -> Vec<Reason> {
        self.reasons.list()
    }

    /// All counts.
    pub fn counters(&self) -> Counters {
        Counters {
            refused: self.refused.list(),
            ..self.counters.clone()
        }
    }

    /// Notes how a unit's move ended.
    pub fn remember(&mut self, unit: u32, outcome: LastMove) {
        if self.outcomes.len() == MAX_OUTCOMES {
            self.outcomes.pop_front();
        }
        self.outcomes.push_back((unit, outcome));
    }

    /// How a unit's newest move ended, if that is still remembered.
    pub fn remembered(&self, unit: u32) -> Option<LastMove> {
        let mut newest_first = self.outcomes.iter().rev();
        newest_first.find(|(u, _)| *u == unit).map(|(_, o)| *o)
    }

    /// Forgets how moves ended: units are other pages now.
    pub fn forget_moves(&mut self) {
        self.outcomes.clear();
    }

    /// Counts pages that went from one tier to another.
    pub fn count_moved(&mut self, pages: u64, from: TierId, to: TierId) {
        if to < from {
            self.counters.promoted_pages += pages;
        } else {
            self.counters.demoted_pages += pages;
        }
    }

    /// Counts pages by how their moves ended; those that moved are counted with where they went.
    pub fn count_ended(&mut self, bytes: u64, status: MoveStatus) {
        let c = &mut self.counters;
        let sum = match status {
            MoveStatus::Moved => return,
            MoveStatus::AlreadyThere => &mut c.already_there_pages,
            MoveStatus::Busy => &mut c.busy_pages,
            MoveStatus::Absent => &mut c.absent_pages,
            MoveStatus::NoMemory => &mut c.no_memory_pages,
            MoveStatus::NotTried => &mut c.not_tried_pages,
            MoveStatus::Failed(_) => &mut c.failed_pages,
            MoveStatus::MappedByOthers => &mut c.mapped_by_others_pages,
        };
        *sum += bytes / PAGE_SIZE;
    }
}
