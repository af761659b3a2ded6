//! Tests of scenarios: the parts that are read, and the report of every fault with file, line, key and the allowed
//! values.

mod engine;
mod faults;
mod hostile;
mod loaded;
mod models;
mod owners;
mod policies;
mod provision;
mod small_vms;

use std::path::{Path, PathBuf};

use terrace_core::PolicyChoice;
use terrace_proto::PageSize;
use terrace_sim::{
    BalloonStep, HostPolicy, HostShare, Options, RunResult, Scenario, Simulation, Start, Stop,
    presets,
};

const MINIMAL: &str = r#"[machine]
tiers = ["dram", "pmem"]
[[vm]]
name = "vm1"
fast = "8GiB"
slow = "32GiB"
workload = { kind = "hotset", size = "16GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "60s" }
"#;

const FULL: &str = r#"seed = 7
[machine]
tiers = ["dram", { name = "mid", kind = "cxl", read_ns = 150, write_ns = 160.5, read_gb_s = 90, write_gb_s = 60, price_per_gib = 2.5 }, "pmem"]
sizes = ["32GiB", "64GiB", "192GiB"]
scale = 16
vcpus_per_vm = 4
management_cpus = 2
[[vm]]
name = "vm1"
tiers = ["8GiB", "0B", "32GiB"]
page = "2MiB"
guest_page = "4KiB"
policy = { base = "vtmm", observe = "ept-scan", move = "linux", where = "host" }
weight = 2000
floor = "6GiB"
ceiling = "10GiB"
max_slowdown = 1.2
start = "slow"
workload = { kind = "hotset", size = "16GiB", hot = 0.2, hot_access = 0.9, write = 0.5, ops = 1000000 }
[[vm]]
name = "vm2"
tiers = ["8GiB", "8GiB", "32GiB"]
policy = "oracle"
swap = "1GiB"
balloon = [{ at = "0s", size = "0B" }, { at = "1m", size = "4GiB" }]
[vm.workload]
kind = "hotset"
size = "16GiB"
hot = 0.2
hot_access = 0.9
write = 0.5
duration = "600s"
[host]
share = "island"
reserve = 0
"#;

fn parse(text: &str) -> Result<Scenario, String> {
    let read = Scenario::parse(text, "test", Path::new("/s"));
    read.map_err(|e| e.to_string())
}

#[test]
fn what_is_left_out_has_the_documented_default() {
    let s = parse(MINIMAL).expect("valid");
    assert_eq!(
        (s.name.as_str(), s.folder.as_path()),
        ("test", Path::new("/s"))
    );
    assert_eq!(
        (s.seed, s.machine.scale, s.machine.management_cpus),
        (1, 64, 4)
    );
    assert_eq!((s.host.share, s.host.reserve), (HostShare::Pool, 0.05));
    let vm = &s.vms[0];
    assert_eq!(vm.sizes, [8 << 30, 32 << 30]);
    assert_eq!(
        (vm.pages.guest, vm.pages.host),
        (PageSize::Base, PageSize::Base)
    );
    assert_eq!(
        (
            vm.claim.weight,
            vm.initial.start,
            vm.vcpus,
            vm.shortage.swap
        ),
        (1000, Start::FirstTouch, 8, 0)
    );
    assert_eq!(
        (vm.claim.floor, vm.claim.ceiling, vm.claim.max_slowdown),
        (None, None, None)
    );
    assert!(matches!(&vm.policy, HostPolicy::Engine(name, _) if name == "vtmm"));
    assert_eq!(vm.stop, Stop::Duration(60_000_000_000));
    let tiers = &s.machine.tiers;
    assert_eq!(
        [tiers[0].bytes, tiers[1].bytes],
        [8 << 30, 32 << 30],
        "the VMs' sum"
    );
    assert_eq!(
        (tiers[1].read_ns, tiers[1].write_gb_s, tiers[1].line),
        (310.0, 13.0, 256)
    );
}

#[test]
fn every_key_is_read() {
    let s = parse(FULL).expect("valid");
    assert_eq!(
        (s.seed, s.machine.scale, s.machine.management_cpus),
        (7, 16, 2)
    );
    assert_eq!((s.host.share, s.host.reserve), (HostShare::Island, 0.0));
    let mid = &s.machine.tiers[1];
    assert_eq!(
        (mid.name.as_str(), mid.bytes, mid.write_ns, mid.line),
        ("mid", 64 << 30, 160.5, 64)
    );
    assert_eq!(mid.price_per_gib, Some(2.5));
    let vm = &s.vms[0];
    assert_eq!(vm.sizes, [8 << 30, 0, 32 << 30]);
    assert_eq!(
        (vm.pages.guest, vm.pages.host),
        (PageSize::Base, PageSize::Huge)
    );
    assert_eq!(
        (vm.claim.weight, vm.initial.start, vm.vcpus),
        (2000, Start::Slow, 4)
    );
    assert_eq!(
        (vm.claim.floor, vm.claim.ceiling, vm.claim.max_slowdown),
        (Some(6 << 30), Some(10 << 30), Some(1.2))
    );
    let later = BalloonStep {
        at_ns: 60_000_000_000,
        bytes: 4 << 30,
    };
    assert_eq!(
        s.vms[1].shortage.balloon,
        [BalloonStep { at_ns: 0, bytes: 0 }, later]
    );
    assert_eq!(vm.stop, Stop::Ops(1_000_000));
    let HostPolicy::Engine(name, choice) = &vm.policy else {
        panic!("{:?}", vm.policy)
    };
    assert_eq!(name, "vtmm observe=ept-scan move=linux");
    assert_eq!(
        choice.resolve("policy").expect("known").observe.name(),
        "ept-scan"
    );
    assert_eq!(
        (s.vms[1].policy.name(), s.vms[1].shortage.swap),
        ("oracle".to_owned(), 1 << 30)
    );
}

#[test]
fn each_policy_is_known_by_its_name() {
    let policy = |name: &str| {
        let with = format!("slow = \"32GiB\"\npolicy = \"{name}\"");
        let small = MINIMAL.replace("[machine]", "[machine]\nscale = 4");
        parse(&small.replace("slow = \"32GiB\"", &with))
            .expect(name)
            .vms[0]
            .policy
            .clone()
    };
    assert_eq!(policy("first-touch"), HostPolicy::FirstTouch);
    assert_eq!(policy("interleave"), HostPolicy::Interleave);
    assert_eq!(policy("all-fast@host"), HostPolicy::AllFast);
    assert_eq!(policy("all-slow"), HostPolicy::AllSlow);
    for name in terrace_sim::policy::descriptions() {
        if name.what.is_none() {
            let choice = PolicyChoice::Named(name.name.clone());
            assert_eq!(policy(&name.name), HostPolicy::Engine(name.name, choice));
        }
    }
}

#[test]
fn presets_are_those_of_the_papers_tables() {
    let figures: Vec<_> = presets()
        .into_iter()
        .map(|t| {
            (
                t.name,
                [t.read_ns, t.write_ns, t.read_gb_s, t.write_gb_s],
                t.kind.weights(),
            )
        })
        .collect();
    let expected = [
        ("dram", [81.0, 82.0, 120.0, 82.0], (1, 1)),
        ("cxl", [153.0, 162.0, 97.0, 63.0], (2, 3)),
        ("pmem", [310.0, 94.0, 37.0, 13.0], (1, 3)),
        ("dram-68", [68.7, 68.7, 88.2, 88.2], (1, 1)),
        ("remote", [121.9, 121.9, 53.5, 53.5], (2, 3)),
        ("pmem-177", [176.6, 176.6, 21.4, 21.4], (1, 3)),
        ("hbm", [81.0, 82.0, 276.0, 287.0], (1, 1)),
    ];
    let expected: Vec<_> = expected.map(|(n, f, w)| (n.to_owned(), f, w)).into();
    assert_eq!(figures, expected);
}

#[test]
fn a_preset_is_priced_relative_to_dram_and_a_table_by_its_own() {
    let prices = presets().into_iter().map(|t| (t.name, t.price_per_gib));
    let expected = [
        ("dram", Some(1.0)),
        ("cxl", Some(0.5)),
        ("pmem", Some(0.5)),
        ("dram-68", Some(1.0)),
        ("remote", Some(0.5)),
        ("pmem-177", Some(0.5)),
        ("hbm", None),
    ];
    let expected = expected.map(|(name, price)| (name.to_owned(), price));
    assert_eq!(prices.collect::<Vec<_>>(), expected);
    let unpriced = parse(&FULL.replace(", price_per_gib = 2.5", "")).expect("valid");
    assert_eq!(unpriced.machine.tiers[1].price_per_gib, None);
}

/// The folder of the shipped scenarios, and the names of its files.
fn shipped() -> (PathBuf, Vec<String>) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios");
    let entries = std::fs::read_dir(&folder).expect("the folder");
    let names = entries.map(|entry| entry.expect("an entry").file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let mut names: Vec<String> = names.filter(|name| name.ends_with(".toml")).collect();
    names.sort();
    assert!(names.len() >= 20, "only {names:?}");
    (folder, names)
}

#[test]
fn every_shipped_scenario_is_valid_and_runs_at_its_scale() {
    let (folder, names) = shipped();
    for name in names {
        let scenario = Scenario::load(&folder.join(&name)).unwrap_or_else(|e| panic!("{e}"));
        let mut simulation = Simulation::new(&scenario, Options::default())
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        // Five quanta.
        simulation.advance(50_000 * scenario.machine.scale);
        let idle = |run: &RunResult| run.vms.iter().any(|vm| vm.ops_per_s == 0.0);
        if idle(&simulation.result()) {
            // A guest boots with all of its nodes, and its balloon takes the rest page by page before its load begins.
            simulation.advance(10_000_000_000);
        }
        for vm in simulation.result().vms {
            assert!(vm.ops_per_s > 0.0, "{name}: {} did nothing", vm.name);
        }
    }
}

#[test]
fn every_shipped_scenario_states_its_question_and_is_indexed() {
    let (folder, names) = shipped();
    let index = std::fs::read_to_string(folder.join("README.md")).expect("the index");
    for name in &names {
        let text = std::fs::read_to_string(folder.join(name)).expect("a file");
        let first = text.lines().next().unwrap_or_default();
        assert!(
            first.starts_with("# ") && first.len() > 20,
            "{name}: {first}"
        );
        let links = index.matches(&format!("[{name}]({name})")).count();
        assert_eq!(links, 1, "links to {name} in scenarios/README.md");
    }
    let linked = index.split("](").skip(1);
    let linked = linked.filter_map(|rest| rest.split(')').next());
    for name in linked.filter(|name| name.ends_with(".toml")) {
        assert!(names.iter().any(|n| n == name), "{name} is not there");
    }
}
