//! How plans went: from reports back to places.
//!
//! Responsible for: taking a plan's results in, page by page, freeing what the plan held, and counting.
//! It leaves to others: what comes next ([`super::moves`]).
//!
//! The kernel's word on where a page is now always counts, whatever the status is; only a page that
//! was not tried has no word. Pages that a report leaves out, or names out of order, count as not tried.

use terrace_proto::{MoveReport, MoveStatus, PAGE_SIZE, PageResult, Tick, TierId};

use super::Shared;
use super::history::LastMove;
use super::moves::Flight;
use super::rounds::Phase;
use super::vm::Vm;
use crate::policy::Move;

/// What became of a page; one that a report leaves out was not tried.
fn status_of(result: Option<&PageResult>) -> MoveStatus {
    result.map_or(MoveStatus::NotTried, |result| result.status)
}

/// Rounds for which a unit that others map is left alone, beside the one under way: the most that is stored.
const LEFT_ALONE: u8 = 2;

impl Vm {
    pub fn moved(&mut self, now: Tick, report: &MoveReport, shared: &mut Shared) {
        let Some(plan) = self.moving.plans.remove(&report.id) else {
            // A plan that a changed memory map cancelled, a repeated report, or a forged one.
            self.history.counters.stale_answers += 1;
            return;
        };
        if report.results.len() != plan.flights.len() {
            self.history.counters.malformed_answers += 1;
        }
        let before = self.held();
        self.rounds.times.places.landed(&report.results);
        for (i, flight) in plan.flights.iter().enumerate() {
            let gfn = self.pages.ram().first_page(flight.unit);
            // By position and by number: a report out of order means nothing for this unit.
            let result = report.results.get(i).filter(|r| r.gfn == gfn);
            // The expected bytes are given back whatever happened; what did arrive is counted below.
            shared.tiers.settle(flight.to, flight.bytes);
            if result.is_some_and(|r| r.status == MoveStatus::NoMemory) {
                // The last report's free memory is gone: plans would fail one after the other until the next.
                shared.tiers.exhausted(flight.to);
            }
            let by_guest = plan.by_guest;
            if by_guest {
                self.note_answer(*flight, status_of(result));
            }
            let left = self.land(*flight, result.filter(|_| !by_guest));
            let is_moved = result.is_some_and(|r| r.status == MoveStatus::Moved);
            if by_guest && self.land_by_guest(*flight, status_of(result)) {
                self.count_moved(*flight, flight.from, flight.to, plan.round);
            }
            if by_guest || is_moved && self.policy.moves == Move::Guest {
                self.forget(*flight);
            }
            if let Some(from) = left
                && let Some(to) = self.pages.tier(flight.unit)
            {
                self.cool_down(*flight, shared.config.cool_down_rounds);
                self.count_moved(*flight, from, to, plan.round);
            }
            let status = status_of(result);
            if status == MoveStatus::MappedByOthers {
                // Proposed again in each round it would be refused in each.
                self.cool_down(*flight, LEFT_ALONE);
            }
            self.count_status(*flight, status, plan.round);
            let to = flight.to;
            self.history.remember(
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
        if let Some(round) = self.rounds.under_way(plan.round) {
            round.move_elapsed_ns = round.move_elapsed_ns.saturating_add(report.elapsed_ns);
        }
        if let Phase::Moving { since } = &mut self.rounds.phase {
            // Progress: the time-out of an unreported plan starts anew.
            *since = now;
        }
        if !plan.by_guest {
            self.look_again(now, shared);
        }
    }

    /// Takes one unit off its plan; gives the tier that it left.
    fn land(&mut self, flight: Flight, result: Option<&PageResult>) -> Option<TierId> {
        let start = flight.unit as usize;
        let extent = start..start + flight.extent as usize;
        self.pages.mark_in_flight(extent, false);
        // Saturating: an account that has lost track must not wrap and block the tier for ever.
        let leaving = &mut self.moving.leaving[flight.from.index()];
        *leaving = leaving.saturating_sub(flight.bytes);
        let coming = &mut self.moving.coming[flight.to.index()];
        *coming = coming.saturating_sub(flight.bytes);
        let result = result.filter(|r| r.status != MoveStatus::NotTried)?;
        self.pages.place_moved(flight.unit, result.now)
    }

    /// Forgets a unit whose data the guest moved to another frame, and leaves it alone for the rest of its round: what came
    /// of it the next scan tells.
    fn forget(&mut self, flight: Flight) {
        let start = flight.unit as usize;
        self.pages.forget(start..start + flight.extent as usize);
        self.cool_down(flight, 0);
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
        self.history.count_moved(pages, from, to);
        let Some(round) = self.rounds.under_way(round) else {
            return;
        };
        round.moved_bytes += flight.bytes;
        if promoted {
            round.promoted_pages += pages;
        } else {
            round.demoted_pages += pages;
        }
        // Room that a demotion made is owed to a promotion until one has taken it.
        let owed = &mut self.moving.owed;
        if flight.paired {
            owed[from.index()] += flight.bytes;
        }
        owed[to.index()] = owed[to.index()].saturating_sub(flight.bytes);
    }

    fn count_status(&mut self, flight: Flight, status: MoveStatus, round: u64) {
        self.history.count_ended(flight.bytes, status);
        let Some(round) = self.rounds.under_way(round) else {
            return;
        };
        let pages = flight.bytes / PAGE_SIZE;
        match status {
            MoveStatus::Busy
            | MoveStatus::Absent
            | MoveStatus::NoMemory
            | MoveStatus::Failed(_) => {
                round.failed_pages += pages;
            }
            MoveStatus::MappedByOthers => round.mapped_by_others_pages += pages,
            MoveStatus::Moved | MoveStatus::AlreadyThere | MoveStatus::NotTried => {}
        }
    }
}
