//! The fast path against naive models: sorting whole pages instead of counting buckets.

use proptest::prelude::*;
use terrace_proto::{Gfn, PageCode, PageSize, TierId};

use super::collect::collect;
use super::{ExchangeRule, Flow, PlaceStage, Quotas, RankedPlace, Room};
use crate::estimate::{Estimator, Histogram};
use crate::pages::{BLOCK, Pages, flags};
use crate::track::tests::pages;

const ESTIMATOR: Estimator = Estimator::PageDegree { read: 1, write: 3 };

/// One unit as the models see it.
#[derive(Clone, Copy, Debug)]
struct Unit {
    tier: u8,
    reads: u8,
    writes: u8,
    known: bool,
    cooling: bool,
}

impl Unit {
    fn degree(self) -> u8 {
        self.reads + 3 * self.writes
    }

    fn movable(self) -> bool {
        self.known && !self.cooling && self.tier != 7
    }
}

fn unit(tiers: u8) -> impl Strategy<Value = Unit> {
    let tier = prop_oneof![9 => 0..tiers, 1 => Just(7_u8)];
    (tier, 0_u8..6, 0_u8..3, 0_u8..10, 0_u8..10).prop_map(|(tier, reads, writes, k, c)| Unit {
        tier,
        reads,
        writes,
        known: k > 0,
        cooling: c == 0,
    })
}

fn build(units: &[Unit], tiers: u8) -> Pages {
    let mut p = Pages::new(
        pages(PageSize::Base, units.len() as u64).ram().clone(),
        tiers,
    );
    let codes: Vec<_> = units.iter().map(|u| PageCode(u.tier)).collect();
    p.place_run(Gfn(0), &codes);
    for (i, u) in units.iter().enumerate() {
        (p.reads[i], p.writes[i]) = (u.reads, u.writes);
        p.flags[i] |= if u.known { flags::KNOWN } else { 0 };
        p.flags[i] |= if u.cooling { flags::COOL_ONE } else { 0 };
    }
    p
}

fn held(units: &[Unit]) -> [u64; 4] {
    std::array::from_fn(|t| units.iter().filter(|u| usize::from(u.tier) == t).count() as u64)
}

/// Two tiers, by sorting: who goes down and who goes up, each in order, and how many must go down.
fn naive(units: &[Unit], room: &Room, rule: ExchangeRule) -> (Vec<u32>, Vec<u32>, usize) {
    let of = |tier: u8| {
        (0_u32..)
            .zip(units)
            .filter(move |(_, u)| u.movable() && u.tier == tier)
            .map(|(i, u)| (u.degree(), i))
    };
    let mut cold: Vec<_> = of(0).collect();
    cold.sort_unstable();
    let mut hot: Vec<_> = of(1).filter(|(d, _)| *d >= rule.min_hot_degree).collect();
    hot.sort_by_key(|(d, i)| (std::cmp::Reverse(*d), *i));
    let most = usize::try_from(room.most).unwrap();
    let over = room.held[0].saturating_sub(room.fit[0]);
    let forced = usize::try_from(over).unwrap().min(cold.len()).min(most);
    let free = usize::try_from(room.fit[0].saturating_sub(room.held[0])).unwrap();
    let one_way = free.min(hot.len()).min(most - forced);
    let left = (most - forced - one_way) / 2;
    let pairs = cold[forced..]
        .iter()
        .zip(&hot[one_way..])
        .take(left)
        .take_while(|(c, h)| h.0 > c.0.saturating_add(rule.hysteresis))
        .count();
    let numbers = |list: &[(u8, u32)]| list.iter().map(|(_, i)| *i).collect::<Vec<_>>();
    (
        numbers(&cold[..forced + pairs]),
        numbers(&hot[..one_way + pairs]),
        forced,
    )
}

fn ranked(rule: ExchangeRule) -> RankedPlace {
    RankedPlace {
        estimator: ESTIMATOR,
        rule,
        slowest: false,
    }
}

fn flow(flows: &[Flow], to: u8) -> (Vec<u32>, usize) {
    flows
        .iter()
        .find(|f| f.to == TierId(to))
        .map_or_else(Default::default, |f| (f.units.clone(), f.forced))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn two_tiers_equal_the_sort_of_all_pages(
        units in prop::collection::vec(unit(2), 1..1300),
        fit in 0_u64..1300,
        most in prop_oneof![Just(u64::MAX >> 8), 0_u64..400],
        min_hot_degree in 1_u8..4,
        hysteresis in 0_u8..3,
    ) {
        let rule = ExchangeRule { min_hot_degree, hysteresis };
        let room = Room { held: held(&units), fit: [fit, u64::MAX, 0, 0], floor: [0; 4], paced: 0, double_sided: false, most, ..Room::default() };
        let proposal = ranked(rule).propose(1, &build(&units, 2), &room);
        let (down, up, forced) = naive(&units, &room, rule);
        prop_assert_eq!(flow(&proposal.flows, 1), (down, forced));
        prop_assert_eq!(flow(&proposal.flows, 0), (up, 0));
        // The hot set: the hottest known pages that fit beside the unknown ones of the first tier.
        let mut known: Vec<u8> = units
            .iter()
            .filter(|u| u.known && u.tier != 7)
            .map(|u| u.degree())
            .collect();
        known.sort_unstable_by(|a, b| b.cmp(a));
        let unknown = units.iter().filter(|u| !u.known && u.tier == 0).count() as u64;
        let room_for = usize::try_from(fit.saturating_sub(unknown)).unwrap().min(known.len());
        let hot = known[..room_for].iter().filter(|d| **d >= min_hot_degree).count() as u64;
        prop_assert_eq!(proposal.ranking.known, known.len() as u64);
        prop_assert_eq!(proposal.ranking.hot, hot);
    }

    #[test]
    fn more_tiers_end_sorted_and_nothing_moves_without_need(
        units in prop::collection::vec(unit(4), 1..700),
        tiers in 3_u8..=4,
        fit in prop::array::uniform4(0_u64..400),
    ) {
        let mut units = units;
        units.iter_mut().for_each(|u| {
            u.tier = if u.tier == 7 { 7 } else { u.tier % tiers };
            u.cooling = false;
        });
        let last = usize::from(tiers - 1);
        let mut room = Room { held: held(&units), fit, floor: [0; 4], paced: 0, double_sided: false, most: u64::MAX >> 8, ..Room::default() };
        room.fit[last] = u64::MAX;
        let rule = ExchangeRule { min_hot_degree: 1, hysteresis: 0 };
        let before = units.clone();
        for f in ranked(rule).propose(1, &build(&units, tiers), &room).flows {
            for u in f.units {
                let unit = &mut units[u as usize];
                prop_assert!(unit.movable() && unit.tier != f.to.0);
                unit.tier = f.to.0;
            }
        }
        for tier in 0..last {
            let unknown = before
                .iter()
                .filter(|u| !u.movable() && usize::from(u.tier) == tier)
                .count() as u64;
            prop_assert!(held(&units)[tier] <= room.fit[tier].max(unknown), "tier {} overfull", tier);
            let here = |u: &&Unit| u.movable() && usize::from(u.tier) == tier;
            let below = |u: &&Unit| u.movable() && usize::from(u.tier) > tier && u.degree() > 0;
            let coldest = units.iter().filter(here).map(|u| u.degree()).min();
            let hottest = units.iter().filter(below).map(|u| u.degree()).max();
            prop_assert!(coldest.is_none() || hottest <= coldest, "tier {} not sorted", tier);
        }
        let again = ranked(rule).propose(2, &build(&units, tiers), &Room { held: held(&units), ..room });
        prop_assert!(again.flows.is_empty(), "what is placed well stays: {:?}", again.flows);
    }

    #[test]
    fn lists_with_huge_blocks_equal_a_walk_in_order(
        units in prop::collection::vec(unit(2), BLOCK * 3..BLOCK * 5),
        huge in prop::array::uniform5(any::<bool>()),
        fit in 0_u64..3000,
    ) {
        let mut units = units;
        let mut p = build(&units, 2);
        for (block, _) in huge.iter().enumerate().filter(|(_, h)| **h) {
            let span = block * BLOCK..(block + 1) * BLOCK;
            if span.end > units.len() {
                continue;
            }
            let tier = units[span.start].tier;
            units[span.clone()].iter_mut().for_each(|u| u.tier = tier);
            p.place_run(Gfn(span.start as u64), &[PageCode(tier | 8); BLOCK]);
        }
        let held = std::array::from_fn(|t| p.recount()[t]);
        let room = Room { held, fit: [fit, u64::MAX, 0, 0], floor: [0; 4], paced: 0, double_sided: false, most: 600, ..Room::default() };
        let rule = ExchangeRule { min_hot_degree: 1, hysteresis: 0 };
        let (histogram, spans) = Histogram::with_spans(&p, ESTIMATOR, 1);
        let quotas = Quotas::decide(&histogram, 2, &room, rule);
        let flows = collect(&p, ESTIMATOR, 1, &quotas, &spans);
        for (from, to) in [(0_u8, 1_u8), (1, 0)] {
            prop_assert_eq!(flow(&flows, to).0, walk(&units, &p, &quotas, from, to));
        }
    }
}

/// Degree by degree and page by page: what fits into the quota of its degree.
fn walk(units: &[Unit], p: &Pages, quotas: &Quotas, from: u8, to: u8) -> Vec<u32> {
    let ranked = |number: u32| {
        let extent = p.extent(number);
        let inside = p.in_huge_block(number) && extent.len() == 1;
        let parts = &units[extent];
        let hottest = parts.iter().map(|u| u.degree()).max()?;
        let known = parts.iter().any(|u| u.known);
        let cooling = parts.iter().any(|u| u.cooling);
        let here = parts[0].tier == from && known && !cooling && !inside;
        here.then_some((number, usize::from(hottest), parts.len() as u64))
    };
    let candidates: Vec<_> = (0_u32..).take(units.len()).filter_map(ranked).collect();
    let mut list = Vec::new();
    // No unit of these tests has a degree over 11.
    for i in 0..16 {
        let degree = if to < from { 15 - i } else { i };
        let mut left = quotas.get(from.into(), to.into(), degree);
        for (number, _, pages) in candidates.iter().filter(|(_, d, _)| *d == degree) {
            if *pages <= left {
                left -= pages;
                list.push(*number);
            }
        }
    }
    list
}

#[test]
fn equal_degrees_are_never_exchanged() {
    let unit = |tier| Unit {
        tier,
        reads: 4,
        writes: 0,
        known: true,
        cooling: false,
    };
    let units: Vec<_> = (0..100).map(|i| unit(u8::from(i % 2 == 0))).collect();
    let room = Room {
        paced: 0,
        double_sided: false,
        held: held(&units),
        fit: [50, 100, 0, 0],
        floor: [0; 4],
        most: 100,
        ..Room::default()
    };
    let rule = ExchangeRule {
        min_hot_degree: 1,
        hysteresis: 0,
    };
    let proposal = ranked(rule).propose(1, &build(&units, 2), &room);
    assert!(proposal.flows.is_empty());
    assert_eq!((proposal.ranking.hot, proposal.ranking.threshold), (50, 4));
}

#[test]
fn a_huge_block_is_as_hot_as_its_hottest_page() {
    let unit = |tier| Unit {
        tier,
        reads: 0,
        writes: 0,
        known: true,
        cooling: false,
    };
    let mut units = vec![unit(0); BLOCK];
    units.extend(vec![unit(1); BLOCK]);
    let mut p = build(&units, 2);
    p.place_run(Gfn(512), &[PageCode::new(TierId::SLOW, true); BLOCK]);
    p.reads[700] = 5;
    let room = Room {
        paced: 0,
        double_sided: false,
        held: [512, 512, 0, 0],
        fit: [512, 1024, 0, 0],
        floor: [0; 4],
        most: 2048,
        ..Room::default()
    };
    let rule = ExchangeRule {
        min_hot_degree: 1,
        hysteresis: 0,
    };
    let flows = ranked(rule).propose(1, &p, &room).flows;
    assert_eq!(flow(&flows, 0).0, [512]);
    assert_eq!(flow(&flows, 1).0, (0..512).collect::<Vec<_>>());
}
