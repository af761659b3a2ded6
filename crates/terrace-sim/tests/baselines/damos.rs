//! Tests of `damos`.

use terrace_sim::VmResult;

use crate::common::Small;
use crate::edges;

/// A hot set of a tenth in one piece.
const CLUSTERED: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.1, hot_access = 0.9, write = 0.2, \
                         layout = \"clustered\", duration = \"60s\"";

fn from_slow(policy: &'static str) -> VmResult {
    Small {
        policy,
        more: "start = \"slow\"",
        workload: CLUSTERED,
        scale: 64,
    }
    .run()
}

#[test]
fn damos_finds_a_hot_range_that_starts_slow() {
    for policy in ["\"damos\"", "\"damos@host\""] {
        let vm = from_slow(policy);
        assert!(vm.fast_hit_ratio > 0.7, "{vm:?}");
        assert!((55..=60).contains(&vm.rounds), "once a second: {vm:?}");
    }
}

#[test]
fn damos_promotes_no_more_than_its_quota() {
    let vm = from_slow("{ base = \"damos\", quota_mb = 1 }");
    assert!(vm.promoted_pages > 0, "{vm:?}");
    assert!(vm.promoted_pages <= 60 << 8, "{vm:?}");
    assert_eq!(vm.policy, "damos quota_mb=1");
}

#[test]
fn damos_keeps_a_quota_until_it_is_enough_for_a_page() {
    // A page as simulated stands for 4 MiB: one in four seconds.
    let vm = Small {
        policy: "{ base = \"damos\", quota_mb = 1 }",
        more: "start = \"slow\"",
        workload: CLUSTERED,
        scale: 1024,
    }
    .run();
    assert!((1024..=60 << 8).contains(&vm.promoted_pages), "{vm:?}");
}

#[test]
fn damos_with_goals_begins_with_a_quota_of_a_byte() {
    // It doubles each second: 20 s later it is a MiB.
    let (usual, goals) = (
        from_slow("\"damos\""),
        from_slow("{ base = \"damos\", goals = true }"),
    );
    assert!(goals.fast_hit_ratio < usual.fast_hit_ratio, "{goals:?}");
    assert!(goals.promoted_pages > 0, "{goals:?}");
}

/// A run whose fast memory is full of the first half of the load.
fn full(policy: &'static str) -> VmResult {
    Small {
        policy,
        more: "",
        workload: "kind = \"hotset\", size = \"2048MiB\", hot = 0.1, hot_access = 0.999, write = 0.2, \
                   layout = \"clustered\", compute_ns = 5000, duration = \"60s\"",
        scale: 64,
    }
    .run()
}

#[test]
fn damos_demotes_what_is_cold_for_long_even_if_there_is_room() {
    let never = full("{ base = \"damos\", cold_age_ms = 3600000 }");
    let soon = full("{ base = \"damos\", cold_age_ms = 1000 }");
    assert_eq!(never.demoted_pages, 0, "{never:?}");
    assert!(soon.demoted_pages > 100 << 8, "{soon:?}");
    // Pages that were accessed lately stay, and so the hot set does.
    assert!(soon.fast_hit_ratio > 0.8 * never.fast_hit_ratio, "{soon:?}");
}

#[test]
fn damos_survives_machines_at_the_edge() {
    edges::survives(["damos", "damos@host"]);
}
