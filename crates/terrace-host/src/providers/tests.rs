use std::time::{Duration, Instant};

use super::*;
use crate::qemu::{NodeMemory, VirtioMem};

pub(super) const MIB: u64 = 1 << 20;

fn node(node: u32, boot: u64, plugged: u64) -> NodeMemory {
    NodeMemory {
        node,
        size: (boot + plugged) * MIB,
        plugged: plugged * MIB,
    }
}

fn device(id: &str, node: u32, requested: u64) -> VirtioMem {
    VirtioMem {
        id: Some(id.into()),
        memdev: format!("/objects/{id}"),
        node,
        size: requested * MIB,
        requested: requested * MIB,
        max: 1024 * MIB,
        block: 2 * MIB,
    }
}

/// Two nodes of 256 MiB, each with a device of 1 GiB that has 256 MiB plugged.
pub(super) fn two_tiers() -> Vec<Tier> {
    let nodes = [node(0, 256, 256), node(1, 256, 256)];
    let devices = vec![device("v0", 0, 256), device("v1", 1, 256)];
    tiers(&nodes, 512 * MIB, devices).unwrap()
}

fn orders(plan: &Plan) -> Vec<(&str, u64)> {
    let order = |o: &'_ DeviceOrder| (o.bytes / MIB, o.bytes % MIB);
    let all = plan.orders.iter();
    all.map(|o| {
        assert_eq!(order(o).1, 0);
        (o.device.as_str(), order(o).0)
    })
    .collect()
}

fn refused(tiers: &[Tier], wanted: &[Option<u64>]) -> String {
    let wanted: Vec<_> = wanted.iter().map(|mib| mib.map(|mib| mib * MIB)).collect();
    Plan::new(tiers, &wanted).unwrap_err().to_string()
}

#[test]
fn a_tier_is_a_node_with_its_boot_and_plugged_memory() {
    let tiers = two_tiers();
    let sizes: Vec<_> = tiers
        .iter()
        .map(|t| {
            (
                t.node,
                t.boot_bytes / MIB,
                t.size_bytes / MIB,
                t.max_bytes / MIB,
            )
        })
        .collect();
    assert_eq!(sizes, [(0, 256, 512, 1280), (1, 256, 512, 1280)]);
    // A node that is all virtio-mem, one with processors alone, and a guest without NUMA.
    let nodes = [node(0, 512, 0), node(1, 0, 0), node(2, 0, 256)];
    let rest = super::tiers(&nodes, 512 * MIB, vec![device("v2", 2, 256)]).unwrap();
    let sizes: Vec<_> = rest.iter().map(|t| (t.node, t.size_bytes / MIB)).collect();
    assert_eq!(sizes, [(0, 512), (2, 256)]);
    let one = super::tiers(&[], 512 * MIB, vec![device("v", 0, 0)]).unwrap();
    assert_eq!((one.len(), one[0].size_bytes), (1, 512 * MIB));
}

#[test]
fn memory_grows_in_one_tier_before_it_leaves_another() {
    let plan = Plan::new(&two_tiers(), &[Some(256 * MIB), Some(768 * MIB)]).unwrap();
    assert_eq!(orders(&plan), [("v1", 512), ("v0", 0)]);
    let plan = Plan::new(&two_tiers(), &[Some(768 * MIB), Some(256 * MIB)]).unwrap();
    assert_eq!(orders(&plan), [("v0", 512), ("v1", 0)]);
}

#[test]
fn a_tier_that_is_not_named_is_told_nothing() {
    let plan = Plan::new(&two_tiers(), &[None, Some(768 * MIB)]).unwrap();
    assert_eq!(orders(&plan), [("v1", 512)]);
    assert_eq!(plan.tiers.len(), 1);
}

#[test]
fn sizes_are_rounded_down_to_blocks_and_the_answer_says_so() {
    let plan = Plan::new(&two_tiers(), &[Some(301 * MIB), Some(512 * MIB)]).unwrap();
    assert_eq!(orders(&plan), [("v1", 256), ("v0", 44)]);
    let said: Vec<_> = plan.tiers.iter().map(ToString::to_string).collect();
    assert_eq!(
        said,
        [
            "fast 300 MiB (301 MiB rounded down to blocks of 2 MiB)",
            "slow 512 MiB"
        ]
    );
}

#[test]
fn several_devices_of_a_node_are_filled_one_after_the_other() {
    let nodes = [node(0, 256, 0)];
    let devices = vec![device("a", 0, 0), device("b", 0, 0)];
    let tiers = super::tiers(&nodes, 256 * MIB, devices).unwrap();
    let plan = Plan::new(&tiers, &[Some((256 + 1024 + 6) * MIB)]).unwrap();
    assert_eq!(orders(&plan), [("a", 1024), ("b", 6)]);
}

#[test]
fn what_the_vm_was_started_with_cannot_be_unplugged() {
    let why = refused(&two_tiers(), &[Some(255)]);
    assert!(
        why.contains("255 MiB is too little for the fast tier"),
        "{why}"
    );
    assert!(why.contains("256 MiB to 1280 MiB can be had"), "{why}");
}

#[test]
fn more_than_the_devices_have_is_refused_with_the_most() {
    let why = refused(&two_tiers(), &[None, Some(1281)]);
    assert!(
        why.contains("1281 MiB is too much for the slow tier"),
        "{why}"
    );
    assert!(why.contains("can plug in 1 GiB more"), "{why}");
}

#[test]
fn a_tier_that_the_guest_does_not_have_is_not_resized() {
    let tiers = tiers(&[node(0, 256, 0)], 256 * MIB, vec![device("v", 0, 0)]).unwrap();
    let why = refused(&tiers, &[None, Some(512)]);
    assert!(
        why.contains("no slow tier") && why.contains("one node"),
        "{why}"
    );
    let why = refused(&tiers, &[None, None]);
    assert!(why.contains("say what to resize"), "{why}");
}

#[test]
fn a_node_without_a_device_keeps_its_size() {
    let nodes = [node(0, 256, 0), node(1, 256, 0)];
    let tiers = tiers(&nodes, 512 * MIB, vec![device("v1", 1, 0)]).unwrap();
    let why = refused(&tiers, &[Some(128), None]);
    assert!(why.contains("virtio-mem-pci,id=…,memdev=…,node=0"), "{why}");
    // The size that it has is no change.
    let plan = Plan::new(&tiers, &[Some(256 * MIB), Some(512 * MIB)]).unwrap();
    assert_eq!(orders(&plan), [("v1", 256)]);
}

#[test]
fn a_device_without_a_name_cannot_be_told_anything() {
    let mut nameless = device("v", 0, 0);
    nameless.id = None;
    let tiers = tiers(&[node(0, 256, 0)], 256 * MIB, vec![nameless]).unwrap();
    let why = refused(&tiers, &[Some(512)]);
    assert!(why.contains("has no id"), "{why}");
}

#[test]
fn nodes_and_devices_that_do_not_fit_together_are_refused() {
    let nodes = [node(0, 256, 0)];
    let why = tiers(&nodes, 1024 * MIB, vec![device("v", 0, 0)]).unwrap_err();
    assert!(why.to_string().contains("do not fit together"), "{why}");
    let why = tiers(&nodes, 256 * MIB, vec![device("v", 7, 0)]).unwrap_err();
    assert!(why.to_string().contains("node 7"), "{why}");
}

#[test]
fn the_balloon_gets_the_sum_and_never_one_tier() {
    let balloon = Balloon {
        size: 1024 * MIB,
        ram: 1024 * MIB,
    };
    let both = [Some(256 * MIB), Some(512 * MIB)];
    assert_eq!(balloon.total(&both).unwrap(), 768 * MIB);
    let odd = [Some(256 * MIB + 1), Some(512 * MIB + 4094)];
    assert_eq!(balloon.total(&odd).unwrap(), 768 * MIB, "whole pages");
    let one = balloon.total(&[Some(256 * MIB), None]).unwrap_err();
    assert!(one.to_string().contains("say both sizes"), "{one}");
    let nothing = balloon.total(&[None, None]).unwrap_err();
    assert!(nothing.to_string().contains("say what to resize"));
    for sizes in [
        [Some(1024 * MIB), Some(1)],
        [Some(0), Some(0)],
        [Some(u64::MAX); 2],
    ] {
        let why = balloon.total(&sizes).unwrap_err().to_string();
        assert!(why.contains("1 GiB"), "{why}");
    }
}

#[test]
fn an_idle_guest_is_stuck_until_it_moves_or_gets_a_new_target() {
    let begin = Instant::now();
    let at = |seconds| begin + Duration::from_secs(seconds);
    let seen = |size, target| Seen {
        size: size * MIB,
        target: target * MIB,
    };
    let mut watch = Watch::default();
    assert_eq!(watch.update(seen(512, 256), at(0)), None);
    assert_eq!(watch.update(seen(512, 256), at(9)), None);
    let stuck = watch.update(seen(512, 256), at(10)).unwrap();
    let said = stuck.by_virtio_mem();
    assert!(said.contains("nothing for 10 s, 256 MiB to go"), "{said}");
    assert!(said.contains("no virtio_mem driver"), "{said}");
    assert!(stuck.by_balloon().contains("no balloon driver"));
    assert_eq!(watch.update(seen(300, 256), at(11)), None);
    let stuck = watch.update(seen(300, 256), at(30)).unwrap();
    assert!(!stuck.by_virtio_mem().contains("no virtio_mem driver"));
    assert!(stuck.by_virtio_mem().contains("cannot be moved"));
    assert_eq!(watch.update(seen(300, 512), at(31)), None);
    let growing = watch.update(seen(300, 512), at(41)).unwrap();
    assert!(growing.by_virtio_mem().contains("taken nothing"));
    assert_eq!(watch.update(seen(512, 512), at(99)), None);
}
