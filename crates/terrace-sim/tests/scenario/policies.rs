//! Tests of policies that a scenario may not name.

use super::faults::refused;
use super::{MINIMAL, parse};

#[test]
fn bounds_have_no_stages_and_blind_policies_are_not_simulated() {
    let with = |policy: &str| format!("slow = \"32GiB\"\npolicy = {policy}\n");
    for (policy, key) in [
        (
            "{ base = \"all-fast\", observe = \"guest-scan\" }",
            "7: vm.policy.base",
        ),
        (
            "{ base = \"prefer-slow\", observe = \"guest-scan\" }",
            "7: vm.policy.base",
        ),
        ("\"prefer-fast\"", "7: vm.policy"),
    ] {
        let allowed = &["vtmm, terrace, vtmm-paper, fixed-threshold, hmvisor, random"];
        refused(MINIMAL, "slow = \"32GiB\"\n", &with(policy), key, allowed);
    }
}

#[test]
fn a_policy_that_is_not_there_is_refused_with_the_list() {
    let with = |policy: &str| format!("slow = \"32GiB\"\npolicy = {policy}\n");
    let all = [
        "vtmm",
        "fixed-threshold",
        "random",
        "first-touch",
        "interleave",
        "all-fast",
        "all-slow",
        "oracle",
    ];
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &with("\"lru\""),
        "7: vm.policy",
        &all,
    );
    let stage = with("{ base = \"vtmm\", estimate = \"lru\" }");
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &stage,
        "7: vm.policy.estimate",
        &["page-degree", "fixed-threshold"],
    );
    let base = with("{ base = \"lru\" }");
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &base,
        "7: vm.policy.base",
        &all,
    );
    let blind = with("{ base = \"vtmm\", observe = \"none\" }");
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &blind,
        "7: vm.policy",
        &["nothing is observed", "first-touch"],
    );
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &with("7"),
        "7: vm.policy",
        &["a policy's name, or a table"],
    );
    let guest = with("{ base = \"vtmm\", where = \"guest\" }");
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &guest,
        "7: vm.policy.where",
        &["allowed is host"],
    );
    refused(
        MINIMAL,
        "slow = \"32GiB\"\n",
        &with("\"vtmm@moon\""),
        "7: vm.policy",
        &["moon", "allowed is host"],
    );
}

#[test]
fn limits_of_promotion_have_bounds_and_are_numab2s_alone() {
    let with = |policy: &str| format!("slow = \"32GiB\"\npolicy = {policy}\n");
    for (key, value, range) in [
        ("hot_threshold_ms", "0", "1 to 60000"),
        ("hot_threshold_ms", "60001", "1 to 60000"),
        ("rate_limit_mb_s", "0", "1 to 1000000"),
        ("rate_limit_mb_s", "1000001", "1 to 1000000"),
    ] {
        let policy = with(&format!("{{ base = \"numab2\", {key} = {value} }}"));
        let (at, what) = (
            format!("7: vm.policy.{key}"),
            format!("{value} is not within {range}"),
        );
        refused(MINIMAL, "slow = \"32GiB\"\n", &policy, &at, &[&what]);
    }
    for base in [
        "tpp",
        "autonuma",
        "nomad",
        "hyperplace",
        "vtmm",
        "first-touch",
    ] {
        let policy = with(&format!("{{ base = \"{base}\", rate_limit_mb_s = 9 }}"));
        let (at, what) = (
            "7: vm.policy.rate_limit_mb_s",
            "\"numab2\" or \"balance\" alone",
        );
        refused(MINIMAL, "slow = \"32GiB\"\n", &policy, at, &[what]);
        for (key, value) in [("hot_threshold_ms", "9"), ("adapt", "false")] {
            let policy = with(&format!("{{ base = \"{base}\", {key} = {value} }}"));
            let at = format!("7: vm.policy.{key}");
            let what = ["belongs to base = \"numab2\" alone: leave it out"];
            refused(MINIMAL, "slow = \"32GiB\"\n", &policy, &at, &what);
        }
    }
}

#[test]
fn parameters_of_damos_fit_together() {
    let with = |keys: &str| format!("slow = \"32GiB\"\npolicy = {{ base = \"damos\", {keys} }}\n");
    for (keys, key, what) in [
        (
            "sample_ms = 200",
            "aggregate_ms",
            "100 ms are shorter than sample_ms, 200 ms",
        ),
        (
            "min_regions = 2000",
            "max_regions",
            "1000 is less than min_regions, 2000",
        ),
        (
            "min_regions = 2",
            "min_regions",
            "2 is not within 3 to 100000",
        ),
        ("quota_mb = 0", "quota_mb", "0 is not within 1 to 1000000"),
        (
            "quota_ms = 1001",
            "quota_ms",
            "1001 is not within 0 to 1000",
        ),
        (
            "adapt = true",
            "adapt",
            "belongs to base = \"numab2\" alone",
        ),
    ] {
        let at = format!("7: vm.policy.{key}");
        refused(MINIMAL, "slow = \"32GiB\"\n", &with(keys), &at, &[what]);
    }
}

#[test]
fn keys_of_hot_lists_are_refused_at_their_own_key() {
    let with =
        |keys: &str| format!("slow = \"32GiB\"\npolicy = {{ base = \"hmvisor\", {keys} }}\n");
    for (keys, key, what) in [
        (
            "lists = 16",
            "lists",
            "16 is out of range: allowed is 1 to 15",
        ),
        (
            "decay_time = \"1s\"",
            "decay_time",
            "\"1s\" is out of range: allowed is 1 to 7 epochs",
        ),
        (
            "place = \"exchange\"",
            "estimate",
            "hot-lists needs place = \"top-lists\" as well",
        ),
        (
            // A write counts 3 on persistent memory.
            "sub_epochs = 8",
            "hotness_threshold",
            "30 is out of range: allowed is up to 23, because no count exceeds 24: 8 sub-epochs",
        ),
    ] {
        let at = format!("7: vm.policy.{key}");
        refused(MINIMAL, "slow = \"32GiB\"\n", &with(keys), &at, &[what]);
    }
}

#[test]
fn an_unknown_key_of_a_policy_is_told_with_the_keys_of_its_base() {
    for (base, keys, others) in [
        ("hmvisor", "`move`, `where`, `lists`", "`period`"),
        ("vtmm", "`move`, `where`", "`lists`"),
        ("hyperplace", "`where`, `period`, `epoch_ms`", "`lists`"),
        ("oracle", "allowed is `base`, `by`", "`where`"),
    ] {
        let policy = format!("slow = \"32GiB\"\npolicy = {{ base = \"{base}\", thresold = 3 }}\n");
        let text = MINIMAL.replace("slow = \"32GiB\"\n", &policy);
        let error = parse(&text).expect_err("unknown");
        assert!(error.contains("unknown field `thresold`"), "{error}");
        assert!(error.contains(keys) && !error.contains(others), "{error}");
    }
}

#[test]
fn keys_of_hot_lists_are_refused_on_policies_without_lists() {
    for base in [
        "raminate",
        "numab2",
        "memory-mode",
        "clairvoyant",
        "static-best",
        "first-touch",
    ] {
        for key in [
            "lists = 4",
            "sub_epoch = \"100ms\"",
            "sub_epochs = 10",
            "hotness_threshold = 3",
            "decay_time = \"10s\"",
            "sides = \"double\"",
        ] {
            let policy = format!("slow = \"32GiB\"\npolicy = {{ base = \"{base}\", {key} }}\n");
            let name = key.split(' ').next().expect("a key");
            let at = format!("7: vm.policy.{name}");
            let what = ["belongs to base = \"hmvisor\" alone: leave it out"];
            refused(MINIMAL, "slow = \"32GiB\"\n", &policy, &at, &what);
        }
    }
}
