//! Migration epochs: under hot lists pages move once a second, while scans run (HMvisor §3.2.1).
//!
//! Responsible for: when lists are asked for pages, and how many bytes they may name. It leaves to others: which pages
//! ([`crate::place`]), and plans ([`super::moves`]).
//!
//! What the lists may name is a bucket of tokens: it holds what one second brings, or one unit if that is more, so
//! that units of 2 MiB come by whole ones. While places are asked for nothing is issued: an answer that was made
//! before a move must not come after its report.

use std::time::Duration;

use terrace_proto::{PAGE_SIZE, Tick};

use super::Shared;
use super::budget::TokenBucket;
use super::rounds::Phase;
use super::vm::Vm;
use crate::place::Flow;

/// From one migration epoch to the next (HMvisor §3.2.1).
const MIGRATION_EPOCH: Duration = Duration::from_secs(1);

/// The pace of a VM's moves from lists.
#[derive(Debug)]
pub(crate) struct Pace {
    bucket: TokenBucket,
    /// The next migration epoch.
    pub next: Tick,
}

impl Pace {
    /// So many bytes a second, in units of so many.
    pub fn new(bytes_per_s: u64, unit_bytes: u64) -> Self {
        Self {
            bucket: TokenBucket::new(bytes_per_s, bytes_per_s.max(unit_bytes)),
            next: Tick(0),
        }
    }

    /// Begins a migration epoch if one is due; gives the bytes that may move in either direction now.
    pub fn begin(&mut self, now: Tick) -> u64 {
        self.bucket.refill(now);
        if now < self.next {
            return 0;
        }
        self.next = now.after(MIGRATION_EPOCH);
        self.bucket.bytes()
    }

    /// Takes off what was proposed in the direction that has more.
    pub fn spend(&mut self, bytes: u64) {
        self.bucket.spend(bytes.min(self.bucket.bytes()));
    }
}

impl Vm {
    /// Bytes that its policy may propose now in either direction; all without a pace.
    pub fn begin_migration(&mut self, now: Tick) -> u64 {
        let pace = self.moving.pace.as_mut();
        pace.map_or(u64::MAX, |pace| pace.begin(now))
    }

    /// Takes proposals off the pace.
    pub fn spend_pace(&mut self, flows: &[Flow]) {
        let (up, down) = self.proposed_pages(flows);
        if let Some(pace) = &mut self.moving.pace {
            pace.spend(up.max(down).saturating_mul(PAGE_SIZE));
        }
    }

    /// Whether pages may move from lists while scans run.
    fn moves_between(&self) -> bool {
        self.has_lists()
            && self.may_move()
            && !self.rounds.plans_only()
            && self.rounds.is_scanning()
    }

    /// When the lists are asked next, or the budget lets what they named go.
    pub fn next_migration(&self) -> Option<Tick> {
        if !self.moves_between() {
            return None;
        }
        let next = self.moving.pace.as_ref().map(|pace| pace.next);
        next.into_iter().chain(self.moving.tokens_at).min()
    }

    /// Asks the lists once a second, and issues what they named.
    pub fn migrate(&mut self, now: Tick, shared: &mut Shared) {
        if !self.moves_between() {
            return;
        }
        let next = self.moving.pace.as_ref().map(|pace| pace.next);
        if next.is_some_and(|next| next <= now) {
            let room = self.room(now, shared);
            let round = self.rounds.number;
            let flows = self.place.propose_between(round, &self.pages, &room);
            self.spend_pace(&flows);
            let (up, down) = self.proposed_pages(&flows);
            if let Some(round) = &mut self.rounds.current {
                round.proposed_promotions += up;
                round.proposed_demotions += down;
            }
            // What is left of the last ones is on its list still, if it belongs there.
            self.moving.take(flows, &self.pages);
        }
        if self.moving.waiting_bytes() > 0 {
            self.issue_all(shared);
        } else {
            self.moving.tokens_at = None;
        }
    }

    /// Whether what its lists named waits for the budget while scans run.
    pub fn waits_between(&self) -> bool {
        matches!(
            self.rounds.phase,
            Phase::Clearing { .. } | Phase::Window { .. } | Phase::Scanning { .. }
        ) && self.moves_between()
    }
}
