//! Tests of VMs that are too small for the constants of the mechanism that places their pages.

use terrace_sim::Scenario;

use super::faults::refused;
use super::parse;

/// A VM under a mechanism, on a machine of scale 1.
fn scenario(policy: &str, fast: &str, slow: &str) -> String {
    format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\n[[vm]]\nname = \"vm1\"\npolicy = \"{policy}\"\n\
         fast = \"{fast}\"\nslow = \"{slow}\"\n\
         workload = {{ kind = \"hotset\", size = \"4MiB\", hot = 0.2, hot_access = 0.9, duration = \"10s\" }}\n"
    )
}

/// Checks the least size of the first tier, or of all memory.
#[track_caller]
fn least(policy: &str, too_small: [&str; 2], enough: [&str; 2], phrases: &[&str]) {
    let all = [phrases, &["small_vms = \"allow\"", policy][..]].concat();
    let text = scenario(policy, too_small[0], too_small[1]);
    refused(&text, "", "", "6: vm.policy", &all);
    let text = scenario(policy, enough[0], enough[1]);
    parse(&text).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn hint_scanners_want_a_window_of_256_mib() {
    for policy in ["autonuma", "numab2", "tpp", "nomad"] {
        let phrases = [
            "scans 256 MiB at a time (numa_balancing_scan_size_mb), more than this VM's 192MiB: ",
            "make the VM at least 256MiB",
        ];
        least(policy, ["64MiB", "128MiB"], ["64MiB", "192MiB"], &phrases);
    }
}

#[test]
fn watermarks_want_a_page_of_the_first_tier() {
    // 1 GiB keeps 4 MiB free in all: a 256th, so a node of 1 MiB keeps one page.
    for (policy, at_least) in [("autonuma", "1028KiB"), ("numab2", "1028KiB")] {
        let phrases = ["min_free_kbytes", "less than a page of this VM's 512KiB"];
        least(policy, ["512KiB", "1GiB"], [at_least, "1GiB"], &phrases);
    }
}

#[test]
fn tpp_wants_a_page_in_two_percent_of_the_first_tier() {
    let phrases = [
        "keeps 2 % of the first tier free (demote_scale_factor), less than a simulated page of",
        "at least 50MiB",
    ];
    // A page of 4 KiB stands for 1 MiB.
    let at_256 = |fast| scenario("tpp", fast, "4GiB").replace("scale = 1", "scale = 256");
    refused(&at_256("49MiB"), "", "", "6: vm.policy", &phrases);
    assert!(parse(&at_256("50MiB")).is_ok());
}

#[test]
fn kswapd_wants_a_first_tier_of_32_pages() {
    let phrases = [
        "demotes 32 pages at a time (SWAP_CLUSTER_MAX), more than the simulated pages of",
        "at least 32MiB",
    ];
    let at_256 = |fast| scenario("numab2", fast, "4GiB").replace("scale = 1", "scale = 256");
    refused(&at_256("31MiB"), "", "", "6: vm.policy", &phrases);
    assert!(parse(&at_256("32MiB")).is_ok());
}

#[test]
fn nomad_wants_a_first_tier_larger_than_its_queue() {
    let phrases = [
        "queues 512 pages for promotion (PROMOTE_QUEUE_LEN)",
        "at least 2MiB",
    ];
    least("nomad", ["2044KiB", "256MiB"], ["2MiB", "256MiB"], &phrases);
}

#[test]
fn memtis_wants_four_times_what_it_keeps_free() {
    let phrases = [
        "keeps 50 MiB of the first tier free (get_memcg_promotion_watermark), more than a quarter of this VM's 199MiB",
        "at least 200MiB",
    ];
    least("memtis", ["199MiB", "1GiB"], ["200MiB", "1GiB"], &phrases);
}

#[test]
fn nimble_wants_a_first_tier_of_one_batch() {
    let phrases = [
        "unmaps 8 pages at a time (migration_batch_size)",
        "at least 32KiB",
    ];
    least("nimble", ["28KiB", "1GiB"], ["32KiB", "1GiB"], &phrases);
}

#[test]
fn mechanisms_without_such_constants_take_any_vm() {
    for policy in ["hemem", "raminate", "memtierd", "hyperplace", "vtmm"] {
        let text = scenario(policy, "4KiB", "16MiB");
        parse(&text).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn guests_are_checked_and_huge_pages_count() {
    let guest = scenario("first-touch", "16MiB", "48MiB");
    let guest = guest.replace("policy =", "guest_policy = \"autonuma\"\npolicy =");
    refused(&guest, "", "", "6: vm.guest_policy", &["256 MiB"]);
    let at_host = scenario("tpp@host", "16MiB", "48MiB");
    refused(&at_host, "", "", "6: vm.policy", &["\"tpp\" scans 256 MiB"]);
    let huge = scenario("nomad", "1022MiB", "8GiB").replace("name", "page = \"2MiB\"\nname");
    let phrases = ["PROMOTE_QUEUE_LEN", "at least 1GiB"];
    refused(&huge, "", "", "7: vm.policy", &phrases);
}

#[test]
fn small_vms_can_be_allowed() {
    for policy in ["autonuma", "memtis", "nomad"] {
        let small = scenario(policy, "16MiB", "48MiB");
        assert!(parse(&small).is_err());
        let allowed = small.replace("scale", "small_vms = \"allow\"\nscale");
        let scenario = parse(&allowed).unwrap_or_else(|error| panic!("{error}"));
        assert!(scenario.with_policy("tpp").is_ok());
    }
    let text = scenario("vtmm", "16MiB", "48MiB");
    let said = text.replace("scale", "small_vms = \"refuse\"\nscale");
    assert_eq!(parse(&said), parse(&text));
    let to = "small_vms = \"maybe\"\nscale";
    let phrases = ["`maybe`", "`refuse`", "`allow`"];
    refused(&text, "scale", to, "3: machine.small_vms", &phrases);
}

/// A comparison names policies beside the scenario, and a sweep sizes.
#[test]
fn variants_of_a_scenario_are_checked_too() {
    let vtmm = parse(&scenario("vtmm", "16MiB", "48MiB")).expect("valid");
    let error = |scenario: &Scenario, policy| {
        let fault = scenario.with_policy(policy).expect_err("too small");
        fault.to_string()
    };
    for policy in ["autonuma", "nomad@host"] {
        assert!(error(&vtmm, policy).contains("scans 256 MiB"));
    }
    assert!(
        error(&vtmm, "memtis").starts_with("policy memtis: vm.policy: \"memtis\" keeps 50 MiB")
    );
    let large = parse(&super::MINIMAL.replace("[[vm]]", "scale = 8\n[[vm]]")).expect("valid");
    let faults = error(&large, "hpmbs");
    assert!(
        faults.starts_with("policy hpmbs: machine.scale: at scale 8"),
        "{faults}"
    );
    let memtis = parse(&scenario("memtis", "256MiB", "1GiB")).expect("valid");
    let fault = memtis.with_fast(128 << 20).expect_err("too small");
    assert!(fault.to_string().contains("more than a quarter"), "{fault}");
}

#[test]
fn a_trace_with_more_players_than_vcpus_is_refused() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    let text = |players: u32| {
        format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n[[vm]]\nname = \"vm1\"\n\
             fast = \"64MiB\"\nslow = \"256MiB\"\n\
             workload = {{ kind = \"trace\", file = \"redis.trace.zst\", players = {players} }}\n"
        )
    };
    let read = |players| Scenario::parse(&text(players), "test", &folder);
    assert!(read(2).is_ok());
    let error = read(3).expect_err("too many").to_string();
    let expected =
        "vm.workload: trace: players = 3: expected at most 2, the number of the VM's vCPUs";
    assert!(error.contains(expected), "{error}");
}
