//! Rounds that only plan: all of a round but its moves.

use crate::in_rounds::{VM, config, host, host_with, last, plans};
use terrace_core::{EngineConfig, MoveRefusal, PolicyName};
use terrace_proto::snapshot::{PlannedMove, Refused};
use terrace_proto::{Command, Event, Tick};
use terrace_testkit::engine::SECOND;
use terrace_testkit::engine::scattered::{EXCHANGED, hot};

#[test]
fn a_plan_only_round_reports_moves_and_makes_none() {
    let mut h = host_with(EngineConfig {
        first_round_after_ms: 30_000,
        ..config(PolicyName::Vtmm)
    });
    h.after(0, Event::Command(Command::PlanRound(VM)));
    h.run_until(Tick(20 * SECOND));
    assert!(plans(&h).is_empty(), "nothing moved");
    assert_eq!(h.on_fast(1, hot), 180);
    let round = last(&h);
    let (up, down) = (round.proposed_promotions, round.proposed_demotions);
    assert_eq!((up, down), (EXCHANGED, EXCHANGED), "as a round that moves");
    assert_eq!(
        round.refused,
        [Refused {
            reason: MoveRefusal::PlanOnly.text().into(),
            units: up + down,
        }]
    );
    let planned = round.planned.unwrap();
    assert_eq!(planned.len(), 32, "the first of each direction");
    let (promoted, demoted): (Vec<PlannedMove>, Vec<_>) =
        planned.into_iter().partition(|m| m.to == "fast");
    assert!(promoted.iter().all(|m| m.degree >= round.threshold_degree));
    assert!(promoted.iter().all(|m| hot(m.gpa.gfn().0)));
    assert!(demoted.iter().all(|m| m.from == "fast"));
    h.run_until(Tick(90 * SECOND));
    assert_eq!(last(&h).planned, None, "the next round moves again");
    assert_eq!(last(&h).promoted_pages, last(&h).proposed_promotions);
    assert!(h.on_fast(1, hot) > 800);
}

#[test]
fn pages_that_must_not_move_are_not_in_a_plan() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(20 * SECOND));
    assert_eq!(last(&h).promoted_pages, EXCHANGED);
    let before = plans(&h).len();
    h.after(0, Event::Command(Command::PlanRound(VM)));
    h.run_until(Tick(40 * SECOND));
    let round = last(&h);
    let held: u64 = round.refused.iter().map(|r| r.units).sum();
    assert_eq!(held, round.proposed_promotions + round.proposed_demotions);
    assert_eq!(plans(&h).len(), before);
}

#[test]
fn a_plan_is_refused_while_a_round_is_under_way() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    h.after(0, Event::Command(Command::PlanRound(VM)));
    h.run_until(Tick(2 * SECOND));
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(view.current_round.unwrap().planned, None);
    let said = &view.reasons.last().unwrap().text;
    assert_eq!(said, "no round now: round 1 is under way");
}

#[test]
fn plans_of_a_quiet_vm_do_not_put_its_rounds_off() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(600 * SECOND));
    let mut moved_on = 0;
    for plan in 0..10 {
        h.after(0, Event::Command(Command::PlanRound(VM)));
        h.run_until(Tick((700 + 100 * plan) * SECOND));
        moved_on += u64::from(last(&h).planned.is_none());
    }
    // Quiet, a round comes every three periods of 60 s.
    assert!(moved_on >= 4, "{moved_on} rounds in 1,000 s");
}
