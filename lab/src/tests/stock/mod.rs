//! Tests of `terrace resize` and of scans if QEMU has no device of ours.

mod balance;
mod dimm;
mod huge;
mod long;
mod resizing;
mod trade;

use super::test::Test;

pub const TESTS: &[Test] = &[
    Test::on_guest(
        "virtio_mem_resizes_each_tier_under_a_working_program",
        resizing::virtio_mem,
    ),
    Test::on_guest(
        "virtio_mem_that_cannot_unplug_is_stuck_and_says_why",
        resizing::stuck,
    ),
    Test::on_guest("balloon_resizes_the_total_and_says_so", resizing::balloon),
    Test::on_guest(
        "ram_plugged_into_a_running_guest_is_scanned_and_released",
        dimm::plugged_and_unplugged,
    ),
    Test::on_guest(
        "a_guest_that_got_memory_back_has_huge_pages_again",
        huge::restored,
    ),
    Test::on_guest(
        "a_guest_that_swaps_gets_memory_of_one_that_idles",
        balance::moves,
    ),
    Test::on_guest(
        "a_guest_that_swaps_gets_memory_that_another_unplugs",
        balance::moves_by_virtio_mem,
    ),
    Test::on_guest(
        "a_guest_that_swaps_gets_memory_by_hyperflex",
        balance::moves_by_hyperflex,
    ),
    Test::on_guest(
        "a_guest_pays_for_slow_memory_with_fast",
        trade::at_equal_cost,
    ),
    Test::on_guest(
        "programs_give_what_they_do_not_use_to_one_that_swaps",
        balance::unused,
    ),
    Test::on_guest(
        "page_cache_in_use_stays_beside_one_that_swaps",
        balance::page_cache,
    ),
];

/// The tests that take an hour.
pub const LONG_TESTS: &[Test] = &[
    Test::on_guest(
        "an_hour_of_constant_load_moves_nothing_and_costs_little",
        long::constant,
    ),
    Test::on_guest(
        "guests_that_come_and_go_leave_nothing_in_the_daemon",
        long::churn,
    ),
];
