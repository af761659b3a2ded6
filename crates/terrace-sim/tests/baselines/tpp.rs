//! Tests of `tpp`.

use terrace_sim::VmResult;

use crate::common::Small;
use crate::edges;

/// A load whose pages are all equally hot; the scanner goes round once.
const ONE_ROUND: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.5, hot_access = 0.5, write = 0.2, \
                          compute_ns = 200, duration = \"1900ms\"";

fn from_slow(policy: &'static str) -> VmResult {
    Small {
        policy,
        more: "start = \"slow\"",
        workload: ONE_ROUND,
        scale: 64,
    }
    .run()
}

#[test]
fn tpp_promotes_at_the_second_hinting_fault() {
    let (vm, other) = (from_slow("\"tpp\""), from_slow("\"numab2\""));
    assert_eq!(vm.promoted_pages, 0, "{vm:?}");
    assert!(other.promoted_pages > 0, "{other:?}");
}

#[test]
fn tpp_frees_two_percent_of_fast_memory_in_advance() {
    let vm = edges::a_load_that_ends_at_once("tpp");
    assert!(vm.promoted_pages == 0 && vm.demoted_pages > 5000, "{vm:?}");
    // 5,242 pages are to be free, and 32 of the simulated ones are demoted at a time.
    let free = ((1 << 30) - vm.fast_bytes_end) >> 12;
    assert!((5242..5242 + 64 * 32).contains(&free), "{free}");
}

#[test]
fn tpp_brings_a_hot_set_to_full_fast_memory() {
    let vm = edges::fast_memory_full("tpp");
    assert!(vm.fast_hit_ratio > 0.8, "{vm:?}");
    assert!(vm.fast_bytes_end < 1010 << 20, "{vm:?}");
}

#[test]
fn tpp_at_the_host_exits_for_its_hints() {
    let guest = edges::fast_memory_full("tpp");
    let host = edges::fast_memory_full("tpp@host");
    assert!(host.fast_hit_ratio > 0.8, "{host:?}");
    assert!(host.vm_exits > 5 * guest.vm_exits, "{guest:?}\n{host:?}");
}

#[test]
fn tpp_exchanges_pages_where_all_memory_is_full() {
    let vm = edges::slow_memory_full("tpp");
    assert!(vm.fast_hit_ratio > 0.6, "{vm:?}");
}

#[test]
fn tpp_moves_nothing_to_a_node_of_one_page() {
    let vm = edges::one_page_of_fast_memory("tpp");
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0));
}

#[test]
fn tpp_moves_pages_of_2_mib() {
    let vm = edges::huge_pages("tpp");
    assert!(
        vm.promoted_pages > 0 && vm.promoted_pages.is_multiple_of(512),
        "{vm:?}"
    );
}

#[test]
fn tpp_demotes_from_node_to_node_where_there_are_three() {
    let vm = edges::three_tiers("tpp");
    assert!(
        vm.promoted_pages > 1000 && vm.demoted_pages > 1000,
        "{vm:?}"
    );
}
