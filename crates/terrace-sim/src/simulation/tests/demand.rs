//! Whether the tracker learns of an access by anything but its fault.

use super::*;

const SCENARIO: &str = r#"
[machine]
tiers = ["dram", "pmem"]
scale = 4
vcpus_per_vm = 2
[engine.demand]
track = "always"
[[vm]]
name = "a"
fast = "4GiB"
slow = "4GiB"
page = "2MiB"
policy = "hpmbs"
workload = { kind = "hotset", size = "1GiB", hot = 1.0, hot_access = 1.0, write = 0.5, duration = "1s" }
"#;

/// Blocks that the engine knows after a run, and the number of faults; before the load's first access, so many
/// permissions of its blocks are given back behind the engine's back.
fn known(given: u32) -> (u64, u64) {
    let scenario = Scenario::parse(SCENARIO, "fault", Path::new(".")).unwrap();
    let mut simulation = Simulation::new(&scenario, Options::default()).unwrap();
    let vm = simulation.vms[0].id;
    // Statistics come first: they turn tracking on.
    let events = simulation.observe_demand();
    simulation.tell_engine(events);
    let first = simulation.vms[0].space.guest.first_data() >> 9;
    let permissions = simulation.vms[0].space.second.permissions.as_mut().unwrap();
    (first..first + given).for_each(|block| permissions.permit(block));
    while simulation.advance(u64::MAX) {}
    let found = simulation.engine().demand(vm).unwrap();
    (found.known_blocks, simulation.protection_faults(vm))
}

#[test]
fn a_block_whose_permission_is_given_back_is_never_seen() {
    // A gibibyte at scale 4; its 128 blocks stay below the hot set's bounds only if that grew: each faults at least once.
    let (blocks, faults) = known(0);
    assert_eq!(blocks, 128);
    assert!(faults >= 128, "{faults}");
    assert_eq!(known(1).0, 127);
    assert_eq!(known(128), (0, 0));
}
