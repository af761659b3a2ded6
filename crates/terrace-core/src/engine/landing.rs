//! How plans went: from reports back to places.
//!
//! Responsible for: taking a plan's results in, page by page, freeing what the plan held, and counting.
//! It leaves to others: what comes next ([`super::moves`]).
//!
//! The kernel's word on where a page is now always counts, whatever the status says; only a page that
//! was not tried has no word. Pages that a report leaves out, or names out of order, count as not tried.

use terrace_proto::snapshot::Round;
use terrace_proto::{MoveReport, MoveStatus, PAGE_SIZE, PageResult, Tick, TierId};

use super::Shared;
use super::moves::Flight;
use super::vm::{LastMove, Phase, Vm};

/// Rounds for which a unit that others map is left alone, beside the one under way: the most that is kept.
const LEFT_ALONE: u8 = 2;

impl Vm {
    pub fn moved(&mut self, now: Tick, report: &MoveReport, shared: &mut Shared) {
        let Some(plan) = self.moving.plans.remove(&report.id) else {
            self.counters.stale_answers += 1;
            return;
        };
        if report.results.len() != plan.flights.len() {
            self.counters.malformed_answers += 1;
        }
        let before = self.held();
        for (i, flight) in plan.flights.iter().enumerate() {
            let gfn = self.pages.ram().first_page(flight.unit);
            let result = report.results.get(i).filter(|r| r.gfn == gfn);
            shared.tiers.settle(flight.to, flight.bytes);
            if result.is_some_and(|r| r.status == MoveStatus::NoMemory) {
                shared.tiers.exhausted(flight.to);
            }
            let left = self.land(*flight, result);
            if let Some(from) = left
                && let Some(to) = self.pages.tier(flight.unit)
            {
                self.cool_down(*flight, shared.config.cool_down_rounds);
                self.count_moved(*flight, from, to, plan.round);
            }
            let status = result.map_or(MoveStatus::NotTried, |r| r.status);
            if status == MoveStatus::MappedByOthers {
                // Proposed again in each round it would be refused in each.
                self.cool_down(*flight, LEFT_ALONE);
            }
            self.count_status(*flight, status, plan.round);
            let to = flight.to;
            self.remember(
                flight.unit,
                LastMove {
                    at: now,
                    to,
                    status,
                },
            );
        }
        let after = self.held();
        for (tier, (before, after)) in self.tiers().zip(before.into_iter().zip(after)) {
            shared.tiers.moved(tier, before, after, plan.reports);
        }
        if let Some(round) = self.round_of(plan.round) {
            round.move_elapsed_ns = round.move_elapsed_ns.saturating_add(report.elapsed_ns);
        }
        if let Phase::Moving { since } = &mut self.phase {
            *since = now;
        }
    }

    /// The summary of the round under way, if it is that one: late reports count for no round.
    fn round_of(&mut self, round: u64) -> Option<&mut Round> {
        self.current.as_mut().filter(|r| r.number == round)
    }

    /// Takes one unit off its plan; gives the tier that it left.
    fn land(&mut self, flight: Flight, result: Option<&PageResult>) -> Option<TierId> {
        let start = flight.unit as usize;
        let extent = start..start + flight.extent as usize;
        self.pages.mark_in_flight(extent, false);
        let leaving = &mut self.moving.leaving[flight.from.index()];
        *leaving = leaving.saturating_sub(flight.bytes);
        let coming = &mut self.moving.coming[flight.to.index()];
        *coming = coming.saturating_sub(flight.bytes);
        let result = result.filter(|r| r.status != MoveStatus::NotTried)?;
        self.pages.place_moved(flight.unit, result.now)
    }

    /// Has a unit left alone for the rest of its round, and for some rounds more.
    fn cool_down(&mut self, flight: Flight, rounds: u8) {
        let start = flight.unit as usize;
        let extent = start..start + flight.extent as usize;
        self.pages.set_cool_down(extent, rounds + 1);
    }

    fn count_moved(&mut self, flight: Flight, from: TierId, to: TierId, round: u64) {
        let pages = flight.bytes / PAGE_SIZE;
        let promoted = to < from;
        if promoted {
            self.counters.promoted_pages += pages;
        } else {
            self.counters.demoted_pages += pages;
        }
        let Some(round) = self.round_of(round) else {
            return;
        };
        round.moved_bytes += flight.bytes;
        if promoted {
            round.promoted_pages += pages;
        } else {
            round.demoted_pages += pages;
        }
        let owed = &mut self.moving.owed;
        if flight.paired {
            owed[from.index()] += flight.bytes;
        }
        owed[to.index()] = owed[to.index()].saturating_sub(flight.bytes);
    }

    fn count_status(&mut self, flight: Flight, status: MoveStatus, round: u64) {
        let pages = flight.bytes / PAGE_SIZE;
        let c = &mut self.counters;
        let (sum, failed) = match status {
            MoveStatus::Moved => return,
            MoveStatus::AlreadyThere => (&mut c.already_there_pages, false),
            MoveStatus::Busy => (&mut c.busy_pages, true),
            MoveStatus::Absent => (&mut c.absent_pages, true),
            MoveStatus::NoMemory => (&mut c.no_memory_pages, true),
            MoveStatus::NotTried => (&mut c.not_tried_pages, false),
            MoveStatus::Failed(_) => (&mut c.failed_pages, true),
            MoveStatus::MappedByOthers => (&mut c.mapped_by_others_pages, false),
        };
        *sum += pages;
        if let Some(round) = self.round_of(round) {
            round.failed_pages += if failed { pages } else { 0 };
            if status == MoveStatus::MappedByOthers {
                round.mapped_by_others_pages += pages;
            }
        }
    }
}
