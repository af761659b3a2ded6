//! Tests of `provision` and `resize`: the keys that are read, and those that are refused.

use terrace_sim::{Device, Resize};

use super::faults::refused;
use super::{FULL, MINIMAL, parse};

/// A VM of 8 and 32 GiB that a device may size.
fn base(more: &str) -> String {
    MINIMAL.replace("workload", &format!("policy = \"tpp\"\n{more}\nworkload"))
}

#[test]
fn a_balloon_boots_with_all_memory_virtio_mem_with_the_wanted() {
    let read = |by: &str| {
        let resize = "resize = [{ at = \"60s\", fast = \"10GiB\", slow = \"31GiB\" }]";
        let text = base(&format!("provision = \"{by}\"\n{resize}"));
        parse(&text).expect("valid").vms.remove(0).provision
    };
    let all = 41_u64 << 30;
    let steps = [Resize {
        at_ns: 60_000_000_000,
        sizes: vec![10 << 30, 31 << 30],
    }];
    let flex = read("hyperflex").expect("a device");
    assert_eq!((flex.by, flex.nodes), (Device::Hyperflex, vec![all, all]));
    assert_eq!(flex.resizes, steps);
    let blind = read("balloon").expect("a device");
    assert_eq!((blind.by, blind.nodes), (Device::Balloon, vec![all, all]));
    let plugged = read("virtio-mem").expect("a device");
    let most = vec![10 << 30, 32 << 30];
    assert_eq!((plugged.by, plugged.nodes), (Device::VirtioMem, most));
    let text = base("provision = { by = \"balloon\", nodes = [\"9GiB\", \"33GiB\"] }");
    let said = parse(&text).expect("valid").vms.remove(0).provision;
    assert_eq!(said.expect("a device").nodes, [9 << 30, 33 << 30]);
    let text = base("provision = \"static\"");
    assert_eq!(parse(&text).expect("valid").vms[0].provision, None);
}

#[test]
fn a_device_that_is_not_there_is_refused() {
    let text = base("provision = \"hyperflex\"");
    refused(
        &text,
        "\"hyperflex\"",
        "\"hyperflx\"",
        "8: vm.provision",
        &["static, virtio-mem, balloon, hyperflex"],
    );
    refused(
        &text,
        "\"hyperflex\"",
        "{ by = \"hyperflex\", node = [] }",
        "8: vm.provision.node",
        &["unknown field", "`nodes`"],
    );
}

#[test]
fn static_memory_has_no_nodes_of_its_own_and_is_not_resized() {
    let text = base("provision = \"static\"");
    refused(
        &text,
        "\"static\"",
        "{ by = \"static\", nodes = [\"9GiB\", \"33GiB\"] }",
        "8: vm.provision.nodes",
        &["leave nodes out"],
    );
    refused(
        &text,
        "provision = \"static\"",
        "resize = [{ at = \"1s\", fast = \"1GiB\", slow = \"39GiB\" }]",
        "8: vm.resize",
        &["set provision"],
    );
}

#[test]
fn a_size_that_the_node_does_not_have_is_refused() {
    let text = base("provision = { by = \"hyperflex\", nodes = [\"9GiB\", \"33GiB\"] }");
    refused(
        &text,
        "\"9GiB\"",
        "\"7GiB\"",
        "5: vm.fast",
        &["8GiB", "node has (7GiB)"],
    );
    let order = "}\nresize = [{ at = \"1s\", fast = \"10GiB\", slow = \"30GiB\" }]\nworkload = {";
    refused(
        &text,
        "}\nworkload = {",
        order,
        "9: vm.resize.tiers",
        &["10GiB", "node has (9GiB)", "provision.nodes larger"],
    );
    refused(
        &text,
        "\"9GiB\", \"33GiB\"",
        "\"9GiB\"",
        "8: vm.provision.nodes",
        &["1 sizes for 2 tiers"],
    );
}

#[test]
fn resizes_that_nobody_can_follow_are_refused() {
    let order = |orders: &str| base(&format!("provision = \"hyperflex\"\nresize = [{orders}]"));
    let whole = order("{ at = \"2s\", fast = \"4GiB\", slow = \"36GiB\" }");
    parse(&whole).expect("valid");
    refused(
        &whole,
        "fast = \"4GiB\", slow",
        "slow",
        "9: vm.resize",
        &["fast and slow, or as tiers"],
    );
    refused(
        &whole,
        "fast = \"4GiB\", slow = \"36GiB\"",
        "tiers = [\"4GiB\"]",
        "9: vm.resize.tiers",
        &["1 sizes for 2 tiers"],
    );
    refused(
        &whole,
        "\"36GiB\" }",
        "\"36GiB\" }, { at = \"2s\", tiers = [\"4GiB\", \"36GiB\"] }",
        "9: vm.resize.at",
        &["in order of time"],
    );
    refused(
        &whole,
        "\"36GiB\" }",
        "\"11GiB\" }",
        "10: vm.workload",
        &["16GiB", "15GiB", "after its smallest resize"],
    );
    refused(
        &whole,
        "\"4GiB\"",
        "\"4100KiB\"",
        "9: vm.resize.tiers",
        &["at scale 64", "no whole number of pages"],
    );
}

#[test]
fn virtio_mem_takes_whole_blocks_only() {
    let text = base("provision = \"virtio-mem\"");
    refused(
        &text,
        "\"8GiB\"",
        "\"8191MiB\"",
        "5: vm.fast",
        &["8191MiB", "blocks of 2MiB"],
    );
    parse(
        &text
            .replace("virtio-mem", "hyperflex")
            .replace("\"8GiB\"", "\"8191MiB\""),
    )
    .expect("HyperFlex has pages");
}

#[test]
fn a_device_with_an_old_balloon_or_huge_pages_is_refused() {
    let text = base("provision = \"hyperflex\"");
    let more = "balloon = [{ at = \"1s\", size = \"1GiB\" }]";
    refused(
        &text,
        "policy = \"tpp\"",
        &format!("policy = \"first-touch\"\n{more}"),
        "9: vm.provision",
        &["`balloon`", "`resize`"],
    );
    refused(
        &text,
        "policy = \"tpp\"",
        "policy = \"tpp\"\npage = \"2MiB\"",
        "9: vm.provision",
        &["page = \"4KiB\""],
    );
}

#[test]
fn swap_beside_a_device_is_read_but_not_for_every_policy() {
    let text = base("provision = \"hyperflex\"\nswap = \"1GiB\"");
    let text = text.replace("\"tpp\"", "\"first-touch\"");
    let vm = parse(&text).expect("valid").vms.remove(0);
    assert_eq!(vm.shortage.swap, 1 << 30);
    refused(
        &text,
        "\"first-touch\"",
        "\"static-best\"",
        "8: vm.provision",
        &["swap"],
    );
    refused(
        &text,
        "\"first-touch\"",
        "\"tpp\"",
        "7: vm.policy",
        &["swap"],
    );
}

#[test]
fn a_policy_that_moves_nothing_leaves_nodes_to_a_device() {
    let text = base("provision = \"balloon\"").replace("\"tpp\"", "\"hpmbs\"");
    let text = text.replace("\"]\n", "\"]\nscale = 4\n");
    parse(&text).expect("valid");
}

#[test]
fn a_balloon_of_a_vm_of_one_tier_has_one_node() {
    let read = |by: &str, tiers: &str, more: &str| {
        let text = base(&format!("provision = \"{by}\"\n{more}"));
        let text = text.replace("fast = \"8GiB\"\nslow = \"32GiB\"", tiers);
        let vm = parse(&text).expect("valid").vms.remove(0);
        vm.provision.expect("a device").nodes
    };
    let one = "tiers = [\"32GiB\", \"0B\"]";
    assert_eq!(read("balloon", one, ""), [32 << 30, 0]);
    let ceiling = "memory_ceiling = \"40GiB\"";
    assert_eq!(read("balloon", one, ceiling), [40 << 30, 0]);
    assert_eq!(read("virtio-mem", one, ceiling), [40 << 30, 0]);
    let later = "resize = [{ at = \"1s\", fast = \"31GiB\", slow = \"1GiB\" }]";
    assert_eq!(read("balloon", one, later), [32 << 30, 32 << 30]);
    assert_eq!(read("hyperflex", one, ""), [32 << 30, 32 << 30]);
}

#[test]
fn bounds_of_memory_are_a_quarter_and_the_nodes_unless_said() {
    let read = |more: &str| {
        let text = base(&format!("provision = \"hyperflex\"\n{more}"));
        let vm = parse(&text).expect("valid").vms.remove(0);
        (vm.memory_floor() >> 30, vm.memory_ceiling() >> 30)
    };
    assert_eq!(read(""), (10, 80));
    assert_eq!(read("memory_floor = \"20GiB\""), (20, 80));
    assert_eq!(read("memory_ceiling = \"50GiB\""), (10, 50));
    let vm = parse(&base("")).expect("valid").vms.remove(0);
    assert_eq!(
        (vm.memory_floor(), vm.memory_ceiling()),
        (10 << 30, 40 << 30)
    );
}

#[test]
fn bounds_that_no_vm_can_keep_are_refused() {
    let text =
        base("provision = \"hyperflex\"\nmemory_floor = \"20GiB\"\nmemory_ceiling = \"50GiB\"");
    refused(
        &text,
        "\"20GiB\"",
        "\"41GiB\"",
        "9: vm.memory_floor",
        &["41GiB", "40GiB"],
    );
    refused(
        &text,
        "\"50GiB\"",
        "\"39GiB\"",
        "10: vm.memory_ceiling",
        &["39GiB", "40GiB", "80GiB"],
    );
    refused(
        &text,
        "provision = \"hyperflex\"",
        "provision = \"static\"",
        "9: vm.memory_floor",
        &["set provision"],
    );
}

#[test]
fn rules_of_sharing_are_known_and_those_to_come_refused() {
    let host = "\n[host]\nshare = \"dp\"\nreserve = 0.1\nprice_ratio = 4.0\n";
    let text = base("provision = \"hyperflex\"") + host;
    let room = "tiers = [\"dram\", \"pmem\"]\nsizes = [\"40GiB\", \"40GiB\"]";
    let text = text.replace("tiers = [\"dram\", \"pmem\"]", room);
    let scenario = parse(&text).expect("valid");
    assert_eq!(scenario.host.share.name(), "dp");
    assert_eq!(scenario.host.reserve, 0.1);
    assert_eq!(scenario.host.price_ratio, Some(4.0));
    refused(&text, "4.0", "0.5", "15: host.price_ratio", &["1 to 1000"]);
    let whole = ["no whole percent", "share = \"dp\"", "round it"];
    refused(&text, "0.1\n", "0.055\n", "14: host.reserve", &whole);
    for (key, there) in [
        ("rule = \"dp\"", "host.share"),
        ("reserve_percent = 9", "host.reserve"),
        ("scale = 2", "machine.scale"),
        ("price_ratio_milli = 2000", "host.price_ratio"),
        ("slow_access_extra_ns = 9", "machine.tiers"),
    ] {
        let error = parse(&format!("{text}[engine.arbiter]\n{key}\n")).expect_err("given twice");
        assert!(error.contains(there), "{error}");
    }
    for share in ["trade", "fair"] {
        let scenario = parse(&text.replace("\"dp\"", &format!("\"{share}\"")));
        assert_eq!(scenario.expect("valid").host.share.name(), share);
    }
    let still = parse(&base("")).expect("valid");
    assert_eq!(
        still.with_share("fair").expect("valid").host.share.name(),
        "fair"
    );
    let error = still.with_share("fairly").unwrap_err().to_string();
    assert!(error.contains("island, pool, dp, trade, fair"), "{error}");
    assert_eq!(
        still.with_share("island").expect("valid").host.share.name(),
        "island"
    );
}

#[test]
fn a_device_of_a_guest_whose_pages_the_host_places_is_refused() {
    let text = base("provision = \"hyperflex\"");
    for policy in [
        "\"vtmm\"",
        "\"hemem\"",
        "\"interleave\"",
        "\"oracle\"",
        "\"memory-mode\"",
    ] {
        refused(
            &text,
            "\"tpp\"",
            policy,
            "8: vm.provision",
            &["guest_policy"],
        );
    }
    let error = parse(&text)
        .expect("valid")
        .with_policy("vtmm")
        .expect_err("refused");
    assert!(error.to_string().contains("vm.provision"), "{error}");
    for policy in [
        "all-fast",
        "all-slow",
        "first-touch",
        "static-best",
        "hemem@guest",
        "tpp",
    ] {
        let scenario = parse(&text).expect("valid").with_policy(policy);
        scenario.unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn three_tiers_are_resized_by_tiers() {
    let text = FULL.replace(
        "policy = \"oracle\"\nswap = \"1GiB\"",
        "policy = \"tpp\"\nprovision = \"hyperflex\"",
    );
    let text = text.replace(
        "balloon = [{ at = \"0s\", size = \"0B\" }, { at = \"1m\", size = \"4GiB\" }]",
        "resize = [{ at = \"0s\", tiers = [\"0B\", \"16GiB\", \"32GiB\"] }]",
    );
    let vm = parse(&text).expect("valid").vms.remove(1);
    let provision = vm.provision.expect("a device");
    assert_eq!(provision.nodes, [48 << 30; 3]);
    assert_eq!(provision.resizes[0].sizes, [0, 16 << 30, 32 << 30]);
    refused(
        &text,
        "tiers = [\"0B\", \"16GiB\", \"32GiB\"]",
        "fast = \"1GiB\", slow = \"1GiB\"",
        "25: vm.resize",
        &["3 tiers"],
    );
}
