//! Any sequence of lies, failures, arrivals, departures and operators' orders: what must hold after every event.

use proptest::prelude::*;
use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_core::session::replay::replay;
use terrace_proto::provision::ProviderKind;
use terrace_proto::{Event, MemoryNeed, MemoryRights, MemoryTiers, ProviderId};
use terrace_testkit::log::written;

use crate::price::Prices;
use crate::reserve::Reserve;
use crate::world::{GIB, Kinds, MIB, Machine, SECOND, Ways, World, sum, tier};

/// A VM as it arrives.
#[derive(Clone, Debug)]
struct Newcomer {
    /// Size and most of each tier, MiB.
    tiers: Vec<(u64, u64)>,
    block: u64,
    least: u64,
    floor: u64,
    ceiling: u64,
    weight: u32,
}

/// A deed of somebody.
#[derive(Clone, Debug)]
enum Deed {
    /// A guest says this from now on.
    Says(u32, [u64; 4], u8),
    /// A guest's program grows or shrinks: so much is free, or lacks.
    Needs(u32, u64),
    Silent(u32, bool),
    Goes(u32),
    Comes(u32, Newcomer),
    ComesAgain(u32),
    Ways(u32, Ways),
    Delays(u32, u64),
    /// The operator wants sizes.
    Wants(u32, Vec<u64>),
    Rights(u32, u64, u64, u32),
    /// A provider reports what is not so.
    Reports(u32, [u64; 5]),
    Free(u64),
    Floods(u32, u64),
    Passes(u64),
}

/// Any number, and often one of a size of memory.
pub fn number() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        Just(u64::MAX),
        Just(1 << 63),
        any::<u64>(),
        0..8 * GIB,
        0..8 * GIB,
    ]
}

fn ways() -> impl Strategy<Value = Ways> {
    prop_oneof![
        Just(Ways::Obeys),
        Just(Ways::Obeys),
        Just(Ways::Stalls),
        (0..17_u8).prop_map(Ways::Part),
        Just(Ways::Refuses),
        Just(Ways::Loses),
        Just(Ways::Hangs),
    ]
}

prop_compose! {
    fn newcomer()(
        tiers in prop::collection::vec((1..3000_u64, 0..3000_u64), 1..4),
        block in prop_oneof![Just(0), Just(2), Just(128), Just(1000), Just(1 << 40)],
        least in 0..600_u64,
        floor in prop_oneof![Just(0), 0..3000_u64, Just(1 << 40)],
        ceiling in prop_oneof![Just(u64::MAX / MIB), 0..6000_u64],
        weight in prop_oneof![Just(0), Just(1000), Just(u32::MAX), any::<u32>()],
    ) -> Newcomer {
        Newcomer { tiers, block, least, floor, ceiling, weight }
    }
}

/// Deeds of guests, operators and honest providers; `liars`: of lying ones, too.
fn deed(liars: bool) -> impl Strategy<Value = Deed> {
    let id = || 1..5_u32;
    let lie = prop_oneof![
        (id(), prop::array::uniform5(number())).prop_map(|(id, of)| Deed::Reports(id, of)),
        (id(), prop::collection::vec(number(), 1..4)).prop_map(|(id, of)| Deed::Wants(id, of)),
        (id(), number(), number(), any::<u32>())
            .prop_map(|(id, floor, ceiling, weight)| Deed::Rights(id, floor, ceiling, weight)),
        number().prop_map(Deed::Free),
        (id(), newcomer()).prop_map(|(id, new)| Deed::Comes(id, new)),
        id().prop_map(Deed::ComesAgain),
        id().prop_map(Deed::Goes),
    ];
    let honest = prop_oneof![
        (id(), prop::array::uniform4(number()), any::<u8>())
            .prop_map(|(id, of, huge)| Deed::Says(id, of, huge)),
        (id(), 0..6 * GIB).prop_map(|(id, needs)| Deed::Needs(id, needs)),
        (id(), 0..6 * GIB).prop_map(|(id, needs)| Deed::Needs(id, needs)),
        (id(), any::<bool>()).prop_map(|(id, is)| Deed::Silent(id, is)),
        (id(), ways()).prop_map(|(id, ways)| Deed::Ways(id, ways)),
        (id(), 0..5 * SECOND).prop_map(|(id, delay)| Deed::Delays(id, delay)),
        (id(), number()).prop_map(|(id, of)| Deed::Floods(id, of)),
        (0..12 * SECOND).prop_map(Deed::Passes),
        Just(Deed::Passes(SECOND)),
        Just(Deed::Passes(SECOND)),
    ];
    let of = if liars { 3 } else { 0 };
    // A weight of 0 is none.
    prop_oneof![10 => honest.boxed(), of => lie.boxed()]
}

fn machine(id: u32, new: &Newcomer) -> Machine {
    let mut vm = Machine::new(id, 0, 0);
    let tiers = (0..).zip(&new.tiers).map(|(node, (size, more))| {
        let mut tier = tier(node, size * MIB, (size + more) * MIB);
        tier.block_bytes = new.block.saturating_mul(MIB);
        tier.least_bytes = new.least.min(*size) * MIB;
        tier
    });
    vm.tiers = tiers.collect();
    if id.is_multiple_of(2) {
        vm.kind = ProviderKind::VirtioMem;
    }
    (vm.floor, vm.ceiling) = (
        new.floor.saturating_mul(MIB),
        new.ceiling.saturating_mul(MIB),
    );
    vm
}

struct Test {
    world: World,
    silent: [bool; 6],
    /// Memory that programs need; `None`: the guest says what it was told to.
    needs: [Option<u64>; 6],
    capacity: Kinds,
    reserve: Reserve,
    prices: Prices,
    /// Whether all providers report what is so, and nobody orders but the arbiter.
    honest: bool,
}

impl Test {
    fn do_it(&mut self, deed: Deed) {
        let world = &mut self.world;
        match deed {
            Deed::Goes(id) => world.depart(id),
            Deed::Comes(id, new) if !world.vms.contains_key(&id) => {
                world.arrive(id, machine(id, &new), new.weight);
            }
            Deed::ComesAgain(id) => {
                if let Some(vm) = world.vms.get(&id).cloned() {
                    world.arrive(id, vm, 1000);
                }
            }
            Deed::Wants(id, sizes) => world.resize(id, &sizes),
            Deed::Rights(id, floor_bytes, ceiling_bytes, weight) => {
                world.hear(Event::MemoryRights(MemoryRights {
                    provider: ProviderId(id),
                    vm: None,
                    floor_bytes,
                    ceiling_bytes,
                    weight,
                }));
            }
            Deed::Free(free) => world.free = free,
            Deed::Passes(ns) => self.pass(ns),
            Deed::Silent(id, is) => self.silent[id as usize] = is,
            Deed::Needs(id, needs) => self.needs[id as usize] = Some(needs),
            deed => self.of_one(deed),
        }
    }

    fn of_one(&mut self, deed: Deed) {
        let (Deed::Says(id, ..)
        | Deed::Ways(id, _)
        | Deed::Delays(id, _)
        | Deed::Reports(id, _)
        | Deed::Floods(id, _)) = deed
        else {
            return;
        };
        let Some(vm) = self.world.vms.get_mut(&id) else {
            return;
        };
        match deed {
            Deed::Says(_, [free, swap, faults, lost], huge_percent) => {
                self.needs[id as usize] = None;
                vm.need = MemoryNeed {
                    free_bytes: free,
                    used_swap_bytes: swap,
                    major_faults: faults,
                    lost_ns: lost,
                    huge_percent,
                    ..vm.need
                };
            }
            Deed::Ways(_, ways) => vm.ways = ways,
            Deed::Delays(_, delay) => vm.delay = delay,
            Deed::Reports(_, [whole, least, block, target, size]) => {
                for tier in &mut vm.tiers {
                    (tier.whole_bytes, tier.least_bytes) = (whole, least);
                    (tier.block_bytes, tier.target_bytes) = (block, target);
                    tier.size_bytes = size;
                }
                if size % 3 == 0 {
                    vm.tiers.pop();
                }
            }
            Deed::Floods(_, bytes) => {
                let mut need = vm.need;
                for used_swap_bytes in [0, bytes, u64::MAX, 1] {
                    need.used_swap_bytes = used_swap_bytes;
                    self.world.hear(Event::MemoryNeed(need));
                    self.reserve.note(&self.world, 0);
                }
            }
            _ => {}
        }
    }

    fn pass(&mut self, ns: u64) {
        for (id, vm) in &mut self.world.vms {
            if let Some(needs) = self.needs[*id as usize] {
                let size = vm.size();
                let more = needs.saturating_sub(size);
                let lost = (more / 4096).min(1_000_000_000);
                vm.need.free_bytes = size.saturating_sub(needs);
                vm.need.used_swap_bytes = more;
                vm.need.lost_ns = vm.need.lost_ns.wrapping_add(lost);
                vm.need.major_faults = vm.need.major_faults.wrapping_add(more / (1 << 20));
            }
        }
        let needs = self.world.vms.iter();
        let needs = needs.filter(|(id, _)| !self.silent[**id as usize]);
        let needs: Vec<MemoryNeed> = needs.map(|(_, vm)| vm.need).collect();
        for need in needs {
            self.world.hear(Event::MemoryNeed(need));
            self.reserve.note(&self.world, 0);
            // What it says of its tiers is as true.
            let (free, odd) = (need.free_bytes, need.used_swap_bytes);
            self.world.hear(Event::MemoryTiers(MemoryTiers {
                provider: need.provider,
                free_bytes: [free / 2, free, odd, free],
                waiting_hot_bytes: need.major_faults ^ free,
            }));
        }
        self.reserve.note(&self.world, ns);
        self.prices.note(&self.world);
        self.world.pass(ns);
    }

    fn check(&mut self) {
        // At most two orders in a second: one up, and one that takes it back.
        let orders = std::mem::take(&mut self.world.orders);
        if !self.honest {
            return;
        }
        let peaks = self.world.peaks;
        let fits = peaks.iter().zip(&self.capacity);
        assert!(
            fits.clone().all(|(peak, all)| peak <= all),
            "{peaks:?} of {:?}",
            self.capacity
        );
        for order in orders {
            self.reserve.check(&order);
            self.prices.check(&order);
            let vm = &self.world.vms[&order.vm];
            let whole = sum(vm.tiers.iter().map(|tier| tier.whole_bytes));
            let floor = vm.floor.min(whole);
            let ceiling = vm.ceiling.max(floor).min(whole);
            // One that is beyond a bound when it comes is brought nearer to it. A guest may give while a report is on
            // its way: what the order is to hold is the size that was reported.
            assert!(order.to >= floor.min(order.has), "{order:?}, floor {floor}");
            assert!(
                order.to <= ceiling.max(order.has).max(order.reported),
                "{order:?}, ceiling {ceiling}"
            );
        }
    }
}

/// Runs deeds. Returns how many orders were checked against the reserve, and against a price.
fn run(config: ArbiterConfig, vms: &[Newcomer], deeds: Vec<Deed>, honest: bool) -> [usize; 2] {
    let mut world = World::new(config.clone());
    for (id, new) in (1..).zip(vms) {
        world.arrive(id, machine(id, new), new.weight);
    }
    world.began = world.kinds();
    let mut capacity = world.began;
    let whole = [config.capacity_bytes];
    let configured = whole.iter().chain(&config.capacity_tiers_bytes);
    for (capacity, bytes) in capacity.iter_mut().zip(configured) {
        // Less than VMs brought is taken of nobody at once.
        *capacity = (*capacity).max(*bytes);
    }
    let mut test = Test {
        reserve: Reserve::new(&config, &world.vms),
        prices: Prices::new(&config, &world.vms),
        world,
        silent: [false; 6],
        needs: [None; 6],
        capacity,
        honest,
    };
    for deed in deeds {
        test.do_it(deed);
        test.check();
    }
    test.pass(SECOND);
    test.check();
    if honest {
        test.prices.settle(&mut test.world);
    }
    let replayed = replay(written(test.world.session.log()).as_slice()).unwrap();
    assert_eq!(replayed.unrecorded_actions, 0, "{replayed:?}");
    [test.reserve.checked, test.prices.checked]
}

prop_compose! {
    fn configs()(
        reserve_percent in 0..=50_u8,
        dead_band_percent in 0..=50_u8,
        shrink_percent in 1..=100_u8,
        cycle_ms in prop_oneof![Just(100), Just(5_000), 100..20_000_u64],
        turn_ms in prop_oneof![Just(0), Just(10_000)],
        review_ms in prop_oneof![Just(1), Just(30_000)],
        least_shrink_bytes in prop_oneof![Just(0), Just(64 * MIB), Just(u64::MAX)],
        rule in prop_oneof![Just(Rule::Dp), Just(Rule::Fair), Just(Rule::Trade)],
        price_ratio_milli in 1000..6000_u32,
        capacity_bytes in prop_oneof![Just(0), 0..16 * GIB],
        capacity_tiers_bytes in prop_oneof![
            Just(Vec::new()),
            prop::collection::vec(0..16 * GIB, 1..4),
        ],
    ) -> ArbiterConfig {
        ArbiterConfig {
            rule,
            price_ratio_milli,
            capacity_bytes,
            capacity_tiers_bytes,
            reserve_percent,
            dead_band_percent,
            shrink_percent,
            cycle_ms,
            turn_ms,
            review_ms,
            least_shrink_bytes,
            ..ArbiterConfig::default()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn bounds_and_sums_hold_whatever_is_said_and_fails(
        config in configs(),
        vms in prop::collection::vec(newcomer(), 1..5),
        deeds in prop::collection::vec(deed(false), 1..60),
    ) {
        run(config, &vms, deeds, true);
    }

    /// Those that have much free, and those that have nothing.
    #[test]
    fn nobody_has_of_the_reserve_that_does_not_swap(
        config in configs(),
        vms in prop::collection::vec(newcomer(), 1..5),
        deeds in prop::collection::vec((1..5_u32, 0..8 * GIB, 1..100 * SECOND), 1..20),
    ) {
        let deeds = deeds.into_iter().flat_map(|(id, free, ns)| {
            let says = Deed::Says(id, [free, 0, 0, 0], 100);
            [says, Deed::Passes(SECOND), Deed::Passes(ns)]
        });
        run(config, &vms, deeds.collect(), true);
    }

    #[test]
    fn whatever_providers_and_operators_do_is_survived_and_replayed(
        config in configs(),
        vms in prop::collection::vec(newcomer(), 0..5),
        deeds in prop::collection::vec(deed(true), 1..60),
    ) {
        run(config, &vms, deeds, false);
    }
}
