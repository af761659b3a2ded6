//! Edge cases that any mechanism must get through: what it holds stays as much as the load has.

use std::path::Path;

use terrace_sim::result::VmResult;
use terrace_sim::run::{Options, Simulation};
use terrace_sim::scenario::Scenario;

fn run(tiers: &str, vm: &str) -> VmResult {
    let text = format!(
        "[machine]\ntiers = [{tiers}]\nvcpus_per_vm = 2\nscale = 64\n[[vm]]\nname = \"a\"\n{vm}\n"
    );
    let scenario = Scenario::parse(&text, "edge", Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

fn load(mib: u64) -> String {
    format!(
        "workload = {{ kind = \"hotset\", size = \"{mib}MiB\", hot = 0.1, hot_access = 0.9, write = 0.5, \
         compute_ns = 200, duration = \"40s\" }}"
    )
}

/// Runs a mechanism at both sides where memory is full, one page is fast, pages are huge or tiers three.
pub fn survives(name: &str) {
    let two = "\"dram\", \"pmem\"";
    for side in ["guest", "host"] {
        let policy = format!("policy = \"{name}@{side}\"");
        let cases = [
            (
                "both tiers are full",
                two,
                "fast = \"1GiB\"\nslow = \"1GiB\"",
                2048,
            ),
            (
                "one page is fast",
                two,
                "fast = \"256KiB\"\nslow = \"1GiB\"",
                1024,
            ),
            (
                "all is fast",
                two,
                "fast = \"1GiB\"\nslow = \"256MiB\"",
                512,
            ),
            (
                "three tiers",
                "\"dram\", \"cxl\", \"pmem\"",
                "tiers = [\"512MiB\", \"512MiB\", \"1GiB\"]\nstart = \"slow\"",
                1024,
            ),
            (
                "2 MiB pages",
                two,
                "fast = \"32GiB\"\nslow = \"128GiB\"\npage = \"2MiB\"\nstart = \"slow\"",
                65_536,
            ),
        ];
        for (case, tiers, vm, mib) in cases {
            let vm = run(tiers, &format!("{vm}\n{policy}\n{}", load(mib)));
            let held: u64 = vm.tier_bytes_end.iter().sum();
            assert_eq!(held, mib << 20, "{name}@{side}, {case}: {vm:?}");
            assert!(vm.rounds > 0, "{name}@{side}, {case}: {vm:?}");
        }
    }
}
