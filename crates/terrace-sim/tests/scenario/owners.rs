//! Tests of the owner of a VM's placement: the engine, a baseline at the host or in the guest, or none.

use terrace_sim::{Name, Side};

use super::faults::refused;
use super::{FULL, MINIMAL, parse};

fn owner(line: &str) -> Option<(Name, Side)> {
    let text = MINIMAL.replacen("workload", &format!("{line}\nworkload"), 1);
    parse(&text).expect("valid").vms[0].baseline()
}

#[test]
fn a_baseline_runs_where_it_does_by_nature_or_where_it_is_told() {
    let guest = Some((Name::Autonuma, Side::Guest));
    let host = Some((Name::Autonuma, Side::Host));
    assert_eq!(owner("policy = \"autonuma\""), guest);
    assert_eq!(owner("policy = \"autonuma@host\""), host);
    let table = "policy = { base = \"autonuma\", where = \"host\" }";
    assert_eq!(owner(table), host);
    assert_eq!(owner("guest_policy = \"autonuma\""), guest);
    assert_eq!(owner("policy = \"vtmm\""), None);
}

#[test]
fn a_guest_that_places_pages_needs_a_host_that_does_not() {
    let text = MINIMAL.replacen("workload", "guest_policy = \"autonuma\"\nworkload", 1);
    let vm = &parse(&text).expect("valid").vms[0];
    assert_eq!(vm.policy.name(), "first-touch");
    refused(
        MINIMAL,
        "workload",
        "policy = \"vtmm\"\nguest_policy = \"autonuma\"\nworkload",
        "8: vm.guest_policy",
        &["would both place", "first-touch"],
    );
}

#[test]
fn a_stage_of_a_baseline_cannot_be_replaced() {
    refused(
        MINIMAL,
        "workload",
        "policy = { base = \"autonuma\", move = \"linux\" }\nworkload",
        "7: vm.policy",
        &["one mechanism"],
    );
}

#[test]
fn a_baseline_beside_swap_is_refused() {
    refused(
        FULL,
        "policy = \"oracle\"",
        "policy = \"autonuma\"",
        "23: vm.policy",
        &["swap or a balloon"],
    );
}

#[test]
fn a_guest_with_another_page_size_than_the_host_cannot_move() {
    let more = "guest_policy = \"autonuma\"\nguest_page = \"2MiB\"\nworkload";
    refused(
        MINIMAL,
        "workload",
        more,
        "7: vm.guest_policy",
        &["one size"],
    );
}

#[test]
fn a_kernel_unmaps_1_to_512_pages_together() {
    refused(
        FULL,
        "management_cpus = 2",
        "migrate_batch = 513",
        "7: machine.migrate_batch",
        &["allowed is 1 to 512"],
    );
    let text = FULL.replacen("management_cpus = 2", "migrate_batch = 1", 1);
    assert_eq!(parse(&text).expect("valid").machine.migrate_batch, 1);
}
