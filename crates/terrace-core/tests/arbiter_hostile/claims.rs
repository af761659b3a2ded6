//! Lost time that a VM claims which gets memory: no reason to leave an honest one without what it needs.

use terrace_core::arbiter::ArbiterConfig;

use crate::world::{GIB, MIB, SECOND, World};

/// The size of an honest VM a minute after it gave what was free and began to lose half of its time without that. The
/// other one claims before that it loses so much in a second, and nothing once it has memory.
fn honest_beside(claim: u64) -> u64 {
    let config = ArbiterConfig {
        live: true,
        capacity_bytes: 4 * GIB,
        ..ArbiterConfig::default()
    };
    let mut world = World::of(config, &[2 * GIB, 2 * GIB], 256 * MIB);
    world.vm(2).says(GIB, 0);
    for i in 0..70 {
        world.vm(1).need.lost_ns += claim;
        if i > 60 {
            world.vm(1).need.used_swap_bytes += 100 * MIB;
        }
        world.second();
    }
    assert!(world.vm(2).size() < 2 * GIB - 256 * MIB, "it gave nothing");
    for _ in 0..60 {
        world.vm(2).says(0, 0);
        world.vm(2).need.lost_ns += SECOND / 2;
        world.second();
    }
    world.vm(2).size()
}

#[test]
fn claims_of_lost_time_keep_nothing_that_its_owner_lacks() {
    let without = honest_beside(0);
    for claim in [SECOND / 10, SECOND, 1000 * SECOND] {
        let size = honest_beside(claim);
        assert!(
            size + 64 * MIB >= without,
            "{} instead of {} MiB after a claim of {claim} ns a second",
            size / MIB,
            without / MIB
        );
    }
}

/// Memory that nobody has, after one has swapped for minutes: all the time, or in turn for so many seconds and not at all.
fn left_by_one_that_swaps(turn: u64) -> u64 {
    let config = ArbiterConfig {
        live: true,
        capacity_bytes: 4 * GIB,
        ..ArbiterConfig::default()
    };
    let mut world = World::of(config, &[GIB, 3 * GIB], 256 * MIB);
    let mut used = 0;
    for second in 0..900 {
        // The other one ends its work little by little.
        let left = world.vm(2).size();
        world
            .vm(2)
            .says(left.saturating_sub(3 * GIB - second * 3 * MIB), 0);
        used = match turn {
            0 => used + 100 * MIB,
            turn if second / turn % 2 == 0 => used + 100 * MIB,
            _ => 0,
        };
        world.vm(1).says(0, used);
        world.second();
    }
    4 * GIB - world.held()
}

#[test]
fn one_that_swaps_in_turns_leaves_the_reserve() {
    let reserve = 4 * GIB / 20;
    for turn in [0, 1, 2, 5, 9] {
        let left = left_by_one_that_swaps(turn);
        assert!(
            left + 8 * MIB >= reserve,
            "{} of {} MiB in turns of {turn} s",
            left / MIB,
            reserve / MIB
        );
    }
}
