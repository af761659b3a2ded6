//! Runs of unusual length, sampling or number of vCPUs.

use std::path::Path;

use terrace_sim::{Options, Scenario, Simulation};

fn simulation(scale: u64, vm: &str, options: Options) -> Simulation {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = {scale}\nvcpus_per_vm = 8\n\
         [[vm]]\nname = \"a\"\ntables = \"first\"\n{vm}\n"
    );
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    let scenario = Scenario::parse(&text, "test", &folder);
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    Simulation::new(&scenario, options).expect("it can be run")
}

#[test]
fn samples_shorter_than_a_quantum_agree_with_the_result() {
    let vm = "fast = \"256MiB\"\nslow = \"256MiB\"\npolicy = \"first-touch\"\n\
              workload = { kind = \"zipf\", size = \"512MiB\", exponent = 1.0, duration = \"1s\" }";
    // A quantum is 640 µs of the full-size machine.
    for sample_every_ns in [100_000, 1_000_000] {
        let options = Options {
            sample_every_ns,
            ..Options::default()
        };
        let mut simulation = simulation(64, vm, options);
        simulation.advance(u64::MAX);
        let samples = &simulation.timeline().vms[0].samples;
        let mut before = 0.0;
        let mut accesses = 0.0;
        for sample in samples {
            accesses += sample.ops_per_s * (sample.at_s - before);
            before = sample.at_s;
        }
        let expected = simulation.result().vms[0].ops_per_s;
        let found = accesses / before;
        assert!((found / expected - 1.0).abs() < 0.01, "{found} {expected}");
    }
}

#[test]
fn a_trace_makes_all_the_operations_that_are_asked_of_it() {
    let vm = "fast = \"32MiB\"\nslow = \"256MiB\"\npolicy = \"first-touch\"\n\
              workload = { kind = \"trace\", file = \"redis.trace.zst\", ops = 8000 }";
    let mut simulation = simulation(1, vm, Options::default());
    simulation.advance(u64::MAX);
    assert_eq!(simulation.result().accesses, 8000);
}

/// A whole run of a trace with some keys more: accesses, and run time.
fn trace_run(keys: &str) -> (u64, f64) {
    let vm = format!(
        "fast = \"32MiB\"\nslow = \"1GiB\"\npolicy = \"all-slow\"\n\
         workload = {{ kind = \"trace\", file = \"redis.trace.zst\", accesses_per_record = 50{keys} }}"
    );
    let mut simulation = simulation(1, &vm, Options::default());
    simulation.advance(u64::MAX);
    let result = simulation.result();
    (result.accesses, result.vms[0].runtime_s)
}

#[test]
fn an_inflated_trace_lasts_as_many_times_as_long() {
    let (accesses, runtime_s) = trace_run("");
    assert_eq!(
        trace_run(", inflate = 1, players = 1"),
        (accesses, runtime_s)
    );
    let (inflated, lasts_s) = trace_run(", inflate = 4");
    assert_eq!(inflated, 4 * accesses);
    // More memory, more misses of the TLB: longer, but not by much.
    let ratio = lasts_s / runtime_s;
    assert!((3.9..5.0).contains(&ratio), "{ratio}");
}

#[test]
fn players_play_side_by_side() {
    let (accesses, runtime_s) = trace_run("");
    let (all, lasts_s) = trace_run(", players = 4");
    assert_eq!(all, 4 * accesses);
    let ratio = lasts_s / runtime_s;
    assert!((0.95..1.2).contains(&ratio), "{ratio}");
}

#[test]
fn the_pool_gives_no_more_than_the_machine_has_at_any_scale() {
    let vm = "fast = \"512MiB\"\nslow = \"1536MiB\"\n\
              workload = { kind = \"hotset\", size = \"2GiB\", hot = 0.4, hot_access = 0.9, \
              write = 0.3, compute_ns = 8000.0, duration = \"130s\" }";
    let mut simulation = simulation(64, vm, Options::default());
    simulation.advance(u64::MAX);
    let vm = &simulation.result().vms[0];
    assert!(vm.rounds >= 2 && vm.promoted_pages > 20_000, "{vm:?}");
    // A plan that is under way may hold some of what a kernel keeps free.
    assert!(vm.fast_bytes_mean <= 520 << 20, "{vm:?}");
    assert!(vm.fast_bytes_end >= 500 << 20, "{vm:?}");
}

#[test]
fn exits_that_scans_make_are_as_many_at_any_scale() {
    let vm = "fast = \"1GiB\"\nslow = \"512MiB\"\n\
              policy = { base = \"vtmm\", observe = \"ept-scan\" }\n\
              workload = { kind = \"hotset\", size = \"1GiB\", hot = 0.1, hot_access = 0.9, \
              write = 0.3, compute_ns = 20000.0, duration = \"20s\" }";
    let exits = [16, 64].map(|scale| {
        let mut simulation = simulation(scale, vm, Options::default());
        simulation.advance(u64::MAX);
        simulation.result().vms[0].vm_exits
    });
    // All of it is in the first tier: nothing moves. Some scans, each interrupts 8 vCPUs.
    assert!((16..=200).contains(&exits[0]), "{exits:?}");
    assert_eq!(exits[0], exits[1]);
}
