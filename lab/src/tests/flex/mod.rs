//! Tests of what HyperFlex's device and driver must do together, and of what each must survive.

mod balloons;
mod hangs;
mod hostile;
mod leases;
mod resizes;
mod restarts;
mod sizes;

use super::test::{Needs, Test};

/// The word of `--only` that selects all of these tests.
pub const WORD: &str = "hyperflex";

pub const TESTS: &[Test] = &[
    Test::on_guest(
        "a_resize_takes_from_its_tier_alone_and_the_host_gets_it",
        balloons::resize,
    ),
    Test::on_guest(
        "a_newer_target_replaces_one_that_is_under_way",
        balloons::replaced,
    ),
    Test::on_guest(
        "memory_comes_back_under_pressure_and_nobody_is_killed",
        balloons::pressure,
    ),
    Test::on_guest(
        "a_driver_that_goes_gives_everything_back",
        balloons::removal,
    ),
    Test::on_guest(
        "a_guest_that_sleeps_wakes_with_all_of_its_memory",
        balloons::sleep,
    ),
    Test::on_guest(
        "compaction_moves_pages_of_the_balloon_within_their_node",
        balloons::compaction,
    ),
    Test::on_guest(
        "a_guest_that_reboots_has_all_memory_until_the_driver_is_back",
        restarts::guest_rebooted,
    ),
    Test::on_guest(
        "a_device_that_misbehaves_does_not_harm_the_guest",
        hostile::manners,
    ),
    Test::on_guest("a_driver_goes_while_its_device_is_silent", hostile::removal),
    Test::on_guest(
        "compaction_goes_on_beside_a_device_that_hangs",
        hangs::compaction,
    ),
    Test::on_guest(
        "memory_pressure_ends_beside_a_device_that_hangs",
        hangs::pressure,
    ),
    Test::on_guest(
        "targets_are_met_again_after_the_device_was_killed",
        restarts::device_killed,
    ),
    Test::on_guest(
        "hyperflex_resizes_fast_and_slow_under_a_working_program",
        resizes::under_a_working_program,
    ),
    Test::on_guest("hyperflex_resizes_beside_numab2", resizes::beside_numab2),
    Test::on_guest(
        "hyperflex_resizes_beside_the_agent",
        resizes::beside_the_agent,
    ),
    Test {
        needs: Needs::EveryProcess,
        ..Test::on_guest(
            "hyperflex_shrinks_under_leases_and_not_beside_another_mapper",
            leases::another_process_maps_the_ram,
        )
    },
];
