//! Policy `hmvisor`: epochs back to back, lists, and a bounded number of pages a second while scans run.

use crate::in_rounds::{VM, host_with, last, plans, round_starts, scans};
use terrace_core::policy::{HotnessThreshold, PolicyStages};
use terrace_core::{EngineConfig, PolicyChoice};
use terrace_proto::{Command, Event, PAGE_SIZE, PageMove, Rearm, Tick, TierId};
use terrace_testkit::engine::scattered::{FAST, hot};
use terrace_testkit::engine::{Host, SECOND};

/// Hot pages of the VM.
const HOT: u64 = 819;
/// The first moment at which a page can be on the third list, the time of clearing passes included.
const THIRD_EPOCH: u64 = 15 * SECOND;

fn stages() -> PolicyStages {
    PolicyStages {
        base: "hmvisor".into(),
        ..PolicyStages::default()
    }
}

fn config(stages: PolicyStages) -> EngineConfig {
    EngineConfig {
        policy: PolicyChoice::Composed(stages),
        ..EngineConfig::default()
    }
}

fn host(stages: PolicyStages) -> Host {
    host_with(config(stages))
}

/// Times and pages of moves into a tier.
fn into(host: &Host, tier: TierId) -> Vec<(Tick, PageMove)> {
    let plans = plans(host).into_iter();
    let moves = plans.flat_map(|(at, plan)| plan.moves.iter().map(move |m| (at, *m)));
    moves.filter(|(_, m)| m.to == tier).collect()
}

#[test]
fn epochs_follow_each_other_and_every_scan_re_arms_all() {
    let mut h = host(stages());
    h.run_until(Tick(20 * SECOND));
    assert_eq!(round_starts(&h), [0, 5, 10, 15]);
    let scans = scans(&h);
    assert!(scans.iter().all(|(_, scan)| scan.rearm == Rearm::All));
    let first: Vec<_> = scans.iter().take(51).map(|(at, _)| at.0).collect();
    let gaps: Vec<_> = first[1..].windows(2).map(|two| two[1] - two[0]).collect();
    let window = 100_000_000;
    assert!(
        gaps.iter().all(|gap| gap.abs_diff(window) < window / 10),
        "{gaps:?}"
    );
    assert_eq!(last(&h).scan.scans, 51);
    assert_eq!(last(&h).threshold_degree, 31, "above 30");
}

#[test]
fn hot_pages_climb_three_lists_and_then_come_while_scans_run() {
    let mut h = host(stages());
    h.run_until(Tick(THIRD_EPOCH));
    assert!(plans(&h).is_empty(), "a page is on the second list at most");
    h.run_until(Tick(THIRD_EPOCH + 4 * SECOND));
    assert_eq!(h.on_fast(1, hot), HOT);
    assert_eq!(
        h.on_fast(1, |page| !hot(page)),
        0,
        "single-sided: cold pages go"
    );
    assert_eq!(last(&h).hot_pages, HOT);
}

#[test]
fn no_second_promotes_more_than_the_lists_may_name() {
    const PAGES_PER_S: u64 = 50;
    let config = EngineConfig {
        list_bytes_per_s: PAGES_PER_S * PAGE_SIZE,
        ..config(stages())
    };
    let mut h = host_with(config);
    h.run_until(Tick(26 * SECOND));
    for tier in [TierId::FAST, TierId::SLOW] {
        let moves = into(&h, tier);
        assert!(moves.len() as u64 > 6 * PAGES_PER_S, "{}", moves.len());
        // Promotions wait for the room that their second's demotions make, by so much less than a second.
        let second = SECOND - SECOND / 10;
        for (from, _) in &moves {
            let near = moves
                .iter()
                .filter(|(at, _)| at >= from && at.0 < from.0 + second);
            assert!(near.count() as u64 <= PAGES_PER_S);
        }
    }
    let starts = round_starts(&h);
    assert_eq!(starts, [0, 5, 10, 15, 20, 25], "moves hold no epoch up");
}

#[test]
fn double_sided_moves_change_equal_numbers_of_places() {
    let mut h = host(PolicyStages {
        sides: Some("double".into()),
        ..stages()
    });
    h.run_until(Tick(THIRD_EPOCH + 10 * SECOND));
    assert_eq!(h.on_fast(1, hot), HOT);
    assert_eq!(h.on_fast(1, |_| true), FAST);
    assert_eq!(into(&h, TierId::FAST).len(), into(&h, TierId::SLOW).len());
}

#[test]
fn a_lower_threshold_takes_more_pages_and_auto_what_repays() {
    let hot_pages = |threshold| {
        let mut h = host(PolicyStages {
            hotness_threshold: Some(threshold),
            ..stages()
        });
        h.run_until(Tick(9 * SECOND));
        (last(&h).hot_pages, last(&h).threshold_degree)
    };
    let (one, _) = hot_pages(HotnessThreshold::Above(1));
    assert_eq!(one, FAST, "more pages than fit have been seen twice");
    let (auto, least) = hot_pages(HotnessThreshold::Auto);
    assert!((HOT..=FAST).contains(&auto), "{auto}");
    assert!((2..=30).contains(&least), "the lowest that fits: {least}");
}

#[test]
fn a_page_that_stays_busy_climbs_again_before_it_is_tried_again() {
    let mut h = host(stages());
    h.busy_every = 2;
    h.run_until(Tick(THIRD_EPOCH + 4 * SECOND));
    let tried = into(&h, TierId::FAST);
    let busy = h.engine().vm(VM).unwrap().counters.busy_pages;
    assert!(busy > 100);
    for (at, page) in &tried {
        let again = tried.iter().filter(|(t, p)| p.gfn == page.gfn && t > at);
        assert_eq!(again.count(), 0, "three epochs have not passed");
    }
    h.busy_every = 0;
    h.run_until(Tick(3 * THIRD_EPOCH));
    assert_eq!(h.on_fast(1, hot), HOT);
}

#[test]
fn sub_epochs_beyond_the_scans_share_are_longer_and_said() {
    let mut h = host(stages());
    h.guests.get_mut(&VM).unwrap().cpu_ns = 100_000_000;
    h.run_until(Tick(19 * SECOND));
    let round = last(&h);
    assert_eq!(round.scan.stretched_windows, 50);
    let view = h.engine().vm(VM).unwrap();
    let said = view
        .reasons
        .iter()
        .filter(|r| r.text.contains("a scan took 100 ms"));
    assert_eq!(said.count(), 2, "the second epoch has begun");
    let took = round.ended_at.unwrap().0 - round.started_at.0;
    assert!(took >= 10 * SECOND, "{took}");
}

#[test]
fn a_plan_only_epoch_changes_no_list_and_moves_off_move_nothing() {
    let mut h = host(stages());
    h.after(0, Event::Command(Command::Moves(VM, false)));
    h.run_until(Tick(30 * SECOND));
    assert!(plans(&h).is_empty());
    let refused = &last(&h).refused;
    assert!(
        refused.iter().any(|r| r.reason == "moves are off"),
        "{refused:?}"
    );
    h.after(0, Event::Command(Command::Moves(VM, true)));
    h.run_until(Tick(36 * SECOND));
    assert_eq!(h.on_fast(1, hot), HOT);
}

#[test]
fn what_runs_and_a_pages_list_are_shown() {
    let mut h = host(stages());
    h.run_until(Tick(11 * SECOND));
    let view = h.engine().vm(VM).unwrap();
    let said = "reads + 1 x writes above 30 in 50 sub-epochs of 100 ms; 3 lists, decay after 2 epochs; 4096 KiB a second";
    assert_eq!(view.mechanism.estimate, said);
    let page = terrace_proto::Gfn(2003);
    let explained = h.engine().explain_page(VM, page, h.now).unwrap();
    assert_eq!((explained.level, explained.windows), (2, 50));
    assert!(
        explained.because[0].contains("hot list 2 of 3"),
        "{:?}",
        explained.because
    );
}
