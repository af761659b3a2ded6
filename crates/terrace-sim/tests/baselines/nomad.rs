//! Tests of `nomad`.

use terrace_sim::VmResult;

use crate::common::Small;
use crate::edges;

const LOAD: u64 = 2048 << 20;

fn run(policy: &'static str, more: &'static str, workload: &'static str) -> VmResult {
    Small {
        policy,
        more,
        workload,
        scale: 64,
    }
    .run()
}

/// Runs the mechanism at the host, whose threads take no time from the vCPUs.
fn from_slow(workload: &'static str) -> VmResult {
    run("\"nomad@host\"", "start = \"slow\"", workload)
}

/// The pages that the VM holds beside its load's.
fn shadows(vm: &VmResult) -> u64 {
    vm.tier_bytes_end.iter().sum::<u64>() - LOAD
}

#[test]
fn nomad_keeps_shadows_of_read_pages_and_writes_drop_them() {
    let read = run(
        "\"nomad\"",
        "",
        "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, write = 0.0, compute_ns = 200, \
         duration = \"60s\"",
    );
    let written = run(
        "\"nomad\"",
        "",
        "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, write = 1.0, compute_ns = 200, \
         duration = \"60s\"",
    );
    // Nearly all of fast memory has shadows if nothing is written.
    assert!(shadows(&read) > 900 << 20, "{read:?}");
    assert!(shadows(&written) < shadows(&read) * 3 / 4, "{written:?}");
}

#[test]
fn nomad_does_not_promote_what_is_written_all_the_time() {
    // Four simulated pages take nearly all accesses; a cache would take those.
    let read = from_slow(
        "kind = \"hotset\", size = \"2048MiB\", hot = 0.0005, hot_access = 0.99, \
         write = 0.0, compute_ns = 200, before_cache = false, \
         duration = \"30s\"",
    );
    let written = from_slow(
        "kind = \"hotset\", size = \"2048MiB\", hot = 0.0005, hot_access = 0.99, \
         write = 1.0, compute_ns = 200, before_cache = false, \
         duration = \"30s\"",
    );
    assert!(read.fast_hit_ratio > 0.8, "{read:?}");
    assert!(written.fast_hit_ratio < 0.2, "{written:?}");
}

#[test]
fn nomad_brings_a_hot_set_to_full_fast_memory() {
    let vm = edges::fast_memory_full("nomad");
    assert!(vm.fast_hit_ratio > 0.8, "{vm:?}");
    assert!(vm.fast_bytes_end < 1010 << 20, "{vm:?}");
}

#[test]
fn nomad_at_the_host_exits_for_its_hints_and_flushes() {
    let guest = edges::fast_memory_full("nomad");
    let host = edges::fast_memory_full("nomad@host");
    assert!(host.fast_hit_ratio > 0.8, "{host:?}");
    assert!(host.vm_exits > 2 * guest.vm_exits, "{guest:?}\n{host:?}");
}

#[test]
fn nomad_drops_shadows_where_slow_memory_is_full() {
    let vm = edges::slow_memory_full("nomad");
    let held: u64 = vm.tier_bytes_end.iter().sum();
    assert!(vm.fast_hit_ratio > 0.6, "{vm:?}");
    // 4 GiB of pages, and at this scale 512 MiB that the machine keeps free.
    assert!((4096..=4608).contains(&(held >> 20)), "{vm:?}");
}

#[test]
fn nomad_moves_nothing_to_a_node_of_one_page() {
    let vm = edges::one_page_of_fast_memory("nomad");
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0));
}

#[test]
fn nomad_promotes_only_what_it_demoted_before_the_first_scan() {
    let vm = edges::a_load_that_ends_at_once("nomad");
    assert!(vm.demoted_pages > 5000, "{vm:?}");
    assert!(vm.promoted_pages < vm.demoted_pages, "{vm:?}");
}

#[test]
fn nomad_moves_pages_of_2_mib() {
    let vm = edges::huge_pages("nomad");
    assert!(
        vm.promoted_pages > 0 && vm.promoted_pages.is_multiple_of(512),
        "{vm:?}"
    );
}

#[test]
fn nomad_demotes_from_node_to_node_where_there_are_three() {
    let vm = edges::three_tiers("nomad");
    assert!(
        vm.promoted_pages > 1000 && vm.demoted_pages > 1000,
        "{vm:?}"
    );
}
