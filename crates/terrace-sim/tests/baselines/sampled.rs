//! Edge cases of mechanisms that sample.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation, VmResult};

/// A scattered hot set of a tenth.
pub const HOT: &str =
    "kind = \"hotset\", size = \"2048MiB\", hot = 0.1, hot_access = 0.9, write = 0.2";

/// Runs one VM of a scenario, given without its head.
pub fn run(scale: u64, tiers: &str, vm: &str, workload: &str) -> VmResult {
    let text = format!(
        "[machine]\ntiers = [{tiers}]\nvcpus_per_vm = 2\nscale = {scale}\nsmall_vms = \"allow\"\n\
         [[vm]]\nname = \"a\"\ntables = \"first\"\n{vm}\nworkload = {{ {workload} }}\n"
    );
    let scenario = Scenario::parse(&text, "small", Path::new("/s")).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

fn two(policy: &str, fast: &str, slow: &str, workload: &str) -> VmResult {
    let vm =
        format!("policy = \"{policy}\"\nfast = \"{fast}\"\nslow = \"{slow}\"\nstart = \"slow\"\n");
    run(64, "\"dram\", \"pmem\"", &vm, workload)
}

fn held(vm: &VmResult) -> u64 {
    vm.tier_bytes_end.iter().sum()
}

/// Checks a fast memory smaller than the hot set: it is filled, and no page is lost.
pub fn fast_memory_full(policy: &str) {
    let load = format!("{HOT}, duration = \"40s\"");
    let vm = two(policy, "128MiB", "2048MiB", &load);
    assert_eq!(held(&vm), 2048 << 20, "{vm:?}");
    assert!(vm.tier_bytes_end[0] <= 128 << 20, "{vm:?}");
    assert!(vm.promoted_pages > 0, "{vm:?}");
}

/// Checks a VM that takes all memory: pages change places through the memory that the machine keeps free.
pub fn slow_memory_full(policy: &str) {
    let load = format!("{HOT}, duration = \"40s\"");
    let vm = run(
        64,
        "\"dram\", \"pmem\"",
        &format!("policy = \"{policy}\"\nfast = \"512MiB\"\nslow = \"1536MiB\""),
        &load,
    );
    assert_eq!(held(&vm), 2048 << 20, "{vm:?}");
    assert!(vm.fast_hit_ratio > 0.4, "{vm:?}");
}

/// Checks a VM with one page of fast memory.
pub fn one_page_in_fast_memory(policy: &str) {
    let load = format!("{HOT}, duration = \"20s\"");
    let vm = two(policy, "256KiB", "2048MiB", &load);
    assert_eq!(held(&vm), 2048 << 20, "{vm:?}");
    // Memory that the machine reserves beside it is not to be filled.
    assert!(vm.tier_bytes_end[0] <= 256 << 10, "{vm:?}");
}

/// Checks that nothing moves after a load's end.
pub fn a_load_that_ends(policy: &str) {
    let load = format!("{HOT}, ops = 40000000");
    let vm = two(policy, "1024MiB", "2048MiB", &load);
    assert!(vm.runtime_s > 0.0 && vm.runtime_s < 60.0, "{vm:?}");
    assert_eq!(held(&vm), 2048 << 20, "{vm:?}");
}

/// Checks that a hot set in 2 MiB pages goes to fast memory.
pub fn huge_pages(policy: &str) {
    let vm = run(
        8,
        "\"dram\", \"pmem\"",
        &format!(
            "policy = \"{policy}\"\nfast = \"4GiB\"\nslow = \"12800MiB\"\npage = \"2MiB\"\nstart = \"slow\""
        ),
        "kind = \"hotset\", size = \"16GiB\", hot = 0.03, hot_access = 0.9, write = 0.2, \
         layout = \"clustered\", duration = \"8s\"",
    );
    assert_eq!(held(&vm), 16 << 30, "{vm:?}");
    assert!(vm.fast_hit_ratio > 0.3, "{vm:?}");
    assert!(vm.promoted_pages.is_multiple_of(512), "{vm:?}");
}

/// Checks three tiers, with the load in the slowest.
pub fn three_tiers(policy: &str) {
    let load = format!("{HOT}, duration = \"40s\"");
    let vm = run(
        64,
        "\"dram\", \"cxl\", \"pmem\"",
        &format!(
            "policy = \"{policy}\"\ntiers = [\"256MiB\", \"512MiB\", \"2048MiB\"]\nstart = \"slow\""
        ),
        &load,
    );
    assert_eq!(held(&vm), 2048 << 20, "{vm:?}");
    assert!(vm.promoted_pages > 0 && vm.tier_bytes_end[0] > 0, "{vm:?}");
}
