//! Faults that an attack found, each by its name.

use terrace_core::arbiter::{ArbiterConfig, Rule};
use terrace_proto::Event;

use crate::world::{GIB, MIB, Machine, SECOND, Ways, World, tier};

fn two() -> World {
    World::of(ArbiterConfig::default(), &[2 * GIB, 2 * GIB], 256 * MIB)
}

#[test]
fn a_host_that_the_last_vm_left_wants_no_timer() {
    let mut world = two();
    world.seconds(3);
    world.depart(1);
    world.depart(2);
    world.pass(10 * SECOND);
    assert_eq!(world.session.engine().poll_timeout(), None);
}

#[test]
fn what_was_taken_is_not_judged_when_nobody_is_left() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    world.seconds(6);
    (1..5).for_each(|i| {
        world.vm(1).says(0, i * 100 * MIB);
        world.seconds(2);
    });
    world.depart(1);
    world.depart(2);
    world.pass(100 * SECOND);
}

/// A request that waits for its query will be an order: the same memory is given to nobody else.
#[test]
fn memory_that_was_asked_for_is_not_given_twice() {
    let mut world = World::of(ArbiterConfig::default(), &[2 * GIB; 3], 256 * MIB);
    world.vm(3).says(GIB, 0);
    world.seconds(80);
    let all = 6 * GIB;
    assert!(world.held() < all, "there is no reserve");
    for id in [1, 2] {
        world.vm(id).delay = 2_500_000_000;
    }
    // They begin to swap one after the other, while the first one's query is under way.
    for i in 1..4 {
        world.vm(1).says(0, i * GIB);
        world.vm(2).says(0, (i - 1) * GIB);
        world.second();
    }
    world.seconds(6);
    assert!(world.peak <= all, "{} MiB", world.peak / MIB);
}

/// A guest whose agent died says no more that its memory is in use.
#[test]
fn what_a_guest_called_free_long_ago_is_not_taken() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    world.second();
    let need = world.vm(1).need;
    for second in 0..120 {
        let mut need = need;
        need.used_swap_bytes = second * 64 * MIB;
        world.hear(Event::MemoryNeed(need));
        world.pass(SECOND);
    }
    let size = world.vm(2).size();
    assert!(size >= GIB, "{} MiB", size / MIB);
}

#[test]
fn a_guest_that_swapped_before_it_fell_silent_takes_no_more() {
    let mut world = two();
    world.vm(2).says(1500 * MIB, 0);
    world.seconds(10);
    world.vm(1).says(0, GIB);
    world.second();
    let need = world.vm(2).need;
    for _ in 0..15 {
        world.hear(Event::MemoryNeed(need));
        world.pass(SECOND);
    }
    let size = world.vm(1).size();
    for _ in 0..120 {
        world.hear(Event::MemoryNeed(need));
        world.pass(SECOND);
    }
    assert!(
        world.vm(1).size() <= size,
        "{} MiB",
        world.vm(1).size() / MIB
    );
}

#[test]
fn a_vm_of_no_weight_is_relieved() {
    let mut world = World::new(ArbiterConfig::default());
    world.arrive(1, Machine::new(1, 2 * GIB, 8 * GIB), 0);
    world.arrive(2, Machine::new(2, 2 * GIB, 8 * GIB), 1000);
    world.vm(2).says(GIB, 0);
    world.seconds(15);
    for i in 1..10 {
        world.vm(1).says(0, i * 100 * MIB);
        world.second();
    }
    assert!(world.vm(1).size() > 2 * GIB, "{:?}", world.said(1));
}

/// Sizes that are no whole blocks are rounded down by the provider.
#[test]
fn a_size_between_blocks_is_not_ordered_below_the_floor() {
    let mut world = two();
    let floor = 910 * MIB;
    let mut odd = Machine::new(3, 2 * GIB - 100 * MIB, 8 * GIB);
    odd.floor = floor;
    odd.tiers[0].block_bytes = 128 * MIB;
    odd.says(2 * GIB, 0);
    world.arrive(3, odd, 1000);
    for i in 1..20 {
        world.vm(1).says(0, i * 4 * GIB);
        world.second();
    }
    let least = world.orders.iter().filter(|order| order.vm == 3);
    let least = least.map(|order| order.to).min();
    assert!(least.is_some_and(|size| size >= floor), "{least:?}");
}

/// A block larger than the change makes an empty order, which is refused.
#[test]
fn a_change_of_less_than_a_block_is_not_asked_for() {
    let mut world = World::of(ArbiterConfig::default(), &[2 * GIB], 256 * MIB);
    let mut vm = Machine::new(2, 2 * GIB, 8 * GIB);
    vm.floor = 256 * MIB;
    vm.tiers[0].block_bytes = 2 * GIB;
    vm.says(GIB, 0);
    world.arrive(2, vm, 1000);
    world.seconds(120);
    let orders = world.orders.iter().filter(|order| order.vm == 2);
    assert_eq!(orders.count(), 0);
    assert!(world.said(2).is_empty(), "{:?}", world.said(2));
}

/// A VM on its way up for ever holds memory that others lent.
#[test]
fn memory_that_never_arrives_is_called_back() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    world.vm(1).ways = Ways::Part(8);
    for i in 1..20 {
        world.vm(1).says(0, i * 100 * MIB);
        world.second();
    }
    assert!(world.vm(1).target() > 2 * GIB && world.vm(2).size() < 2 * GIB);
    // The lender needs what it brought.
    for i in 1..60 {
        world.vm(1).says(0, 0);
        world.vm(2).says(0, i * 100 * MIB);
        world.second();
    }
    let size = world.vm(2).size();
    assert!(size >= 1950 * MIB, "{} MiB", size / MIB);
}

/// A provider that raises its target by itself (a user with a monitor of his own).
#[test]
fn one_that_grows_by_itself_takes_nothing_of_others() {
    let mut world = World::of(ArbiterConfig::default(), &[2 * GIB; 3], 256 * MIB);
    world.seconds(5);
    world.vm(1).tiers[0].target_bytes = 4 * GIB;
    world.vm(1).ways = Ways::Stalls;
    world.seconds(120);
    for id in [2, 3] {
        let size = world.vm(id).size();
        assert!(size >= 1950 * MIB, "{} MiB", size / MIB);
    }
}

/// The least size that a provider names counts for no more than the size that it has.
#[test]
fn a_least_size_beyond_everything_stops_no_sharing() {
    let mut world = two();
    let mut liar = Machine::new(3, 2 * GIB, 8 * GIB);
    liar.tiers[0].least_bytes = 8 * GIB;
    world.arrive(3, liar, 1000);
    world.vm(2).says(GIB, 0);
    for i in 1..30 {
        world.vm(1).says(0, i * 64 * MIB);
        world.second();
    }
    assert!(world.vm(1).size() > 2500 * MIB, "{:?}", world.said(1));
}

/// A refused order changes nothing, and is not given each second.
#[test]
fn refused_orders_are_tried_less_and_less() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    world.seconds(15);
    world.vm(1).ways = Ways::Refuses;
    for i in 0..600 {
        world.vm(1).says(0, i % 3 * GIB);
        world.second();
    }
    let orders = world.orders.iter().filter(|order| order.vm == 1).count();
    assert!(orders <= 30, "{orders} orders");
}

/// An order of the operator is not undone by a request that was decided before it.
#[test]
fn an_older_request_does_not_undo_the_operators_order() {
    let mut world = two();
    world.vm(2).says(GIB, 0);
    world.seconds(15);
    world.vm(1).delay = SECOND / 2;
    world.vm(1).says(0, GIB);
    world.resize(1, &[GIB]);
    world.say_all();
    world.pass(SECOND / 2 * 3);
    let last = world.orders.iter().rfind(|order| order.vm == 1);
    assert_eq!(last.map(|order| order.to), Some(GIB), "{:?}", world.said(1));
}

/// Two VMs of one owner: one lends, one that borrowed gives a little, complains, and keeps the rest.
#[test]
fn a_complaint_does_not_keep_what_others_lent() {
    let mut world = World::of(ArbiterConfig::default(), &[2 * GIB; 3], 256 * MIB);
    world.vm(3).says(1500 * MIB, 0);
    for i in 1..40 {
        world.vm(1).says(0, i * 100 * MIB);
        let left = world.vm(3).size() - 548 * MIB;
        world.vm(3).says(left, 0);
        world.second();
    }
    assert!(
        world.vm(1).size() > 2800 * MIB,
        "{} MiB",
        world.vm(1).size() / MIB
    );
    // It gives a part to its friend, and then loses a second each second.
    world.seconds(15);
    for i in 1..10 {
        let used = world.vm(1).need.used_swap_bytes;
        world.vm(1).says(GIB, used);
        world.vm(2).says(0, i * 40 * MIB);
        world.vm(3).says(0, 0);
        world.second();
    }
    for _ in 0..60 {
        world.vm(1).says(0, 0);
        world.vm(2).says(0, 0);
        world.vm(1).need.lost_ns += SECOND;
        world.second();
    }
    // The lender needs what it brought.
    for i in 1..60 {
        world.vm(1).need.lost_ns += SECOND;
        world.vm(3).says(0, i * 100 * MIB);
        world.second();
    }
    let size = world.vm(3).size();
    assert!(
        size >= 1950 * MIB,
        "{} MiB; {:#?}",
        size / MIB,
        world.said(1)
    );
}

/// Sentences do not grow with the number of VMs.
#[test]
fn sentences_name_a_few_takers_only() {
    let mut world = World::of(ArbiterConfig::default(), &[GIB; 120], 256 * MIB);
    for i in 1..20 {
        for id in 1..=60 {
            world.vm(id).says(0, i * 100 * MIB);
        }
        for id in 61..=120 {
            world.vm(id).says(512 * MIB, 0);
        }
        world.second();
    }
    let longest = (1..=120)
        .flat_map(|id| world.said(id))
        .map(|said| said.len());
    let longest = longest.max();
    assert!(longest < Some(300), "{longest:?}");
}

/// Two providers that report sizes up to the largest number: sums end there.
#[test]
fn sizes_beyond_all_numbers_are_survived() {
    let mut world = two();
    for id in [3, 4] {
        world.arrive(id, Machine::new(id, u64::MAX, u64::MAX), 1000);
    }
    world.seconds(30);
}

/// Memory that a provider said it would have, and never had, is no memory.
#[test]
fn a_target_that_is_no_more_leaves_nothing_to_share() {
    let mut world = two();
    let mut liar = Machine::new(3, GIB, 1 << 50);
    liar.tiers[0].target_bytes = 1 << 50;
    liar.ceiling = GIB;
    liar.ways = Ways::Stalls;
    world.arrive(3, liar, 1000);
    world.seconds(5);
    world.vm(3).tiers[0].target_bytes = GIB;
    for i in 1..60 {
        world.vm(1).says(0, i * 64 * MIB);
        world.second();
    }
    let held = world.vm(1).size() + world.vm(2).size();
    assert!(held <= 4 * GIB, "{} MiB", held / MIB);
}

/// Each order undid the one before, thousands of times in one instant.
#[test]
fn a_guest_that_does_half_of_each_trade_gets_an_order_a_cycle() {
    let config = ArbiterConfig {
        rule: Rule::Trade,
        capacity_tiers_bytes: vec![0, 2723 * MIB],
        price_ratio_milli: 1001,
        cycle_ms: 100,
        turn_ms: 0,
        dead_band_percent: 0,
        reserve_percent: 0,
        shrink_percent: 1,
        least_shrink_bytes: 0,
        ..ArbiterConfig::default()
    };
    let mut world = World::new(config);
    let mut vm = Machine::new(1, 0, 0);
    vm.tiers = vec![tier(0, 519 * MIB, 519 * MIB), tier(1, MIB, 3 * MIB)];
    for tier in &mut vm.tiers {
        tier.block_bytes = 2 * MIB;
    }
    vm.ways = Ways::Part(1);
    world.arrive(1, vm, 1000);
    for second in 0..30 {
        let lacks = 521 * MIB - world.vm(1).size();
        let need = &mut world.vm(1).need;
        need.used_swap_bytes = lacks;
        need.lost_ns += lacks / 4096;
        need.major_faults += 1;
        world.second();
        let orders = world.orders.len();
        assert!(orders <= 10 * (second + 1), "{orders} orders");
    }
    assert!(!world.orders.is_empty(), "nothing was traded");
}

/// Memory that VMs have or are on their way to, of what they brought.
fn left(world: &World) -> u64 {
    4 * GIB - world.held()
}

#[test]
fn the_reserve_is_refilled_once_swapping_ends() {
    for rule in [Rule::Dp, Rule::Fair] {
        let config = ArbiterConfig {
            rule,
            ..ArbiterConfig::default()
        };
        let mut world = World::of(config, &[2 * GIB, 2 * GIB], 256 * MIB);
        let reserve = 4 * GIB / 20 - 64 * MIB;
        world.vm(2).says(GIB, 0);
        world.seconds(80);
        assert!(left(&world) >= reserve, "{rule:?}: there is no reserve");
        world.vm(2).says(0, 0);
        for swapped in 1..10 {
            world.vm(1).says(0, swapped * 100 * MIB);
            // By its loss `fair` knows that it lacks memory.
            world.vm(1).need.lost_ns += SECOND / 2;
            world.vm(1).need.major_faults += 5000;
            world.second();
        }
        assert!(left(&world) < 64 * MIB, "{rule:?}: nothing was given");
        // It swaps no more, and nobody has surplus: what it has it uses.
        world.seconds(60);
        assert!(left(&world) < 64 * MIB, "{rule:?}: memory in use was taken");
        // The other one has, and nobody else gets that.
        world.vm(2).says(GIB, 0);
        let given = world.vm(1).size();
        world.seconds(120);
        assert!(
            left(&world) >= reserve,
            "{rule:?}: {} MiB",
            left(&world) / MIB
        );
        assert!(world.vm(1).size() <= given, "{rule:?}");
    }
}
