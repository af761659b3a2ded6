//! Hot lists (`hmvisor`) on huge pages and on three tiers: they promote, within their rate, and no memory is lost.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation, VmResult};

/// Bytes a second that lists may name in one direction (HMvisor §3.2.1).
const LIST_BYTES_PER_S: u64 = 4 << 20;

const SCALE: u64 = 16;

/// The result of 60 s, which are twelve epochs, of a VM of 32 GiB that begins in its last tier. With 2 µs of computing per
/// access a sub-epoch has some 3,000 accesses: enough to meet each hot page in nearly all of them, and few others.
fn run(tiers: &str, vm: &str, hot: &str) -> VmResult {
    let text = format!(
        "[machine]\ntiers = {tiers}\nscale = {SCALE}\nvcpus_per_vm = 1\n[[vm]]\nname = \"a\"\n{vm}\nstart = \"slow\"\n\
         tables = \"slow\"\npolicy = \"hmvisor\"\nworkload = {{ kind = \"hotset\", size = \"16GiB\", hot = {hot}, \
         hot_access = 0.9, write = 0.3, compute_ns = 2000, duration = \"60s\" }}\n"
    );
    let scenario = Scenario::parse(&text, "lists", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

fn check(vm: &VmResult, page_bytes: u64) {
    let moved = vm.promoted_pages * 4096;
    // A page may be named when its first byte may.
    let most = LIST_BYTES_PER_S * 60 + page_bytes * SCALE;
    assert!((1..=most).contains(&moved), "{moved} bytes were promoted");
    assert_eq!(vm.tier_bytes_end.iter().sum::<u64>(), 16 << 30, "{vm:?}");
}

#[test]
fn huge_pages_go_up_within_the_rate_of_lists() {
    let two = "[\"dram\", \"pmem\"]";
    let vm = "fast = \"8GiB\"\nslow = \"24GiB\"\npage = \"2MiB\"";
    let found = run(two, vm, "0.1");
    check(&found, 2 << 20);
    let gained = (found.promoted_pages - found.demoted_pages) * 4096;
    assert_eq!(found.fast_bytes_end, gained, "{found:?}");
}

#[test]
fn pages_of_three_tiers_go_up_within_the_rate_of_lists() {
    let three = "[\"dram\", \"cxl\", \"pmem\"]";
    let vm = "tiers = [\"4GiB\", \"4GiB\", \"24GiB\"]";
    let found = run(three, vm, "0.001");
    check(&found, 4096);
    let upper = found.tier_bytes_end[0] + found.tier_bytes_end[1];
    assert!(found.tier_bytes_end[0] > 0, "{found:?}");
    assert!(upper <= found.promoted_pages * 4096, "{found:?}");
}
