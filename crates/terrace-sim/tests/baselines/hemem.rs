//! Tests of `hemem`.

use crate::common::Small;
use crate::sampled;

const HOT: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.1, hot_access = 0.9, write = 0.2, \
                   duration = \"60s\"";

#[test]
fn hemem_brings_a_hot_set_that_starts_slow_into_fast_memory() {
    for policy in ["\"hemem\"", "\"hemem@guest\""] {
        let vm = Small {
            policy,
            more: "start = \"slow\"",
            workload: HOT,
            scale: 64,
        }
        .run();
        assert!(vm.fast_hit_ratio > 0.7, "{vm:?}");
    }
}

#[test]
fn hemem_moves_whole_2_mib_pages_of_a_vm_with_4_kib_pages() {
    let vm = Small {
        policy: "\"hemem\"",
        more: "start = \"slow\"",
        workload: "kind = \"hotset\", size = \"32MiB\", hot = 0.1, hot_access = 0.9, \
                   layout = \"clustered\", duration = \"500ms\"",
        scale: 1,
    }
    .run();
    assert!(vm.promoted_pages > 0, "{vm:?}");
    assert!(vm.promoted_pages.is_multiple_of(512), "{vm:?}");
    // The hot set covers two of them, or three.
    assert!(vm.fast_hit_ratio > 0.5, "{vm:?}");
}

#[test]
fn hemem_demotes_nothing_while_there_is_room() {
    let vm = Small {
        policy: "\"hemem\"",
        more: "",
        workload: "kind = \"hotset\", size = \"1024MiB\", hot = 0.1, hot_access = 0.9, \
                   duration = \"20s\"",
        scale: 64,
    }
    .run();
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0), "{vm:?}");
    assert_eq!(vm.fast_bytes_end, 1024 << 20);
}

#[test]
fn with_fast_memory_full() {
    sampled::fast_memory_full("hemem");
}

#[test]
fn with_slow_memory_full() {
    sampled::slow_memory_full("hemem");
}

#[test]
fn with_one_page_in_fast_memory() {
    sampled::one_page_in_fast_memory("hemem");
}

#[test]
fn with_a_load_that_ends() {
    sampled::a_load_that_ends("hemem");
}

#[test]
fn with_2_mib_pages() {
    sampled::huge_pages("hemem");
}

#[test]
fn with_three_tiers() {
    sampled::three_tiers("hemem");
}
