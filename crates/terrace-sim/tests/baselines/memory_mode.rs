//! Tests of `memory-mode`.

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation, VmResult};

/// A scenario of VMs with 16 MiB fast and 48 MiB slow memory on a machine that has no more, at scale 1. A last-level
/// cache would hold most of it.
fn scenario(vms: &[&str]) -> String {
    let mut text =
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nvcpus_per_vm = 2\nscale = 1\ncache = \"none\"\nslow_room = \"0B\"\nsmall_vms = \"allow\"\n"
            .to_owned();
    for (i, keys) in vms.iter().enumerate() {
        text += &format!(
            "[[vm]]\nname = \"vm{i}\"\nfast = \"16MiB\"\nslow = \"48MiB\"\ntables = \"first\"\n{keys}\n"
        );
    }
    text
}

fn run(text: &str) -> RunResult {
    let scenario = Scenario::parse(text, "small", Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result()
}

fn refused(text: &str) -> String {
    let fault = Scenario::parse(text, "small", Path::new("/s"));
    fault.expect_err("it is refused").to_string()
}

/// A load over so many MiB, page by page and line by line.
fn sequential(size: u64) -> String {
    format!(
        "policy = \"memory-mode\"\nworkload = {{ kind = \"sequential\", size = \"{size}MiB\", \
         hot = 1.0, write = 0.0, period = \"1h\", ops = 6000000 }}"
    )
}

fn alone(keys: &str) -> VmResult {
    run(&scenario(&[keys])).vms.remove(0)
}

#[test]
fn memory_mode_serves_from_dram_but_holds_nothing_there() {
    let vm = alone(&sequential(4));
    assert_eq!(vm.tier_bytes_end, [0, 4 << 20]);
    assert_eq!(vm.fast_bytes_mean, 0);
    assert!(vm.fast_hit_ratio > 0.9, "{vm:?}");
    assert_eq!(
        (vm.promoted_pages, vm.demoted_pages, vm.vm_exits),
        (0, 0, 0)
    );
    assert_eq!(vm.overhead_s.track + vm.overhead_s.migrate, 0.0);
}

#[test]
fn dram_that_is_a_cache_is_paid_for() {
    // 16 MiB of DRAM at 1 a GiB, and 4 MiB of PMem at a half.
    let vm = alone(&sequential(4));
    assert_eq!(vm.cost, Some((16.0 + 4.0 * 0.5) / 1024.0));
}

#[test]
fn a_footprint_larger_than_dram_thrashes_and_a_small_one_hits() {
    let (small, large) = (alone(&sequential(4)), alone(&sequential(48)));
    assert!(small.fast_hit_ratio > 0.9, "{small:?}");
    // 48 MiB in a row through 16 MiB of DRAM: each place in it is used by three lines in turn.
    assert!(large.fast_hit_ratio < 0.1, "{large:?}");
    assert!(large.ops_per_s < small.ops_per_s);
}

#[test]
fn a_miss_is_slower_than_slow_memory_itself() {
    let thrash = sequential(48);
    let cached = alone(&thrash);
    let plain = alone(&thrash.replace("memory-mode", "all-slow"));
    assert!(cached.p50_ns > plain.p50_ns, "{cached:?}\n{plain:?}");
}

#[test]
fn vms_that_run_together_drive_each_other_out_of_dram() {
    let load = "policy = \"memory-mode\"\nworkload = { kind = \"hotset\", size = \"12MiB\", \
                hot = 1.0, hot_access = 1.0, write = 0.2, ops = 4000000 }";
    let misses = |vms: &[&str]| 1.0 - run(&scenario(vms)).vms[0].fast_hit_ratio;
    // The machine is as large, and its other VMs are all but idle.
    let idle = load.replace("4000000", "2");
    let alone = misses(&[load, &idle, &idle, &idle]);
    let together = misses(&[load; 4]);
    assert!(together > 2.0 * alone, "{together} {alone}");
}

#[test]
fn a_seed_fixes_all_bytes_and_another_moves_the_memory() {
    let load = "policy = \"memory-mode\"\nworkload = { kind = \"hotset\", size = \"12MiB\", \
                hot = 1.0, hot_access = 1.0, write = 0.2, ops = 400000 }";
    let text = scenario(&[load, load]);
    let result = |seed: u64| {
        let text = format!("seed = {seed}\n{text}");
        serde_json::to_string(&run(&text).vms).expect("it can be written")
    };
    assert_eq!(result(1), result(1));
    assert_ne!(result(1), result(2));
}

#[test]
fn tags_are_counted_as_state() {
    let state = |keys: &str| run(&scenario(&[keys])).sim_state_bytes_per_page;
    let cached = state(&sequential(4));
    let plain = state(&sequential(4).replace("memory-mode", "first-touch"));
    // 16 MiB of DRAM in lines of 64 bytes, two bytes each, over the VM's pages.
    let pages = (4 << 20) / 4096;
    let tags = f64::from((16 << 20) / 64 * 2) / f64::from(pages);
    assert!(cached - plain > 0.5 * tags, "{cached} {plain} {tags}");
}

#[test]
fn dram_adds_no_capacity() {
    let error = refused(&scenario(&[&sequential(50)]));
    assert!(error.contains("DRAM adds no capacity"), "{error}");
    assert!(
        error.contains("50MiB") && error.contains("48MiB"),
        "{error}"
    );
    let other = Scenario::parse(
        &scenario(&[&sequential(50).replace("memory-mode", "first-touch")]),
        "small",
        Path::new("/s"),
    );
    let error = other.expect("valid").with_policy("memory-mode");
    let error = error.expect_err("it is refused").to_string();
    assert!(error.contains("DRAM adds no capacity"), "{error}");
}

#[test]
fn memory_mode_is_for_all_vms_or_none() {
    let other = sequential(4).replace("memory-mode", "vtmm");
    let error = refused(&scenario(&[&sequential(4), &other]));
    assert!(error.contains("for every VM, or for none"), "{error}");
}

#[test]
fn memory_mode_refuses_three_tiers_swap_and_placing_guests() {
    let three = scenario(&[&sequential(4)])
        .replace("[\"dram\", \"pmem\"]", "[\"dram\", \"cxl\", \"pmem\"]")
        .replace(
            "fast = \"16MiB\"\nslow = \"48MiB\"",
            "tiers = [\"16MiB\", \"16MiB\", \"32MiB\"]",
        );
    assert!(refused(&three).contains("two tiers"), "{}", refused(&three));
    let swap = scenario(&[&format!("swap = \"16MiB\"\n{}", sequential(4))]);
    assert!(refused(&swap).contains("swap"), "{}", refused(&swap));
    let guest = scenario(&[&format!("guest_policy = \"autonuma\"\n{}", sequential(4))]);
    assert!(refused(&guest).contains("autonuma"), "{}", refused(&guest));
}

#[test]
fn memory_mode_may_be_said_to_run_anywhere() {
    let text = scenario(&[&sequential(4).replace("memory-mode", "memory-mode@guest")]);
    assert_eq!(run(&text).policy, "memory-mode@guest");
    let table = sequential(4).replace(
        "\"memory-mode\"",
        "{ base = \"memory-mode\", where = \"host\" }",
    );
    assert_eq!(run(&scenario(&[&table])).policy, "memory-mode@host");
}

#[test]
fn memory_mode_takes_pages_of_2_mib() {
    let text = scenario(&["page = \"2MiB\"\npolicy = \"memory-mode\"\n\
        workload = { kind = \"hotset\", size = \"1GiB\", hot = 0.015625, hot_access = 1.0, write = 0.5, \
        layout = \"clustered\", ops = 4000000 }"])
    .replace("\"16MiB\"", "\"512MiB\"")
    .replace("\"48MiB\"", "\"1536MiB\"");
    let vm = run(&text).vms.remove(0);
    assert_eq!(vm.tier_bytes_end, [0, 1 << 30]);
    assert!(
        vm.fast_hit_ratio > 0.9 && vm.fast_write_ratio > 0.9,
        "{vm:?}"
    );
}
