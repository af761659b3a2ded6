//! Classification beside a plain model, on states that no VM should have: every pattern of places and marks.

use proptest::prelude::*;
use terrace_proto::{PageSize, TierId};

use super::collect::collect;
use super::{ExchangeRule, Flow, Quotas, Room};
use crate::estimate::{DEGREES, Estimator, Histogram};
use crate::pages::{BLOCK, Pages, flags};
use crate::ram::Ram;

/// The units that are ranked as one: a unit or a huge block.
#[derive(Clone, Copy, Debug)]
struct Entry {
    first: u32,
    weight: u64,
    /// The tier if it is known, and whether it may move.
    place: Option<(usize, bool)>,
    degree: usize,
}

/// How the bytes of a state are chosen, so that equal ones and all of one kind occur, too.
fn bytes(values: impl Strategy<Value = u8> + Clone) -> impl Strategy<Value = Vec<u8>> {
    let run = (values, prop_oneof![4 => 1_usize..4, 1 => 1_usize..700]);
    let runs = prop::collection::vec(run, 1..400);
    runs.prop_map(|runs| {
        let run = |(value, len)| std::iter::repeat_n(value, len);
        runs.into_iter().flat_map(run).collect()
    })
}

/// Any tier that there is, or none, and any marks.
fn place() -> impl Strategy<Value = u8> + Clone {
    let tier = prop_oneof![8 => 0_u8..4, 1 => Just(flags::ABSENT)];
    let marks = prop_oneof![
        6 => Just(flags::KNOWN),
        2 => Just(flags::KNOWN | flags::HUGE),
        1 => Just(0),
        2 => any::<u8>().prop_map(|marks| marks & !flags::TIER),
    ];
    (tier, marks).prop_map(|(tier, marks)| tier | marks)
}

fn count() -> impl Strategy<Value = u8> + Clone {
    prop_oneof![3 => Just(0_u8), 3 => 0_u8..9, 1 => any::<u8>()]
}

/// So many units, of which the bytes are taken again and again.
fn state(ram: Ram, tiers: u8, [places, reads, writes]: [Vec<u8>; 3]) -> Pages {
    let mut pages = Pages::new(ram, tiers);
    let fill = |slots: &mut [u8], bytes: &[u8]| {
        let bytes = bytes.iter().cycle();
        slots
            .iter_mut()
            .zip(bytes)
            .for_each(|(slot, byte)| *slot = *byte);
    };
    fill(&mut pages.flags, &places);
    fill(&mut pages.reads, &reads);
    fill(&mut pages.writes, &writes);
    for place in &mut pages.flags {
        if *place & flags::TIER >= tiers {
            *place |= flags::ABSENT;
        }
    }
    pages
}

fn states() -> impl Strategy<Value = Pages> {
    let units = prop_oneof![1..70_u64, 1..2600_u64, Just(512), Just(1024), Just(513)];
    let unit = prop_oneof![4 => Just(PageSize::Base), 1 => Just(PageSize::Huge)];
    let bytes = [
        bytes(place()).boxed(),
        bytes(count()).boxed(),
        bytes(count()).boxed(),
    ];
    (units, unit, 2_u8..=4, bytes).prop_map(|(units, unit, tiers, bytes)| {
        let ram = terrace_proto::RamRange {
            start: terrace_proto::Gfn(0),
            pages: units * unit.base_pages(),
        };
        state(Ram::of(&[ram], unit).unwrap(), tiers, bytes)
    })
}

fn estimators() -> impl Strategy<Value = Estimator> {
    let weights = prop_oneof![
        Just((1_u8, 1_u8)),
        Just((1, 3)),
        Just((2, 3)),
        any::<(u8, u8)>()
    ];
    prop_oneof![
        4 => weights.prop_map(|(read, write)| Estimator::PageDegree { read, write }),
        1 => (0_u8..12).prop_map(|visits| Estimator::FixedThreshold { visits }),
        1 => (0_u8..5).prop_map(|write| Estimator::Counter { write }),
        1 => any::<u64>().prop_map(|seed| Estimator::Random { seed }),
        1 => Just(Estimator::Uniform),
    ]
}

/// The state, entry by entry.
fn entries(pages: &Pages, estimator: Estimator, round: u64) -> Vec<Entry> {
    let degree = |unit: usize| {
        let (reads, writes) = (pages.reads[unit], pages.writes[unit]);
        if let Estimator::PageDegree { read, write } = estimator {
            let sum = u32::from(reads) * u32::from(read) + u32::from(writes) * u32::from(write);
            return sum as usize % DEGREES;
        }
        let mut out = [0];
        estimator.degrees(round, unit as u64, &[reads], &[writes], &mut out);
        out[0].into()
    };
    let mut entries = Vec::new();
    let mut unit = 0;
    while unit < pages.flags.len() {
        let is_whole = unit.is_multiple_of(BLOCK)
            && unit + BLOCK <= pages.flags.len()
            && pages.ram().unit() == PageSize::Base
            && pages.flags[unit] & flags::HUGE != 0;
        let parts = unit..unit + if is_whole { BLOCK } else { 1 };
        let any = |mark: u8| pages.flags[parts.clone()].iter().any(|p| p & mark != 0);
        let tier = usize::from(pages.flags[unit] & flags::TIER);
        let may_move = !any(flags::IN_FLIGHT | flags::COOL);
        entries.push(Entry {
            first: u32::try_from(unit).unwrap(),
            weight: parts.len() as u64,
            place: (any(flags::KNOWN) && tier < 4).then_some((tier, may_move)),
            degree: parts.clone().map(degree).max().unwrap(),
        });
        unit = parts.end;
    }
    entries
}

/// The lists, filled in the order of the units.
fn plain_lists(entries: &[Entry], tiers: usize, quotas: &Quotas) -> Vec<Flow> {
    let mut lists = Vec::new();
    let mut forced = quotas.forced;
    let pairs = || (0..tiers).flat_map(|from| (0..tiers).map(move |to| (from, to)));
    let mut taken = vec![false; entries.len()];
    for (from, to) in pairs().filter(|(from, to)| from != to) {
        let mut list = Vec::new();
        let total: u64 = (0..DEGREES)
            .map(|degree| quotas.get(from, to, degree))
            .sum();
        for i in 0..DEGREES {
            let degree = if to < from { DEGREES - 1 - i } else { i };
            let mut left = quotas.get(from, to, degree);
            if left == 0 {
                continue;
            }
            for (entry, taken) in entries.iter().zip(&mut taken) {
                let fits = entry.place == Some((from, true)) && entry.degree == degree;
                if fits && !*taken && entry.weight <= left {
                    left -= entry.weight;
                    *taken = true;
                    list.push(entry.first);
                }
            }
        }
        if total > 0 {
            lists.push((from, to, list));
        }
    }
    let mut flows = Vec::new();
    let flow = |to: usize, units: Vec<u32>, forced| Flow {
        to: TierId(u8::try_from(to).unwrap()),
        units,
        forced,
    };
    for (from, to, list) in lists.iter().filter(|(from, to, _)| to > from) {
        let must = forced[*from].min(list.len() as u64);
        forced[*from] -= must;
        flows.push(flow(*to, list.clone(), usize::try_from(must).unwrap()));
    }
    flows.sort_by_key(|flow| std::cmp::Reverse(flow.to));
    let up = lists.iter().filter(|(from, to, _)| to < from);
    let mut up: Vec<Flow> = up.map(|(_, to, list)| flow(*to, list.clone(), 0)).collect();
    up.sort_by_key(|flow| flow.to);
    flows.append(&mut up);
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_state_is_counted_as_unit_by_unit(pages in states(), estimator in estimators(), round in 0_u64..4) {
        let histogram = Histogram::tally(&pages, estimator, round);
        let mut plain = vec![[[0_u64; DEGREES]; 2]; 4];
        for entry in entries(&pages, estimator, round) {
            if let Some((tier, may_move)) = entry.place {
                plain[tier][usize::from(may_move)][entry.degree] += entry.weight;
            }
        }
        for (tier, [staying, movable]) in plain.iter().enumerate() {
            prop_assert_eq!(histogram.movable(tier), movable);
            prop_assert_eq!(histogram.staying(tier), staying);
        }
    }

    #[test]
    fn any_state_gives_the_lists_of_a_plain_walk(
        pages in states(),
        estimator in estimators(),
        fit in prop::array::uniform4(prop_oneof![1 => Just(0_u64), 4 => 0_u64..2600, 1 => Just(u64::MAX)]),
        held in prop::array::uniform4(0_u64..2600),
        most in prop_oneof![3 => Just(u64::MAX), 1 => 0_u64..600],
        hysteresis in 0_u8..3,
    ) {
        let tiers = usize::from(pages.tiers());
        let room = Room { held, fit, most, ..Room::default() };
        let rule = ExchangeRule { min_hot_degree: 1, hysteresis };
        let (histogram, spans) = Histogram::with_spans(&pages, estimator, 1);
        let quotas = Quotas::decide(&histogram, tiers, &room, rule);
        let plain = plain_lists(&entries(&pages, estimator, 1), tiers, &quotas);
        prop_assert_eq!(collect(&pages, estimator, 1, &quotas, &spans), plain);
    }
}
