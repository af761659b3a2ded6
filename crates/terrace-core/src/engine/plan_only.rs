//! Rounds that only plan: they observe and rank as any other, and say what they would move.
//!
//! Responsible for: starting one, and holding its proposals back. It leaves to others: the round
//! ([`super::round`]) and the checks that do not depend on room ([`super::check`]); those of room are not
//! made, because it changes with every move.

use terrace_proto::snapshot::PlannedMove;
use terrace_proto::{PAGE_SIZE, Tick};

use super::Shared;
use super::refusal::MoveRefusal;
use super::vm::Vm;

/// Moves of each flow that are remembered, for people.
const SHOWN: usize = 16;

impl Vm {
    /// Starts a round that moves nothing, off the schedule.
    pub fn plan_round(&mut self, now: Tick, shared: &mut Shared) {
        self.round_now(now, true, shared);
    }

    /// Lets all that waits go, and remembers what would have been tried first.
    pub fn hold_back(&mut self, shared: &Shared) {
        let mut planned = Vec::new();
        for queue in std::mem::take(&mut self.moving.queues) {
            let end = planned.len() + SHOWN;
            for &unit in queue.left() {
                match self.check_unit(unit, queue.to) {
                    Err(why) => self.refuse(why, 1),
                    Ok(from) => {
                        self.refuse(MoveRefusal::PlanOnly, 1);
                        if planned.len() < end {
                            let degree = self.place.degree(self.rounds.number, &self.pages, unit);
                            planned.push(PlannedMove {
                                gpa: self.pages.ram().first_page(unit).gpa(),
                                bytes: self.moved_pages(unit) * PAGE_SIZE,
                                from: shared.config.tier_name(from),
                                to: shared.config.tier_name(queue.to),
                                degree: degree.unwrap_or(0),
                            });
                        }
                    }
                }
            }
        }
        if let Some(round) = &mut self.rounds.current {
            round.planned = Some(planned);
        }
    }
}
