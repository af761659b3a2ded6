//! For how long it is known where a VM's pages are, under a policy whose rounds come all the time.
//!
//! Responsible for: when a round asks for all places again. It leaves to others: the asking ([`super::round`]), and the places of pages that we moved, which
//! each report of a plan has ([`super::landing`]).
//!
//! The kernel looks at each page to say where it is, which costs as much as a pass over the guest's tables or more. Between two questions pages move by
//! our own plans, so that little is new in an answer, unless the guest takes memory that it never had, or somebody else moves pages. A page whose place
//! is not known any more is not moved by mistake: the kernel says where it is as it is tried.

use std::time::Duration;

use terrace_proto::{MoveStatus, PageResult, Tick, TierId};

use super::vm::Vm;

/// A question is repeated no sooner than so many times the time that its answer took: one percent.
const TIMES_APART: u64 = 100;
/// A question is repeated no sooner than this, ns.
const SOONEST_NS: u64 = 1_000_000_000;
/// A question is repeated after this at the latest, ns.
const LATEST_NS: u64 = 60_000_000_000;
/// An answer in which less than this part of the VM's memory is elsewhere than it was known to be has nothing new.
const NEWS: u64 = 1024;
/// A plan of whose pages more than this part are elsewhere has the round that follows ask.
const WRONG: usize = 8;

/// The state of a VM's places.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct KnownPlaces {
    /// Rounds before do not ask.
    until: Tick,
    /// Answers in a row that had nothing new.
    in_a_row: u32,
    /// Bytes that the answer under way has found elsewhere.
    elsewhere: u64,
    /// CPU time of answers at most, ns, that no round has paid for.
    pub unpaid_ns: u64,
}

impl KnownPlaces {
    /// Takes in a part of an answer: what each tier held before and holds now.
    pub fn found(&mut self, before: [u64; TierId::MAX], after: [u64; TierId::MAX]) {
        for (before, after) in before.into_iter().zip(after) {
            self.elsewhere = self.elsewhere.saturating_add(before.abs_diff(after));
        }
    }

    /// Takes in that an answer is whole, of a VM with so much memory.
    pub fn answered(&mut self, asked: Tick, now: Tick, memory_bytes: u64) {
        let took_ns = now.0.saturating_sub(asked.0);
        let is_new = std::mem::take(&mut self.elsewhere) > memory_bytes / NEWS;
        self.in_a_row = match is_new {
            true => 0,
            false => self.in_a_row.saturating_add(1),
        };
        let apart_ns = took_ns.saturating_mul(TIMES_APART).max(SOONEST_NS);
        let apart_ns = apart_ns.saturating_mul(1 << self.in_a_row.min(16));
        self.until = now.after(Duration::from_nanos(apart_ns.min(LATEST_NS)));
        self.unpaid_ns = self.unpaid_ns.saturating_add(took_ns);
    }

    /// Takes in a plan's results: whether its pages were where they were known to be.
    pub fn landed(&mut self, results: &[PageResult]) {
        let was_elsewhere =
            |r: &&PageResult| matches!(r.status, MoveStatus::AlreadyThere | MoveStatus::Absent);
        let elsewhere = results.iter().filter(was_elsewhere).count();
        if elsewhere.saturating_mul(WRONG) > results.len() {
            // What the last answer cost is still to be paid for.
            (self.until, self.in_a_row) = (Tick(0), 0);
        }
    }
}

impl Vm {
    /// Whether a round goes by the places that are known, and does not ask. An operator's word for a plan asks.
    pub fn goes_by_known_places(&self, now: Tick, plan_only: bool) -> bool {
        let places = &self.rounds.times.places;
        self.has_rates() && !plan_only && !self.is_checking() && now < places.until
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{Gfn, PageCode};

    use super::*;

    const SECOND: u64 = 1_000_000_000;
    const MIB: u64 = 1 << 20;

    fn held(fast: u64) -> [u64; TierId::MAX] {
        let mut held = [0; TierId::MAX];
        held[0] = fast;
        held
    }

    fn after(places: &mut KnownPlaces, took_ns: u64, moved: u64) -> u64 {
        places.found(held(0), held(moved));
        places.answered(Tick(0), Tick(took_ns), 1024 * MIB);
        places.until.0 - took_ns
    }

    #[test]
    fn answers_without_news_put_the_next_question_off() {
        let mut places = KnownPlaces::default();
        let apart = [0; 8].map(|moved| after(&mut places, 1_000, moved) / SECOND);
        assert_eq!(apart, [2, 4, 8, 16, 32, 60, 60, 60]);
        assert_eq!(after(&mut places, 1_000, 2 * MIB), SECOND);
    }

    #[test]
    fn a_question_takes_one_percent_or_comes_once_a_minute() {
        let mut places = KnownPlaces::default();
        assert_eq!(after(&mut places, SECOND / 10, 2 * MIB), 10 * SECOND);
        assert_eq!(after(&mut places, 5 * SECOND, 2 * MIB), 60 * SECOND);
        assert_eq!(after(&mut places, u64::MAX / 2, 2 * MIB), 60 * SECOND);
    }

    #[test]
    fn pages_that_are_elsewhere_have_the_next_round_ask() {
        let mut places = KnownPlaces::default();
        after(&mut places, 1_000, 0);
        let results = |elsewhere: usize| {
            let result = |page: usize| PageResult {
                gfn: Gfn(page as u64),
                status: match page < elsewhere {
                    true => MoveStatus::AlreadyThere,
                    false => MoveStatus::Moved,
                },
                now: PageCode::ABSENT,
            };
            (0..8).map(result).collect::<Vec<_>>()
        };
        places.landed(&results(1));
        assert!(places.until > Tick(0));
        places.landed(&results(2));
        assert_eq!(places.until, Tick(0));
        assert_eq!(places.unpaid_ns, 1_000);
    }
}
