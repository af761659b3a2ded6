//! Tests of `memtierd` and `memtierd-age`.

use terrace_sim::VmResult;

use crate::common::Small;

fn run(policy: &'static str, more: &'static str, workload: &'static str) -> VmResult {
    Small {
        policy,
        more,
        workload,
        scale: 64,
    }
    .run()
}

/// Of each MiB some pages are hot; three fifths of all regions, and they fill fast memory.
const SPARSE: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.02, hot_access = 1.0, write = 0.5, \
                      compute_ns = 200, duration = \"100s\"";

/// A load whose hot pages are one run of pages.
const CLUSTERED: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.25, hot_access = 1.0, write = 0.5, \
                         layout = \"clustered\", compute_ns = 200, duration = \"100s\"";

#[test]
fn memtierd_moves_whole_regions_of_which_a_few_pages_are_hot() {
    let vm = run("\"memtierd\"", "start = \"slow\"", SPARSE);
    // 2 % of the pages are hot, 41 MiB.
    assert!(vm.promoted_pages > 10 * (41 << 20) / 4096, "{vm:?}");
}

#[test]
fn memtierd_brings_a_hot_region_up_at_50_mib_a_second() {
    let vm = run("\"memtierd\"", "start = \"slow\"", CLUSTERED);
    let none = run("\"first-touch\"", "start = \"slow\"", CLUSTERED);
    assert!(vm.fast_hit_ratio > none.fast_hit_ratio + 0.4, "{vm:?}");
    let most = 50 * 100 * 256;
    assert!(vm.promoted_pages + vm.demoted_pages <= most, "{vm:?}");
}

#[test]
fn memtierd_demotes_what_is_cold() {
    let vm = run("\"memtierd\"", "", CLUSTERED);
    assert!(vm.demoted_pages > 0, "{vm:?}");
    assert!(vm.fast_bytes_end < 900 << 20, "{vm:?}");
}

#[test]
fn the_age_policy_moves_nothing_active_while_something_is_idle() {
    let early = CLUSTERED.replace("100s", "14s");
    let early = run(
        "\"memtierd-age\"",
        "start = \"slow\"",
        Box::leak(early.into_boxed_str()),
    );
    assert!(early.demoted_pages == 0, "{early:?}");
    let vm = run("\"memtierd-age\"", "start = \"slow\"", CLUSTERED);
    assert!(vm.promoted_pages > 0, "{vm:?}");
    assert!(vm.fast_hit_ratio > 0.3, "{vm:?}");
}

#[test]
fn memtierd_survives_full_tiers_huge_pages_and_three_tiers() {
    crate::edges::survives(["memtierd@guest", "memtierd@host"]);
    crate::edges::survives(["memtierd-age@guest", "memtierd-age@host"]);
}
