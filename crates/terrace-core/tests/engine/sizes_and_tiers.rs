//! Rounds on VMs with 2 MiB pages, with both sizes, with holes, and on machines with three tiers.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use terrace_core::{PolicyName, TierConfig, TierKind};
use terrace_proto::log::Record;
use terrace_proto::{
    Action, Event, Gfn, PAGE_SIZE, PageSize, RamRange, Tick, TierLimit, VmId, VmSpec,
};
use terrace_testkit::engine::{Host, SECOND, spec};

use crate::in_rounds::config;

const VM: VmId = VmId(1);
const HUGE: u64 = 512;

/// Blocks 4 to 7 are hot, by one page of each.
fn one_page_of_each(page: u64, _: u64) -> (bool, bool) {
    (page / HUGE >= 4 && page % HUGE == 99, false)
}

fn with_huge_pages(policy: PolicyName, unit: PageSize, fast: u64) -> Host {
    let mut h = Host::new(config(policy), &[16 * HUGE, 64 * HUGE]);
    let mut vm = spec(1, 8 * HUGE, fast);
    vm.unit = unit;
    h.arrive(vm, Box::new(one_page_of_each));
    h.guests.get_mut(&VM).unwrap().huge = (0..8).collect();
    h
}

fn fast_blocks(h: &Host) -> Vec<bool> {
    let tier = &h.guests[&VM].tier;
    tier.chunks(512)
        .map(|b| b.iter().all(|t| *t == 0))
        .collect()
}

const HOT_BLOCKS_FAST: [bool; 8] = [false, false, false, false, true, true, true, true];

#[test]
fn a_vm_of_huge_pages_is_ranked_by_huge_pages_every_two_minutes() {
    let mut h = with_huge_pages(PolicyName::Vtmm, PageSize::Huge, 4 * HUGE);
    h.run_until(Tick(130 * SECOND));
    assert_eq!(
        fast_blocks(&h)[6..],
        [true; 2],
        "a quarter of it in the first round"
    );
    let rounds = h.log().iter().filter_map(|(at, r)| match r {
        Record::Action(Action::QueryPlacement(_)) => Some(at.0 / SECOND),
        _ => None,
    });
    assert_eq!(rounds.collect::<Vec<_>>(), [0, 120]);
    h.run_until(Tick(1000 * SECOND));
    assert_eq!(fast_blocks(&h), HOT_BLOCKS_FAST);
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(view.tiers[0].bytes, 4 * HUGE * PAGE_SIZE);
    assert_eq!(view.counters.promoted_pages, 4 * HUGE);
}

#[test]
fn huge_blocks_of_a_vm_ranked_by_4_kib_move_whole() {
    let mut h = with_huge_pages(PolicyName::Terrace, PageSize::Base, 4 * HUGE);
    h.run_until(Tick(1000 * SECOND));
    assert_eq!(fast_blocks(&h), HOT_BLOCKS_FAST);
    let view = h.engine().vm(VM).unwrap();
    assert_eq!(view.tiers[0].bytes, 4 * HUGE * PAGE_SIZE);
    let gfns = h.log().iter().filter_map(|(_, r)| match r {
        Record::Action(Action::Move(plan)) => Some(plan.moves.iter()),
        _ => None,
    });
    let gfns: Vec<_> = gfns.flatten().map(|m| m.gfn.0).collect();
    assert_eq!(gfns.len(), 8, "one address a block");
    assert!(gfns.iter().all(|g| g.is_multiple_of(HUGE)));
    let inside = h
        .engine()
        .explain_page(VM, Gfn(5 * HUGE + 7), h.now)
        .unwrap();
    assert_eq!(
        (inside.unit_gpa, inside.unit_bytes),
        (Some(Gfn(5 * HUGE).gpa()), Some(HUGE * PAGE_SIZE))
    );
    assert!(inside.degree > 0, "as hot as its hottest page");
}

#[test]
fn cold_4_kib_pages_make_room_for_a_huge_block() {
    let mut h = with_huge_pages(PolicyName::Terrace, PageSize::Base, 4 * HUGE);
    h.guests.get_mut(&VM).unwrap().huge = (4..8).collect();
    h.run_until(Tick(1000 * SECOND));
    assert_eq!(fast_blocks(&h), HOT_BLOCKS_FAST);
    assert_eq!(h.on_fast(1, |_| true), 4 * HUGE);
}

#[test]
fn a_huge_unit_at_a_hole_stays_and_is_counted() {
    let mut h = Host::new(config(PolicyName::Terrace), &[16 * HUGE, 64 * HUGE]);
    let mut vm = spec(1, 4 * HUGE, 0);
    vm.unit = PageSize::Huge;
    vm.limits[0].ceiling_bytes = u64::MAX;
    vm.ram = vec![
        RamRange {
            start: Gfn(0),
            pages: 160,
        },
        RamRange {
            start: Gfn(192),
            pages: 4 * HUGE - 192,
        },
    ];
    h.arrive(vm, Box::new(|_, _| (true, true)));
    let guest = h.guests.get_mut(&VM).unwrap();
    guest.tier.fill(1);
    guest.huge = (0..4).collect();
    h.run_until(Tick(1000 * SECOND));
    assert_eq!(fast_blocks(&h), [false, true, true, true]);
    let tiers = h.engine().vm(VM).unwrap().tiers;
    assert_eq!(tiers[0].bytes, 3 * HUGE * PAGE_SIZE);
    assert_eq!(tiers[1].bytes, 480 * PAGE_SIZE);
}

#[test]
fn three_tiers_fill_from_the_hottest_down() {
    let mut config = config(PolicyName::Terrace);
    config.tiers[1].kind = TierKind::Cxl;
    config.tiers.push(TierConfig {
        name: "far".into(),
        kind: TierKind::Pmem,
        ..TierConfig::default()
    });
    let mut h = Host::new(config, &[4096, 4096, 16384]);
    let limit = |pages: u64| TierLimit {
        floor_bytes: 0,
        ceiling_bytes: pages * PAGE_SIZE,
    };
    let vm = VmSpec {
        limits: vec![limit(300), limit(600), limit(8192)],
        ..spec(1, 3000, 300)
    };
    // A tenth is accessed always, a fifth every other window, the rest never.
    let heat = |page: u64, scan: u64| match page % 10 {
        7 => (true, true),
        1 | 4 => (scan.is_multiple_of(2), false),
        _ => (false, false),
    };
    h.arrive(vm, Box::new(heat));
    let tier = &mut h.guests.get_mut(&VM).unwrap().tier;
    tier.fill(2);
    tier[300..600].fill(0);
    tier[1000..1600].fill(1);
    h.run_until(Tick(1500 * SECOND));
    let held = |tier: u8, class: &[u64]| {
        (0_u64..)
            .zip(&h.guests[&VM].tier)
            .filter(|(p, t)| **t == tier && class.contains(&(p % 10)))
            .count()
    };
    assert_eq!(held(0, &[7]), 300);
    assert_eq!(held(1, &[1, 4]), 600);
    assert_eq!(h.used(0), 300);
    assert_eq!(h.used(1), 600);
}

#[test]
fn a_block_that_the_host_splits_is_ranked_page_by_page() {
    let mut h = with_huge_pages(PolicyName::Vtmm, PageSize::Base, 4 * HUGE);
    h.run_until(Tick(2 * SECOND));
    let change = |huge| {
        Event::BackingChanged(terrace_proto::BackingChange {
            vm: VM,
            block: 5,
            huge,
        })
    };
    let pages = |h: &Host| {
        h.engine()
            .explain_page(VM, Gfn(5 * HUGE + 7), h.now)
            .unwrap()
            .unit_bytes
            .map(|bytes| bytes / PAGE_SIZE)
    };
    assert_eq!(pages(&h), Some(HUGE));
    h.after(0, change(false));
    h.run_until(Tick(3 * SECOND));
    assert_eq!(pages(&h), Some(1));
    h.after(0, change(true));
    h.run_until(Tick(4 * SECOND));
    assert_eq!(pages(&h), Some(HUGE));
}
