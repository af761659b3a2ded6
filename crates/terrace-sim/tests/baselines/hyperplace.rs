//! Tests of `hyperplace`.

use std::path::Path;

use terrace_sim::{Scenario, VmResult};

use crate::common::Small;

fn run(policy: &'static str, workload: &'static str) -> VmResult {
    Small {
        policy,
        more: "start = \"slow\"",
        workload,
        scale: 64,
    }
    .run()
}

/// A hot eighth at the end of 2 GiB, which begins in slow memory.
const HOT: &str = "kind = \"gups\", variant = \"hypertier\", size = \"2048MiB\", hot = 0.125, weight = 10, duration = \"30s\"";
const LONGER: &str = "kind = \"gups\", variant = \"hypertier\", size = \"2048MiB\", hot = 0.125, weight = 10, duration = \"60s\"";
const LARGE: &str = "kind = \"gups\", variant = \"hypertier\", size = \"16384MiB\", hot = 0.125, weight = 10, duration = \"60s\"";
const UNIFORM_AT_FIRST: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 1.0, hot_access = 1.0, write = 0.5, duration = \"30s\"";
const UNIFORM: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 1.0, hot_access = 1.0, write = 0.5, duration = \"60s\"";

#[test]
fn hyperplace_finds_a_slow_hot_range_and_goes_quiet() {
    let (half, whole) = (run("\"hyperplace\"", HOT), run("\"hyperplace\"", LONGER));
    assert!(whole.fast_hit_ratio > 0.7, "{whole:?}");
    assert_eq!(whole.rounds, 119, "an epoch each 500 ms");
    let more = whole.promoted_pages - half.promoted_pages;
    assert!(more * 20 <= whole.promoted_pages, "{half:?}\n{whole:?}");
}

#[test]
fn hyperplace_exchanges_pages_by_batches_through_its_headroom() {
    let vm = Small {
        policy: "\"hyperplace\"",
        more: "",
        workload: HOT,
        scale: 64,
    }
    .run();
    assert!(vm.promoted_pages > 50_000, "{vm:?}");
    // Fast memory was full: what makes the headroom free goes down alone.
    let alone = vm.demoted_pages - vm.promoted_pages;
    assert!(alone <= 16 << 20 >> 12, "{vm:?}");
}

#[test]
fn hyperplaces_moves_die_out_under_a_uniform_load() {
    let run = |workload| run("\"hyperplace\"", workload);
    let (half, whole) = (run(UNIFORM_AT_FIRST), run(UNIFORM));
    let fast = whole.fast_bytes_end >> 12;
    // Free memory is filled once, and some of it is exchanged while ranges are coarse.
    assert!(half.demoted_pages < fast / 2, "{half:?}");
    let more = whole.promoted_pages - half.promoted_pages;
    assert!(more * 100 <= fast, "{half:?}\n{whole:?}");
}

#[test]
fn hyperplace_plans_anew_what_large_ranges_made_it_plan() {
    // The first plans know half of memory as hot, and fill fast memory with it.
    let vm = Small {
        policy: "\"hyperplace\"",
        more: "",
        workload: LARGE,
        scale: 512,
    }
    .run();
    let hot = (16_384_u64 << 20 >> 12) / 8;
    assert!(vm.promoted_pages < 2 * hot, "{vm:?}");
    assert!(vm.fast_hit_ratio > 0.6, "{vm:?}");
}

#[test]
fn hyperplaces_epoch_threshold_and_period_can_be_set() {
    let rounds = |policy| run(policy, HOT).rounds;
    let quick = "{ base = \"hyperplace\", epoch_ms = 250 }";
    assert_eq!((rounds("\"hyperplace\""), rounds(quick)), (59, 119));
    let blind = run("{ base = \"hyperplace\", period = 1000000000 }", HOT);
    assert_eq!(blind.promoted_pages, 0, "nothing is sampled: {blind:?}");
    // Nothing is ever significant, so the root stays one range, and shows nothing of its pages.
    let coarse = run("{ base = \"hyperplace\", tau_split = 1000000 }", HOT);
    assert!(coarse.fast_hit_ratio < 0.3, "{coarse:?}");
}

const LITERAL: &str = "{ base = \"hyperplace\", literal = true }";

#[test]
fn hyperplace_by_the_letter_exchanges_page_for_page() {
    let vm = Small {
        policy: LITERAL,
        more: "",
        workload: LONGER,
        scale: 64,
    }
    .run();
    assert_eq!(vm.rounds, 119, "an epoch each 500 ms: {vm:?}");
    assert!(vm.fast_hit_ratio > 0.7, "{vm:?}");
    assert_eq!(vm.promoted_pages, vm.demoted_pages, "{vm:?}");
    assert_eq!(vm.policy, "hyperplace literal");
}

#[test]
fn hyperplace_by_the_letter_needs_victims_to_promote() {
    // Fast memory is empty: nothing could go down in exchange.
    let vm = run(LITERAL, HOT);
    assert_eq!((vm.promoted_pages, vm.demoted_pages), (0, 0), "{vm:?}");
}

#[test]
fn hyperplace_by_the_letter_never_goes_quiet() {
    let run = |policy| {
        let (half, whole) = (
            run_full(policy, UNIFORM_AT_FIRST),
            run_full(policy, UNIFORM),
        );
        whole.promoted_pages - half.promoted_pages
    };
    // Chance ranks a uniform load anew in each epoch.
    assert!(run(LITERAL) > 10 * run("\"hyperplace\""));
}

#[test]
fn hyperplace_that_is_not_literal_is_as_without_the_key() {
    let run = |policy| {
        let vm = run(policy, HOT);
        (
            vm.promoted_pages,
            vm.demoted_pages,
            vm.ops_per_s,
            vm.vm_exits,
        )
    };
    let off = "{ base = \"hyperplace\", literal = false }";
    assert_eq!(run(off), run("\"hyperplace\""));
}

/// A run whose fast memory is full at first.
fn run_full(policy: &'static str, workload: &'static str) -> VmResult {
    Small {
        policy,
        more: "",
        workload,
        scale: 64,
    }
    .run()
}

/// The error of a scenario with that policy.
fn fault(policy: &str) -> String {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\n[[vm]]\nname = \"a\"\nfast = \"8GiB\"\nslow = \"8GiB\"\n\
         policy = {policy}\nworkload = {{ {HOT} }}\n"
    );
    let parsed = Scenario::parse(&text, "small", Path::new("/s"));
    parsed.expect_err("it is refused").to_string()
}

#[test]
fn what_hyperplace_is_given_has_bounds_and_is_its_alone() {
    for key in ["period", "epoch_ms", "tau_split"] {
        for base in ["memtis", "vtmm", "first-touch"] {
            let what = fault(&format!("{{ base = \"{base}\", {key} = 99 }}"));
            let expected = format!("7: vm.policy.{key}: belongs to base = \"hyperplace\" alone");
            assert!(what.contains(&expected), "{what}");
        }
        let what = fault("{ base = \"memtis\", literal = true }");
        assert!(what.contains("vm.policy.literal: belongs to"), "{what}");
        for value in ["0", "1000000001"] {
            let what = fault(&format!("{{ base = \"hyperplace\", {key} = {value} }}"));
            let expected = format!("7: vm.policy.{key}: {value} is not within 1 to");
            assert!(what.contains(&expected), "{what}");
        }
    }
}
