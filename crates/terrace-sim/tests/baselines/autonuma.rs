//! Tests of `autonuma`.

use crate::common::Small;
use crate::edges;

const HOT: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, hot_access = 0.9, write = 0.2, \
                   compute_ns = 200, duration = \"60s\"";

#[test]
fn autonuma_fills_the_fast_node_and_never_demotes() {
    let vm = Small {
        policy: "\"autonuma\"",
        more: "start = \"slow\"",
        workload: HOT,
        scale: 64,
    }
    .run();
    assert!(vm.promoted_pages > 0 && vm.demoted_pages == 0, "{vm:?}");
    // All but the high watermark.
    assert!(vm.fast_bytes_end > 1018 << 20, "{vm:?}");
    assert!(vm.fast_bytes_end < 1022 << 20, "{vm:?}");
    assert!(vm.rounds >= 3, "{vm:?}");
}

#[test]
fn autonuma_moves_nothing_once_the_fast_node_is_full() {
    let vm = edges::fast_memory_full("autonuma");
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0));
    assert!(vm.overhead_s.track > 0.0 && vm.fast_hit_ratio < 0.6);
}

#[test]
fn a_hinting_fault_exits_at_the_host_and_not_in_the_guest() {
    let guest = edges::fast_memory_full("autonuma@guest");
    let host = edges::fast_memory_full("autonuma@host");
    assert!(
        host.vm_exits > 10 * guest.vm_exits.max(1),
        "{guest:?}\n{host:?}"
    );
    assert_eq!(guest.policy, "autonuma@guest");
}

#[test]
fn autonuma_moves_nothing_before_a_scan_or_to_a_one_page_node() {
    for run in [
        edges::one_page_of_fast_memory,
        edges::a_load_that_ends_at_once,
    ] {
        assert_eq!(run("autonuma").promoted_pages, 0);
    }
}

#[test]
fn autonuma_moves_pages_of_2_mib_and_none_of_three_full_nodes() {
    let vm = edges::huge_pages("autonuma");
    assert!(
        vm.promoted_pages > 0 && vm.promoted_pages.is_multiple_of(512),
        "{vm:?}"
    );
    let vm = edges::three_tiers("autonuma");
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0));
}
