//! The growths that are admitted on a host with two nodes, each of which is a tier.

use std::time::Duration;

use terrace_api::types::Health;

use super::GIB;
use super::script::{Host, Scripted, host, host_with};
use crate::played::put;
use terrace_proto::provision::{ProviderError, ProviderKind, Verified};

fn counted(host: &Host, vm: &str, bytes: u64) {
    host.until(vm, |e| (e.tiers[0].counted_bytes == bytes).then_some(()));
}

#[test]
fn a_growth_beyond_what_others_may_take_is_refused_with_figures() {
    let (one, two) = (Scripted::settled(), Scripted::settled());
    // vm2 has touched one of its two GiB.
    two.see(|status| {
        status.tiers[0].verified = Some(Verified {
            present_bytes: GIB,
            claimed_bytes: 2 * GIB,
            retained_bytes: 0,
        });
    });
    let host = host([("vm1", &one), ("vm2", &two)]);
    counted(&host, "vm1", 2 * GIB);
    counted(&host, "vm2", 2 * GIB);
    host.free([2 * GIB, 8 * GIB]);
    let refused = host.resize("vm1", [Some(4 * GIB), None]).unwrap_err();
    assert_eq!(
        refused,
        "vm1: node 0 has 2 GiB free for VMs, of which vm2 may still take 1 GiB; at most 3 GiB of fast can be given \
         now"
    );
    host.event(
        "vm1",
        "fast 2 GiB → 4 GiB ordered by the operator, by HyperFlex: refused: node 0",
    );
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
    assert_eq!(one.lock().ordered.len(), 1);
}

#[test]
fn a_vm_whose_driver_has_not_inflated_is_counted_whole() {
    let (one, two) = (Scripted::settled(), Scripted::settled());
    two.see(|status| status.targets_sent = false);
    let host = host([("vm1", &one), ("vm2", &two)]);
    counted(&host, "vm1", 2 * GIB);
    counted(&host, "vm2", 4 * GIB);
    host.free([2 * GIB, 1 << 20]);
    let refused = host.resize("vm1", [Some(3 * GIB), None]).unwrap_err();
    let whole = "vm2 may still take 2 GiB (counted whole: its driver has not inflated yet)";
    assert!(refused.contains(whole), "{refused}");
    let message = "admission counts 200 % of vm2: its driver has not inflated yet";
    assert_eq!(host.provisioning("vm2").unwrap().admission, message);
    let finding = host.doctor(Some("vm2"), "provisioning-admission");
    assert_eq!(
        (finding.found.as_str(), finding.health),
        (message, Health::Degraded)
    );
    let finding = host.doctor(None, "provisioning");
    assert_eq!(finding.health, Health::Degraded);
    assert!(
        finding.found.contains("node 1 has 1 MiB free"),
        "{finding:?}"
    );
    two.see(|status| status.targets_sent = true);
    counted(&host, "vm2", 2 * GIB);
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
}

#[test]
fn two_orders_at_once_do_not_get_the_same_memory() {
    let (one, two) = (Scripted::settled(), Scripted::settled());
    let host = host_with(Duration::from_secs(2), "", [("vm1", &one), ("vm2", &two)]);
    counted(&host, "vm1", 2 * GIB);
    counted(&host, "vm2", 2 * GIB);
    host.free([2 * GIB, 8 * GIB]);
    // The order is on its way to vm1 when vm2's order comes.
    one.hang_at_orders(true);
    let hung = host.resize("vm1", [Some(4 * GIB), None]).unwrap_err();
    assert!(hung.contains("may still carry it out"), "{hung}");
    let refused = host.resize("vm2", [Some(3 * GIB), None]).unwrap_err();
    assert!(refused.contains("vm1 may still take 2 GiB"), "{refused}");
    one.hang_at_orders(false);
}

#[test]
fn what_the_operator_keeps_back_of_a_tier_is_not_given() {
    let script = Scripted::settled();
    let tiers = "[[tier]]\nname = \"dram\"\nnodes = [0]\nreserve = \"1GiB\"\n\
                 [[tier]]\nname = \"cxl\"\nnodes = [1]\n";
    let host = host_with(Duration::from_secs(60), tiers, [("vm1", &script)]);
    counted(&host, "vm1", 2 * GIB);
    host.free([2 * GIB, 8 * GIB]);
    let refused = host.resize("vm1", [Some(4 * GIB), None]).unwrap_err();
    assert!(refused.contains("node 0 has 1 GiB free"), "{refused}");
    let cache = "Node 0 MemTotal: 2048 kB\nNode 0 Inactive(file): 1048576 kB\n";
    put(host.root(), "sys/devices/system/node/node0/meminfo", cache);
    host.resize("vm1", [Some(4 * GIB), None]).unwrap();
}

#[test]
fn a_tier_on_an_unknown_node_counts_against_the_whole_host() {
    let script = Scripted::settled();
    script.see(|status| status.tiers[0].host_nodes.clear());
    let host = host([("vm1", &script)]);
    counted(&host, "vm1", 2 * GIB);
    host.free([GIB / 2, GIB / 2]);
    let refused = host.resize("vm1", [Some(4 * GIB), None]).unwrap_err();
    for has in ["the host has 1 GiB free", "hyperflex_nodes under [vm.vm1]"] {
        assert!(refused.contains(has), "no {has:?} in {refused}");
    }
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
}

#[test]
fn without_files_a_vms_present_memory_is_its_process_memory() {
    let (one, two) = (Scripted::settled(), Scripted::settled());
    two.lock().kind = ProviderKind::VirtioMem;
    two.see(|status| {
        status
            .tiers
            .iter_mut()
            .for_each(|tier| tier.verified = None)
    });
    let host = host([("vm1", &one), ("vm2", &two)]);
    counted(&host, "vm1", 2 * GIB);
    counted(&host, "vm2", 2 * GIB);
    host.free([GIB, GIB]);
    let refused = host.resize("vm1", [Some(3 * GIB), None]).unwrap_err();
    assert!(refused.contains("vm2 may still take 2 GiB"), "{refused}");
    // Both of its tiers are present.
    let status = "RssAnon:\t 0 kB\nRssShmem:\t 4194304 kB\n";
    put(host.root(), "proc/101/status", status);
    host.until("vm2", |e| (e.tiers[0].may_take_bytes == 0).then_some(()));
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
}

#[test]
fn more_than_the_vm_was_started_with_is_refused() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    let refused = host.resize("vm1", [Some(5 * GIB), None]).unwrap_err();
    assert!(refused.contains("has 4 GiB at most"), "{refused}");
}

#[test]
fn figures_of_tiers_and_outcomes_of_orders_are_exported() {
    let script = Scripted::settled();
    script.see(|status| {
        status.refused_entries = 7;
        status.tiers[0].guest.free_bytes = Some(GIB);
    });
    let host = host([("vm \"1\"", &script)]);
    counted(&host, "vm \"1\"", 2 * GIB);
    host.resize("vm \"1\"", [Some(GIB), None]).unwrap();
    host.resize("vm \"1\"", [Some(5 * GIB), None]).unwrap_err();
    let text = host.figures();
    let vm = r#"vm="vm \"1\"""#;
    for has in [
        format!("terrace_provisioning_whole_bytes{{{vm},tier=\"fast\"}} 4294967296"),
        format!("terrace_provisioning_target_bytes{{{vm},tier=\"fast\"}} 1073741824"),
        format!("terrace_provisioning_verified_ratio{{{vm},tier=\"slow\"}} 1.0"),
        format!("terrace_elastic_guest_free_bytes{{{vm},tier=\"fast\"}} 1073741824"),
        format!("terrace_provisioning_refused_entries_total{{{vm}}} 7"),
        format!("terrace_resizes_total{{{vm},outcome=\"taken\"}} 1"),
        format!("terrace_resizes_total{{{vm},outcome=\"refused-invalid\"}} 1"),
        format!("terrace_provisioning_by{{{vm},by=\"hyperflex\"}} 1"),
        "# TYPE terrace_provisioning_size_bytes gauge".to_owned(),
        "# EOF".to_owned(),
    ] {
        assert!(text.contains(&has), "no {has} in\n{text}");
    }
    let swap = "terrace_provisioning_guest_swapped_in_pages_total{";
    assert!(
        !text.contains(swap),
        "what the guest does not say is absent"
    );
}

#[test]
fn a_number_without_its_unit_is_refused() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    for bytes in [0, 4096] {
        let refused = host.resize("vm1", [Some(bytes), None]).unwrap_err();
        for has in ["the least is 64 MiB", "Did you mean MiB?"] {
            assert!(refused.contains(has), "no {has:?} in {refused}");
        }
    }
    // A guest lives without its slow tier.
    host.resize("vm1", [None, Some(0)]).unwrap();
    assert_eq!(script.lock().ordered, [vec![None, Some(0)]]);
}

#[test]
fn sizes_are_rounded_to_the_devices_smallest_page() {
    let script = Scripted::settled();
    script.see(|status| status.tiers[0].block_bytes = 2 << 20);
    let host = host([("vm1", &script)]);
    let ordered = host.resize("vm1", [Some(GIB + (1 << 20)), None]).unwrap();
    let message = "→ 1 GiB (1025 MiB rounded down to blocks of 2 MiB)";
    assert!(ordered.done.contains(message), "{ordered:?}");
    assert_eq!(script.lock().ordered, [vec![Some(GIB), None]]);
}

#[test]
fn a_balloons_size_is_rounded_to_whole_pages() {
    let script = Scripted::settled();
    script.lock().kind = ProviderKind::Balloon;
    script.see(|status| {
        status.tiers.truncate(1);
        status.tiers[0].block_bytes = 4096;
    });
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB + 1), Some(GIB / 2 + 4094)])
        .unwrap();
    assert_eq!(script.lock().ordered, [vec![Some(GIB + GIB / 2)]]);
}

#[test]
fn nothing_is_given_beside_a_vm_whose_device_has_never_answered() {
    let (one, two) = (Scripted::settled(), Scripted::settled());
    let config = "[vm.vm2]\nhyperflex = \"/run/two\"\nhyperflex_nodes = [0, 1]\n";
    let host = host_with(Duration::from_secs(60), config, [("vm1", &one)]);
    let gone = ProviderError::Gone("connection refused".into());
    two.lock().status = Err(gone);
    host.add("vm2", &two, 200);
    host.until("vm2", |provisioning| {
        let problem = provisioning.problem.as_ref()?;
        problem.contains("connection refused").then_some(())
    });
    let refused = host.resize("vm1", [Some(3 * GIB), None]).unwrap_err();
    for has in [
        "terraced does not know how much memory vm2 may still take",
        "connection refused",
    ] {
        assert!(refused.contains(has), "no {has:?} in {refused}");
    }
    assert_eq!(
        host.provisioning("vm1").unwrap().orders.refused_admission,
        1
    );
    host.resize("vm1", [Some(GIB), None]).unwrap();
    two.lock().status = Scripted::settled().lock().status.clone();
    host.until("vm2", |provisioning| provisioning.age_s);
    host.resize("vm1", [Some(2 * GIB), None]).unwrap();
}

#[test]
fn huge_pages_count_by_their_pool_not_by_free_memory() {
    let script = Scripted::settled();
    script.see(|status| status.tiers[0].page_bytes = 2 << 20);
    let host = host([("vm1", &script)]);
    counted(&host, "vm1", 2 * GIB);
    // Free memory of the node is of no use to it.
    let refused = host.resize("vm1", [Some(3 * GIB), None]).unwrap_err();
    let message = "huge pages of 2 MiB, of which node 0 has 0 B free";
    assert!(refused.contains(message), "{refused}");
    // And if all free memory is in the pool, it can have that.
    host.free([0, 0]);
    let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages";
    put(host.root(), pool, "512\n");
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
    let refused = host.resize("vm1", [Some(4 * GIB), None]).unwrap_err();
    assert!(refused.contains("at most 3 GiB of fast"), "{refused}");
}
