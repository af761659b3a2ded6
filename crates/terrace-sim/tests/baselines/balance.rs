//! Tests of `balance`.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation, VmResult};

use crate::common::Small;
use crate::sampled;

/// A load that takes more bandwidth than either tier has; the hot set is wholly in the first.
fn saturated(policy: &str) -> VmResult {
    let tier = |name, ns| {
        format!(
            "{{ name = \"{name}\", read_ns = {ns}, write_ns = {ns}, read_gb_s = 4, write_gb_s = 3 }}"
        )
    };
    let text = format!(
        "[machine]\ntiers = [{}, {}]\nvcpus_per_vm = 8\nscale = 64\n\
         [[vm]]\nname = \"a\"\nfast = \"4GiB\"\nslow = \"8GiB\"\ntables = \"first\"\npolicy = {policy}\n\
         workload = {{ kind = \"hotset\", size = \"6GiB\", hot = 0.2, hot_access = 0.9, write = 0.3, \
         parallelism = 8, compute_ns = 1, duration = \"20s\" }}\n",
        tier("near", 80),
        tier("far", 150),
    );
    let scenario = Scenario::parse(&text, "saturated", Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

#[test]
fn balance_sends_hot_pages_away_from_a_saturated_tier() {
    let [still, hemem, vm] = ["\"first-touch\"", "\"hemem\"", "\"balance\""].map(saturated);
    assert!(vm.demoted_pages > vm.promoted_pages, "{vm:?}");
    assert!(vm.fast_hit_ratio < still.fast_hit_ratio - 0.2, "{vm:?}");
    assert!(vm.ops_per_s > 1.15 * still.ops_per_s, "{still:?}\n{vm:?}");
    // HeMem takes the first tier for the faster one, and moves the rest of the hot set there too.
    assert!(vm.ops_per_s > 1.15 * hemem.ops_per_s, "{hemem:?}\n{vm:?}");
}

#[test]
fn balance_brings_a_hot_set_that_starts_slow_into_fast_memory() {
    for policy in ["\"balance\"", "\"balance@guest\""] {
        let vm = Small {
            policy,
            more: "start = \"slow\"",
            workload: "kind = \"hotset\", size = \"2048MiB\", hot = 0.1, hot_access = 0.9, write = 0.2, \
                       duration = \"60s\"",
            scale: 64,
        }
        .run();
        assert!(vm.fast_hit_ratio > 0.7, "{vm:?}");
    }
}

#[test]
fn balance_moves_no_more_than_its_rate_limit() {
    let vm = saturated("{ base = \"balance\", rate_limit_mb_s = 1 }");
    // 20 MiB in 20 s, whatever the length of an interval and of a page as simulated.
    let most = 20 * 256;
    let moved = vm.promoted_pages + vm.demoted_pages;
    assert!(moved > 0 && moved <= most, "{vm:?}");
    assert_eq!(vm.policy, "balance rate_limit_mb_s=1");
    let vm = saturated("{ base = \"balance\", rate_limit_mb_s = 1, interval_ms = 1 }");
    assert!(vm.promoted_pages + vm.demoted_pages <= most, "{vm:?}");
}

#[test]
fn balance_compares_once_an_interval() {
    let rounds = |policy| saturated(policy).rounds;
    let usual = rounds("\"balance\"");
    let rare = rounds("{ base = \"balance\", interval_ms = 1000 }");
    assert!((190..=200).contains(&usual), "{usual}");
    assert!((19..=20).contains(&rare), "{rare}");
}

#[test]
fn with_fast_memory_full() {
    sampled::fast_memory_full("balance");
}

#[test]
fn with_slow_memory_full() {
    sampled::slow_memory_full("balance");
}

#[test]
fn with_one_page_in_fast_memory() {
    sampled::one_page_in_fast_memory("balance");
}

#[test]
fn with_a_load_that_ends() {
    sampled::a_load_that_ends("balance");
}

#[test]
fn with_2_mib_pages() {
    sampled::huge_pages("balance");
}

#[test]
fn with_three_tiers() {
    sampled::three_tiers("balance");
}
