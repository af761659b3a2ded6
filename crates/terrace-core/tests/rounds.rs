//! Whole rounds on a tiny simulated host.

mod common;

use common::{Host, SECOND, draw, spec};
use terrace_core::{EngineConfig, PhaseView, PolicyName, RankClass, RoundSummary};
use terrace_proto::log::Record;
use terrace_proto::{
    Action, Command, Event, Gfn, MovePlan, PAGE_SIZE, Rearm, ScanFailure, ScanRequest, Tick,
    TierId, TierLimit, VmId,
};

const VM: VmId = VmId(1);
const PAGES: u64 = 4096;
const FAST: u64 = 900;
/// Golden: pages that the first round promotes, and as many that it demotes.
const EXCHANGED: u64 = 699;

fn hot(page: u64) -> bool {
    page % 5 == 3
}

/// A fifth of the pages, scattered, takes nearly all accesses.
fn scattered(page: u64, scan: u64) -> (bool, bool) {
    let d = draw(page, scan);
    if hot(page) {
        (d < 230, d < 80)
    } else {
        (d < 10, d < 2)
    }
}

fn config(policy: PolicyName) -> EngineConfig {
    EngineConfig {
        policy: policy.into(),
        ..EngineConfig::default()
    }
}

fn host_with(config: EngineConfig) -> Host {
    let mut host = Host::new(config, &[PAGES, 4 * PAGES]);
    host.arrive(spec(1, PAGES, FAST), Box::new(scattered));
    host
}

fn host(policy: PolicyName) -> Host {
    host_with(config(policy))
}

fn last(host: &Host) -> RoundSummary {
    host.engine.vm(VM).unwrap().last_round.unwrap()
}

fn actions<'a, T: 'a>(
    host: &'a Host,
    kind: impl Fn(&'a Action) -> Option<&'a T> + 'a,
) -> impl Iterator<Item = (Tick, &'a T)> + 'a {
    host.log
        .iter()
        .filter_map(move |(at, record)| match record {
            Record::Action(action) => kind(action).map(|a| (*at, a)),
            _ => None,
        })
}

fn scans(host: &Host) -> Vec<(Tick, &ScanRequest)> {
    actions(host, |a| match a {
        Action::Scan(scan) => Some(scan),
        _ => None,
    })
    .collect()
}

fn plans(host: &Host) -> Vec<(Tick, &MovePlan)> {
    actions(host, |a| match a {
        Action::Move(plan) => Some(plan),
        _ => None,
    })
    .collect()
}

fn round_starts(host: &Host) -> Vec<u64> {
    actions(host, |a| match a {
        Action::QueryPlacement(query) => Some(query),
        _ => None,
    })
    .map(|(at, _)| at.0 / SECOND)
    .collect()
}

#[test]
fn vtmm_gathers_the_hot_fifth_in_the_first_tier() {
    let mut h = host(PolicyName::Vtmm);
    assert_eq!(h.on_fast(1, hot), 180);
    h.run_until(Tick(20 * SECOND));
    let first = last(&h);
    h.run_until(Tick(190 * SECOND));
    // Golden: all 819 hot pages.
    assert_eq!(h.on_fast(1, hot), 819);
    assert_eq!(h.on_fast(1, |_| true), FAST);
    assert_eq!((first.known_pages, first.hot_pages), (PAGES, FAST));
    assert_eq!(first.threshold_degree, 3);
    assert_eq!(
        (first.promoted_pages, first.demoted_pages),
        (EXCHANGED, EXCHANGED)
    );
    assert_eq!(first.degree_histogram.iter().sum::<u64>(), PAGES);
    assert!(first.writes_seen);
}

#[test]
fn a_round_is_a_clearing_pass_and_eight_windows_of_600_ms() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(10 * SECOND));
    let scans = scans(&h);
    assert_eq!(scans.len(), 9);
    let (_, clearing) = scans[0];
    assert_eq!(clearing.rearm, Rearm::All);
    assert!(clearing.discover && !clearing.prune);
    let pruned: Vec<_> = scans[1..].iter().map(|(_, s)| s.prune).collect();
    assert_eq!(
        pruned,
        [true, true, true, false, true, true, true, false],
        "every fourth reads all leaves, the last one too"
    );
    assert!(scans[1..].iter().all(|(_, s)| !s.discover));
    // Each pass is asked for, begins 1 ms later and is answered after another 4 ms.
    let gaps = scans.windows(2).map(|w| w[1].0.since(w[0].0).as_millis());
    assert!(gaps.into_iter().all(|gap| gap == 601));
    let Rearm::Only(map) = &scans[1].1.rearm else {
        panic!("the queue names pages");
    };
    assert_eq!(map.count(), PAGES, "all pages start in level 0");
}

#[test]
fn first_touch_does_nothing() {
    let mut h = host(PolicyName::FirstTouch);
    h.run_until(Tick(300 * SECOND));
    assert!(!h.log.iter().any(|(_, r)| matches!(r, Record::Action(_))));
    assert_eq!(h.engine.poll_timeout(), None);
    assert_eq!(h.engine.vm(VM).unwrap().phase, PhaseView::Unmanaged);
}

#[test]
fn all_fast_and_all_slow_go_as_far_as_limits_allow_without_a_scan() {
    let limits = |host: &mut Host, floor: u64, ceiling: u64| {
        let limit = |floor, ceiling| TierLimit {
            floor_bytes: floor * PAGE_SIZE,
            ceiling_bytes: ceiling * PAGE_SIZE,
        };
        let limits = vec![limit(floor, ceiling), limit(0, PAGES)];
        host.after(0, Event::Command(Command::Limits(VM, limits)));
    };
    let mut fast = host(PolicyName::AllFast);
    limits(&mut fast, 0, 1500);
    fast.run_until(Tick(50 * SECOND));
    assert_eq!(fast.on_fast(1, |_| true), 1500);
    let mut slow = host(PolicyName::AllSlow);
    limits(&mut slow, 120, 1500);
    slow.run_until(Tick(50 * SECOND));
    assert_eq!(slow.on_fast(1, |_| true), 120);
    assert!(scans(&fast).is_empty() && scans(&slow).is_empty());
}

#[test]
fn a_shuffled_ranking_does_not_find_the_hot_set() {
    let mut h = host(PolicyName::Random);
    h.run_until(Tick(300 * SECOND));
    assert!(h.engine.vm(VM).unwrap().counters.promoted_pages > 300);
    let found = h.on_fast(1, hot);
    assert!((140..220).contains(&found), "{found} of 819");
}

#[test]
fn a_fixed_threshold_finds_hot_pages_that_pass_it() {
    let mut h = host(PolicyName::FixedThreshold);
    h.run_until(Tick(300 * SECOND));
    assert!(h.on_fast(1, hot) > 800);
    assert_eq!(last(&h).degree_histogram.len(), 2);
}

#[test]
fn a_vm_whose_moves_are_off_is_only_observed() {
    let mut h = Host::new(config(PolicyName::Vtmm), &[PAGES, 4 * PAGES]);
    let mut only = spec(1, PAGES, FAST);
    only.moves = false;
    h.arrive(only, Box::new(scattered));
    h.run_until(Tick(10 * SECOND));
    assert!(plans(&h).is_empty());
    let round = last(&h);
    assert_eq!(round.proposed_promotions, EXCHANGED);
    assert!(round.refused.iter().map(|(_, n)| n).sum::<u64>() == 2 * EXCHANGED);
    h.after(0, Event::Command(Command::Moves(VM, true)));
    h.run_until(Tick(70 * SECOND));
    assert!(!plans(&h).is_empty());
}

#[test]
fn a_quiet_vm_is_looked_at_every_third_period() {
    let mut h = Host::new(config(PolicyName::Vtmm), &[PAGES, 4 * PAGES]);
    h.arrive(spec(1, PAGES, FAST), Box::new(|page, _| (hot(page), false)));
    h.run_until(Tick(900 * SECOND));
    // 4,096 pages / 160 is 25 pages: the first round moved more, the others did not.
    assert_eq!(round_starts(&h), [0, 60, 120, 240, 420, 600, 780]);
}

#[test]
fn a_pause_ends_the_round_and_nothing_happens_until_resumed() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    let before = h.log.len();
    h.after(0, Event::Command(Command::Pause(None)));
    h.run_until(Tick(100 * SECOND));
    assert_eq!(h.engine.poll_timeout(), None);
    let after = &h.log[before..];
    assert!(!after.iter().any(|(_, r)| matches!(r, Record::Action(_))));
    assert_eq!(last(&h).abandoned.as_deref(), Some("paused"));
    h.after(0, Event::Command(Command::Resume(Some(VM))));
    h.run_until(Tick(119 * SECOND));
    assert_eq!(round_starts(&h), [0, 100]);
    assert_eq!(
        h.engine.vm(VM).unwrap().next_tick_at,
        Some(Tick(120 * SECOND))
    );
}

fn fail_scan(h: &mut Host, fatal: bool) {
    let id = scans(h).last().unwrap().1.id;
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
    h.run_until(Tick(h.engine.poll_timeout().unwrap().0));
    fail_scan(&mut h, false);
    h.run_until(Tick(59 * SECOND));
    let view = h.engine.vm(VM).unwrap();
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
fn a_vm_that_can_never_be_scanned_is_left_alone_with_the_reason() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(2 * SECOND));
    fail_scan(&mut h, true);
    h.run_until(Tick(300 * SECOND));
    let reason = "no root table".to_string();
    let view = h.engine.vm(VM).unwrap();
    assert_eq!(view.phase, PhaseView::Unscannable { reason });
    assert_eq!(round_starts(&h), [0]);
}

#[test]
fn a_page_that_moved_is_left_alone_in_the_next_round() {
    let mut h = Host::new(config(PolicyName::Vtmm), &[PAGES, 4 * PAGES]);
    // The hot half changes with each round (nine scans), so every page would travel each time.
    let heat = |page: u64, scan: u64| ((page + (scan - 1) / 9).is_multiple_of(2), false);
    h.arrive(spec(1, 512, 256), Box::new(heat));
    h.run_until(Tick(50 * SECOND));
    let moved = |h: &Host| {
        let all: Vec<_> = plans(h).iter().flat_map(|(_, p)| p.moves.clone()).collect();
        all.iter()
            .map(|m| m.gfn.0)
            .collect::<std::collections::BTreeSet<_>>()
    };
    let first = moved(&h);
    assert_eq!(first.len(), 256);
    let page = Gfn(*first.first().unwrap());
    let explained = h.engine.explain_page(VM, page).unwrap();
    assert_eq!(explained.cool_down_rounds, 1);
    h.log.clear();
    h.run_until(Tick(110 * SECOND));
    assert!(moved(&h).is_disjoint(&first), "they only just came");
    h.log.clear();
    h.run_until(Tick(170 * SECOND));
    assert!(
        moved(&h).is_empty(),
        "all that may move is where it should be"
    );
    h.run_until(Tick(230 * SECOND));
    assert!(!moved(&h).is_disjoint(&first));
}

#[test]
fn an_exchange_between_floor_and_ceiling_dips_by_an_eighth_at_most() {
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
        h.engine.vm(VM).unwrap().counters.busy_pages,
        round.failed_pages
    );
    assert!(h.on_fast(1, |_| true) <= FAST);
}

#[test]
fn moves_stay_within_the_budget() {
    let rate = 1 << 20;
    let mut h = host_with(EngineConfig {
        move_budget_bytes_per_s: rate,
        plan_max_bytes: 2 << 20,
        plan_max_pages: 64,
        ..EngineConfig::default()
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
        ..EngineConfig::default()
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
    h.engine
        .handle(Tick(0), Event::VmArrived(spec(1, 1024, 100)));
    while h.engine.poll_action().is_some() {}
    h.engine.handle(Tick(60 * SECOND), Event::Timer);
    let why = last(&h).abandoned.unwrap();
    assert_eq!(why, "nobody said where its pages are in time");
}

#[test]
fn looking_changes_nothing_and_without_an_event_nothing_new_comes() {
    let run = |look: bool| {
        let mut h = host(PolicyName::Vtmm);
        for second in 1..130 {
            h.run_until(Tick(second * SECOND / 2));
            if look {
                let view = h.engine.vm(VM).unwrap();
                assert!(serde_json::to_string(&view).unwrap().contains("mechanism"));
                assert!(h.engine.explain_page(VM, Gfn(second)).is_some());
                assert!(h.engine.poll_action().is_none());
            }
        }
        h.log
    };
    assert!(run(false) == run(true));
}

#[test]
fn the_same_events_give_the_same_actions() {
    let run = || {
        let mut h = host(PolicyName::Vtmm);
        h.busy_every = 7;
        h.arrive(spec(2, 2000, 300), Box::new(scattered));
        h.run_until(Tick(200 * SECOND));
        h.log
    };
    assert!(run() == run());
}

#[test]
fn a_departed_vm_gets_no_action() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(0));
    h.engine
        .handle(Tick(1), Event::Command(Command::RoundNow(VM)));
    h.engine.handle(Tick(59 * SECOND), Event::Timer);
    h.engine.handle(Tick(61 * SECOND), Event::Timer);
    h.engine.handle(Tick(61 * SECOND), Event::VmDeparted(VM));
    assert!(h.engine.poll_action().is_none());
    assert_eq!(h.engine.poll_timeout(), None);
    assert!(h.engine.vms().is_empty() && h.engine.vm(VM).is_none());
}

#[test]
fn a_page_is_explained() {
    let mut h = host(PolicyName::Vtmm);
    let page = h.engine.explain_page(VM, Gfn(3));
    assert!(page.is_none(), "it has not arrived");
    h.run_until(Tick(10 * SECOND));
    let page = h.engine.explain_page(VM, Gfn(1003)).unwrap();
    assert_eq!(page.class, RankClass::Hot);
    assert_eq!(page.tier, Some(TierId::FAST));
    assert!(page.last_move.is_some() || page.cool_down_rounds == 1);
    assert!(page.why.contains("above the threshold 3"), "{}", page.why);
    let cold = h.engine.explain_page(VM, Gfn(2000)).unwrap();
    assert_eq!(cold.class, RankClass::Cold);
    assert!(h.engine.explain_page(VM, Gfn(PAGES)).is_none());
}

#[test]
fn one_vm_does_not_take_the_whole_budget() {
    let mut h = host_with(EngineConfig {
        move_budget_bytes_per_s: 2 << 20,
        plan_max_bytes: 2 << 20,
        plan_max_pages: 32,
        ..EngineConfig::default()
    });
    h.arrive(spec(2, PAGES, FAST), Box::new(scattered));
    h.run_until(Tick(7 * SECOND));
    let promoted = [1, 2].map(|vm| {
        let round = h.engine.vm(VmId(vm)).unwrap().current_round.unwrap();
        round.promoted_pages + round.demoted_pages
    });
    assert!(promoted[0].abs_diff(promoted[1]) <= 128, "{promoted:?}");
}

#[test]
fn without_a_source_of_writes_the_mechanism_says_reads_only() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(0));
    h.guests.get_mut(&VM).unwrap().writes = false;
    h.run_until(Tick(10 * SECOND));
    assert_eq!(
        h.engine.vm(VM).unwrap().mechanism.observe,
        "guest page tables, accessed bits (reads only: no source of writes), \
         multi-level queue up to level 7"
    );
    assert!(!last(&h).writes_seen);
}
