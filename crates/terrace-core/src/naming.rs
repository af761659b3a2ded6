//! Plans that a guest carries out by the frames that are named to it (coordinated mode).
//!
//! The answer to frames is a number: those that the agent moved and those that it refused, counters of its heartbeat. A plan
//! ends once all of its frames were counted, by the guest's silence, or because the guest is no longer trusted. No more than 1,024 frames
//! are named in a second (HMvisor §3.2.1).

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use terrace_proto::agent::Frames;
use terrace_proto::{Gfn, MovePlan, MoveReport, Tick, TierId, VmId};

use crate::engine::report_of_count;

/// Most frames of a message, and of a second.
const AT_ONCE: usize = 1024;
/// Least time between two messages to one guest.
const PAUSE: Duration = Duration::from_secs(1);
/// Time for which an answer is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// Counters of frames in an agent's heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counted {
    /// Frames that it moved.
    pub taken: u64,
    /// Frames that it left.
    pub refused: u64,
}

/// The plans of guests that move their pages.
#[derive(Debug, Default)]
pub struct NamedPlans {
    plans: BTreeMap<VmId, VecDeque<Waiting>>,
    /// Time before which no other message is sent to a guest, whatever plan it is of.
    not_before: BTreeMap<VmId, Tick>,
    /// Number of the last message.
    generation: u64,
}

/// A plan that is carried out.
#[derive(Debug)]
struct Waiting {
    plan: MovePlan,
    began: Tick,
    /// Moves that were named and answered, the first ones.
    answered: usize,
    moved: u64,
    left: u64,
    /// The message under way.
    sent: Option<Sent>,
}

/// A message under way.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Tick,
    frames: usize,
    before: Counted,
}

impl NamedPlans {
    /// A VM's guest does so no longer: what it did of its plans so far.
    pub fn end(&mut self, vm: VmId, now: Tick) -> Vec<MoveReport> {
        self.not_before.retain(|_, until| *until > now);
        let plans = self.plans.remove(&vm).unwrap_or_default();
        plans.into_iter().map(|plan| plan.report(now)).collect()
    }

    /// Takes in a plan.
    pub fn push(&mut self, now: Tick, plan: MovePlan) {
        let plans = self.plans.entry(plan.vm).or_default();
        plans.push_back(Waiting {
            plan,
            began: now,
            answered: 0,
            moved: 0,
            left: 0,
            sent: None,
        });
    }

    /// The frames to name now, if it is time for some.
    pub fn next(&mut self, vm: VmId, now: Tick, counted: Counted) -> Option<Frames> {
        let waiting = self.plans.get_mut(&vm)?.front_mut()?;
        let rests = self.not_before.get(&vm).is_some_and(|until| now < *until);
        if waiting.sent.is_some() || rests {
            return None;
        }
        self.not_before.insert(vm, now.after(PAUSE));
        let moves = &waiting.plan.moves[waiting.answered..];
        let moves = &moves[..moves.len().min(AT_ONCE)];
        let of = |fast: bool| -> Vec<Gfn> {
            let named = moves.iter().filter(|m| (m.to == TierId::FAST) == fast);
            named.map(|m| m.gfn).collect()
        };
        self.generation += 1;
        waiting.sent = Some(Sent {
            at: now,
            frames: moves.len(),
            before: counted,
        });
        Frames::new(self.generation, of(true), of(false)).ok()
    }

    /// Takes in the counters of a heartbeat; a plan that ends by that is reported.
    pub fn heard(&mut self, vm: VmId, now: Tick, counted: Counted) -> Option<MoveReport> {
        let plans = self.plans.get_mut(&vm)?;
        let waiting = plans.front_mut()?;
        let sent = waiting.sent?;
        let taken = counted.taken.saturating_sub(sent.before.taken);
        let refused = counted.refused.saturating_sub(sent.before.refused);
        let all = sent.frames as u64;
        let late = now.since(sent.at) >= PATIENCE;
        if taken.saturating_add(refused) < all && !late {
            return None;
        }
        waiting.sent = None;
        waiting.answered += sent.frames;
        // A guest that claims more than was named moved no more than that.
        let taken = taken.min(all);
        waiting.moved += taken;
        waiting.left += refused.min(all - taken);
        if waiting.answered < waiting.plan.moves.len() && !late {
            return None;
        }
        let mut plan = plans.pop_front()?;
        plan.answered = plan.plan.moves.len();
        Some(plan.report(now))
    }
}

impl Waiting {
    fn report(&self, now: Tick) -> MoveReport {
        let elapsed = now.since(self.began).as_nanos();
        let elapsed = u64::try_from(elapsed).unwrap_or(u64::MAX);
        report_of_count(&self.plan, self.moved, self.left, elapsed)
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::{MoveStatus, PageMove, PlanId};

    use super::*;

    const VM: VmId = VmId(3);
    const SECOND: u64 = 1_000_000_000;

    fn plan(id: u64, pages: u64) -> MovePlan {
        let moves = (0..pages).map(|page| PageMove {
            gfn: Gfn(page),
            to: TierId(u8::from(page % 2 == 1)),
        });
        MovePlan {
            id: PlanId(id),
            vm: VM,
            moves: moves.collect(),
        }
    }

    fn counted(taken: u64, refused: u64) -> Counted {
        Counted { taken, refused }
    }

    fn moved(report: &MoveReport) -> usize {
        let results = report.results.iter();
        results.filter(|r| r.status == MoveStatus::Moved).count()
    }

    #[test]
    fn a_plan_ends_once_all_of_its_frames_were_counted() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 10));
        let frames = named.next(VM, Tick(0), counted(100, 5)).unwrap();
        assert_eq!((frames.promote().len(), frames.demote().len()), (5, 5));
        assert_eq!(
            named.next(VM, Tick(0), counted(100, 5)),
            None,
            "one at a time"
        );
        assert_eq!(named.heard(VM, Tick(SECOND), counted(103, 6)), None);
        let report = named.heard(VM, Tick(SECOND), counted(107, 8)).unwrap();
        assert_eq!((report.id, moved(&report)), (PlanId(1), 7));
        assert_eq!(named.heard(VM, Tick(SECOND), counted(200, 8)), None);
    }

    #[test]
    fn no_more_than_a_thousand_frames_are_named_in_a_second() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 2500));
        named.push(Tick(0), plan(2, 4));
        let (mut taken, mut sent, mut reports) = (0, Vec::new(), Vec::new());
        for tenth in 0..60 {
            let now = Tick(tenth * SECOND / 10);
            if let Some(frames) = named.next(VM, now, counted(taken, 0)) {
                let all = frames.promote().len() + frames.demote().len();
                taken += all as u64;
                sent.push((tenth, all));
            }
            reports.extend(named.heard(VM, now, counted(taken, 0)));
        }
        assert_eq!(sent, [(0, 1024), (10, 1024), (20, 452), (30, 4)]);
        assert_eq!(reports.iter().map(moved).collect::<Vec<_>>(), [2500, 4]);
    }

    #[test]
    fn a_plan_that_comes_after_the_last_one_ended_waits_too() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 1024));
        named.next(VM, Tick(0), counted(0, 0)).unwrap();
        named.heard(VM, Tick(1), counted(1024, 0)).unwrap();
        named.push(Tick(2), plan(2, 1024));
        assert_eq!(named.next(VM, Tick(2), counted(1024, 0)), None);
        // Nor does a guest that another side takes over from get more.
        named.end(VM, Tick(3));
        named.push(Tick(4), plan(3, 1024));
        assert_eq!(named.next(VM, Tick(4), counted(1024, 0)), None);
        let frames = named.next(VM, Tick(SECOND), counted(1024, 0));
        assert!(frames.is_some());
    }

    #[test]
    fn a_guest_that_does_not_answer_ends_its_plan() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 10));
        named.next(VM, Tick(0), counted(0, 0)).unwrap();
        assert_eq!(named.heard(VM, Tick(9 * SECOND), counted(2, 0)), None);
        let report = named.heard(VM, Tick(10 * SECOND), counted(2, 0)).unwrap();
        assert_eq!(moved(&report), 2);
    }

    #[test]
    fn a_guest_that_reboots_counts_from_nothing_and_ends_its_plan() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 10));
        named.push(Tick(0), plan(2, 10));
        named.next(VM, Tick(0), counted(900, 40)).unwrap();
        // Its agent's counters begin anew; those of before mean nothing.
        assert_eq!(named.heard(VM, Tick(SECOND), counted(0, 0)), None);
        assert_eq!(named.heard(VM, Tick(2 * SECOND), counted(10, 0)), None);
        let report = named.heard(VM, Tick(10 * SECOND), counted(10, 0)).unwrap();
        assert_eq!((report.id, moved(&report)), (PlanId(1), 0));
        named.next(VM, Tick(10 * SECOND), counted(10, 0)).unwrap();
        let report = named.heard(VM, Tick(11 * SECOND), counted(17, 3)).unwrap();
        assert_eq!((report.id, moved(&report)), (PlanId(2), 7));
    }

    #[test]
    fn a_guest_that_claims_more_than_was_named_moved_no_more() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 10));
        named.next(VM, Tick(0), counted(0, 0)).unwrap();
        let report = named
            .heard(VM, Tick(1), counted(u64::MAX, u64::MAX))
            .unwrap();
        assert_eq!(moved(&report), 10);
    }

    #[test]
    fn a_guest_that_is_not_trusted_any_more_leaves_its_plans() {
        let mut named = NamedPlans::default();
        named.push(Tick(0), plan(1, 10));
        named.push(Tick(0), plan(2, 10));
        named.next(VM, Tick(0), counted(0, 0)).unwrap();
        let reports = named.end(VM, Tick(5));
        assert_eq!(reports.iter().map(moved).collect::<Vec<_>>(), [0, 0]);
        assert!(named.next(VM, Tick(6), counted(0, 0)).is_none());
    }
}
