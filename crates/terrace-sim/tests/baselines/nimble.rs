//! Tests of `nimble`.

use terrace_sim::VmResult;

use crate::common::Small;

const HOT: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, hot_access = 0.9, write = 0.5, \
                   compute_ns = 200, duration = \"60s\"";

fn run(policy: &'static str, more: &'static str, workload: &'static str) -> VmResult {
    Small {
        policy,
        more,
        workload,
        scale: 64,
    }
    .run()
}

#[test]
fn nimble_moves_every_5_s_and_demotes_only_to_make_room() {
    let early = HOT.replace("60s", "4s");
    let early = run("\"nimble\"", "", Box::leak(early.into_boxed_str()));
    assert_eq!((early.rounds, early.promoted_pages), (0, 0));
    let vm = run("\"nimble\"", "", HOT);
    assert!((10..=12).contains(&vm.rounds), "{vm:?}");
    assert!(vm.promoted_pages > 0 && vm.demoted_pages > 0, "{vm:?}");
    assert!(vm.demoted_pages <= vm.promoted_pages, "{vm:?}");
}

#[test]
fn nimble_brings_a_hot_set_up_that_starts_slow() {
    let vm = run("\"nimble\"", "start = \"slow\"", HOT);
    let none = run("\"first-touch\"", "start = \"slow\"", HOT);
    assert!(vm.fast_hit_ratio > none.fast_hit_ratio + 0.2, "{vm:?}");
}

#[test]
fn nimble_calls_what_was_never_looked_at_active() {
    // Pages begin on the active list, and a call scans half of a list: it promotes the other half.
    let cold = "kind = \"hotset\", size = \"2048MiB\", hot = 0.01, hot_access = 1.0, write = 0.0, \
                compute_ns = 200, duration = \"8s\"";
    let vm = run("\"nimble\"", "start = \"slow\"", cold);
    assert_eq!(vm.rounds, 1);
    assert!(vm.fast_bytes_end > 1000 << 20, "{vm:?}");
}

#[test]
fn nimble_survives_full_tiers_huge_pages_and_three_tiers() {
    crate::edges::survives(["nimble@guest", "nimble@host"]);
}
