//! Machines and loads at the edge, for any mechanism: the conditions that hold whatever it decides.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation, VmResult};

/// A VM and its load; sizes in KiB of the full-size machine.
struct Edge {
    policy: &'static str,
    scale: u64,
    tiers: &'static [(&'static str, u64)],
    /// Further keys of the VM's table.
    more: &'static str,
    load: u64,
    seconds: u64,
}

impl Edge {
    fn run(&self) -> VmResult {
        let names: Vec<String> = self.tiers.iter().map(|t| format!("\"{}\"", t.0)).collect();
        let sizes: Vec<String> = self
            .tiers
            .iter()
            .map(|t| format!("\"{}KiB\"", t.1))
            .collect();
        let text = format!(
            "[machine]\ntiers = [{}]\nvcpus_per_vm = 2\nscale = {}\nsmall_vms = \"allow\"\n\
             [[vm]]\nname = \"a\"\ntiers = [{}]\npolicy = \"{}\"\n{}\nworkload = {{ kind = \"hotset\", size = \"{}KiB\", \
             hot = 0.1, hot_access = 0.9, write = 0.2, compute_ns = 200, duration = \"{}s\" }}\n",
            names.join(", "),
            self.scale,
            sizes.join(", "),
            self.policy,
            self.more,
            self.load,
            self.seconds,
        );
        let scenario = Scenario::parse(&text, "edge", Path::new("/s")).expect("valid");
        let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
        while simulation.advance(u64::MAX) {}
        let vm = simulation.result().vms.remove(0);
        self.check(&vm);
        vm
    }

    /// Checks that no page is lost, and that no node but the last holds more than it has, at the host either: the
    /// memory that the machine keeps free is not a mechanism's to fill.
    fn check(&self, vm: &VmResult) {
        let held: u64 = vm.tier_bytes_end.iter().sum();
        assert!(held >= self.load << 10, "{vm:?}");
        let nodes = self.tiers.len() - 1;
        for (held, tier) in vm.tier_bytes_end.iter().zip(self.tiers).take(nodes) {
            assert!(*held <= tier.1 << 10, "{vm:?}");
        }
    }
}

const MIB: u64 = 1 << 10;
const GIB: u64 = 1 << 20;
const TWO: &[(&str, u64)] = &[("dram", GIB), ("pmem", 3 * GIB)];

/// Runs with a fast memory full of cold pages, and a hot set in slow memory.
pub fn fast_memory_full(policy: &'static str) -> VmResult {
    Edge {
        policy,
        scale: 64,
        tiers: TWO,
        more: "",
        load: 2 * GIB,
        seconds: 30,
    }
    .run()
}

/// Runs with all memory full, but for the part that the machine keeps free.
pub fn slow_memory_full(policy: &'static str) -> VmResult {
    Edge {
        policy,
        scale: 64,
        tiers: TWO,
        more: "",
        load: 4 * GIB,
        seconds: 30,
    }
    .run()
}

/// Runs with one page of fast memory (and the least memory that a VM must have in slow memory).
pub fn one_page_of_fast_memory(policy: &'static str) -> VmResult {
    Edge {
        policy,
        scale: 64,
        tiers: &[("dram", 256), ("pmem", 3 * GIB)],
        more: "",
        load: GIB,
        seconds: 10,
    }
    .run()
}

/// Runs a load that has ended before the first scan.
pub fn a_load_that_ends_at_once(policy: &'static str) -> VmResult {
    Edge {
        policy,
        scale: 64,
        tiers: TWO,
        more: "",
        load: 2 * GIB,
        seconds: 1,
    }
    .run()
}

/// Runs with pages of 2 MiB in guest and host.
pub fn huge_pages(policy: &'static str) -> VmResult {
    Edge {
        policy,
        scale: 16,
        tiers: &[("dram", 8 * GIB), ("pmem", 24 * GIB)],
        more: "page = \"2MiB\"\nstart = \"slow\"",
        load: 16 * GIB,
        seconds: 40,
    }
    .run()
}

/// Runs with three tiers, the first of which is too small for the hot set.
pub fn three_tiers(policy: &'static str) -> VmResult {
    Edge {
        policy,
        scale: 64,
        tiers: &[("dram", 128 * MIB), ("cxl", GIB), ("pmem", 3 * GIB)],
        more: "",
        load: 3 * GIB,
        seconds: 30,
    }
    .run()
}

/// Runs all of these at both sides. Each run checks the conditions that hold for it; a mechanism also ends a round if
/// there is time for one.
pub fn survives(at_both_sides: [&'static str; 2]) {
    for policy in at_both_sides {
        for edge in [fast_memory_full, slow_memory_full, huge_pages, three_tiers] {
            assert!(edge(policy).rounds > 0, "{policy}");
        }
        one_page_of_fast_memory(policy);
        a_load_that_ends_at_once(policy);
    }
}
