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
