//! One test per fault of a device, a driver, a guest.

use std::os::unix::fs::symlink;
use std::time::Duration;

use terrace_api::provision::{OrderState, ProvisioningStatus};
use terrace_api::types::{Health, Status, Vm};

use super::script::{Host, Scripted, host, host_at, host_with, live, pace, resize_tier};
use super::{GIB, MIB};
use crate::messages::State;
use crate::played::{play_process, process, put};
use terrace_core::provision::ProvisionConfig;
use terrace_proto::provision::{ProviderError, ProviderKind, Verified};

#[test]
fn an_order_is_told_and_its_end_is_too() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    let ordered = host.resize("vm1", [Some(GIB), None]).unwrap();
    assert_eq!((ordered.by.as_str(), ordered.number), ("hyperflex", 1));
    assert_eq!(ordered.size_bytes, [Some(GIB), None]);
    assert!(ordered.done.contains("ordered by HyperFlex"), "{ordered:?}");
    assert_eq!(script.lock().ordered, [[Some(GIB), None]]);
    host.event(
        "vm1",
        "fast 2 GiB → 1 GiB ordered by the operator, by HyperFlex",
    );
    host.until("vm1", |provisioning| {
        let under_way = provisioning.order.as_ref()?.state == OrderState::UnderWay;
        (under_way && provisioning.resizing).then_some(())
    });
    script.see(|status| resize_tier(&mut status.tiers[0], GIB));
    host.event("vm1", "has reached its target: fast 1 GiB, slow 2 GiB");
    let order = host.until("vm1", |provisioning| {
        let order = provisioning.order.clone()?;
        (order.state == OrderState::Met).then_some(order)
    });
    assert_eq!(order.from_bytes, [2 * GIB, 2 * GIB]);
    assert_eq!((order.origin.as_str(), order.why), ("operator", None));
}

#[test]
fn a_hung_device_blocks_neither_daemon_nor_vms_and_is_reported() {
    let (hung, well) = (Scripted::settled(), Scripted::settled());
    let host = host_with(
        Duration::from_secs(2),
        "",
        [("hung", &hung), ("well", &well)],
    );
    hung.hang(true);
    let error = host.resize("hung", [Some(GIB), None]).unwrap_err();
    for has in ["HyperFlex (script) hangs", "nothing was ordered"] {
        assert!(error.contains(has), "no {has:?} in {error}");
    }
    let status: Status = host.served.get("/v1/status").unwrap();
    assert_eq!(status.vms, 2);
    host.event("hung", "its HyperFlex device hangs: no answer for");
    let provisioning = host.provisioning("hung").unwrap();
    assert!(provisioning.problem.unwrap().contains("it hangs"));
    assert_eq!(
        provisioning.tiers[0].size_bytes,
        2 * GIB,
        "what was seen stays"
    );
    host.resize("well", [Some(GIB), None]).unwrap();
    hung.hang(false);
    host.event("hung", "answers again");
    host.until("hung", |provisioning| {
        provisioning.problem.is_none().then_some(())
    });
    assert_eq!(hung.lock().ordered, Vec::<Vec<_>>::new());
}

#[test]
fn a_device_that_goes_and_returns_is_logged_once_each() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.until("vm1", |e| {
        (e.tiers[0].counted_bytes == 2 * GIB).then_some(())
    });
    let gone =
        ProviderError::Gone("connection refused; is the VM's terrace-hyperflex running?".into());
    let before = std::mem::replace(&mut script.lock().status, Err(gone));
    host.event(
        "vm1",
        "its HyperFlex device does not answer: connection refused",
    );
    let provisioning = host.until("vm1", |e| e.problem.is_some().then(|| e.clone()));
    assert_eq!(provisioning.tiers[0].counted_bytes, 4 * GIB);
    assert!(
        provisioning.admission.contains("does not answer"),
        "{provisioning:?}"
    );
    let refused = host.resize("vm1", [Some(GIB), None]).unwrap_err();
    assert!(refused.contains("connection refused"), "{refused}");
    host.event(
        "vm1",
        "an order of the operator: refused: connection refused",
    );
    assert_eq!(host.provisioning("vm1").unwrap().orders.failed, 1);
    assert_eq!(
        host.doctor(Some("vm1"), "provisioning").health,
        Health::Missing
    );
    script.lock().status = before;
    host.event("vm1", "its HyperFlex device answers");
    host.until("vm1", |e| {
        (e.tiers[0].counted_bytes == 2 * GIB).then_some(())
    });
    let events = host.events("vm1");
    let about = |has: &str| events.iter().filter(|e| e.contains(has)).count();
    assert_eq!((about("does not answer"), about("device answers")), (1, 1));
}

#[test]
fn a_guest_that_retains_memory_is_counted_whole_until_verified() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.until("vm1", |e| {
        (e.tiers[1].counted_bytes == 2 * GIB).then_some(())
    });
    script.see(|status| {
        status.tiers[1].verified = Some(Verified {
            present_bytes: 3 * GIB,
            claimed_bytes: 2 * GIB,
            retained_bytes: GIB,
        });
    });
    host.event(
        "vm1",
        "claims to have given back 2 GiB of slow, of which 1 GiB is still there (verified: 0.50)",
    );
    let tier = host.until("vm1", |e| {
        let tier = e.tiers[1].clone();
        (tier.counted_bytes == 4 * GIB).then_some(tier)
    });
    assert_eq!(
        (tier.verified_ratio, tier.retained_bytes),
        (Some(0.5), Some(GIB))
    );
    assert_eq!(tier.may_take_bytes, GIB);
    let finding = host.doctor(Some("vm1"), "provisioning-verified");
    assert_eq!(finding.health, Health::Degraded);
    assert!(
        finding.found.contains("slow: 1 GiB of the 2 GiB"),
        "{finding:?}"
    );
    script.see(|status| resize_tier(&mut status.tiers[1], 2 * GIB));
    host.event(
        "vm1",
        "all memory that it claims to have given back of slow is gone",
    );
    host.until("vm1", |e| {
        (e.tiers[1].counted_bytes == 2 * GIB).then_some(())
    });
}

/// Waits until so many more queries with verification were made and seen.
fn wait_for_verified_queries(host: &Host, script: &Scripted, more: u64) {
    let before = script.lock().queries[0];
    host.until("vm1", |_| {
        (script.lock().queries[0] > before + more).then_some(())
    });
}

#[test]
fn a_guest_that_could_not_be_verified_in_time_is_counted_whole() {
    let script = Scripted::settled();
    script.see(|status| status.tiers[0].verified = None);
    let host = host([("vm1", &script)]);
    host.until("vm1", |e| {
        (e.tiers[1].counted_bytes == 2 * GIB).then_some(())
    });
    wait_for_verified_queries(&host, &script, 3);
    let tier = host.provisioning("vm1").unwrap().tiers[0].clone();
    assert_eq!((tier.counted_bytes, tier.verified_ratio), (4 * GIB, None));
    // A verdict of when it had given back less proves nothing about the rest.
    script.see(|status| {
        resize_tier(&mut status.tiers[0], 3 * GIB);
        status.tiers[0].size_bytes = 2 * GIB;
    });
    host.until("vm1", |e| e.tiers[0].verified_ratio);
    wait_for_verified_queries(&host, &script, 3);
    let tier = host.provisioning("vm1").unwrap().tiers[0].clone();
    assert_eq!(tier.counted_bytes, 4 * GIB);
    script.see(|status| resize_tier(&mut status.tiers[0], 2 * GIB));
    host.until("vm1", |e| {
        (e.tiers[0].counted_bytes == 2 * GIB).then_some(())
    });
}

#[test]
fn a_caught_guest_is_not_cleared_by_late_queries() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    script.see(|status| {
        status.tiers[0].verified = Some(Verified {
            present_bytes: 3 * GIB,
            claimed_bytes: 2 * GIB,
            retained_bytes: GIB,
        });
    });
    host.event("vm1", "claims to have given back 2 GiB of fast");
    script.see(|status| status.tiers[0].verified = None);
    wait_for_verified_queries(&host, &script, 5);
    let tier = host.provisioning("vm1").unwrap().tiers[0].clone();
    assert_eq!(
        (tier.counted_bytes, tier.verified_ratio),
        (4 * GIB, Some(0.5))
    );
}

#[test]
fn a_lost_answer_is_counted_as_taken_until_a_look_tells() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.until("vm1", |e| {
        (e.tiers[0].counted_bytes == 2 * GIB).then_some(())
    });
    let lost = ProviderError::Gone("the answer was lost".into());
    script.lock().answer = Err(lost);
    script.hang_after_orders();
    host.resize("vm1", [Some(3 * GIB), None]).unwrap_err();
    let provisioning = host.until("vm1", |e| e.order.as_ref().map(|_| e.clone()));
    assert_eq!(provisioning.order.unwrap().state, OrderState::Unknown);
    assert_eq!(provisioning.tiers[0].counted_bytes, 3 * GIB);
    script.hang(false);
    // The device has another target: the order was not taken.
    let why = host.until("vm1", |provisioning| {
        let order = provisioning.order.as_ref()?;
        (order.state == OrderState::Failed).then(|| order.why.clone())
    });
    let why = why.unwrap();
    assert!(why.contains("lost; the target of fast is 2 GiB"), "{why}");
    host.until("vm1", |e| {
        (e.tiers[0].counted_bytes == 2 * GIB).then_some(())
    });
}

#[test]
fn a_met_order_stays_met_if_someone_else_changes_the_target() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    script.see(|status| resize_tier(&mut status.tiers[0], GIB));
    let is_met = |provisioning: &ProvisioningStatus| {
        let order = provisioning.order.as_ref()?;
        (order.state == OrderState::Met).then_some(())
    };
    host.until("vm1", is_met);
    script.see(|status| status.tiers[0].target_bytes = 3 * GIB);
    host.until("vm1", |provisioning| provisioning.resizing.then_some(()));
    is_met(&host.provisioning("vm1").unwrap()).unwrap();
}

#[test]
fn a_guest_that_resets_again_and_again_fills_no_event_list() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    for resets in 1..6 {
        script.see(|status| status.resets = resets);
        host.until("vm1", |e| (e.resets == resets).then_some(()));
    }
    let events = host.events("vm1");
    let restarts = events.iter().filter(|e| e.contains("started anew"));
    assert_eq!(restarts.count(), 1, "{events:#?}");
}

#[test]
fn a_guest_that_cannot_reach_its_target_is_told_with_its_reason() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(512 * MIB), None]).unwrap();
    script.see(|status| {
        resize_tier(&mut status.tiers[0], GIB);
        status.tiers[0].stuck = Some("its node has 3 MiB free".into());
    });
    host.event(
        "vm1",
        "fast is stuck at 1 GiB on the way to 512 MiB: its node has 3 MiB free",
    );
    let why = host.until("vm1", |provisioning| {
        let order = provisioning.order.as_ref()?;
        (order.state == OrderState::Stuck).then(|| order.why.clone())
    });
    assert_eq!(why.as_deref(), Some("its node has 3 MiB free"));
    // The order continues when it can.
    script.see(|status| {
        resize_tier(&mut status.tiers[0], 512 * MIB);
        status.tiers[0].stuck = None;
    });
    host.until("vm1", |provisioning| {
        (provisioning.order.as_ref()?.state == OrderState::Met).then_some(())
    });
}

#[test]
fn a_claim_about_an_older_target_says_nothing_of_a_newer() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    script.see(|status| {
        status.reports = Some(5);
        status.tiers[0].stuck = Some("no free page".into());
    });
    host.until("vm1", |_| {
        let queries: u64 = script.lock().queries.iter().sum();
        (queries > 3).then_some(())
    });
    host.resize("vm1", [Some(GIB), None]).unwrap();
    let before = script.lock().queries.iter().sum::<u64>();
    host.until("vm1", |provisioning| {
        let order = provisioning.order.as_ref()?;
        assert_ne!(order.state, OrderState::Stuck, "it has not spoken since");
        let queries: u64 = script.lock().queries.iter().sum();
        (queries > before + 5).then_some(())
    });
    for reports in 6..8 {
        let before = script.lock().queries.iter().sum::<u64>();
        script.see(|status| status.reports = Some(reports));
        host.until("vm1", |_| {
            let queries: u64 = script.lock().queries.iter().sum();
            (queries > before + 1).then_some(())
        });
    }
    host.event(
        "vm1",
        "fast is stuck at 2 GiB on the way to 1 GiB: no free page",
    );
}

#[test]
fn a_guest_that_goes_to_and_fro_makes_one_event() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    for (size, resizing) in [(3, true), (2, false), (3, true), (2, false)] {
        script.see(|status| resize_tier(&mut status.tiers[0], size * GIB));
        host.until("vm1", |e| (e.resizing == resizing).then_some(()));
    }
    let events = host.events("vm1");
    let met = events
        .iter()
        .filter(|e| e.contains("has reached its target"));
    assert!(met.count() <= 1, "{events:#?}");
}

#[test]
fn a_driver_that_ignores_its_targets_is_reported_until_it_acts() {
    let script = Scripted::settled();
    script.see(|status| status.targets_sent = false);
    let host = host([("vm1", &script)]);
    host.event("vm1", "is the module hyperflex loaded in it?");
    let finding = host.doctor(Some("vm1"), "provisioning");
    assert_eq!(finding.health, Health::Degraded);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    let why = host.until("vm1", |provisioning| {
        let order = provisioning.order.as_ref()?;
        (order.state == OrderState::Stuck).then(|| order.why.clone())
    });
    assert!(why.unwrap().contains("driver has not taken the targets"));
    script.see(|status| status.targets_sent = true);
    host.event("vm1", "the guest's driver knows the targets");
}

#[test]
fn a_newer_order_replaces_an_older_one() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    let first = host.resize("vm1", [Some(GIB), None]).unwrap();
    let second = host.resize("vm1", [Some(3 * GIB), None]).unwrap();
    assert!(second.number > first.number);
    script.see(|status| resize_tier(&mut status.tiers[0], 3 * GIB));
    let order = host.until("vm1", |provisioning| {
        let order = provisioning.order.clone()?;
        (order.state == OrderState::Met).then_some(order)
    });
    assert_eq!(
        (order.number, order.size_bytes[0]),
        (second.number, Some(3 * GIB))
    );
    assert_eq!(script.lock().ordered.len(), 2);
}

#[test]
fn an_order_that_the_device_refuses_is_told_with_its_reason() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    script.lock().answer = Err(ProviderError::Refused("1 bytes are no whole pages".into()));
    let refused = host.resize("vm1", [Some(GIB + 1), None]).unwrap_err();
    assert_eq!(refused, "1 bytes are no whole pages");
    host.event("vm1", "came to nothing: 1 bytes are no whole pages");
    let order = host.until("vm1", |provisioning| provisioning.order.clone());
    assert_eq!(order.state, OrderState::Failed);
}

#[test]
fn targets_that_somebody_else_changed_end_the_order() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    script.see(|status| status.tiers[0].target_bytes = 3 * GIB);
    let why = host.until("vm1", |provisioning| {
        let order = provisioning.order.as_ref()?;
        (order.state == OrderState::Failed).then(|| order.why.clone())
    });
    assert!(why.unwrap().contains("the target of fast is 3 GiB now"));
}

#[test]
fn a_vm_with_a_passed_through_device_may_grow_but_not_shrink() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    symlink("/dev/vfio/17", host.root().join("proc/100/fd/9")).unwrap();
    host.until("vm1", |provisioning| provisioning.pinned_by.clone());
    let refused = host.resize("vm1", [Some(GIB), None]).unwrap_err();
    for has in ["/dev/vfio/17", "pins all of its memory", "cannot shrink"] {
        assert!(refused.contains(has), "no {has:?} in {refused}");
    }
    host.event(
        "vm1",
        "by HyperFlex: refused: a device is passed through (/dev/vfio/17)",
    );
    assert_eq!(script.lock().ordered, Vec::<Vec<_>>::new());
    let finding = host.doctor(Some("vm1"), "provisioning-pinned");
    assert!(finding.found.contains("/dev/vfio/17"), "{finding:?}");
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
}

#[test]
fn a_device_passed_through_in_mid_shrink_stops_it() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    script.see(|status| {
        status.tiers[0].block_bytes = 2 * MIB;
        resize_tier(&mut status.tiers[0], GIB + 301 * MIB);
    });
    // A query that began before would have the device come when the tier was as it had been.
    host.until("vm1", |provisioning| {
        (provisioning.tiers[0].size_bytes == GIB + 301 * MIB).then_some(())
    });
    symlink("/dev/vfio/17", host.root().join("proc/100/fd/9")).unwrap();
    host.event("vm1", "a device is passed through (/dev/vfio/17), which");
    host.event(
        "vm1",
        "ordered by terraced, because a device is passed through",
    );
    let held = [Some(GIB + 302 * MIB), None];
    host.until("vm1", |_| {
        (script.lock().ordered.last()? == &held).then_some(())
    });
    // Its balloons are empty, and the target makes the driver fill them again.
    script.see(|status| {
        status.resets += 1;
        resize_tier(&mut status.tiers[0], 4 * GIB);
    });
    let held = [Some(4 * GIB), None];
    host.until("vm1", |_| {
        (script.lock().ordered.last()? == &held).then_some(())
    });
    host.until("vm1", |provisioning| (!provisioning.resizing).then_some(()));
    std::fs::remove_file(host.root().join("proc/100/fd/9")).unwrap();
    host.event("vm1", "no device is passed through any more");
    let events = host.events("vm1");
    let pinned = events
        .iter()
        .filter(|e| e.starts_with("a device is passed"));
    assert_eq!(pinned.count(), 1, "{events:#?}");
}

#[test]
fn an_order_that_the_device_refuses_is_not_repeated() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    script.lock().answer = Err(ProviderError::Refused("it cannot be".into()));
    symlink("/dev/vfio/17", host.root().join("proc/100/fd/9")).unwrap();
    host.event("vm1", "came to nothing: it cannot be");
    wait_for_verified_queries(&host, &script, 3);
    assert_eq!(script.lock().ordered.len(), 2);
}

#[test]
fn a_second_vm_of_a_name_takes_over_nothing_from_the_first() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    live(host.root(), 200);
    for pid in [200, 100, 200] {
        let private = State::Unscannable("its RAM is private".into());
        host.served.find("vm1", Some(pid), private);
    }
    let vms: Vec<Vm> = host.served.get("/v1/vms").unwrap();
    let known: Vec<_> = vms.iter().map(|vm| (vm.name.as_str(), vm.pid)).collect();
    assert_eq!(known, [("vm1", Some(100))]);
    let order = host.provisioning("vm1").unwrap().order;
    assert!(order.is_some(), "its reconciler was replaced");
}

#[test]
fn pins_are_searched_in_the_process_that_the_device_names() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    live(host.root(), 300);
    symlink("/dev/vfio/17", host.root().join("proc/300/fd/9")).unwrap();
    script.see(|status| status.hypervisor_pid = Some(300));
    host.until("vm1", |provisioning| provisioning.pinned_by.clone());
}

#[test]
fn a_vm_with_virtio_mem_may_shrink_with_a_device_passed_through() {
    let script = Scripted::settled();
    script.lock().kind = ProviderKind::VirtioMem;
    let host = host([("vm1", &script)]);
    symlink("/dev/vfio/17", host.root().join("proc/100/fd/9")).unwrap();
    host.resize("vm1", [Some(GIB), None]).unwrap();
    assert_eq!(script.lock().ordered, [vec![Some(GIB), None]]);
}

#[test]
fn an_unreadable_process_does_not_prove_that_none_is_pinned() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    std::fs::remove_dir(host.root().join("proc/100/fd")).unwrap();
    let refused = host.resize("vm1", [Some(GIB), None]).unwrap_err();
    for has in ["cannot tell", "proc/100/fd", "CAP_SYS_PTRACE"] {
        assert!(refused.contains(has), "no {has:?} in {refused}");
    }
    assert_eq!(host.provisioning("vm1").unwrap().orders.refused_pinned, 1);
    let finding = host.doctor(Some("vm1"), "provisioning-pinned");
    assert_eq!(finding.health, Health::Degraded);
    assert!(finding.found.contains("does not know"), "{finding:?}");
    assert_eq!(script.lock().ordered, Vec::<Vec<_>>::new());
    // To grow takes nothing from under a device.
    host.resize("vm1", [Some(3 * GIB), None]).unwrap();
}

#[test]
fn the_processs_memory_is_shown_beside_what_the_guest_claims() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    let status = |shmem_kib: u64| {
        let text = format!("RssAnon:\t 1024 kB\nRssFile:\t 0 kB\nRssShmem:\t {shmem_kib} kB\n");
        put(host.root(), "proc/100/status", &text);
    };
    status(4 << 20);
    host.until("vm1", |provisioning| provisioning.resident);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    status(3 << 20);
    let fell = host.until("vm1", |provisioning| {
        provisioning.resident?.fell_bytes.filter(|n| *n != 0)
    });
    assert_eq!(fell, 1 << 30);
}

#[test]
fn the_balloon_gives_the_sum_and_says_that_it_knows_no_tiers() {
    let script = Scripted::settled();
    script.lock().kind = ProviderKind::Balloon;
    script.see(|status| {
        status.tiers.truncate(1);
        status.tiers[0].host_nodes.clear();
    });
    let host = host([("vm1", &script)]);
    let refused = host.resize("vm1", [Some(GIB), None]).unwrap_err();
    assert!(
        refused.contains("knows no tiers: give both sizes"),
        "{refused}"
    );
    let ordered = host.resize("vm1", [Some(GIB), Some(512 * MIB)]).unwrap();
    assert!(
        ordered
            .done
            .contains("by the balloon, which knows no tiers")
    );
    assert_eq!(script.lock().ordered, [[Some(GIB + 512 * MIB)]]);
    assert_eq!(host.provisioning("vm1").unwrap().tiers[0].name, "memory");
}

#[test]
fn files_are_looked_at_seldom_while_nothing_changes() {
    let script = Scripted::settled();
    let host = host_with(Duration::from_secs(60), "", [("vm1", &script)]);
    host.until("vm1", |_| {
        let [with, without] = script.lock().queries;
        (with > 1 && without > 3).then_some(())
    });
    // The verified figures stay visible in between.
    let provisioning = host.provisioning("vm1").unwrap();
    assert_eq!(provisioning.tiers[0].present_bytes, Some(2 * GIB));
}

#[test]
fn a_restarted_vm_is_provisioned_anew_and_a_found_one_is_not() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    host.resize("vm1", [Some(GIB), None]).unwrap();
    play_process(host.root(), process(200));
    let find = |pid| {
        let private = State::Unscannable("its RAM is private".into());
        host.served.find("vm1", pid, private);
    };
    for same in [Some(100), None] {
        find(same);
        let order = host.provisioning("vm1").unwrap().order;
        assert!(order.is_some(), "what is known of it stays");
    }
    std::fs::remove_file(host.root().join("proc/100/stat")).unwrap();
    find(Some(200));
    host.until("vm1", |provisioning| {
        provisioning.order.is_none().then_some(())
    });
}

#[test]
fn a_failed_reconciler_is_reported_and_restarted_by_a_resize() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    script.lock().panics_at_orders = true;
    let why = host.resize("vm1", [Some(GIB), None]).unwrap_err();
    assert!(why.contains("a fault of terraced's own"), "{why}");
    // All that it may take is counted: the memory that its driver gave back is not known any more.
    let provisioning = host.until("vm1", |provisioning| {
        provisioning.problem.is_some().then(|| provisioning.clone())
    });
    let problem = provisioning.problem.unwrap();
    assert!(
        problem.contains("`terrace resize` starts another"),
        "{problem}"
    );
    assert_eq!(provisioning.tiers[0].counted_bytes, 4 * GIB);
    let finding = host.doctor(Some("vm1"), "provisioning");
    assert!(
        finding.found.contains("a fault of terraced's own"),
        "{finding:?}"
    );
    script.lock().panics_at_orders = false;
    host.resize("vm1", [Some(GIB), None]).unwrap();
    assert_eq!(script.lock().ordered, [[Some(GIB), None]]);
}

#[test]
fn a_reconciler_ends_with_its_vm() {
    let script = Scripted::settled();
    let host = host([("vm1", &script)]);
    std::fs::remove_file(host.root().join("proc/100/stat")).unwrap();
    host.event("vm1", "the VM ended");
    let path = "/v1/vms/vm1/resize";
    let gone = host.served.post::<serde_json::Value>(path).unwrap_err();
    assert!(!gone.is_empty());
    let until = std::time::Instant::now() + Duration::from_secs(60);
    // The finder and this test hold one each; the reconciler's goes with its thread.
    while script.holders() > 2 {
        assert!(std::time::Instant::now() < until, "the thread lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The reconciler of the VM before has it still in its queue: it was checked for that VM alone.
#[test]
fn an_order_that_waits_is_not_given_to_the_next_vm_of_that_name() {
    let script = Scripted::settled();
    // The query that hangs is the order's: between it and the first one there is no other.
    let pace = ProvisionConfig {
        idle_ms: 600_000,
        verify_ms: 600_000,
        ..pace(Duration::from_secs(60))
    };
    let host = host_at(pace, "", [("vm1", &script)]);
    play_process(host.root(), process(200));
    script.hang_at_leases(true);
    std::thread::scope(|scope| {
        // The query is answered before the reconciler asks for a lease; the order waits behind that.
        let resized = scope.spawn(|| host.resize("vm1", [Some(GIB), None]));
        host.event("vm1", "fast 2 GiB → 1 GiB ordered by the operator");
        std::fs::remove_file(host.root().join("proc/100/stat")).unwrap();
        let private = State::Unscannable("its RAM is private".into());
        host.served.find("vm1", Some(200), private);
        let why = resized.join().unwrap().unwrap_err();
        assert!(why.contains("the VM is gone"), "{why}");
        script.hang_at_leases(false);
    });
    // The next one is queried, and the reconciler of the one before has ended.
    host.until("vm1", |provisioning| provisioning.age_s.map(drop));
    let until = std::time::Instant::now() + Duration::from_secs(60);
    // This test and the finder hold one each, and a reconciler two: its way to find the provider, and that.
    while script.holders() > 4 {
        assert!(std::time::Instant::now() < until, "the thread lives on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(script.lock().ordered, Vec::<Vec<_>>::new());
}
