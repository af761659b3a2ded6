//! Guests that lack memory: swap devices, balloons, and the placement by the host meanwhile.

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation};

/// Longest time that a run here may simulate, ns: one that runs longer never ends.
const PATIENCE_NS: u64 = 60_000_000_000;

/// Runs a VM of 8 MiB fast and 8 MiB slow memory at scale 1, with the keys that a test adds.
fn run(policy: &str, vm: &str, size: &str, end: &str) -> RunResult {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n\
         [[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"8MiB\"\ntables = \"first\"\npolicy = \"{policy}\"\n{vm}\n\
         workload = {{ kind = \"hotset\", size = \"{size}\", hot = 0.2, hot_access = 0.5, \
         write = 0.5, {end} }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    assert!(
        !simulation.advance(PATIENCE_NS),
        "it never ends: {:?}",
        simulation.result()
    );
    simulation.result()
}

#[test]
fn a_load_as_large_as_memory_and_swap_together_does_not_hang() {
    let result = run("vtmm", "swap = \"8MiB\"", "24MiB", "ops = 20000");
    assert_eq!(result.accesses, 20_000);
    assert!(result.vms[0].major_faults > 1000, "{result:?}");
}

#[test]
fn a_balloon_takes_memory_that_the_load_does_not_use_first() {
    let vm = "swap = \"8MiB\"\nballoon = [{ at = \"0s\", size = \"8MiB\" }]";
    let spared = run("first-touch", vm, "8MiB", "ops = 100000");
    let vm = &spared.vms[0];
    assert_eq!((vm.major_faults, vm.fast_bytes_end), (0, 8 << 20));
    let vm = "swap = \"8MiB\"\nballoon = [{ at = \"0s\", size = \"12MiB\" }]";
    let squeezed = run("first-touch", vm, "8MiB", "ops = 100000");
    let vm = &squeezed.vms[0];
    assert_eq!(vm.tier_bytes_end.iter().sum::<u64>(), 4 << 20);
    assert!(vm.major_faults > 1000, "{squeezed:?}");
}

#[test]
fn all_slow_stays_in_the_last_tier_as_a_balloon_deflates() {
    let vm = "swap = \"8MiB\"\n\
              balloon = [{ at = \"0s\", size = \"8MiB\" }, { at = \"10ms\", size = \"0B\" }]";
    for (policy, expected) in [("all-slow", [0, 16 << 20]), ("all-fast", [16 << 20, 0])] {
        let result = run(policy, vm, "16MiB", "ops = 1000000");
        assert!(result.vms[0].major_faults > 1000, "{result:?}");
        assert_eq!(result.vms[0].tier_bytes_end, expected, "{policy}");
    }
}

/// Counts of a VM that swaps while a balloon takes a quarter of its memory for a while, on a machine with a key.
fn counts(policy: &str, swap_write: &str) -> String {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n{swap_write}\n\
         [[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"8MiB\"\ntables = \"first\"\npolicy = \"{policy}\"\n\
         swap = \"16MiB\"\nballoon = [{{ at = \"20ms\", size = \"4MiB\" }}, {{ at = \"200ms\", size = \"0B\" }}]\n\
         workload = {{ kind = \"hotset\", size = \"20MiB\", hot = 0.2, hot_access = 0.5, \
         write = 0.5, duration = \"400ms\" }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    assert!(!simulation.advance(PATIENCE_NS), "it never ends");
    let result = simulation.result();
    let vm = &result.vms[0];
    let mib: Vec<u64> = vm.tier_bytes_end.iter().map(|b| b >> 20).collect();
    format!(
        "{policy}: {} accesses, {:.6} fast, {} faults, {} exits, {mib:?} MiB\n",
        result.accesses, vm.fast_hit_ratio, vm.major_faults, vm.vm_exits
    )
}

/// The counts of the machine before writing to a swap device took time.
#[test]
fn golden_counts_of_swapping_without_time_for_writes() {
    let expected = include_str!("golden/swap.txt");
    let table: String = ["vtmm", "first-touch"]
        .map(|policy| counts(policy, "swap_write = \"off\""))
        .concat();
    assert_eq!(table, expected, "\nfound:\n{table}");
}

#[test]
fn writing_to_a_swap_device_takes_the_time_that_the_key_says() {
    let accesses = |swap_write: &str| {
        let counts = counts("first-touch", swap_write);
        let number = counts.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok());
        number.expect("a number of accesses")
    };
    let by_default = accesses("");
    assert_eq!(by_default, accesses("swap_write = \"20us\""));
    assert!(by_default < accesses("swap_write = \"off\"") * 9 / 10);
    assert!(accesses("swap_write = \"200us\"") < by_default / 2);
}
