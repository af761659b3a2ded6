//! Trade: a VM's fast memory for slow at its price, by orders that the arbiter checks.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

mod any;
mod constant;
mod reserve;
mod stuck;

use std::collections::BTreeMap;

use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::session::replay::replay;
use terrace_core::{EngineConfig, PolicyName};
use terrace_proto::log::Record;
use terrace_proto::provision::{
    Mechanism, OtherUsers, ProviderKind, ProviderReport, ProviderSpec, ProviderStatus, TierStatus,
    Verified,
};
use terrace_proto::{
    Action, Event, MemoryNeed, MemoryRights, MemoryTiers, OrderId, PAGE_SIZE, ProviderId, Tick,
    VmId,
};
use terrace_testkit::engine;
use terrace_testkit::engine::scattered::{FAST, PAGES, scattered};
use terrace_testkit::log::written;
use terrace_testkit::providers::{GIB, Provided, Providers};

use reserve::Reserve;

const MIB: u64 = 1 << 20;

/// How a guest follows its orders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Follows {
    All,
    Half,
    Growth,
    /// All but to less fast memory.
    NeverPays,
    /// All, but to 2 MiB less of fast memory than it is given.
    ShortOfFast,
    Nothing,
}

#[derive(Clone, Debug)]
struct Guest {
    uses: u64,
    hot: u64,
    first: [u64; 2],
    faults: u64,
    /// Faults of each second, whatever its sizes are.
    faults_per_s: Option<u64>,
    follows: Follows,
    /// Memory that it calls free, whatever it uses.
    free: Option<u64>,
    /// Used swap, whatever it uses.
    swap: Option<u64>,
    /// The most above its price that an order to it may lead to, bytes of slow memory.
    overdraws: u64,
}

struct Host {
    providers: Providers,
    guests: BTreeMap<u32, Guest>,
    capacity: [u64; 2],
    reserve: Reserve,
    ratio: u64,
    floor: u64,
}

impl Host {
    /// VMs of these sizes, fast and slow, on a host that has so much of each tier.
    fn new(ratio: u64, capacity: [u64; 2], sizes: &[[u64; 2]], floor: u64) -> Self {
        let arbiter = ArbiterConfig {
            rule: Rule::Trade,
            price_ratio_milli: u32::try_from(ratio * 1000).unwrap(),
            capacity_tiers_bytes: capacity.to_vec(),
            ..ArbiterConfig::default()
        };
        let config = EngineConfig {
            arbiter,
            ..EngineConfig::default()
        };
        let mut host = Self {
            providers: Providers::new(config, &[1 << 50, 1 << 50]),
            guests: BTreeMap::new(),
            capacity,
            reserve: Reserve::of(capacity, sizes),
            ratio,
            floor,
        };
        for (id, first) in (1..).zip(sizes) {
            host.providers.arrive(id, Provided::settled(first));
            host.providers.hear(Event::MemoryRights(MemoryRights {
                provider: ProviderId(id),
                vm: None,
                floor_bytes: floor,
                ceiling_bytes: u64::MAX,
                weight: 1000,
            }));
            let guest = Guest {
                uses: first.iter().sum::<u64>() / 2,
                hot: 0,
                first: *first,
                faults: 0,
                faults_per_s: None,
                follows: Follows::All,
                free: None,
                swap: None,
                overdraws: 0,
            };
            host.guests.insert(id, guest);
        }
        host
    }

    fn guest(&mut self, id: u32) -> &mut Guest {
        self.guests.get_mut(&id).unwrap()
    }

    fn tiers(&self, id: u32) -> [(u64, u64); 2] {
        let tiers = &self.providers.vms[&id].status.as_ref().unwrap().tiers;
        [0, 1].map(|tier| (tiers[tier].size_bytes, tiers[tier].target_bytes))
    }

    fn sizes(&self, id: u32) -> [u64; 2] {
        self.tiers(id).map(|(size, _)| size)
    }

    /// The price of sizes, in bytes of slow memory.
    fn cost(&self, sizes: [u64; 2]) -> u64 {
        sizes[0] * self.ratio + sizes[1]
    }

    /// Notes what a trade that begins now may overdraw: what is taken of a VM at once, as fast memory.
    fn note(&mut self) {
        for id in self.guests.keys().copied().collect::<Vec<_>>() {
            let targets = self.tiers(id).map(|(_, target)| target);
            let (first, all) = (self.guests[&id].first, self.sizes(id).iter().sum::<u64>());
            if self.cost(targets) <= self.cost(first) {
                self.guest(id).overdraws = self.ratio * (all / 20).max(64 * MIB);
            }
        }
    }

    /// Lets a second pass.
    fn second(&mut self) {
        self.note();
        for id in self.guests.keys().copied().collect::<Vec<_>>() {
            let [fast, slow] = self.sizes(id);
            let guest = self.guest(id);
            let lacks = guest.uses.saturating_sub(fast + slow);
            guest.faults += guest.faults_per_s.unwrap_or(lacks / 4096 / 16);
            // One that faults whatever it has, has nothing free.
            let faults = guest.faults_per_s.is_some_and(|faults| faults > 0);
            let free = match guest.free {
                Some(free) => free,
                None if faults => 0,
                None => (fast + slow).saturating_sub(guest.uses),
            };
            let need = MemoryNeed {
                provider: ProviderId(id),
                free_bytes: free,
                used_swap_bytes: guest.swap.unwrap_or(match lacks {
                    0 => 0,
                    lacks => lacks + (guest.faults % 7) * MIB,
                }),
                major_faults: guest.faults,
                lost_ns: guest.faults * 100_000,
                huge_percent: 0,
            };
            let seen = MemoryTiers {
                provider: ProviderId(id),
                free_bytes: [free.saturating_sub(slow), free.min(slow), 0, 0],
                waiting_hot_bytes: guest.hot.saturating_sub(fast),
            };
            self.providers.hear(Event::MemoryNeed(need));
            self.providers.hear(Event::MemoryTiers(seen));
        }
        self.holds();
        self.obey();
        self.note();
        self.providers.run_for(1);
        self.holds();
    }

    fn obey(&mut self) {
        for (id, guest) in &self.guests {
            let vm = self.providers.vms.get_mut(id).unwrap();
            if guest.follows == Follows::All {
                vm.obey();
                continue;
            }
            for tier in &mut vm.status.as_mut().unwrap().tiers {
                let grows = tier.target_bytes > tier.size_bytes;
                let node = tier.node;
                let half = tier.size_bytes.midpoint(tier.target_bytes) / MIB * MIB;
                match guest.follows {
                    Follows::Half => tier.size_bytes = half,
                    Follows::Growth if grows => tier.size_bytes = tier.target_bytes,
                    Follows::ShortOfFast if grows && node == Some(0) => {
                        tier.size_bytes = tier.size_bytes.max(tier.target_bytes - 2 * MIB);
                    }
                    Follows::ShortOfFast => tier.size_bytes = tier.target_bytes,
                    Follows::NeverPays if grows || node != Some(0) => {
                        tier.size_bytes = tier.target_bytes;
                    }
                    _ => {}
                }
            }
        }
    }

    /// Checks what must hold after every event.
    fn holds(&mut self) {
        let mut all = [0; 2];
        for (id, guest) in &self.guests {
            let tiers = self.tiers(*id);
            let targets = tiers.map(|(_, target)| target);
            assert!(
                targets.iter().sum::<u64>() >= self.floor,
                "{id}: {targets:?}"
            );
            let above = self.cost(targets).saturating_sub(self.cost(guest.first));
            assert!(above <= guest.overdraws, "{id}: {above} above its price");
            for tier in [0, 1] {
                all[tier] += tiers[tier].0.max(tiers[tier].1);
            }
        }
        for tier in [0, 1] {
            let brought: u64 = self.guests.values().map(|guest| guest.first[tier]).sum();
            let most = self.capacity[tier].max(brought);
            assert!(all[tier] <= most, "{all:?} of tier {tier}");
        }
        self.reserve.check(&self.providers);
    }

    fn orders(&self) -> Vec<(u32, Vec<Option<u64>>)> {
        let orders = self.providers.log().iter();
        let orders = orders.filter_map(|(_, record)| match record {
            Record::Action(Action::Resize(order)) => {
                Some((order.provider.0, order.size_bytes.clone()))
            }
            _ => None,
        });
        orders.collect()
    }
}

#[test]
fn a_vm_that_faults_pays_for_slow_memory_with_fast() {
    let first = [400 * MIB, 900 * MIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    host.guest(1).uses = 1600 * MIB;
    (0..120).for_each(|_| host.second());
    let sizes = host.sizes(1);
    assert!(sizes[0] < first[0] && sizes[1] > first[1], "{sizes:?}");
    assert!(sizes.iter().sum::<u64>() >= 1590 * MIB, "{sizes:?}");
    assert!(host.cost(sizes) <= host.cost(first), "{sizes:?}");
    let faults = host.guest(1).faults;
    (0..20).for_each(|_| host.second());
    let more = host.guest(1).faults - faults;
    assert!(more < faults / 50, "{more} faults beside {faults}");
    // First the slow balloon deflates, then the fast one inflates.
    let orders = host.orders();
    assert!(
        orders[0].1[0].is_none() && orders[0].1[1] > Some(first[1]),
        "{orders:?}"
    );
    assert!(
        orders[1].1[0] < Some(first[0]) && orders[1].1[1].is_none(),
        "{orders:?}"
    );
    let said = host.providers.said(1);
    for why in [
        "major faults in 5 s; it buys slow memory, 4.0 to 1",
        "pays for the slow memory",
    ] {
        assert!(said.iter().any(|said| said.contains(why)), "{said:?}");
    }
}

#[test]
fn unused_slow_memory_goes_for_fast_where_hot_pages_wait() {
    let first = [512 * MIB, 3 * GIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    (host.guest(1).uses, host.guest(1).hot) = (GIB, 700 * MIB);
    (0..120).for_each(|_| host.second());
    let sizes = host.sizes(1);
    assert!(sizes[0] >= 690 * MIB && sizes[1] < first[1], "{sizes:?}");
    assert!(host.cost(sizes) <= host.cost(first), "{sizes:?}");
    let orders = host.orders().len();
    (0..60).for_each(|_| host.second());
    assert!(
        host.orders().len() <= orders + 2,
        "it goes on: {:?}",
        host.orders()
    );
}

#[test]
fn no_trade_without_the_tier_or_at_the_same_price() {
    let first = [400 * MIB, 900 * MIB];
    for (ratio, slow) in [(4, 900 * MIB), (1, 4 * GIB)] {
        let mut host = Host::new(ratio, [2 * GIB, slow], &[first], 256 * MIB);
        host.guest(1).uses = 1600 * MIB;
        (0..60).for_each(|_| host.second());
        assert!(host.orders().is_empty(), "{:?}", host.orders());
    }
}

#[test]
fn a_guest_that_does_not_pay_gives_back_what_it_bought() {
    let first = [400 * MIB, 900 * MIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    host.guest(1).uses = 1600 * MIB;
    while host.sizes(1)[1] == first[1] {
        host.second();
    }
    // It takes no more than that, and lets nothing go for a while.
    host.guest(1).follows = Follows::Growth;
    (0..60).for_each(|_| host.second());
    let bought = host.sizes(1)[1];
    (0..60).for_each(|_| host.second());
    assert_eq!(host.sizes(1)[1], bought, "it got more without paying");
    host.guest(1).uses = GIB;
    host.guest(1).follows = Follows::All;
    (0..60).for_each(|_| host.second());
    assert!(host.cost(host.sizes(1)) <= host.cost(first));
}

/// Sizes of the slow tier that were ordered.
fn slow_orders(host: &Host) -> Vec<u64> {
    let orders = host.orders();
    orders.iter().filter_map(|(_, size)| size[1]).collect()
}

/// Its balloon of slow memory obeys, so that it holds both for the time of an order at most; for that of several if
/// it calls nothing free.
#[test]
fn one_that_buys_by_lies_and_never_pays_keeps_nothing() {
    keeps_nothing_for_longer_than(45, true);
    keeps_nothing_for_longer_than(60, false);
}

/// Most s of 300 in which a VM that never pays has what it bought, of which it calls all or nothing free.
fn keeps_nothing_for_longer_than(most_s: u64, calls_it_free: bool) {
    let first = [2 * GIB, 900 * MIB];
    let mut host = Host::new(4, [4 * GIB, 16 * GIB], &[first], 256 * MIB);
    host.guest(1).faults_per_s = Some(100_000);
    host.guest(1).follows = Follows::NeverPays;
    let mut above = 0;
    for _ in 0..300 {
        let bought = host.sizes(1)[1].saturating_sub(first[1]);
        host.guest(1).free = Some(if calls_it_free { bought } else { 0 });
        host.second();
        // 5 % of its memory, at 4 to 1.
        let excess = host.cost(host.sizes(1)).saturating_sub(host.cost(first));
        assert!(excess <= 4 * 200 * MIB, "{} MiB", excess / MIB);
        above += u64::from(excess > 0);
    }
    assert!(above > 0, "it bought nothing");
    assert!(
        above <= most_s,
        "it had what it did not pay for {above} of 300 s"
    );
    host.guest(1).faults_per_s = Some(0);
    (0..60).for_each(|_| host.second());
    assert!(host.cost(host.sizes(1)) <= host.cost(first));
    let said = host.providers.said(1);
    let why = |said: &String| said.contains("what it did not pay for goes back");
    assert!(said.iter().any(why), "{said:?}");
}

#[test]
fn a_long_trade_does_not_double_what_is_bought() {
    let first = [900 * MIB, 900 * MIB];
    let mut host = Host::new(4, [2 * GIB, 16 * GIB], &[first], 256 * MIB);
    host.guest(1).faults_per_s = Some(2000);
    host.guest(1).follows = Follows::Nothing;
    while host.orders().is_empty() {
        host.second();
    }
    (0..15).for_each(|_| host.second());
    host.guest(1).follows = Follows::All;
    (0..10).for_each(|_| host.second());
    let slow = slow_orders(&host);
    let bought = [slow[0] - first[1], slow[1] - slow[0]];
    assert!(bought[1] <= bought[0] * 5 / 4, "{bought:?}");
    let said = host.providers.said(1);
    let why = |said: &String| said.contains("10000 major faults in 5 s");
    assert!(said.iter().any(why), "{said:?}");
}

#[test]
fn one_that_begins_to_swap_buys_at_once_of_the_reserve() {
    let first = [900 * MIB, 1945 * MIB];
    // Nothing but the reserve is there: 5 % of 2 GiB.
    let mut host = Host::new(4, [2 * GIB, 2 * GIB], &[first], 256 * MIB);
    (0..23).for_each(|_| host.second());
    host.guest(1).uses = 4 * GIB;
    (0..2).for_each(|_| host.second());
    let slow = slow_orders(&host);
    assert!(
        slow.first() > Some(&first[1]),
        "{:?}",
        host.providers.said(1)
    );
}

#[test]
fn a_little_unused_memory_is_not_sold() {
    let first = [512 * MIB, 3 * GIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    // 15 MiB for 60, less than 2 % of its memory.
    (host.guest(1).uses, host.guest(1).hot) = (GIB, first[0] + 15 * MIB);
    (0..60).for_each(|_| host.second());
    assert_eq!(host.orders(), []);
    host.guest(1).hot = first[0] + 50 * MIB;
    (0..60).for_each(|_| host.second());
    assert!(!host.orders().is_empty());
}

#[test]
fn a_few_faults_buy_nothing() {
    let first = [400 * MIB, 900 * MIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    host.guest(1).faults_per_s = Some(50);
    (0..60).for_each(|_| host.second());
    assert_eq!(host.orders(), []);
    // A tenth of the time.
    host.guest(1).faults_per_s = Some(1000);
    (0..60).for_each(|_| host.second());
    assert!(!host.orders().is_empty());
}

#[test]
fn a_sale_that_did_harm_is_not_repeated_for_minutes() {
    let first = [512 * MIB, 3 * GIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    (host.guest(1).uses, host.guest(1).hot) = (3 * GIB, 640 * MIB);
    while host.orders().is_empty() {
        host.second();
    }
    // It faults, then calls the same memory unused again.
    host.guest(1).faults_per_s = Some(1000);
    (0..40).for_each(|_| host.second());
    host.guest(1).faults_per_s = None;
    (host.guest(1).uses, host.guest(1).hot) = (GIB, 2 * GIB);
    (0..20).for_each(|_| host.second());
    let sold = |host: &Host| {
        let slow = slow_orders(host);
        slow.windows(2).filter(|two| two[1] < two[0]).count()
    };
    let before = sold(&host);
    (0..200).for_each(|_| host.second());
    assert_eq!(sold(&host), before, "{:?}", host.orders());
    (0..150).for_each(|_| host.second());
    assert!(sold(&host) > before, "it is never tried again");
}

#[test]
fn a_vm_sells_no_memory_that_it_had_to_buy_minutes_ago() {
    let first = [512 * MIB, 1536 * MIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    // More than it has: it buys.
    host.guest(1).uses = 2 * GIB + 64 * MIB;
    (0..60).for_each(|_| host.second());
    let total = |host: &Host| host.sizes(1).iter().sum::<u64>();
    assert!(total(&host) > 2 * GIB, "{:?}", host.sizes(1));
    // Then its guest calls almost all of it unused, for less than the pause.
    (host.guest(1).uses, host.guest(1).hot) = (GIB / 2, 2 * GIB);
    for _ in 0..180 {
        host.second();
        assert!(total(&host) >= 2 * GIB, "{:?}", host.sizes(1));
    }
    (0..300).for_each(|_| host.second());
    assert!(total(&host) < 2 * GIB, "{:?}", host.sizes(1));
}

#[test]
fn a_vm_keeps_a_twentieth_of_its_memory_unused() {
    let first = [512 * MIB, 3 * GIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first], 256 * MIB);
    (host.guest(1).uses, host.guest(1).hot) = (GIB + 512 * MIB, 2 * GIB);
    (0..600).for_each(|_| host.second());
    let sizes = host.sizes(1);
    let total: u64 = sizes.iter().sum();
    assert!(sizes[1] < first[1], "it sold nothing");
    assert!(total >= (GIB + 512 * MIB) / 100 * 104, "{sizes:?}");
}

#[test]
fn a_recorded_run_of_trades_gives_the_same_orders() {
    let first = [400 * MIB, 900 * MIB];
    let mut host = Host::new(4, [2 * GIB, 4 * GIB], &[first, first], 256 * MIB);
    host.guest(2).uses = 1600 * MIB;
    (0..60).for_each(|_| host.second());
    assert!(!host.orders().is_empty());
    let replayed = replay(written(host.providers.log()).as_slice()).unwrap();
    assert!(
        replayed.actions > 0 && replayed.unrecorded_actions == 0,
        "{replayed:?}"
    );
}

/// The device's answer to the query of this number.
fn report(number: u64) -> Event {
    let tier = |node, pages: u64| TierStatus {
        node: Some(node),
        host_nodes: vec![node],
        whole_bytes: PAGES * PAGE_SIZE,
        target_bytes: pages * PAGE_SIZE,
        size_bytes: pages * PAGE_SIZE,
        verified: Some(Verified {
            present_bytes: pages * PAGE_SIZE,
            claimed_bytes: 0,
            retained_bytes: 0,
        }),
        ..TierStatus::default()
    };
    let status = ProviderStatus {
        connected: true,
        targets_sent: true,
        tiers: vec![tier(0, FAST), tier(1, PAGES - FAST)],
        ..ProviderStatus::default()
    };
    Event::ProviderSeen(Box::new(ProviderReport {
        provider: ProviderId(1),
        number,
        mechanism: Some(Mechanism {
            kind: ProviderKind::HyperFlex,
            name: "HyperFlex".into(),
            at: "a test".into(),
        }),
        status: Ok(status),
        verify: false,
        resident: None,
        pinned_by: Ok(None),
        held_by: OtherUsers::Nobody,
        order: OrderId(0),
        host: Vec::new(),
    }))
}

/// A VM whose hot pages climb the lists of `hmvisor`, with a device that sizes both of its tiers: pages in fast memory
/// after 25 s, and moves up and down.
fn observed(rule: Rule) -> (u64, [usize; 2]) {
    let config = EngineConfig {
        policy: PolicyName::Hmvisor.into(),
        arbiter: ArbiterConfig {
            rule,
            ..ArbiterConfig::default()
        },
        ..EngineConfig::default()
    };
    let mut host = engine::Host::new(config, &[PAGES, 4 * PAGES]);
    host.arrive(engine::spec(1, PAGES, FAST), Box::new(scattered));
    let provider = ProviderId(1);
    host.after(
        0,
        Event::ProviderArrived(ProviderSpec {
            provider,
            vm: "vm1".into(),
            is_configured: true,
            is_quiet: false,
            host_nodes: Vec::new(),
        }),
    );
    host.after(
        0,
        Event::MemoryRights(MemoryRights {
            provider,
            vm: Some(VmId(1)),
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            weight: 1000,
        }),
    );
    host.run_until(Tick(0));
    let asked = host.log().iter().find_map(|(_, record)| match record {
        Record::Action(Action::QueryProvider(query)) => Some(query.number),
        _ => None,
    });
    host.after(0, report(asked.unwrap()));
    for second in 1..25 {
        let need = MemoryNeed {
            provider,
            free_bytes: 0,
            used_swap_bytes: 0,
            major_faults: 0,
            lost_ns: 0,
            huge_percent: 0,
        };
        host.after(second * engine::SECOND, Event::MemoryNeed(need));
    }
    host.run_until(Tick(25 * engine::SECOND));
    let mut moves = [0, 0];
    for (_, record) in host.log() {
        if let Record::Action(Action::Move(plan)) = record {
            for page in &plan.moves {
                moves[page.to.index()] += 1;
            }
        }
    }
    (host.on_fast(1, |_| true), moves)
}

#[test]
fn stable_trade_exchanges_equal_numbers() {
    let (fast, [up, down]) = observed(Rule::Off);
    assert!(fast < FAST && up < down, "{fast}, {up} up, {down} down");
    let (fast, [up, down]) = observed(Rule::Trade);
    assert_eq!(fast, FAST);
    assert!(up > 0 && up == down, "{up} up, {down} down");
}
