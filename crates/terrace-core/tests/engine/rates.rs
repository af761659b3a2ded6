//! Policy `terrace`: rates that outlive rounds, windows that measure, moves by benefit.

use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;

use crate::in_rounds::{config, last, scans};
use terrace_core::{EngineConfig, PolicyName, TerraceConfig};
use terrace_proto::log::Record;
use terrace_proto::snapshot::{Benefit, PageExplanation};
use terrace_proto::{
    Action, Command, Event, Gfn, PageSize, Processors, RamChange, RamRange, Rearm, Tick, TierLimit,
    VmId,
};
use terrace_testkit::engine::scattered::{FAST, PAGES, hot};
use terrace_testkit::engine::{Host, SECOND, spec};

/// Hot pages of the VM.
const HOT: u64 = 819;

/// A VM whose pages are touched at random, so many times a second by page and time in seconds.
fn host(rate: impl Fn(u64, u64) -> f64 + Send + 'static) -> Host {
    host_by(config(PolicyName::Terrace), rate)
}

/// The same with parts of the policy switched off.
fn host_without(
    off: impl FnOnce(&mut TerraceConfig),
    rate: impl Fn(u64, u64) -> f64 + Send + 'static,
) -> Host {
    let mut config = config(PolicyName::Terrace);
    off(&mut config.terrace);
    host_by(config, rate)
}

fn host_by(config: EngineConfig, rate: impl Fn(u64, u64) -> f64 + Send + 'static) -> Host {
    let mut h = Host::new(config, &[PAGES, 4 * PAGES]);
    let clock = h.clock.clone();
    // The scan under way, when it began, and the time since the one before, s.
    let window = Mutex::new((u64::MAX, 0, 0.0));
    let heat = move |page: u64, scan: u64| {
        let mut window = window.lock().expect("one thread");
        let now = clock.load(Relaxed);
        if window.0 != scan {
            *window = (scan, now, (now - window.1) as f64 / SECOND as f64);
        }
        let clear = (-rate(page, now / SECOND) * window.2).exp();
        let drawn = (page ^ scan << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let drawn = (drawn ^ drawn >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        (drawn as f64 / f64::from(1 << 24) > clear, false)
    };
    h.arrive(spec(1, PAGES, FAST), Box::new(heat));
    h
}

fn moved(h: &Host) -> u64 {
    let counters = h.engine().vm(VmId(1)).expect("a VM that arrived").counters;
    counters.promoted_pages + counters.demoted_pages
}

fn scattered(page: u64, _second: u64) -> f64 {
    if hot(page) { 20.0 } else { 0.2 }
}

#[test]
fn a_full_fast_tier_exchanges_from_the_first_rounds_on() {
    let mut h = host(scattered);
    h.run_until(Tick(10 * SECOND));
    let there = h.on_fast(1, hot);
    assert!(there > HOT * 95 / 100, "{there} of {HOT}");
    assert!(scans(&h).iter().all(|(_, scan)| scan.rearm == Rearm::All));
    assert!(
        h.engine()
            .vm(VmId(1))
            .expect("a VM that arrived")
            .counters
            .rounds
            >= 3
    );
    assert!(last(&h).known_pages == PAGES);
}

#[test]
fn pages_that_the_first_tier_has_no_room_for_are_told() {
    let mut h = host(scattered);
    let limit = |ceiling_bytes| TierLimit {
        floor_bytes: 0,
        ceiling_bytes,
    };
    let none = Command::Limits(VmId(1), vec![limit(0), limit(u64::MAX)]);
    h.after(0, Event::Command(none));
    h.run_until(Tick(30 * SECOND));
    assert_eq!(h.on_fast(1, |_| true), 0);
    let view = h.engine().vm(VmId(1)).expect("a VM that arrived");
    let why = "are worth a move, but the first tier has no room";
    assert!(
        view.reasons.iter().any(|reason| reason.text.contains(why)),
        "{:?}",
        view.reasons
    );
}

#[test]
fn windows_become_as_long_as_the_border_needs() {
    // The border is among the pages that are touched twice a second: half of them are clear after 347 ms.
    let mut h = host(|page, _| if page % 10 == 3 { 20.0 } else { 2.0 });
    h.run_until(Tick(300 * SECOND));
    let starts: Vec<u64> = scans(&h).iter().map(|(at, _)| at.0).collect();
    let gaps: Vec<u64> = starts.windows(2).map(|two| two[1] - two[0]).collect();
    assert!(gaps[1] < SECOND / 20, "{}", gaps[1]);
    let late = &gaps[gaps.len() - 6..];
    assert!(
        late.iter()
            .any(|gap| (SECOND / 4..SECOND / 2).contains(gap)),
        "{late:?}"
    );
}

#[test]
fn nothing_moves_for_what_is_placed_well() {
    let mut h = host(scattered);
    h.run_until(Tick(20 * SECOND));
    let before = moved(&h);
    h.run_until(Tick(300 * SECOND));
    let later = moved(&h) - before;
    assert!(later < HOT / 5, "{before} {later}");
}

#[test]
fn rounds_that_save_less_than_they_cost_become_rarer() {
    let mut h = host(scattered);
    let rounds = |h: &Host| {
        h.engine()
            .vm(VmId(1))
            .expect("a VM that arrived")
            .counters
            .rounds
    };
    h.run_until(Tick(10 * SECOND));
    let first = rounds(&h);
    h.run_until(Tick(60 * SECOND));
    let before = rounds(&h);
    h.run_until(Tick(120 * SECOND));
    let later = rounds(&h) - before;
    // 60 s of rounds 8 s apart, or nearly.
    assert!((4..=12).contains(&later) && first >= 3, "{first} {later}");
}

#[test]
fn rounds_are_usual_ones_while_a_load_falls() {
    let mut h = host(|page, second| match second {
        0..100 => scattered(page, second),
        _ => 0.0,
    });
    let rounds = |h: &Host| {
        let vm = h.engine().vm(VmId(1)).expect("a VM that arrived");
        vm.counters.rounds
    };
    h.run_until(Tick(100 * SECOND));
    let before = rounds(&h);
    h.run_until(Tick(160 * SECOND));
    let meanwhile = rounds(&h) - before;
    // Eight seconds apart they would be seven.
    assert!(meanwhile >= 12, "{meanwhile}");
    h.run_until(Tick(600 * SECOND));
    let before = rounds(&h);
    h.run_until(Tick(660 * SECOND));
    let later = rounds(&h) - before;
    assert!(later <= 12, "averages have followed: {later}");
}

#[test]
fn a_uniform_load_moves_less_than_under_vtmm() {
    let [own, vtmm] = [PolicyName::Terrace, PolicyName::Vtmm].map(|policy| {
        let mut h = host_by(config(policy), |_, _| 5.0);
        h.run_until(Tick(600 * SECOND));
        moved(&h)
    });
    assert!(own * 10 < vtmm, "{own}, vtmm {vtmm}");
}

#[test]
fn a_vm_that_nobody_uses_moves_nothing() {
    let mut h = host(|_, _| 0.0);
    h.run_until(Tick(120 * SECOND));
    assert_eq!(moved(&h), 0);
}

fn moving(page: u64, second: u64) -> f64 {
    let hot = if second < 60 { 3 } else { 1 };
    if page % 5 == hot { 20.0 } else { 0.2 }
}

#[test]
fn a_hot_set_that_moves_is_followed_within_seconds() {
    let mut h = host(moving);
    h.run_until(Tick(60 * SECOND));
    assert!(h.on_fast(1, |page| page % 5 == 3) > HOT * 99 / 100);
    h.run_until(Tick(80 * SECOND));
    let there = h.on_fast(1, |page| page % 5 == 1);
    assert!(there > HOT * 95 / 100, "{there} of {HOT}");
}

#[test]
fn other_ram_begins_anew() {
    let mut h = host(scattered);
    h.run_until(Tick(30 * SECOND));
    let all = RamRange {
        start: Gfn(0),
        pages: PAGES,
    };
    for (after, ram) in [(0, vec![]), (SECOND, vec![all])] {
        let (vm, unit) = (VmId(1), PageSize::Base);
        h.after(after, Event::RamChanged(RamChange { vm, ram, unit }));
    }
    h.run_until(Tick(60 * SECOND));
    assert_eq!(last(&h).known_pages, PAGES);
}

#[test]
fn a_page_is_explained_by_its_rate() {
    let mut h = host(scattered);
    h.run_until(Tick(5 * SECOND));
    let now = h.now;
    let page = h.engine().explain_page(VmId(1), Gfn(3), now).unwrap();
    let text = page.because.join(" ");
    assert!(text.contains("times a second"), "{text}");
    assert_eq!(page.level, 0);
}

#[test]
fn without_pace_rounds_come_though_they_save_little() {
    let [with, without] = [true, false].map(|pace| {
        let mut h = host_without(|parts| parts.pace = pace, |_, _| 5.0);
        h.run_until(Tick(120 * SECOND));
        h.engine()
            .vm(VmId(1))
            .expect("a VM that arrived")
            .counters
            .rounds
    });
    assert!(without > 2 * with, "{with}, {without}");
}

#[test]
fn without_fitting_windows_are_as_long_as_configured() {
    let mut h = host_without(|parts| parts.fit_windows = false, scattered);
    h.run_until(Tick(60 * SECOND));
    let starts: Vec<u64> = scans(&h).iter().map(|(at, _)| at.0).collect();
    let mut gaps: Vec<u64> = starts.windows(2).map(|two| two[1] - two[0]).collect();
    gaps.sort_unstable();
    let window = config(PolicyName::Terrace).window_ms * SECOND / 1000;
    let usual = gaps[gaps.len() / 2];
    assert!((window..window * 11 / 10).contains(&usual), "{usual}");
}

#[test]
fn without_likely_rates_chance_moves_more() {
    let [with, without] = [true, false].map(|likely| {
        let mut h = host_without(|parts| parts.likely = likely, |_, _| 5.0);
        h.run_until(Tick(120 * SECOND));
        moved(&h)
    });
    assert!(without > 2 * with, "{with}, {without}");
}

#[test]
fn without_beginning_anew_a_hot_set_that_moves_is_missed() {
    let mut h = host_without(|parts| parts.begin_anew = false, moving);
    h.run_until(Tick(80 * SECOND));
    let there = h.on_fast(1, |page| page % 5 == 1);
    assert!(there < HOT / 2, "{there} of {HOT}");
}

#[test]
fn moves_that_cost_more_than_they_save_are_not_made() {
    let dear = |parts: &mut TerraceConfig| parts.move_ns = 1_000_000_000;
    let mut h = host_without(dear, scattered);
    h.run_until(Tick(60 * SECOND));
    assert_eq!(moved(&h), 0);
}

#[test]
fn keys_out_of_bounds_are_named() {
    let mut config = config(PolicyName::Terrace);
    config.terrace.misses_per_touch = 0;
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("terrace.misses_per_touch"), "{error}");
    config.terrace = TerraceConfig {
        recent_ms: 60_000,
        long_ms: 59_999,
        ..TerraceConfig::default()
    };
    let error = config.validate().unwrap_err().to_string();
    assert!(error.contains("terrace.long_ms"), "{error}");
}

/// The explanation of the first page outside fast memory, or in it, that is hot or not.
fn explained(h: &Host, is_hot: bool, tier: &str) -> PageExplanation {
    let pages = (0..PAGES).filter(|page| hot(*page) == is_hot);
    let explained = pages.filter_map(|page| h.engine().explain_page(VmId(1), Gfn(page), h.now));
    explained
        .into_iter()
        .find(|page| page.tier.as_deref() == Some(tier) && page.degree > 0)
        .expect("such a page")
}

/// The saving by the figures that an explanation names, ns.
fn by_its_figures(sum: Benefit) -> u64 {
    let other = sum.other_touches_per_1000_s.unwrap_or(0);
    let difference = sum.touches_per_1000_s.saturating_sub(other);
    difference * sum.misses_per_touch * sum.miss_extra_ns * sum.stay_ms / 1_000_000
}

#[test]
fn a_page_is_explained_by_what_its_exchange_would_save() {
    let mut dear = config(PolicyName::Terrace);
    dear.terrace.move_ns = 1_000_000_000;
    let mut h = host_by(dear, scattered);
    h.run_until(Tick(20 * SECOND));
    let page = explained(&h, true, "slow");
    let sum = page.benefit.expect("a round has ended");
    let saves = by_its_figures(sum);
    // 20 times a second in place of 0.2.
    assert!((3_000_000..5_000_000).contains(&saves), "{sum:?}");
    assert!(saves.abs_diff(sum.saves_ns) < saves / 50, "{sum:?}");
    assert!(!sum.pays && sum.costs_ns == 2_000_000_000, "{sum:?}");
    let text = &page.because[1];
    assert!(
        text.contains("the coldest page in fast") && text.ends_with("not worth it"),
        "{text}"
    );

    let mut h = host(scattered);
    h.run_until(Tick(20 * SECOND));
    for (is_hot, tier) in [(true, "fast"), (false, "slow")] {
        let sum = explained(&h, is_hot, tier)
            .benefit
            .expect("a round has ended");
        assert!(
            !sum.pays && sum.other_touches_per_1000_s.is_some(),
            "{sum:?}"
        );
    }
}

#[test]
fn a_map_of_heat_shows_rates() {
    let mut h = host(scattered);
    let warm = |h: &Host| {
        let map = h.engine().heat_map(VmId(1), 8).expect("a VM that arrived");
        let sum = |tier: usize| {
            map.cells
                .iter()
                .map(|cell| cell.warm_pages[tier])
                .sum::<u64>()
        };
        (sum(0), sum(1))
    };
    h.run_until(Tick(1));
    assert_eq!(warm(&h), (0, 0), "no round has ended");
    h.run_until(Tick(20 * SECOND));
    let (fast, slow) = warm(&h);
    assert!(fast >= HOT * 95 / 100 && slow * 10 < PAGES, "{fast} {slow}");
}

/// How often the engine asked for all pages' places.
fn asked(h: &Host) -> usize {
    let records = h.log().iter();
    records
        .filter(|(_, record)| matches!(record, Record::Action(Action::QueryPlacement(_))))
        .count()
}

fn rounds(h: &Host) -> u64 {
    let view = h.engine().vm(VmId(1)).expect("a VM that arrived");
    view.counters.rounds
}

#[test]
fn places_that_stay_as_they_are_are_not_asked_for_in_each_round() {
    let mut h = host(scattered);
    h.run_until(Tick(60 * SECOND));
    let (asked, rounds) = (asked(&h), rounds(&h));
    assert!((3..=8).contains(&asked) && rounds >= 10, "{asked} {rounds}");
}

#[test]
fn pages_that_somebody_else_moves_are_found_within_a_minute() {
    let mut h = host(scattered);
    h.run_until(Tick(60 * SECOND));
    let guest = h.guests.get_mut(&VmId(1)).expect("a VM that arrived");
    // The kernel takes all hot pages out of fast memory.
    for (page, tier) in (0..).zip(&mut guest.tier) {
        if hot(page) {
            *tier = 1;
        }
    }
    assert_eq!(h.on_fast(1, hot), 0);
    h.run_until(Tick(135 * SECOND));
    let there = h.on_fast(1, hot);
    assert!(there > HOT * 95 / 100, "{there} of {HOT}");
}

#[test]
fn more_processors_allow_more_scans() {
    let [one, eight] = [1, 8].map(|vcpus| {
        let mut h = host_without(|keys| keys.pace = false, |_, _| 20.0);
        h.guests.get_mut(&VmId(1)).expect("a VM").cpu_ns = 10_000_000;
        let vm = VmId(1);
        h.after(0, Event::Processors(Processors { vm, vcpus }));
        h.run_until(Tick(120 * SECOND));
        rounds(&h)
    });
    // Nine scans of 10 ms are one percent of 9 s, or of a little more than one.
    assert!((10..=15).contains(&one), "{one}");
    assert!((60..=110).contains(&eight), "{eight}");
}
