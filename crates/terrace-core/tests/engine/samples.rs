//! Samples beside accessed bits: what they add, and what a source that lies can do.

use std::sync::atomic::Ordering::Relaxed;

use crate::in_rounds::config;
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::{Event, Gfn, PageSamples, Samples, Tick, VmId};
use terrace_testkit::engine::scattered::{FAST, PAGES, hot};
use terrace_testkit::engine::{Host, SECOND, spec};
use terrace_testkit::log::written;

/// Hot pages of the VM.
const HOT: u64 = 819;

/// A VM whose pages are touched at random, so many times a second by page.
fn host(rate: impl Fn(u64) -> f64 + Send + 'static) -> Host {
    host_by(config(PolicyName::Terrace), rate)
}

fn host_by(config: EngineConfig, rate: impl Fn(u64) -> f64 + Send + 'static) -> Host {
    host_written(config, rate, |_| false)
}

/// The same with pages whose touches all write.
fn host_written(
    config: EngineConfig,
    rate: impl Fn(u64) -> f64 + Send + 'static,
    writes: impl Fn(u64) -> bool + Send + 'static,
) -> Host {
    let mut h = Host::new(config, &[PAGES, 4 * PAGES]);
    let clock = h.clock.clone();
    let window = std::sync::Mutex::new((u64::MAX, 0, 0.0));
    let heat = move |page: u64, scan: u64| {
        let mut window = window.lock().expect("one thread");
        let now = clock.load(Relaxed);
        if window.0 != scan {
            *window = (scan, now, (now - window.1) as f64 / SECOND as f64);
        }
        let clear = (-rate(page) * window.2).exp();
        let touched = drawn(page, scan) > clear;
        (touched, touched && writes(page))
    };
    h.arrive(spec(1, PAGES, FAST), Box::new(heat));
    h
}

/// An even chance, 0 to 1.
fn drawn(page: u64, at: u64) -> f64 {
    let x = (page ^ at << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
    x as f64 / f64::from(1 << 24)
}

/// A tenth of a second's samples of pages that miss so often in it, at a period of 100.
fn samples(misses: impl Fn(u64) -> f64, at: u64) -> Event {
    let pages = (0..PAGES).filter_map(|page| {
        let expected = misses(page) / 100.0;
        let more = u64::from(drawn(page, at ^ 0x5555) < expected.fract());
        let reads = (0_u32..)
            .take_while(|n| f64::from(*n) + 1.0 <= expected)
            .count() as u64
            + more;
        let reads = u32::try_from(reads).expect("few");
        let gfn = Gfn(page);
        (reads > 0).then_some(PageSamples {
            gfn,
            reads,
            writes: 0,
        })
    });
    Event::Samples(Samples {
        vm: VmId(1),
        period: 100,
        over_ns: SECOND / 10,
        pages: pages.collect(),
    })
}

/// Runs so many seconds with samples of a tenth of a second each.
fn run(h: &mut Host, seconds: u64, misses: impl Fn(u64) -> f64) {
    let from = h.now.0;
    for tenth in 1..=10 * seconds {
        h.run_until(Tick(from + tenth * SECOND / 10));
        let event = samples(&misses, tenth);
        h.after(0, event);
    }
}

fn touched_alike(_page: u64) -> f64 {
    10.0
}

/// Misses in a tenth of a second: of hot pages ten times as many as of others.
fn missed(page: u64) -> f64 {
    if hot(page) { 50.0 } else { 5.0 }
}

#[test]
fn pages_that_bits_cannot_tell_apart_are_told_apart_by_samples() {
    let mut alone = host(touched_alike);
    alone.run_until(Tick(40 * SECOND));
    let mut h = host(touched_alike);
    run(&mut h, 40, missed);
    let (blind, there) = (alone.on_fast(1, hot), h.on_fast(1, hot));
    assert!(blind < HOT / 2, "{blind} of {HOT} by bits alone");
    assert!(there > HOT * 9 / 10, "{there} of {HOT}");
}

#[test]
fn samples_that_are_switched_off_change_nothing() {
    let mut off = config(PolicyName::Terrace);
    off.terrace.samples = false;
    let [mut alone, mut h] = [0; 2].map(|_| host_by(off.clone(), touched_alike));
    alone.run_until(Tick(20 * SECOND));
    run(&mut h, 20, missed);
    assert_eq!(alone.on_fast(1, hot), h.on_fast(1, hot));
}

#[test]
fn hot_pages_whose_data_the_caches_hold_stay_where_they_are() {
    // Bits say the opposite of what misses say.
    let mut h = host(|page| if hot(page) { 2.0 } else { 10.0 });
    run(&mut h, 60, missed);
    let there = h.on_fast(1, hot);
    assert!(there > HOT * 9 / 10, "{there} of {HOT}");
}

#[test]
fn a_source_of_pages_that_nobody_touches_is_not_believed() {
    let touched = |page: u64| {
        if page >= PAGES / 2 {
            0.0
        } else if hot(page) {
            20.0
        } else {
            0.2
        }
    };
    let mut h = host(touched);
    run(
        &mut h,
        40,
        |page| if page >= PAGES / 2 { 50.0 } else { 0.0 },
    );
    let touched_hot = |page: u64| hot(page) && page < PAGES / 2;
    let there = h.on_fast(1, touched_hot);
    assert!(there > HOT / 2 * 9 / 10, "{there} of {}", HOT / 2);
}

#[test]
fn samples_that_cease_leave_bits_alone_again() {
    let mut h = host(|page| if hot(page) { 20.0 } else { 3.0 });
    // Bits say the opposite.
    run(&mut h, 20, |page| if hot(page) { 5.0 } else { 50.0 });
    let before = h.on_fast(1, hot);
    h.run_until(Tick(120 * SECOND));
    let there = h.on_fast(1, hot);
    assert!(
        before < HOT / 2 && there > HOT * 9 / 10,
        "{before}, {there} of {HOT}"
    );
}

#[test]
fn nonsense_is_counted_and_changes_nothing() {
    let mut h = host(|page| if hot(page) { 20.0 } else { 0.2 });
    h.run_until(Tick(10 * SECOND));
    let malformed = |h: &Host| {
        h.engine()
            .vm(VmId(1))
            .expect("arrived")
            .counters
            .malformed_answers
    };
    let before = malformed(&h);
    let event = |period, over_ns, gfn| {
        let all = PageSamples {
            gfn: Gfn(gfn),
            reads: u32::MAX,
            writes: u32::MAX,
        };
        Event::Samples(Samples {
            vm: VmId(1),
            period,
            over_ns,
            pages: vec![all; 100_000],
        })
    };
    h.after(1, event(0, SECOND, 1));
    h.after(1, event(1, 0, 1));
    h.after(1, event(1, u64::MAX, u64::MAX));
    h.after(1, event(u32::MAX, u64::MAX, PAGES));
    h.run_until(Tick(11 * SECOND));
    assert_eq!(malformed(&h) - before, 4);
    h.run_until(Tick(40 * SECOND));
    assert!(h.on_fast(1, hot) > HOT * 9 / 10);
}

#[test]
fn written_pages_that_no_load_misses_stay_by_their_bits() {
    let rate = |page: u64| if hot(page) { 20.0 } else { 2.0 };
    let mut h = host_written(config(PolicyName::Terrace), rate, hot);
    h.guests.get_mut(&VmId(1)).expect("arrived").writes = true;
    // Loads miss on the other pages alone.
    run(&mut h, 120, |page| if hot(page) { 0.0 } else { 20.0 });
    let there = h.on_fast(1, hot);
    assert!(there > HOT * 9 / 10, "{there} of {HOT}");
}

#[test]
fn a_log_with_samples_is_replayed_to_the_same_actions() {
    let mut h = host(touched_alike);
    run(&mut h, 10, missed);
    let replayed = replay(&written(h.log())[..]).expect("the same actions");
    assert_eq!(replayed.unrecorded_actions, 0);
    assert!(replayed.events > 100 && replayed.skipped == 0);
}
