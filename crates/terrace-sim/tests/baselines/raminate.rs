//! Tests of `raminate`.

use terrace_sim::{Options, Scenario, Simulation, VmResult};

use crate::common::Small;

const HOT: &str = "kind = \"hotset\", size = \"2048MiB\", hot = 0.05, hot_access = 0.9, write = 0.5, \
                   compute_ns = 200, duration = \"60s\"";

fn run(policy: &'static str, more: &'static str, workload: &'static str) -> VmResult {
    Small {
        policy,
        more,
        workload,
        scale: 64,
    }
    .run()
}

/// Runs a load with 24 MiB that are read a lot and 8 MiB that are written less often, all of it in 16 + 48 MiB from
/// the slow tier on, under a policy.
fn readers_and_writers(policy: &str) -> VmResult {
    let folder = tempfile::tempdir().expect("a folder");
    let program = "#regions\nread, 25165824, none\nwrite, 8388608, none\n\nonly\n12000\n\
                   read, 1, 4096, 3, ro\nwrite, 1, 4096, 1, wo\n";
    std::fs::write(folder.path().join("rw.cfg"), program).expect("it can be written");
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nvcpus_per_vm = 2\nscale = 1\n\
         [[vm]]\nname = \"a\"\nfast = \"16MiB\"\nslow = \"48MiB\"\nstart = \"slow\"\n\
         policy = \"{policy}\"\n\
         workload = {{ kind = \"masim\", file = \"rw.cfg\", compute_ns = 1000, duration = \"12s\" }}\n"
    );
    let scenario = Scenario::parse(&text, "rw", folder.path()).expect("valid");
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    while simulation.advance(u64::MAX) {}
    simulation.result().vms.remove(0)
}

#[test]
fn raminate_moves_written_pages_before_pages_that_are_read_more() {
    let vm = readers_and_writers("raminate");
    // A quarter of the accesses write.
    let read_ratio = (vm.fast_hit_ratio - 0.25 * vm.fast_write_ratio) / 0.75;
    assert!(vm.fast_write_ratio > 0.6, "{vm:?}");
    assert!(vm.fast_write_ratio > 2.0 * read_ratio, "{vm:?}");
}

#[test]
fn raminate_brings_a_hot_set_up_4_mib_a_second() {
    let vm = run("\"raminate\"", "start = \"slow\"", HOT);
    let pages_a_second = 1024;
    assert!(vm.promoted_pages > 30 * pages_a_second, "{vm:?}");
    assert!(vm.promoted_pages <= 60 * pages_a_second, "{vm:?}");
    let none = run("\"first-touch\"", "start = \"slow\"", HOT);
    assert!(vm.fast_hit_ratio > none.fast_hit_ratio, "{vm:?}");
}

#[test]
fn raminate_exchanges_page_for_page_where_fast_memory_is_full() {
    let vm = run("\"raminate\"", "", HOT);
    assert!(vm.promoted_pages > 0, "{vm:?}");
    assert_eq!(vm.promoted_pages, vm.demoted_pages);
    assert_eq!(vm.fast_bytes_end, 1 << 30);
    assert!(vm.rounds >= 30, "{vm:?}");
}

#[test]
fn raminate_moves_huge_pages_no_faster_than_small_ones() {
    let vm = crate::edges::huge_pages("raminate");
    // A simulated page of 2 MiB stands for 16 of them, the budget of 8 s; the first scan comes after 1 s of the 40.
    let page = 16 * 512;
    assert!((4 * page..=5 * page).contains(&vm.promoted_pages), "{vm:?}");
}

#[test]
fn raminate_has_one_rate_limit_for_all_tiers_together() {
    let vm = crate::edges::three_tiers("raminate");
    let pages_a_second = 1024;
    let moved = vm.promoted_pages + vm.demoted_pages;
    assert!(moved > 15 * pages_a_second, "{vm:?}");
    assert!(moved <= 30 * pages_a_second, "{vm:?}");
}

#[test]
fn raminate_survives_full_tiers_huge_pages_and_three_tiers() {
    crate::edges::survives(["raminate@guest", "raminate@host"]);
}
