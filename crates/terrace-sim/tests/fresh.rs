//! Programs one after another, each of which frees its memory at its end (`fresh = true`).

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation};

/// Longest time that a run here may simulate, ns: one that runs longer never ends.
const PATIENCE_NS: u64 = 60_000_000_000;

/// A VM of 16 MiB whose programs have `first` and `second` of memory; `vm` are more of its keys.
fn scenario(vm: &str, load: &str) -> Result<Scenario, String> {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n\
         [[vm]]\nname = \"a\"\nfast = \"8MiB\"\nslow = \"8MiB\"\ntables = \"first\"\n{vm}\n\
         workload = {{ kind = \"phases\", {load} }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    scenario.map_err(|error| error.to_string())
}

fn program(size: &str, ops: u64) -> String {
    format!(
        "{{ kind = \"hotset\", size = \"{size}\", hot = 0.2, hot_access = 0.5, write = 0.5, ops = {ops} }}"
    )
}

fn run(vm: &str, load: &str) -> RunResult {
    let scenario = scenario(vm, load).unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
    assert!(!simulation.advance(PATIENCE_NS), "it never ends");
    simulation.result()
}

fn of(programs: &[String], more: &str) -> String {
    format!("of = [{}]{more}", programs.join(", "))
}

const SWAP: &str = "swap = \"16MiB\"\npolicy = \"first-touch\"";

#[test]
fn no_page_of_a_program_is_swapped_in_for_the_next_one() {
    let alone = run(SWAP, &of(&[program("24MiB", 20_000)], ""));
    let after = of(
        &[program("24MiB", 20_000), program("12MiB", 20_000)],
        ", fresh = true",
    );
    let fresh = run(SWAP, &after);
    assert!(alone.vms[0].major_faults > 1000, "{alone:?}");
    assert_eq!(fresh.accesses, 40_000);
    // The first program's are all there are: those of the second have room, and begin anew.
    assert_eq!(fresh.vms[0].major_faults, alone.vms[0].major_faults);
    let shared = run(SWAP, &after.replace("true", "false"));
    assert!(
        shared.vms[0].major_faults > fresh.vms[0].major_faults,
        "{shared:?}"
    );
}

#[test]
fn the_first_touch_of_a_new_page_costs_the_guest_its_work_alone() {
    let vm = "policy = \"first-touch\"";
    let programs = [program("8MiB", 50_000), program("8MiB", 50_000)];
    let [fresh, shared] =
        ["true", "false"].map(|fresh| run(vm, &of(&programs, &format!(", fresh = {fresh}"))));
    assert_eq!((fresh.vms[0].major_faults, fresh.vms[0].vm_exits), (0, 0));
    let longer = fresh.vms[0].runtime_s - shared.vms[0].runtime_s;
    // 2,048 pages are freed, at 0.5 µs a page, and then touched by two vCPUs, who share that work; and flushes.
    assert!((0.0012..0.004).contains(&longer), "{longer}");
    assert_eq!(fresh.vms[0].tier_bytes_end, shared.vms[0].tier_bytes_end);
}

#[test]
fn programs_of_huge_pages_and_programs_that_start_again_end_too() {
    let vm = "page = \"2MiB\"\npolicy = \"first-touch\"".to_owned();
    let text = |fresh: bool| {
        format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 2\n\
             [[vm]]\nname = \"a\"\nfast = \"1GiB\"\nslow = \"1GiB\"\n{vm}\n\
             workload = {{ kind = \"phases\", ops = 400000, fresh = {fresh}, of = [{}, {}] }}\n",
            program("64MiB", 50_000),
            program("32MiB", 50_000)
        )
    };
    let [fresh, shared] = [true, false].map(|fresh| {
        let scenario = Scenario::parse(&text(fresh), "test", Path::new("/s")).expect("valid");
        let mut simulation = Simulation::new(&scenario, Options::default()).expect("it can be run");
        assert!(!simulation.advance(PATIENCE_NS), "it never ends");
        simulation.result()
    });
    assert_eq!((fresh.accesses, shared.accesses), (400_000, 400_000));
    assert!(fresh.vms[0].runtime_s > shared.vms[0].runtime_s);
}

#[test]
fn the_same_scenario_gives_the_same_result_twice() {
    let load = of(
        &[program("24MiB", 9_000), program("12MiB", 9_000)],
        ", fresh = true",
    );
    let [one, two] = [(); 2].map(|()| RunResult {
        wall_s: 0.0,
        ..run(SWAP, &load)
    });
    assert_eq!(one, two);
}

#[test]
fn mechanisms_and_memory_mode_refuse_fresh_programs() {
    let load = of(&[program("8MiB", 10)], ", fresh = true");
    for policy in ["tpp", "memory-mode"] {
        let vm = format!("policy = \"{policy}\"");
        let error = scenario(&vm, &load).expect_err("refused");
        assert!(error.contains("fresh = false"), "{error}");
    }
    let error = scenario(SWAP, &of(&[program("8MiB", 10)], ", fresh = 1")).expect_err("refused");
    assert!(
        error.contains("fresh = 1: allowed is true or false"),
        "{error}"
    );
}

#[test]
fn bounds_and_the_engine_run_programs_that_free_their_memory() {
    let load = of(
        &[program("24MiB", 9_000), program("12MiB", 9_000)],
        ", fresh = true",
    );
    for policy in [
        "static-best",
        "clairvoyant",
        "interleave",
        "all-slow",
        "vtmm",
    ] {
        let result = run(&SWAP.replace("first-touch", policy), &load);
        assert_eq!(result.accesses, 18_000, "{policy}");
    }
}
