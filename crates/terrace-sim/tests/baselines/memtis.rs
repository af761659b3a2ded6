//! Tests of `memtis`.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation, VmResult};

use crate::common::Small;
use crate::sampled;

fn small(policy: &'static str, workload: &'static str) -> terrace_sim::VmResult {
    Small {
        policy,
        more: "start = \"slow\"",
        workload,
        scale: 64,
    }
    .run()
}

#[test]
fn memtis_brings_a_hot_set_that_starts_slow_into_fast_memory() {
    for policy in ["\"memtis\"", "\"memtis@host\""] {
        let vm = small(
            policy,
            "kind = \"hotset\", size = \"2048MiB\", hot = 0.1, hot_access = 0.9, write = 0.2, \
             duration = \"60s\"",
        );
        assert!(vm.fast_hit_ratio > 0.7, "{vm:?}");
    }
}

#[test]
fn memtis_leaves_fast_memory_to_the_hottest_if_it_is_short() {
    // All pages are sampled often enough for a fixed threshold; the hottest are those that get in.
    let vm = small(
        "\"memtis\"",
        "kind = \"hotset\", size = \"3072MiB\", hot = 0.25, hot_access = 0.75, write = 0.2, \
         duration = \"90s\"",
    );
    assert!(vm.fast_hit_ratio > 0.6, "{vm:?}");
}

/// A load on 2 MiB pages, each of which has some hot parts.
const SKEWED: &str = "kind = \"hotset\", size = \"128GiB\", hot = 0.05, hot_access = 0.9, \
                      write = 0.2, duration = \"250s\"";

fn skewed(policy: &str) -> terrace_sim::VmResult {
    let vm = format!(
        "policy = \"{policy}\"\nfast = \"32GiB\"\nslow = \"112GiB\"\npage = \"2MiB\"\nstart = \"slow\""
    );
    sampled::run(64, "\"dram\", \"pmem\"", &vm, SKEWED)
}

#[test]
fn memtis_splits_sparse_huge_pages_and_promotes_hot_parts() {
    for policy in ["memtis", "memtis@host"] {
        let (memtis, stays) = (skewed(policy), skewed("first-touch"));
        assert!(
            memtis.fast_hit_ratio > stays.fast_hit_ratio + 0.1,
            "{memtis:?}"
        );
        assert!(
            !memtis.promoted_pages.is_multiple_of(512 * 64),
            "{memtis:?}"
        );
        let held: u64 = memtis.tier_bytes_end.iter().sum();
        assert_eq!(held, 128 << 30);
    }
}

#[test]
fn with_fast_memory_full() {
    sampled::fast_memory_full("memtis");
}

#[test]
fn with_slow_memory_full() {
    sampled::slow_memory_full("memtis");
}

#[test]
fn with_one_page_in_fast_memory() {
    sampled::one_page_in_fast_memory("memtis");
}

#[test]
fn with_a_load_that_ends() {
    sampled::a_load_that_ends("memtis");
}

#[test]
fn with_2_mib_pages() {
    sampled::huge_pages("memtis");
}

#[test]
fn with_three_tiers() {
    sampled::three_tiers("memtis");
}

/// A load that fills a VM, with these keys of the machine.
fn full(keys: &str) -> VmResult {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nvcpus_per_vm = 2\nscale = 4\n{keys}\n\
         [[vm]]\nname = \"a\"\nfast = \"512MiB\"\nslow = \"1GiB\"\npolicy = \"memtis\"\n\
         workload = {{ kind = \"hotset\", size = \"1536MiB\", hot = 0.1, hot_access = 0.9, write = 0.2, duration = \"20s\" }}\n"
    );
    let scenario = Scenario::parse(&text, "full", Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

#[test]
fn memtis_promotes_in_a_full_vm_only_with_room_to_demote_to() {
    let (without, usual) = (full("slow_room = \"0B\""), full(""));
    assert_eq!(without.promoted_pages, 0, "{without:?}");
    assert!(usual.promoted_pages > 0, "{usual:?}");
    assert!(
        usual.fast_hit_ratio > without.fast_hit_ratio + 0.2,
        "{usual:?}"
    );
}
