//! Tests of the product and of the lab itself in L1. Each test gets a lab that was not used before.

mod agent;
mod agent_faults;
mod agent_nested;
mod compare;
mod coordinated;
mod damon;
mod damos;
mod fairness;
mod faults;
mod fork_storm;
mod gather;
mod gather_by_host;
mod gather_redis;
mod host_nodes;
mod huge_pages;
mod infrastructure;
mod misses;
mod native;
mod placement;
mod several_vms;
mod simulator;
mod soak;
mod three_modes;
mod writes;

use super::test::Test;

pub const TESTS: &[&[Test]] = &[
    infrastructure::TESTS,
    native::TESTS,
    placement::TESTS,
    misses::TESTS,
    fork_storm::TESTS,
    faults::TESTS,
    several_vms::TESTS,
    huge_pages::TESTS,
    damon::TESTS,
    writes::TESTS,
    agent::TESTS,
    agent_faults::TESTS,
    agent_nested::TESTS,
    coordinated::TESTS,
    gather::TESTS,
    gather_by_host::TESTS,
    damos::TESTS,
    host_nodes::TESTS,
    simulator::TESTS,
];

/// The tests that take minutes.
pub const LONG_TESTS: &[&[Test]] = &[
    soak::TESTS,
    compare::TESTS,
    fairness::TESTS,
    damos::LONG_TESTS,
    gather_redis::TESTS,
    coordinated::LONG_TESTS,
    three_modes::LONG_TESTS,
];
