//! Tests of `numab2`.

use terrace_sim::VmResult;

use crate::common::Small;
use crate::edges;

/// A load that touches each cold page every 100 seconds.
const COLD: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, hot_access = 0.999, write = 0.2, \
                    compute_ns = 200, duration = \"60s\"";

fn from_slow(policy: &'static str) -> VmResult {
    Small {
        policy,
        more: "start = \"slow\"",
        workload: COLD,
        scale: 64,
    }
    .run()
}

#[test]
fn numab2_promotes_what_faults_soon_after_its_hint() {
    let hot = (2048 << 8) / 20;
    let (vm, all) = (from_slow("\"numab2\""), from_slow("\"autonuma\""));
    assert!(vm.promoted_pages > hot * 95 / 100, "{vm:?}");
    assert!(vm.promoted_pages < hot * 2, "{vm:?}");
    assert!(all.promoted_pages > hot * 3, "{all:?}");
    assert!(vm.fast_hit_ratio > 0.9, "{vm:?}");
}

#[test]
fn numab2_brings_a_hot_set_to_full_fast_memory() {
    let vm = edges::fast_memory_full("numab2");
    assert!(vm.fast_hit_ratio > 0.85, "{vm:?}");
    assert!(vm.demoted_pages > 0, "{vm:?}");
    // kswapd frees no more than the promotion watermark.
    assert!(vm.fast_bytes_end > 1010 << 20, "{vm:?}");
}

#[test]
fn numab2_at_the_host_exits_for_its_hints() {
    let guest = edges::fast_memory_full("numab2");
    let host = edges::fast_memory_full("numab2@host");
    assert!(host.fast_hit_ratio > 0.85, "{host:?}");
    assert!(host.vm_exits > 5 * guest.vm_exits, "{guest:?}\n{host:?}");
}

#[test]
fn numab2_exchanges_pages_where_all_memory_is_full() {
    let vm = edges::slow_memory_full("numab2");
    assert!(vm.fast_hit_ratio > 0.7, "{vm:?}");
}

#[test]
fn numab2_moves_nothing_before_a_scan_or_to_a_one_page_node() {
    for run in [
        edges::one_page_of_fast_memory,
        edges::a_load_that_ends_at_once,
    ] {
        let vm = run("numab2");
        assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0));
    }
}

#[test]
fn numab2_moves_pages_of_2_mib() {
    let vm = edges::huge_pages("numab2");
    assert!(
        vm.promoted_pages > 0 && vm.promoted_pages.is_multiple_of(512),
        "{vm:?}"
    );
}

#[test]
fn numab2_demotes_from_node_to_node_where_there_are_three() {
    let vm = edges::three_tiers("numab2");
    assert!(
        vm.promoted_pages > 1000 && vm.demoted_pages > 1000,
        "{vm:?}"
    );
}

/// Counts of a run that starts in slow memory: promoted and demoted pages, and the bytes in fast memory at the end.
fn counts(policy: &'static str) -> (u64, u64, u64) {
    let vm = from_slow(policy);
    (vm.promoted_pages, vm.demoted_pages, vm.fast_bytes_end)
}

#[test]
fn numab2_with_the_kernels_limits_is_as_without_them() {
    let given =
        "{ base = \"numab2\", hot_threshold_ms = 1000, rate_limit_mb_s = 65536, adapt = true }";
    assert_eq!(counts(given), counts("\"numab2\""));
}

#[test]
fn numab2_promotes_less_by_a_lower_threshold() {
    // A cold page is touched every 100 s: a tenth of a second leaves one in a thousand.
    let (usual, low) = (
        from_slow("\"numab2\""),
        from_slow("{ base = \"numab2\", hot_threshold_ms = 100, adapt = false }"),
    );
    let hot = (2048 << 8) / 20;
    assert!(low.promoted_pages < usual.promoted_pages, "{low:?}");
    assert!(low.promoted_pages > hot / 2, "{low:?}");
    assert_eq!(low.policy, "numab2 hot_threshold_ms=100 adapt=false");
}

#[test]
fn numab2_promotes_no_more_than_its_rate_limit() {
    // 1 MiB a second; without the limit, all 102 MiB of the hot set go up within seconds.
    let vm = from_slow("{ base = \"numab2\", rate_limit_mb_s = 1 }");
    assert!(vm.promoted_pages > 0, "{vm:?}");
    assert!(vm.promoted_pages <= 61 << 8, "{vm:?}");
}
