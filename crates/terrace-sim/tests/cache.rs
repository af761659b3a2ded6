//! Tests of the last-level cache in whole runs.

use std::path::Path;

use terrace_sim::{Cache, Options, Scenario, Simulation, VmResult};

/// A scenario of one VM with a quarter of its memory fast, on a machine with these keys.
fn text(scale: u64, machine: &str, policy: &str, workload: &str) -> String {
    format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = {scale}\nvcpus_per_vm = 2\n{machine}\n\
         [[vm]]\nname = \"a\"\nfast = \"4GiB\"\nslow = \"12GiB\"\npolicy = \"{policy}\"\ntables = \"first\"\n\
         workload = {{ {workload} }}\n"
    )
}

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, "test", Path::new(".")).map_err(|error| error.to_string())
}

fn run(scenario: &Scenario) -> VmResult {
    let mut simulation = Simulation::new(scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

fn vm(scale: u64, machine: &str, policy: &str, workload: &str) -> VmResult {
    run(&parse(&text(scale, machine, policy, workload)).expect("valid"))
}

/// The hit ratios of a load by Zipf's law hang neither on the scale nor on the seed.
#[test]
fn behind_the_cache_hits_are_the_same_at_every_scale() {
    let mut hits = Vec::new();
    for (scale, duration) in [(32, "2s"), (64, "4s"), (256, "15s")] {
        let load = format!(
            "kind = \"zipf\", size = \"16GiB\", exponent = 0.99, duration = \"{duration}\""
        );
        for seed in 1..=3 {
            let mut scenario = parse(&text(scale, "", "first-touch", &load)).expect("valid");
            scenario.seed = seed;
            let vm = run(&scenario);
            let cached = vm.cache_hit_ratio.expect("a cache");
            assert!((cached - 0.46).abs() < 0.02, "{scale}, {seed}: {cached}");
            hits.push(vm.fast_hit_ratio);
        }
    }
    let most = hits.iter().copied().fold(0.0, f64::max);
    let least = hits.iter().copied().fold(1.0, f64::min);
    assert!(most - least < 0.03, "{hits:?}");
    assert!((least..=most).contains(&0.25), "{hits:?}");
}

#[test]
fn a_load_after_the_cache_runs_as_without_one() {
    let load =
        "kind = \"gups\", variant = \"hemem\", size = \"8GiB\", hot = 0.001, ops = 100000000";
    let after = format!("{load}, before_cache = false");
    for policy in ["first-touch", "clairvoyant", "static-best"] {
        let none = vm(512, "cache = \"none\"", policy, load);
        let after = vm(512, "", policy, &after);
        assert_eq!(none, after, "{policy}");
        assert_eq!(none.cache_hit_ratio, None);
        let before = vm(512, "", policy, load);
        assert!(before.cache_hit_ratio.is_some_and(|ratio| ratio > 0.85));
        assert!(before.runtime_s < none.runtime_s, "{policy}");
    }
}

#[test]
fn phases_say_each_whether_they_come_before_the_cache() {
    let phase = |keys: &str| {
        format!("{{ kind = \"hotset\", size = \"8GiB\", hot = 0.0005, ops = 50000000{keys} }}")
    };
    let load = |one: &str, other: &str| {
        let load = format!("kind = \"phases\", of = [{}, {}]", phase(one), phase(other));
        vm(512, "", "first-touch", &load)
    };
    let before = load("", "");
    let mixed = load("", ", before_cache = false");
    let after = load(", before_cache = false", ", before_cache = false");
    assert!(before.runtime_s < mixed.runtime_s && mixed.runtime_s < after.runtime_s);
    assert_eq!(after.cache_hit_ratio, None);
    let whole = text(
        512,
        "",
        "first-touch",
        &format!(
            "kind = \"phases\", of = [{}], before_cache = true",
            phase("")
        ),
    );
    let error = parse(&whole).expect_err("each phase has its own");
    assert!(error.contains("before_cache"), "{error}");
}

/// The window's most costly pages are not those that the cache holds.
#[test]
fn bounds_do_not_pay_for_what_is_cached() {
    // A hot set that fits the cache, and a warm rest of twice the fast memory.
    let load = "kind = \"hotset\", size = \"8GiB\", hot = 0.002, hot_access = 0.5, write = 0.2, duration = \"20s\"";
    let stays = vm(512, "", "first-touch", load);
    for policy in ["static-best", "clairvoyant"] {
        let bound = vm(512, "", policy, load);
        assert!(bound.ops_per_s > stays.ops_per_s, "{policy}");
        assert!(bound.fast_hit_ratio > 0.5, "{policy}: {bound:?}");
    }
}

#[test]
fn vms_share_the_cache() {
    let load = "kind = \"hotset\", size = \"20MiB\", hot = 1.0, hot_access = 1.0, ops = 4000000";
    let alone = text(1, "small_vms = \"allow\"", "first-touch", load)
        .replace("\"4GiB\"", "\"16MiB\"")
        .replace("\"12GiB\"", "\"48MiB\"");
    let at = alone.find("[[vm]]").expect("a VM");
    let other = alone[at..].replace("\"a\"", "\"b\"");
    let ratio = |text: &str| run(&parse(text).expect("valid")).cache_hit_ratio;
    let (one, both) = (ratio(&alone), ratio(&format!("{alone}{other}")));
    assert!(one > Some(0.85) && both < Some(0.7), "{one:?} {both:?}");
}

#[test]
fn memory_mode_stands_behind_the_cache() {
    let load = "kind = \"hotset\", size = \"8GiB\", hot = 0.001, write = 0.5, ops = 200000000";
    let mode = vm(512, "", "memory-mode", load);
    let bare = vm(512, "cache = \"none\"", "memory-mode", load);
    assert!(mode.cache_hit_ratio > Some(0.8), "{mode:?}");
    assert!(
        mode.fast_hit_ratio < bare.fast_hit_ratio,
        "the hits of hot lines are gone"
    );
    assert!(mode.ops_per_s > bare.ops_per_s);
}

#[test]
fn sizes_and_ways_that_no_cache_has_are_refused() {
    let load = "kind = \"gups\", variant = \"hemem\", size = \"8GiB\", hot = 0.1, ops = 1000000";
    let with = |key: &str| parse(&text(64, key, "first-touch", load));
    let cache = |key: &str| with(key).expect("valid").machine.cache;
    assert_eq!(cache("cache = \"33MiB\""), Some(Cache::default()));
    assert_eq!(
        cache("cache = { size = \"33MiB\" }"),
        Some(Cache::default())
    );
    assert_eq!(cache("cache = \"none\""), None);
    for (key, part) in [
        ("cache = \"1KiB\"", "out of range"),
        ("cache = \"2GiB\"", "out of range"),
        ("cache = { size = \"33MiB\", ways = 17 }", "1 to 16 ways"),
        ("cache = { size = \"33MiB\", ways = 0 }", "1 to 16 ways"),
        ("cache = { ways = 11 }", "size"),
        ("cache = { size = \"33MiB\", way = 11 }", "way"),
        ("cache = \"off\"", "not a size"),
        ("cache = 33", "a size"),
    ] {
        let error = with(key).expect_err(key);
        assert!(
            error.contains(part) && error.contains("machine"),
            "{key}: {error}"
        );
    }
}
