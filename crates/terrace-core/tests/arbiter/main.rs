//! The arbiter: who gets memory of whom, what it never does, and that it says why.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

mod alone;
mod back;
mod cached;
mod pictures;
mod tracked;
mod unused;

use std::collections::BTreeMap;

use proptest::prelude::*;
use terrace_core::EngineConfig;
use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::session::replay::replay;
use terrace_proto::log::Record;
use terrace_proto::provision::{Origin, ProviderError};
use terrace_proto::{Action, Event, MemoryNeed, MemoryRights, ProviderId, SpeedRights};
use terrace_testkit::log::written;
use terrace_testkit::providers::{GIB, Provided, Providers};

const MIB: u64 = 1 << 20;

/// A guest that uses so much memory, and faults for what it lacks.
#[derive(Clone, Debug)]
struct Guest {
    uses: u64,
    /// Memory that it uses and does not access.
    idle: u64,
    need: MemoryNeed,
    /// Memory that it calls free, and loses time without.
    cached: u64,
    /// Whether it ignores orders.
    refuses: bool,
}

struct Host {
    providers: Providers,
    guests: BTreeMap<u32, Guest>,
    floor: u64,
    capacity: u64,
}

impl Host {
    /// VMs of these sizes, which may have 4 GiB each and not less than the floor.
    fn new(config: ArbiterConfig, sizes: &[u64], floor: u64) -> Self {
        let capacity = sizes.iter().sum();
        let config = EngineConfig {
            arbiter: ArbiterConfig {
                rule: match config.rule {
                    Rule::Off => Rule::Dp,
                    rule => rule,
                },
                ..config
            },
            ..EngineConfig::default()
        };
        let mut host = Self {
            providers: Providers::new(config, &[1 << 50]),
            guests: BTreeMap::new(),
            floor,
            capacity,
        };
        for (id, size) in (1..).zip(sizes) {
            host.providers.arrive(id, Provided::settled(&[*size]));
            host.providers.hear(Event::MemoryRights(MemoryRights {
                provider: ProviderId(id),
                vm: None,
                floor_bytes: floor,
                ceiling_bytes: u64::MAX,
                weight: 1000,
            }));
            let need = MemoryNeed {
                provider: ProviderId(id),
                free_bytes: 0,
                used_swap_bytes: 0,
                major_faults: 0,
                lost_ns: 0,
                huge_percent: 100,
            };
            let guest = Guest {
                uses: size / 2,
                idle: 0,
                cached: 0,
                need,
                refuses: false,
            };
            host.guests.insert(id, guest);
        }
        host
    }

    fn size(&self, id: u32) -> u64 {
        self.providers.vms[&id].status.as_ref().unwrap().tiers[0].size_bytes
    }

    fn target(&self, id: u32) -> u64 {
        self.providers.vms[&id].status.as_ref().unwrap().tiers[0].target_bytes
    }

    fn uses(&mut self, id: u32, bytes: u64) {
        self.guests.get_mut(&id).unwrap().uses = bytes;
    }

    /// Lets a second pass: guests say what they need, and obey.
    fn second(&mut self) {
        for id in self.guests.keys().copied().collect::<Vec<_>>() {
            let size = self.size(id);
            let guest = self.guests.get_mut(&id).unwrap();
            let lacks = guest.uses.saturating_sub(size);
            // A fault for each lacking 4 KiB, unless nobody asks for it.
            let faults = lacks.saturating_sub(guest.idle) / 4096 / 16;
            guest.need.free_bytes = size.saturating_sub(guest.uses);
            guest.need.used_swap_bytes = match lacks {
                // What is in use of a swap device goes up while a guest lacks memory.
                0 => 0,
                lacks if lacks > guest.idle => lacks + (guest.need.major_faults % 7 + 1) * MIB,
                lacks => lacks,
            };
            let faults = faults
                + (guest.uses + guest.cached).saturating_sub(size.max(guest.uses)) / 4096 / 16;
            guest.need.major_faults += faults;
            guest.need.lost_ns += (faults * 100_000).min(1_000_000_000);
            let need = guest.need;
            self.providers.hear(Event::MemoryNeed(need));
        }
        self.obey();
        self.providers.run_for(1);
        self.holds();
    }

    fn obey(&mut self) {
        for (id, guest) in &self.guests {
            if !guest.refuses {
                self.providers.vms.get_mut(id).unwrap().obey();
            }
        }
    }

    /// Checks what must hold after every event.
    fn holds(&self) {
        let most = |id: &u32| self.size(*id).max(self.target(*id));
        let all: u64 = self.guests.keys().map(most).sum();
        assert!(all <= self.capacity, "{all} of {}", self.capacity);
        for id in self.guests.keys() {
            assert!(self.target(*id) >= self.floor, "{id} is below its floor");
        }
    }

    /// The orders of the arbiter, as (VM, size).
    fn orders(&self) -> Vec<(u32, u64)> {
        let orders = self
            .providers
            .log()
            .iter()
            .filter_map(|(_, record)| match record {
                Record::Action(Action::Resize(order)) => {
                    Some((order.provider.0, order.size_bytes[0].unwrap()))
                }
                _ => None,
            });
        orders.collect()
    }
}

#[test]
fn a_vm_that_swaps_gets_what_an_idle_one_calls_free() {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    // Longer than memory must be free before the reserve has it.
    (0..80).for_each(|_| host.second());
    // A reserve is there before anybody needs it.
    let reserve = host.capacity - host.size(1) - host.size(2);
    assert!(reserve >= host.capacity / 20 - 64 * MIB, "{reserve}");
    host.uses(1, 3 * GIB);
    let before = host.size(1);
    host.second();
    host.second();
    host.second();
    assert!(
        host.size(1) > before,
        "no relief: {:?}",
        host.providers.said(1)
    );
    (0..60).for_each(|_| host.second());
    assert!(host.size(1) >= 2800 * MIB, "{}", host.size(1) / MIB);
    assert!(host.size(2) >= GIB, "the other one uses it");
    let said = host.providers.said(1);
    let why = |said: &String| said.contains("it swaps") && said.contains("wants");
    assert!(said.iter().any(why), "{said:?}");
}

/// Sizes of two VMs that swap beside an idle one, after a minute: the first one waits most of the time, the second
/// one seldom.
fn beside_an_idle_one(rule: Rule) -> (Host, [u64; 2]) {
    let config = ArbiterConfig {
        rule,
        ..ArbiterConfig::default()
    };
    let mut host = Host::new(config, &[2 * GIB, 2 * GIB, 2 * GIB], 512 * MIB);
    host.providers.hear(Event::SpeedRights(SpeedRights {
        provider: ProviderId(1),
        vcpus: 1,
        max_slowdown_milli: Some(1010),
    }));
    // Longer than memory must be free before others have it.
    (0..80).for_each(|_| host.second());
    host.uses(1, 4 * GIB);
    host.uses(2, 3 * GIB);
    host.guests.get_mut(&2).unwrap().idle = 960 * MIB;
    (0..60).for_each(|_| host.second());
    let sizes = [host.size(1), host.size(2)];
    (host, sizes)
}

#[test]
fn fair_gives_most_to_the_slowest_and_names_who_is_too_slow() {
    let (host, fair) = beside_an_idle_one(Rule::Fair);
    assert!(fair[0] > fair[1] + 256 * MIB, "{fair:?}");
    let said = host.providers.said(1);
    let named = |said: &String| said.contains("more than its max_slowdown of 1.01");
    assert!(said.iter().any(named), "{said:?}");
    let replayed = replay(written(host.providers.log()).as_slice()).unwrap();
    assert!(replayed.actions > 0 && replayed.unrecorded_actions == 0);
}

#[test]
fn constant_demand_moves_nobody_twice() {
    let mut host = Host::new(
        ArbiterConfig::default(),
        &[2 * GIB, 2 * GIB, GIB],
        256 * MIB,
    );
    (0..600).for_each(|_| host.second());
    let orders = host.orders();
    for id in 1..=3 {
        let of = orders.iter().filter(|(vm, _)| *vm == id).count();
        assert!(of <= 1, "VM {id}: {of} orders, {orders:?}");
    }
    // The reserve takes some: a host that does nothing moves nobody either.
    assert!(!orders.is_empty(), "nothing was ordered");
}

/// Checks that no VM was moved up and then down, or down and then up, and in how many steps at most.
fn turns_nowhere(host: &Host, sizes: &[u64], most: usize) {
    for (id, first) in (1..).zip(sizes) {
        let orders = host.orders();
        let own = orders.iter().filter(|(vm, _)| *vm == id);
        let mut way = vec![*first];
        way.extend(own.map(|(_, size)| *size));
        let is_up = way.is_sorted();
        let is_down = way.is_sorted_by(|a, b| a >= b);
        assert!(is_up || is_down, "VM {id} turns: {way:?}");
        assert!(way.len() - 1 <= most, "VM {id}: {way:?}");
    }
}

#[test]
fn constant_demand_beyond_the_host_moves_nobody_either() {
    for rule in [Rule::Dp, Rule::Fair] {
        let config = ArbiterConfig {
            rule,
            ..ArbiterConfig::default()
        };
        let sizes = [2 * GIB, 2 * GIB, GIB];
        let mut host = Host::new(config, &sizes, 256 * MIB);
        for (id, uses) in [(1, 3 * GIB), (2, 2 * GIB), (3, GIB / 2)] {
            host.uses(id, uses);
        }
        (0..300).for_each(|_| host.second());
        let orders = host.orders().len();
        assert!(orders > 0, "{rule:?}");
        turns_nowhere(&host, &sizes, 12);
        (0..900).for_each(|_| host.second());
        let more = &host.orders()[orders..];
        assert!(more.is_empty(), "{rule:?}: {more:?}");
    }
}

#[test]
fn what_does_harm_is_given_back_and_not_tried_again_for_minutes() {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    host.guests.get_mut(&2).unwrap().cached = GIB;
    host.uses(1, 2200 * MIB);
    (0..25).for_each(|_| host.second());
    let taken = host.size(2);
    assert!(taken < 2 * GIB - 100 * MIB, "nothing was taken");
    // Now the giver's cache is what both lose most by.
    host.uses(1, GIB);
    (0..90).for_each(|_| host.second());
    assert!(host.size(2) > 1900 * MIB, "{} MiB", host.size(2) / MIB);
    let said = host.providers.said(2);
    let back = |said: &String| said.contains("is given back") && said.contains("300 s");
    assert!(said.iter().any(back), "{said:?}");
    let orders = host.orders().len();
    host.uses(1, 2200 * MIB);
    (0..100).for_each(|_| host.second());
    let again = host.orders()[orders..]
        .iter()
        .filter(|(vm, size)| *vm == 2 && *size < 1900 * MIB)
        .count();
    assert_eq!(again, 0, "{:?}", host.providers.said(2));
}

#[test]
fn one_that_takes_and_never_gives_returns_what_others_lent() {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    host.uses(1, 16 * GIB);
    (0..60).for_each(|_| host.second());
    assert!(host.size(1) > 2500 * MIB && host.size(2) < 1500 * MIB);
    // The lender needs all that it brought.
    host.uses(2, 2 * GIB);
    (0..40).for_each(|_| host.second());
    assert!(host.size(2) > 1950 * MIB, "{} MiB", host.size(2) / MIB);
    assert!(host.size(1) >= 2000 * MIB, "{} MiB", host.size(1) / MIB);
    let said = host.providers.said(1);
    let why = |said: &String| said.contains("others lent it memory");
    assert!(said.iter().any(why), "{said:?}");
}

#[test]
fn a_lender_that_goes_takes_what_it_brought_with_it() {
    let mut host = Host::new(
        ArbiterConfig::default(),
        &[2 * GIB, 2 * GIB, 2 * GIB],
        512 * MIB,
    );
    host.uses(1, 4 * GIB);
    (0..60).for_each(|_| host.second());
    assert!(host.size(1) > 2500 * MIB, "{} MiB", host.size(1) / MIB);
    assert!(host.size(1) + host.size(2) > 4 * GIB, "it lent nothing");
    host.uses(1, GIB);
    host.guests.remove(&3);
    host.providers.hear(Event::ProviderDeparted(ProviderId(3)));
    // What is there is less now, and comes back step by step.
    host.capacity = u64::MAX;
    (0..60).for_each(|_| host.second());
    assert!(host.size(1) + host.size(2) <= 4 * GIB);
}

#[test]
fn floors_that_exceed_the_host_are_said_with_the_sum() {
    let config = ArbiterConfig {
        capacity_bytes: 2 * GIB,
        ..ArbiterConfig::default()
    };
    let mut host = Host::new(config, &[2 * GIB, 2 * GIB], 1536 * MIB);
    (0..20).for_each(|_| host.second());
    assert!(host.orders().is_empty());
    let said = host.providers.said(1);
    let why = |said: &&String| said.contains("not shared") && said.contains("are 3 GiB together");
    assert_eq!(said.iter().filter(why).count(), 1, "{said:?}");
}

/// Memory in use at a second, MiB.
type Uses = Box<dyn Fn(u64) -> u64>;

/// Periods of demand, tenths of a second: a quarter to four times the time before a direction turns, the time until
/// what was taken is judged, and that for which memory is free before the reserve has it.
const PERIODS: [u64; 14] = [
    25, 50, 75, 100, 150, 200, 300, 400, 600, 900, 1200, 1800, 2400, 6000,
];

/// Uses of memory over time.
fn patterns() -> Vec<(String, Uses)> {
    let mut patterns: Vec<(String, Uses)> = vec![
        (
            "step".into(),
            Box::new(|s| if s < 100 { 1000 } else { 2500 }),
        ),
        ("ramp".into(), Box::new(|s| (1000 + s).min(2500))),
        ("noise of 1 %".into(), Box::new(|s| 1990 + noise(s) % 40)),
        (
            "noise of a quarter".into(),
            Box::new(|s| 1700 + noise(s) % 500),
        ),
    ];
    for period in PERIODS {
        let name = |shape| format!("{shape}, {} ms", period * 100);
        patterns.push((name("sine"), Box::new(move |s| sine(s, period))));
        patterns.push((name("triangle"), Box::new(move |s| triangle(s, period))));
    }
    patterns
}

/// A number that is as good as random (SplitMix64).
fn noise(s: u64) -> u64 {
    let mut at = s.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    at = (at ^ at >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    at = (at ^ at >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    at ^ at >> 31
}

/// A triangle of that period, tenths of a second, around 2 GiB, as high as half of that.
fn triangle(s: u64, period: u64) -> u64 {
    let at = s * 10 % period * 4000 / period;
    let up = if at < 2000 { at } else { 4000 - at };
    1548 + up / 2
}

/// A sine of the same height, by Bhaskara's fraction for a half wave: 4x(180 - x) / (40500 - x(180 - x)), degrees.
fn sine(s: u64, period: u64) -> u64 {
    let degrees = s * 10 % period * 360 / period;
    let area = degrees % 180 * (180 - degrees % 180);
    let height = 500 * 4 * area / (40_500 - area);
    match degrees < 180 {
        true => 2048 + height,
        false => 2048 - height,
    }
}

/// The orders of an hour to a VM that follows a pattern, and to an idle one beside it.
fn orders_of_an_hour(config: ArbiterConfig, uses: &Uses) -> (Host, [usize; 2]) {
    let mut host = Host::new(config, &[2 * GIB, 2 * GIB], 512 * MIB);
    for second in 0..3600 {
        host.uses(1, uses(second) * MIB);
        host.second();
    }
    let orders = host.orders();
    let of = |vm| orders.iter().filter(|(id, _)| *id == vm).count();
    (host, [1, 2].map(of))
}

#[test]
fn patterns_of_demand_move_no_more_than_the_pace_allows() {
    for (name, uses) in patterns() {
        let (host, [own, other]) = orders_of_an_hour(ArbiterConfig::default(), &uses);
        let most = match name.as_str() {
            "step" => 5,
            "ramp" => 16,
            name if name.starts_with("noise") => 2,
            _ => 20,
        };
        assert!(own <= most, "{name}: {own} orders");
        assert!(other <= 13, "{name}: {other} orders of the other one");
        let needs = uses(3599) * MIB;
        assert!(host.size(1) >= needs, "{name}: {} MiB", host.size(1) / MIB);
    }
}

#[test]
fn without_the_wait_for_valleys_each_of_them_is_given_away() {
    let config = |valley_ms| ArbiterConfig {
        valley_ms,
        relief_ms: 0,
        lend_again_ms: 0,
        ..ArbiterConfig::default()
    };
    for (period, before) in [(100, 360), (400, 8)] {
        let uses: Uses = Box::new(move |s| triangle(s, period));
        let (_, [at_once, _]) = orders_of_an_hour(config(0), &uses);
        assert_eq!(at_once, before);
    }
}

#[test]
fn memory_of_a_vm_without_a_provider_is_not_given_to_others() {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    host.uses(1, 4 * GIB);
    (0..60).for_each(|_| host.second());
    let has = host.size(1);
    assert!(has > 2500 * MIB, "{} MiB", has / MIB);
    let gone = ProviderError::Nothing("no device".into());
    host.providers.vms.get_mut(&1).unwrap().status = Err(gone);
    host.guests.remove(&1);
    host.uses(2, 4 * GIB);
    (0..120).for_each(|_| host.second());
    assert!(
        host.size(2) + has <= host.capacity,
        "{} MiB",
        host.size(2) / MIB
    );
}

#[test]
fn the_order_is_the_arbiters_and_off_gives_none() {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    host.uses(1, 3 * GIB);
    (0..10).for_each(|_| host.second());
    let view = host.providers.engine().provision();
    let view = view
        .view(ProviderId(1), terrace_proto::Tick(1 << 40))
        .unwrap();
    assert_eq!(view.order.unwrap().origin, Origin::Arbiter.name());
    assert!(
        host.providers.answers.is_empty(),
        "its answers are nobody's"
    );
}

#[test]
fn a_recorded_run_gives_the_same_orders() {
    let mut host = Host::new(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 512 * MIB);
    host.uses(2, 3 * GIB);
    (0..30).for_each(|_| host.second());
    assert!(!host.orders().is_empty());
    let bytes = written(host.providers.log());
    let replayed = replay(bytes.as_slice()).unwrap();
    assert!(
        replayed.actions > 0 && replayed.unrecorded_actions == 0,
        "{replayed:?}"
    );
}

/// A second of a hostile or unlucky VM.
#[derive(Clone, Debug)]
enum Turn {
    Uses(u32, u64),
    Idle(u32, u64),
    Refuses(u32, bool),
    Hangs(u32, bool),
    Lies(u32, u64, u64, u64),
    Restarts(u32),
    Nothing,
}

fn turns() -> impl Strategy<Value = Turn> {
    let id = 1..5_u32;
    prop_oneof![
        (id.clone(), 0..6 * GIB).prop_map(|(id, bytes)| Turn::Uses(id, bytes)),
        (id.clone(), 0..2 * GIB).prop_map(|(id, bytes)| Turn::Idle(id, bytes)),
        (id.clone(), any::<bool>()).prop_map(|(id, is)| Turn::Refuses(id, is)),
        (id.clone(), any::<bool>()).prop_map(|(id, is)| Turn::Hangs(id, is)),
        (id.clone(), any::<u64>(), any::<u64>(), any::<u64>())
            .prop_map(|(id, a, b, c)| Turn::Lies(id, a, b, c)),
        id.prop_map(Turn::Restarts),
        Just(Turn::Nothing),
        Just(Turn::Nothing),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn whatever_guests_do_floors_and_sums_hold(
        sizes in prop::collection::vec((GIB..4 * GIB).prop_map(|size| size / MIB * MIB), 4),
        turns in prop::collection::vec(turns(), 1..120),
        reserve_percent in 0..20_u8,
    ) {
        let config = ArbiterConfig { reserve_percent, ..ArbiterConfig::default() };
        let mut host = Host::new(config, &sizes, 512 * MIB);
        for turn in turns {
            match turn {
                Turn::Uses(id, bytes) => host.uses(id, bytes),
                Turn::Idle(id, bytes) => host.guests.get_mut(&id).unwrap().idle = bytes,
                Turn::Refuses(id, is) => host.guests.get_mut(&id).unwrap().refuses = is,
                Turn::Hangs(id, is) => host.providers.vms.get_mut(&id).unwrap().hangs = is,
                Turn::Lies(id, free_bytes, used_swap_bytes, lost_ns) => {
                    host.providers.hear(Event::MemoryNeed(MemoryNeed {
                        provider: ProviderId(id),
                        free_bytes,
                        used_swap_bytes,
                        major_faults: lost_ns,
                        lost_ns,
                        huge_percent: 255,
                    }));
                }
                Turn::Restarts(id) => {
                    let guest = host.guests.get_mut(&id).unwrap();
                    (guest.need.major_faults, guest.need.lost_ns) = (0, 0);
                }
                Turn::Nothing => {}
            }
            host.second();
        }
    }
}
