//! The mechanism on a tiny simulated host: limits, budgets, pauses, failures.

use crate::in_rounds::{VM, config, host, host_with, last, plans, round_starts, scans};
use terrace_core::{Engine, EngineConfig, MoveRefusal, PhaseView, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::{
    Action, Command, Event, Gfn, MovePlan, PAGE_SIZE, PageBitmap, ScanAnswer, ScanFailure,
    ScanStats, Tick, TierId, TierLimit, TierMemory, VmId,
};
use terrace_testkit::engine::scattered::{EXCHANGED, FAST, PAGES, hot, scattered};
use terrace_testkit::engine::{Host, SECOND, spec};

#[test]
fn a_pause_ends_the_round_and_nothing_happens_until_resumed() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    let before = h.log().len();
    h.after(0, Event::Command(Command::Pause(None)));
    h.run_until(Tick(100 * SECOND));
    assert_eq!(h.engine().poll_timeout(), None);
    let after = &h.log()[before..];
    assert!(!after.iter().any(|(_, r)| matches!(r, Record::Action(_))));
    assert_eq!(last(&h).abandoned.as_deref(), Some("paused"));
    h.after(0, Event::Command(Command::Resume(Some(VM))));
    h.run_until(Tick(119 * SECOND));
    assert_eq!(round_starts(&h), [0, 100]);
    assert_eq!(
        h.engine().vm(VM).unwrap().next_tick_at,
        Some(Tick(120 * SECOND))
    );
}

fn fail_scan(h: &mut Host, fatal: bool) {
    let id = scans(h).last().expect("a scan").1.id;
    let failure = ScanFailure {
        id,
        vm: VM,
        reason: "no root table".into(),
        fatal,
    };
    h.after(0, Event::ScanFailed(failure));
}

#[test]
fn a_failed_scan_gives_the_round_up_until_the_next_period() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    h.run_until(Tick(h.engine().poll_timeout().unwrap().0));
    fail_scan(&mut h, false);
    h.run_until(Tick(59 * SECOND));
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(view.counters.scan_failures, 1);
    assert_eq!(
        view.counters.stale_answers, 1,
        "the answer that came after all"
    );
    assert!(
        view.reasons
            .iter()
            .any(|r| r.text.contains("no root table"))
    );
    h.run_until(Tick(70 * SECOND));
    assert_eq!(last(&h).abandoned, None);
    assert_eq!(round_starts(&h), [0, 60]);
}

#[test]
fn an_answer_that_does_not_fit_the_vm_ends_the_round() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    h.run_until(Tick(h.engine().poll_timeout().unwrap().0));
    let request = scans(&h).last().unwrap().1.clone();
    let short = PageBitmap::new(PAGES - 1);
    let answer = ScanAnswer {
        id: request.id,
        space: request.space,
        known: short.clone(),
        accessed: short,
        written: None,
        huge_leaf: PageBitmap::new(8),
        stats: ScanStats::default(),
    };
    h.after(0, Event::Scanned(Box::new(answer)));
    h.run_until(Tick(59 * SECOND));
    assert!(last(&h).abandoned.is_some());
    assert_eq!(h.engine().vm(VM).unwrap().counters.malformed_answers, 1);
}

#[test]
fn a_vm_that_can_never_be_scanned_is_left_alone_with_the_reason() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    fail_scan(&mut h, true);
    h.run_until(Tick(300 * SECOND));
    let reason = "no root table".to_string();
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(view.phase, PhaseView::Unscannable { reason });
    assert_eq!(round_starts(&h), [0]);
}

#[test]
fn an_operators_round_retries_an_unscannable_vm() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    fail_scan(&mut h, true);
    h.run_until(Tick(100 * SECOND));
    h.after(0, Event::Command(Command::RoundNow(VM)));
    h.run_until(Tick(110 * SECOND));
    assert_eq!(last(&h).abandoned, None);
    assert_eq!(round_starts(&h), [0, 100]);
}

#[test]
fn a_failed_placement_query_ends_the_round_and_keeps_places() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(30 * SECOND));
    let bytes = |h: &Host| h.engine().vm(VM).unwrap().tiers[0].bytes;
    let before = bytes(&h);
    assert!(before > 0);
    h.after(0, Event::Command(Command::RoundNow(VM)));
    h.run_until(Tick(30 * SECOND));
    let asked = h.log().iter().rev().find_map(|(_, r)| match r {
        Record::Action(Action::QueryPlacement(query)) => Some(query.id),
        _ => None,
    });
    let failure = ScanFailure {
        id: asked.expect("a query"),
        vm: VM,
        reason: "no permission".into(),
        fatal: false,
    };
    h.after(0, Event::ScanFailed(failure));
    h.run_until(Tick(31 * SECOND));
    assert_eq!(last(&h).abandoned.as_deref(), Some("no permission"));
    assert_eq!(bytes(&h), before);
}

#[test]
fn a_round_reports_its_hot_set_on_fast_before_and_after() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(20 * SECOND));
    let round = last(&h);
    assert_eq!(round.hot_pages, FAST);
    assert_eq!(round.hot_on_fast_before, FAST - EXCHANGED);
    assert_eq!(round.hot_on_fast_after, FAST);
}

#[test]
fn an_exchange_between_equal_limits_dips_by_an_eighth_at_most() {
    let mut h = Host::new(config(PolicyName::Vtmm), &[PAGES, 4 * PAGES]);
    let mut tight = spec(1, PAGES, FAST);
    tight.limits[0].floor_bytes = FAST * PAGE_SIZE;
    h.arrive(tight, Box::new(scattered));
    h.run_until(Tick(10 * SECOND));
    assert_eq!(h.on_fast(1, hot), 819);
    assert_eq!(h.on_fast(1, |_| true), FAST);
    let biggest = plans(&h).iter().map(|(_, p)| p.moves.len()).max().unwrap();
    assert!(biggest <= 2 * 900 / 8, "{biggest}");
}

#[test]
fn a_lower_ceiling_sends_the_coldest_pages_away() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(30 * SECOND));
    let limits = vec![
        TierLimit {
            floor_bytes: 0,
            ceiling_bytes: 400 * PAGE_SIZE,
        },
        TierLimit {
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
        },
    ];
    h.after(0, Event::Command(Command::Limits(VM, limits)));
    h.after(0, Event::Command(Command::RoundNow(VM)));
    h.run_until(Tick(50 * SECOND));
    assert_eq!(
        h.on_fast(1, |_| true),
        EXCHANGED,
        "what just moved is left alone"
    );
    h.after(0, Event::Command(Command::RoundNow(VM)));
    h.run_until(Tick(58 * SECOND));
    assert_eq!(h.on_fast(1, |_| true), 400);
    assert_eq!(h.on_fast(1, hot), 400);
}

#[test]
fn busy_pages_are_counted_and_the_round_goes_on() {
    let mut h = host(PolicyName::Vtmm);
    h.busy_every = 10;
    h.run_until(Tick(10 * SECOND));
    let round = last(&h);
    assert_eq!(round.abandoned, None);
    assert!(round.failed_pages > 100 && round.promoted_pages > 500);
    assert_eq!(
        h.engine().vm(VM).unwrap().counters.busy_pages,
        round.failed_pages
    );
    assert!(h.on_fast(1, |_| true) <= FAST);
}

#[test]
fn pages_mapped_by_others_stay_and_rest_for_two_rounds() {
    let mut h = host(PolicyName::Vtmm);
    let guest = h.guests.get_mut(&VM).unwrap();
    let slow = |page: &u64| hot(*page) && guest.tier[usize::try_from(*page).unwrap()] == 1;
    let others: Vec<u64> = (0..PAGES).filter(slow).take(8).collect();
    guest.others = others.iter().copied().collect();
    h.run_until(Tick(10 * SECOND));
    let round = last(&h);
    assert_eq!((round.mapped_by_others_pages, round.failed_pages), (8, 0));
    let page = h.engine().explain_page(VM, Gfn(others[0]), h.now).unwrap();
    let why = &page.because[0];
    assert!(why.contains("processes map it too"), "{why}");
    h.run_until(Tick(1800 * SECOND));
    let view = h.engine().vm(VM).unwrap();
    let of = |p: &MovePlan| p.moves.iter().filter(|m| others.contains(&m.gfn.0)).count() as u64;
    let tries: u64 = plans(&h).iter().map(|(_, plan)| of(plan)).sum();
    assert_eq!(view.counters.mapped_by_others_pages, tries);
    let rounds = view.counters.rounds;
    assert!(
        rounds >= 6 && tries >= 16,
        "{tries} tries in {rounds} rounds"
    );
    assert!(
        tries <= 8 * rounds.div_ceil(3),
        "{tries} tries in {rounds} rounds"
    );
    let reason = "8 stay because other processes map them too";
    assert!(view.reasons.iter().any(|r| r.text.contains(reason)));
}

#[test]
fn moves_stay_within_the_budget() {
    let rate = 1 << 20;
    let mut h = host_with(EngineConfig {
        move_budget_bytes_per_s: rate,
        plan_max_bytes: 2 << 20,
        plan_max_pages: 64,
        ..config(PolicyName::Vtmm)
    });
    h.run_until(Tick(40 * SECOND));
    let plans = plans(&h);
    let bytes = |p: &MovePlan| p.moves.len() as u64 * PAGE_SIZE;
    assert_eq!(
        plans.iter().map(|(_, p)| bytes(p)).sum::<u64>(),
        2 * EXCHANGED * PAGE_SIZE
    );
    for (i, (from, _)) in plans.iter().enumerate() {
        let mut sum = 0;
        for (at, plan) in &plans[i..] {
            sum += bytes(plan);
            let time = at.since(*from).as_nanos();
            let most = u128::from(rate) * time / u128::from(SECOND) + (2 << 20);
            assert!(u128::from(sum) <= most, "{sum} bytes in {time} ns");
        }
    }
}

#[test]
fn scans_that_cost_too_much_stretch_the_windows() {
    let mut h = host_with(EngineConfig {
        window_ms: 4,
        scan_cpu_share_max_percent: 25,
        ..config(PolicyName::Vtmm)
    });
    h.run_until(Tick(SECOND));
    // A scan costs 3 ms of CPU: 12 ms are a quarter.
    let scans = scans(&h);
    let gaps: Vec<_> = scans
        .windows(2)
        .map(|w| w[1].0.since(w[0].0).as_millis())
        .collect();
    assert_eq!(gaps, [13; 8]);
    assert_eq!(last(&h).scan.stretched_windows, 8);
}

#[test]
fn unanswered_questions_end_the_round_in_time() {
    let mut h = Host::new(config(PolicyName::Vtmm), &[PAGES, PAGES]);
    let arrived = Event::VmArrived(spec(1, 1024, 100));
    for (at, event) in [(0, arrived), (60, Event::Timer)] {
        let _unanswered = h.session.hear(Tick(at * SECOND), event);
    }
    let why = last(&h).abandoned.unwrap();
    assert_eq!(why, "the placement of its pages was not answered in time");
}

#[test]
fn a_departed_vm_gets_no_action() {
    // Without a session, which would leave no action to a departure.
    let mut engine = Engine::new(config(PolicyName::Vtmm)).unwrap();
    engine.handle(Tick(0), Event::VmArrived(spec(1, 1024, 100)));
    engine.handle(Tick(1), Event::Command(Command::RoundNow(VM)));
    engine.handle(Tick(59 * SECOND), Event::Timer);
    engine.handle(Tick(61 * SECOND), Event::Timer);
    engine.handle(Tick(61 * SECOND), Event::VmDeparted(VM));
    assert!(engine.poll_action().is_none());
    assert_eq!(engine.poll_timeout(), None);
    assert!(engine.vms().is_empty() && engine.vm(VM).is_none());
}

#[test]
fn one_vm_does_not_take_the_whole_budget() {
    let mut h = host_with(EngineConfig {
        move_budget_bytes_per_s: 2 << 20,
        plan_max_bytes: 2 << 20,
        plan_max_pages: 32,
        ..config(PolicyName::Vtmm)
    });
    h.arrive(spec(2, PAGES, FAST), Box::new(scattered));
    h.run_until(Tick(7 * SECOND));
    let promoted = [1, 2].map(|vm| {
        let round = h.engine().vm(VmId(vm)).unwrap().current_round.unwrap();
        round.promoted_pages + round.demoted_pages
    });
    assert!(promoted[0].abs_diff(promoted[1]) <= 128, "{promoted:?}");
}

#[test]
fn a_full_node_stops_promotions_with_the_reason_and_no_livelock() {
    let mut h = host(PolicyName::Vtmm);
    // More than the tier has; as nothing fits into the other one, only promotions are left.
    let limit = |floor, ceiling| TierLimit {
        floor_bytes: floor * PAGE_SIZE,
        ceiling_bytes: ceiling * PAGE_SIZE,
    };
    let limits = vec![limit(FAST, PAGES), limit(0, PAGES)];
    h.after(0, Event::Command(Command::Limits(VM, limits)));
    h.capacity[0] = FAST;
    // Memory that the node reports as free cannot be had.
    let lie = |tier: u8, pages: u64| TierMemory {
        tier: TierId(tier),
        total_bytes: PAGES * PAGE_SIZE,
        free_bytes: pages * PAGE_SIZE,
    };
    h.after(0, Event::Memory(vec![lie(0, 1000), lie(1, 0)]));
    h.run_until(Tick(20 * SECOND));
    let round = last(&h);
    assert_eq!(round.abandoned, None, "the round ended by itself");
    assert_eq!(round.promoted_pages, 0);
    let refused: Vec<_> = round.refused.iter().map(|r| r.reason.as_str()).collect();
    assert_eq!(refused, [MoveRefusal::NoFreeMemory.text()]);
    let counters = h.engine().vm(VM).unwrap().counters;
    assert!(counters.no_memory_pages > 0);
    assert!(
        plans(&h).len() <= 4,
        "{} plans went to a full node",
        plans(&h).len()
    );
    let said = h.engine().vm(VM).unwrap().reasons;
    assert!(
        said.iter()
            .any(|r| r.text.contains("the tier has no free memory"))
    );
}
