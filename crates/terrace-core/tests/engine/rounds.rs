//! Whole rounds on a tiny simulated host: golden counts and what each policy does.

use crate::in_rounds::{VM, config, host, last, plans, round_starts, scans};
use terrace_core::{PhaseView, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::snapshot::RankClass;
use terrace_proto::{Command, Event, Gfn, PAGE_SIZE, Rearm, Tick, TierLimit};
use terrace_testkit::engine::scattered::{EXCHANGED, FAST, PAGES, hot, scattered};
use terrace_testkit::engine::{Host, SECOND, spec};

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
    assert!(!h.log().iter().any(|(_, r)| matches!(r, Record::Action(_))));
    assert_eq!(h.engine().poll_timeout(), None);
    assert_eq!(h.engine().vm(VM).unwrap().phase, PhaseView::Unmanaged);
}

#[test]
fn prefer_fast_and_prefer_slow_reach_their_limits_unscanned() {
    let limits = |host: &mut Host, floor: u64, ceiling: u64| {
        let limit = |floor, ceiling| TierLimit {
            floor_bytes: floor * PAGE_SIZE,
            ceiling_bytes: ceiling * PAGE_SIZE,
        };
        let limits = vec![limit(floor, ceiling), limit(0, PAGES)];
        host.after(0, Event::Command(Command::Limits(VM, limits)));
    };
    let mut fast = host(PolicyName::PreferFast);
    limits(&mut fast, 0, 1500);
    fast.run_until(Tick(50 * SECOND));
    assert_eq!(fast.on_fast(1, |_| true), 1500);
    let mut slow = host(PolicyName::PreferSlow);
    limits(&mut slow, 120, 1500);
    slow.run_until(Tick(50 * SECOND));
    assert_eq!(slow.on_fast(1, |_| true), 120);
    assert!(scans(&fast).is_empty() && scans(&slow).is_empty());
}

#[test]
fn a_shuffled_ranking_does_not_find_the_hot_set() {
    let mut h = host(PolicyName::Random);
    h.run_until(Tick(300 * SECOND));
    assert!(h.engine().vm(VM).unwrap().counters.promoted_pages > 300);
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
    assert!(round.refused.iter().map(|r| r.units).sum::<u64>() == 2 * EXCHANGED);
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
    let explained = h.engine().explain_page(VM, page, h.now).unwrap();
    assert_eq!(explained.cool_down_rounds, 1);
    h.session.log_mut().clear();
    h.run_until(Tick(110 * SECOND));
    assert!(moved(&h).is_disjoint(&first), "they only just came");
    h.session.log_mut().clear();
    h.run_until(Tick(170 * SECOND));
    assert!(
        moved(&h).is_empty(),
        "all that may move is where it should be"
    );
    h.run_until(Tick(230 * SECOND));
    assert!(!moved(&h).is_disjoint(&first));
}

#[test]
fn queries_change_nothing_and_bring_no_event() {
    let run = |inspects: bool| {
        let mut h = host(PolicyName::Vtmm);
        for second in 1..130 {
            h.run_until(Tick(second * SECOND / 2));
            if inspects {
                let view = h.engine().vm(VM).unwrap();
                assert!(serde_json::to_string(&view).unwrap().contains("mechanism"));
                assert!(h.engine().explain_page(VM, Gfn(second), h.now).is_some());
            }
        }
        h.log().to_vec()
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
        h.log().to_vec()
    };
    assert!(run() == run());
}

#[test]
fn a_page_is_explained() {
    let mut h = host(PolicyName::Vtmm);
    let page = h.engine().explain_page(VM, Gfn(3), h.now);
    assert!(page.is_none(), "it has not arrived");
    h.run_until(Tick(10 * SECOND));
    let page = h.engine().explain_page(VM, Gfn(1003), h.now).unwrap();
    assert_eq!(page.class, Some(RankClass::Hot));
    assert_eq!(page.tier.as_deref(), Some("fast"));
    assert!(page.because.len() > 1 || page.cool_down_rounds == 1);
    let why = &page.because[0];
    assert!(why.contains("above the threshold 3"), "{why}");
    let cold = h.engine().explain_page(VM, Gfn(2000), h.now).unwrap();
    assert_eq!(cold.class, Some(RankClass::Cold));
    assert!(h.engine().explain_page(VM, Gfn(PAGES), h.now).is_none());
}

#[test]
fn without_a_source_of_writes_the_mechanism_says_reads_only() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(0));
    h.guests.get_mut(&VM).unwrap().writes = false;
    h.run_until(Tick(10 * SECOND));
    assert_eq!(
        h.engine().vm(VM).unwrap().mechanism.observe,
        "guest page tables, accessed bits (reads only: no source of writes), \
         multi-level queue up to level 7"
    );
    assert!(!last(&h).writes_seen);
}

#[test]
fn writes_seen_in_the_last_window_count_for_the_round() {
    let mut h = host(PolicyName::Vtmm);
    h.run_until(Tick(0));
    h.guests.get_mut(&VM).unwrap().writes = false;
    let rounds_before_writes = |h: &Host| scans(h).len() % 9;
    // The eighth window's answer is the only one with writes.
    while rounds_before_writes(&h) != 8 {
        h.run_until(Tick(h.now.0 + 100_000_000));
    }
    h.guests.get_mut(&VM).unwrap().writes = true;
    h.run_until(Tick(10 * SECOND));
    assert!(last(&h).writes_seen);
    let observe = h.engine().vm(VM).unwrap().mechanism.observe;
    assert!(observe.contains("accessed bits and writes"), "{observe}");
    let page = |gfn| h.engine().explain_page(VM, Gfn(gfn), h.now).unwrap();
    let written: Vec<_> = (0..PAGES).map(page).filter(|p| p.writes > 0).collect();
    assert!(!written.is_empty());
    assert!(written.iter().all(|p| p.writes == 1 && p.reads < 8));
}
