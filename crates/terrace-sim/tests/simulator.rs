//! Tests of whole runs: counts that stay the same for ever, results that are the same bytes however a run is made,
//! and consequences of the definition of the machine.

use std::path::Path;

use terrace_sim::{Cache, Options, RunResult, Scenario, Simulation, VmResult};

/// A scenario with 4 GiB of the first tier and 8 GiB of the second, at a scale at which a VM of 12 GiB has 6,144
/// pages.
fn scenario(scale: u64, policy: &str, extra: &str, workload: &str) -> Scenario {
    scenario_on("", scale, policy, extra, workload)
}

/// The same on a machine with more keys.
fn scenario_on(keys: &str, scale: u64, policy: &str, extra: &str, workload: &str) -> Scenario {
    let policy = if policy.starts_with('{') {
        policy.to_owned()
    } else {
        format!("\"{policy}\"")
    };
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = {scale}\nvcpus_per_vm = 4\n{keys}\n\
         [[vm]]\nname = \"a\"\nfast = \"4GiB\"\nslow = \"8GiB\"\npolicy = {policy}\n{extra}\n\
         workload = {{ {workload} }}\n"
    );
    Scenario::parse(&text, "test", Path::new(".")).expect("a valid scenario")
}

/// The key of a VM whose page tables lie in the first tier, above its sizes.
const FIRST: &str = "tables = \"first\"";

/// The keys of the machine as it was: tiers are queues, there is no cache in front, and no room to demote to.
const BEFORE: &str = "loaded_latency = \"queue\"\ncache = \"none\"\nslow_room = \"0B\"";

const HOTSET: &str =
    r#"kind = "hotset", size = "8GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "70s""#;

fn finished(scenario: &Scenario, options: Options) -> Simulation {
    let mut simulation = Simulation::new(scenario, options).expect("it fits");
    while simulation.advance(u64::MAX) {}
    simulation
}

fn run(scenario: &Scenario) -> RunResult {
    finished(scenario, Options::default()).result()
}

fn vm(scenario: &Scenario) -> VmResult {
    run(scenario).vms.remove(0)
}

#[test]
fn parts_in_turn_find_the_hot_set_of_the_whole() {
    let vm = |parts: u32, window_ms: u32| {
        let keys = format!("[engine]\nscan_parts = {parts}\nwindow_ms = {window_ms}\n");
        let text = format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 512\nvcpus_per_vm = 4\n{keys}\
             [[vm]]\nname = \"a\"\nfast = \"4GiB\"\nslow = \"8GiB\"\npolicy = \"vtmm\"\n\
             workload = {{ {HOTSET} }}\n"
        );
        vm(&Scenario::parse(&text, "test", Path::new(".")).expect("a valid scenario"))
    };
    let (whole, parts) = (vm(1, 600), vm(4, 150));
    assert_eq!(whole.rounds, parts.rounds);
    assert!(parts.promoted_pages > 0);
    assert!(
        parts.fast_hit_ratio > whole.fast_hit_ratio - 0.02,
        "{} instead of {}",
        parts.fast_hit_ratio,
        whole.fast_hit_ratio
    );
}

fn off(a: f64, b: f64) -> f64 {
    (a / b - 1.0).abs()
}

/// Accesses, fast hits in millionths, pages promoted and demoted, exits, MiB of each tier at the end.
fn counts(keys: &str, name: &str, policy: &str, extra: &str) -> String {
    counts_of(name, &scenario_on(keys, 512, policy, extra, HOTSET))
}

/// The same of a scenario.
fn counts_of(name: &str, scenario: &Scenario) -> String {
    let result = run(scenario);
    let vm = &result.vms[0];
    let mib: Vec<u64> = vm.tier_bytes_end.iter().map(|b| b >> 20).collect();
    format!(
        "{name}: {} accesses, {:.6} fast, {} up, {} down, {} exits, {mib:?} MiB\n",
        result.accesses, vm.fast_hit_ratio, vm.promoted_pages, vm.demoted_pages, vm.vm_exits
    )
}

/// Golden counts: a commit that changes one of these lines changed the machine, a load, a stage or the engine.
#[test]
fn golden_counts_per_policy() {
    let expected = include_str!("golden/hotset.txt");
    let table = golden("", "");
    assert_eq!(table, expected, "\nfound:\n{table}");
}

/// The counts of the machine before it had a last-level cache.
#[test]
fn golden_counts_without_a_cache() {
    let expected = include_str!("golden/hotset-no-cache.txt");
    let table = golden("cache = \"none\"", "");
    assert_eq!(table, expected, "\nfound:\n{table}");
}

#[test]
fn the_key_cache_turns_the_cache_off() {
    let text = |cache: &str| {
        format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 512\n{cache}\n[[vm]]\nname = \"a\"\n\
             fast = \"4GiB\"\nslow = \"8GiB\"\npolicy = \"first-touch\"\nworkload = {{ {HOTSET} }}\n"
        )
    };
    let cache = |text: &str| {
        let scenario = Scenario::parse(text, "test", Path::new(".")).expect("a valid scenario");
        scenario.machine.cache
    };
    assert_eq!(cache(&text("cache = \"none\"")), None);
    assert_eq!(cache(&text("")), Some(Cache::default()));
    let twice = Some(Cache {
        size: 66 << 20,
        ways: 16,
    });
    assert_eq!(
        cache(&text("cache = { size = \"66MiB\", ways = 16 }")),
        twice
    );
}

/// The counts of the machine before tiers had the loaded latency of measured ones.
#[test]
fn golden_counts_with_tiers_that_are_queues() {
    let expected = include_str!("golden/hotset-queue.txt");
    let table = golden(BEFORE, "");
    assert_eq!(table, expected, "\nfound:\n{table}");
}

/// The counts of the machine before VMs had room to demote to.
#[test]
fn golden_counts_without_room_in_slow_memory() {
    let expected = include_str!("golden/hotset.txt");
    for policy in ["vtmm", "vtmm-paper", "first-touch", "interleave"] {
        let found = counts("slow_room = \"0B\"", policy, policy, "");
        assert!(expected.contains(&found), "{found}");
    }
}

/// The counts of the machine before page tables were allocated along with the pages that they map.
#[test]
fn golden_counts_with_tables_that_lie_first() {
    let expected = include_str!("golden/hotset-tables-first.txt");
    let table = golden(BEFORE, FIRST);
    assert_eq!(table, expected, "\nfound:\n{table}");
}

/// Counts under each policy with these keys of the machine and of the VM.
fn golden(machine: &str, keys: &str) -> String {
    [
        ("vtmm", "vtmm", ""),
        ("vtmm-paper", "vtmm-paper", ""),
        ("fixed-threshold", "fixed-threshold", ""),
        ("first-touch", "first-touch", ""),
        ("interleave", "interleave", ""),
        ("all-fast", "all-fast", ""),
        ("all-slow", "all-slow", ""),
        ("clairvoyant", "clairvoyant", ""),
        ("oracle", r#"{ base = "oracle", by = "latency" }"#, ""),
        ("static-best", "static-best", ""),
        ("ept-scan", r#"{ base = "vtmm", observe = "ept-scan" }"#, ""),
        (
            "write-protect",
            r#"{ base = "vtmm", move = "write-protect" }"#,
            "",
        ),
        ("pml-copy", r#"{ base = "vtmm", move = "pml-copy" }"#, ""),
        ("vtmm, start slow", "vtmm", "start = \"slow\""),
    ]
    .iter()
    .map(|(name, policy, extra)| counts(machine, name, policy, &format!("{extra}\n{keys}")))
    .collect()
}

/// Lists whose pages change places.
const DOUBLE: &str = r#"{ base = "hmvisor", sides = "double" }"#;

/// A load that leaves room in the first tier.
const ROOM: &str =
    r#"kind = "hotset", size = "3GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "70s""#;

/// The counts of hot lists, and of the paper's comparison on lists of its other settings.
#[test]
fn golden_counts_of_hot_lists() {
    let table: String = [
        ("hmvisor", "hmvisor", HOTSET),
        ("double-sided", DOUBLE, HOTSET),
        // Single-sided moves send cold pages out of a first tier with room, double-sided ones do not.
        ("hmvisor, room", "hmvisor", ROOM),
        ("double-sided, room", DOUBLE, ROOM),
        (
            "auto",
            r#"{ base = "hmvisor", hotness_threshold = "auto" }"#,
            HOTSET,
        ),
        (
            "H1",
            r#"{ base = "hmvisor", lists = 8, sub_epochs = 10, hotness_threshold = 1 }"#,
            HOTSET,
        ),
        (
            "H3",
            r#"{ base = "hmvisor", lists = 8, sub_epochs = 10, hotness_threshold = 3 }"#,
            HOTSET,
        ),
        (
            "H8",
            r#"{ base = "hmvisor", lists = 8, sub_epochs = 10, hotness_threshold = 8 }"#,
            HOTSET,
        ),
    ]
    .iter()
    .map(|(name, policy, load)| counts_of(name, &scenario(512, policy, "", load)))
    .collect();
    let [single, double] = ["hmvisor, room", "double-sided, room"].map(|name| {
        let counts = table.lines().find_map(|line| line.strip_prefix(name));
        counts.expect("a line")
    });
    assert_ne!(single, double, "nothing tells the two apart");
    let expected = include_str!("golden/hot-lists.txt");
    assert_eq!(table, expected, "\nfound:\n{table}");
}

/// Counts of graphs as they were before they had keys for their law and their order.
#[test]
fn golden_counts_of_graphs_with_the_keys_they_had() {
    let table: String = ["bfs", "pagerank", "bc"]
        .iter()
        .map(|algorithm| {
            let graph = format!(
                "kind = \"graph\", algorithm = \"{algorithm}\", vertices = 33554432, degree = 24, \
                 duration = \"70s\""
            );
            counts_of(algorithm, &scenario_on(BEFORE, 512, "vtmm", "", &graph))
        })
        .collect();
    let expected = include_str!("golden/graph.txt");
    assert_eq!(table, expected, "\nfound:\n{table}");
}

#[test]
fn a_scenario_and_seed_give_the_same_bytes_however_they_run() {
    let scenario = scenario(512, "vtmm", "", HOTSET);
    let json = |simulation: &Simulation| serde_json::to_string(&simulation.result()).expect("JSON");
    let alone = json(&finished(&scenario, Options::default()));
    let others: Vec<String> = std::thread::scope(|threads| {
        let start = |_| threads.spawn(|| json(&finished(&scenario, Options::default())));
        let started: Vec<_> = (0..4).map(start).collect();
        started
            .into_iter()
            .map(|t| t.join().expect("it ran"))
            .collect()
    });
    assert!(others.iter().all(|other| *other == alone));
    let mut sliced = Simulation::new(&scenario, Options::default()).expect("it fits");
    let mut until = 0;
    while sliced.advance(until) {
        until += 77_000_000;
    }
    assert_eq!(json(&sliced), alone);
}

#[test]
fn another_seed_gives_other_accesses() {
    let mut other = scenario(512, "first-touch", "", HOTSET);
    let first = vm(&other);
    other.seed = 2;
    assert_ne!(
        first.fast_hit_ratio.to_bits(),
        vm(&other).fast_hit_ratio.to_bits()
    );
}

#[test]
fn another_vm_changes_no_accesses_of_this_one() {
    let alone = scenario(512, "first-touch", FIRST, HOTSET);
    let mut both = alone.clone();
    let mut second = both.vms[0].clone();
    second.name = "b".into();
    both.vms.insert(0, second);
    for tier in &mut both.machine.tiers {
        tier.bytes *= 2;
    }
    let heat = |scenario: &Scenario, at: usize| {
        let options = Options {
            sample_every_ns: 1_000_000_000,
            heat_cells: 64,
            ..Options::default()
        };
        let simulation = finished(scenario, options);
        let cells = &simulation.timeline().vms[at].samples[0].heat;
        let hot: Vec<usize> = (0..64).filter(|cell| cells[*cell] > cells[0] / 2).collect();
        (hot, cells.iter().map(|c| u64::from(*c)).sum::<u64>())
    };
    let (cells, count) = heat(&alone, 0);
    let (beside, count_beside) = heat(&both, 1);
    // The neighbour takes bandwidth, so a second holds fewer of the same accesses.
    assert_eq!(cells, beside);
    assert!(count_beside <= count && count_beside * 10 > count * 9);
}

#[test]
fn half_the_quantum_changes_run_times_by_less_than_1_percent() {
    for policy in ["vtmm", "first-touch"] {
        let ops = HOTSET.replace("duration = \"70s\"", "ops = 1500000000");
        let scenario = scenario(512, policy, "", &ops);
        let time = |divisor| {
            let options = Options {
                quantum_divisor: Some(divisor),
                ..Options::default()
            };
            finished(&scenario, options).result().vms[0].runtime_s
        };
        let (whole, half) = (time(1), time(2));
        assert!(off(half, whole) < 0.01, "{policy}: {half} s for {whole} s");
    }
}

/// Compares the scales in two experiments: one that the pages' places decide, one that bandwidth does.
#[test]
fn scales_16_and_64_agree_within_5_percent() {
    let write = r#"kind = "gups", variant = "hemem", size = "8GiB", hot = 0.1, compute_ns = 300.0, parallelism = 8.0, duration = "20s""#;
    let hotset = HOTSET.replace("\"70s\"", "\"20s\", compute_ns = 500.0");
    for (policy, workload) in [("vtmm", hotset.as_str()), ("first-touch", write)] {
        let at = |scale| vm(&scenario(scale, policy, "", workload));
        let (fine, coarse) = (at(16), at(64));
        for (what, a, b) in [
            ("ops_per_s", fine.ops_per_s, coarse.ops_per_s),
            ("fast hits", fine.fast_hit_ratio, coarse.fast_hit_ratio),
        ] {
            assert!(off(a, b) < 0.05, "{policy}: {what} {a} and {b}");
        }
    }
}

#[test]
fn no_policy_beats_the_bounds_while_dram_has_bandwidth_to_spare() {
    for hot in ["0.2", "0.6"] {
        let workload = HOTSET.replace("hot = 0.2", &format!("hot = {hot}"));
        let rate = |policy| vm(&scenario(512, policy, "", &workload)).ops_per_s;
        // One read of 64 bytes each, as much written back by half of them, and table lines: less than
        // 200 bytes an access of the 120 GB/s.
        let all_fast = rate("all-fast");
        assert!(all_fast * 200.0 < 0.6 * 120e9, "{all_fast}");
        let best = rate("clairvoyant");
        let once = rate("static-best");
        assert!(once <= best, "{hot}: {once} {best}");
        for policy in [
            "vtmm",
            "fixed-threshold",
            "first-touch",
            "interleave",
            "all-slow",
        ] {
            let found = rate(policy);
            assert!(
                found <= once && best <= all_fast,
                "{policy}, {hot}: {found}"
            );
        }
    }
}

#[test]
fn bounds_hit_fast_memory_as_often_as_their_placement_holds() {
    // Every page is as hot as any other: a third, and half, of the pages are fast.
    let uniform = HOTSET.replace("hot_access = 0.9", "hot_access = 0.0");
    for (policy, expected) in [
        ("first-touch", 0.5),
        ("interleave", 1.0 / 3.0),
        ("all-slow", 0.0),
    ] {
        let found = vm(&scenario(512, policy, "", &uniform)).fast_hit_ratio;
        assert!((found - expected).abs() < 0.01, "{policy}: {found}");
    }
}

#[test]
fn the_paper_s_own_moves_cost_far_fewer_exits() {
    let exits = |policy| vm(&scenario(512, policy, "", HOTSET)).vm_exits;
    let (live, paper) = (exits("vtmm"), exits("vtmm-paper"));
    assert!(paper * 3 < live, "{paper} for {live}");
}

#[test]
fn huge_pages_move_whole_and_both_dimensions_are_set_apart() {
    let workload = r#"kind = "hotset", size = "8GiB", hot = 0.2, layout = "clustered", hot_access = 0.9, write = 0.5, compute_ns = 2000.0, duration = "8s""#;
    for extra in ["host_page = \"2MiB\"", "page = \"2MiB\""] {
        let extra = format!("{extra}\nstart = \"slow\"");
        let vm = vm(&scenario(4, "vtmm", &extra, workload));
        let moved = vm.promoted_pages;
        assert!(
            moved > 0 && moved.is_multiple_of(512 * 4),
            "{extra}: {moved}"
        );
    }
}

#[test]
fn a_working_set_that_outgrows_the_guest_waits_for_swap() {
    let grow =
        r#"kind = "swapmix", private = "8GiB", growth = "8GiB", rate = "1GiB", duration = "30s""#;
    let faults = |extra: &str| vm(&scenario(512, "first-touch", extra, grow)).major_faults;
    assert!(faults("swap = \"16GiB\"") > 1000);
}

#[test]
fn a_balloon_takes_host_memory_and_gives_it_back() {
    let extra = "tables = \"first\"\nballoon = [{ at = \"20s\", size = \"6GiB\" }, { at = \"40s\", size = \"0MiB\" }]\nswap = \"8GiB\"";
    let options = Options {
        sample_every_ns: 1_000_000_000,
        ..Options::default()
    };
    let simulation = finished(&scenario(512, "first-touch", extra, HOTSET), options);
    let held = |at: usize| {
        let samples = &simulation.timeline().vms[0].samples;
        samples[at].tier_bytes.iter().sum::<u64>() >> 20
    };
    assert_eq!(held(10), 8 << 10);
    // The guest gives the 4 GiB that its load does not use first, which had no host memory anyway.
    assert_eq!(held(30), 6 << 10);
    assert!(held(60) > 7 << 10, "{}", held(60));
}

/// Accesses of independent misses by many vCPUs: the first tier's bandwidth is used up before its space is.
const PRESSED: &str = r#"kind = "hotset", size = "8GiB", hot = 1.0, hot_access = 1.0, write = 0.0, parallelism = 10, compute_ns = 0, duration = "10s""#;

#[test]
fn more_dram_never_makes_a_bound_slower() {
    let rate = |policy: &str, fast: u64| {
        let mut scenario = scenario(512, policy, "", PRESSED);
        scenario.vms[0].vcpus = 16;
        for (tier, gib) in [fast, 9].into_iter().enumerate() {
            scenario.vms[0].sizes[tier] = gib << 30;
            scenario.machine.tiers[tier].bytes = gib << 30;
        }
        // A second tier that serves half as much as the first, and is little slower.
        let [dram, slow] = &mut scenario.machine.tiers[..] else {
            panic!("two tiers")
        };
        (dram.read_gb_s, dram.write_gb_s) = (4.0, 4.0);
        (slow.read_ns, slow.line) = (dram.read_ns * 1.5, 64);
        (slow.read_gb_s, slow.write_gb_s) = (2.0, 2.0);
        vm(&scenario).ops_per_s
    };
    for policy in ["static-best", "clairvoyant"] {
        let rates = [2, 4, 6, 7, 8].map(|gib| rate(policy, gib));
        let rises = rates.windows(2).all(|pair| pair[1] > pair[0] * 0.98);
        assert!(rises, "{policy}: {rates:?}");
    }
    let full = rate(r#"{ base = "oracle", by = "latency" }"#, 8);
    let split = rate("clairvoyant", 8);
    assert!(split > full * 1.2, "{split} {full}");
}

#[test]
fn static_best_has_page_tables_where_they_pay() {
    let slow = "start = \"slow\"";
    let rate = |policy, extra| vm(&scenario(512, policy, extra, HOTSET)).ops_per_s;
    let once = rate("static-best", slow);
    assert!(
        off(once, rate("static-best", "")) < 0.001,
        "the start does not matter"
    );
    // The same pages with tables that stay in the last tier.
    let tables_slow = rate("static-best", "tables = \"slow\"");
    assert!(once > tables_slow * 1.1, "{once} {tables_slow}");
}

#[test]
fn static_best_runs_the_same_with_profiles_that_are_given() {
    let scenario = scenario(512, "static-best", "", HOTSET);
    let options = Options {
        profile: true,
        ..Options::default()
    };
    let profiles = finished(&scenario.all_fast(), options).profiles();
    let profiles = profiles.expect("they were asked for");
    let given = Simulation::with_profiles(&scenario, Options::default(), &profiles);
    let mut given = given.expect("it fits");
    while given.advance(u64::MAX) {}
    assert_eq!(given.result(), run(&scenario));
}

/// A machine of two VMs with these tiers, and each VM's keys.
fn two_vms(policy: &str, tiers: &str, keys: &str, workload: &str) -> Scenario {
    let vm = |name: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\n{keys}\npolicy = \"{policy}\"\nworkload = {{ {workload} }}\n"
        )
    };
    let text = format!(
        "[machine]\ntiers = {tiers}\nscale = 64\nvcpus_per_vm = 2\n{}{}",
        vm("a"),
        vm("b")
    );
    Scenario::parse(&text, "test", Path::new(".")).expect("a valid scenario")
}

#[test]
fn bounds_are_bounds_in_every_kind_of_vm() {
    let two = r#"["dram", "pmem"]"#;
    let sizes = "fast = \"512MiB\"\nslow = \"2GiB\"";
    let balloon = "swap = \"2GiB\"\nballoon = [{ at = \"1s\", size = \"1GiB\" }]";
    let load = r#"kind = "hotset", size = "2GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "4s""#;
    let graph = r#"kind = "graph", algorithm = "bfs", vertices = 4194304, degree = 16, iterations = 1, duration = "4s""#;
    for (tiers, keys, load) in [
        (two, sizes.to_owned(), load),
        (two, format!("{sizes}\nstart = \"slow\""), load),
        (
            two,
            format!("{sizes}\nhost_page = \"2MiB\"")
                .replace("512MiB", "8GiB")
                .replace("2GiB", "128GiB"),
            &load.replace("size = \"2GiB\"", "size = \"96GiB\""),
        ),
        (two, format!("{sizes}\n{balloon}"), load),
        (two, sizes.to_owned(), graph),
        (
            r#"["dram", "cxl", "pmem"]"#,
            "tiers = [\"256MiB\", \"512MiB\", \"2GiB\"]".into(),
            load,
        ),
    ] {
        let rates = |policy: &str| -> Vec<f64> {
            let result = run(&two_vms(policy, tiers, &keys, load));
            result.vms.iter().map(|vm| vm.ops_per_s).collect()
        };
        let [start, once, ahead] = ["first-touch", "static-best", "clairvoyant"].map(rates);
        for vm in 0..2 {
            // A balloon takes any pages, which no bound knows of.
            let slack = if keys.contains("balloon") { 0.9 } else { 0.99 };
            assert!(once[vm] > start[vm] * slack, "{keys}: {once:?} {start:?}");
            assert!(ahead[vm] > once[vm] * slack, "{keys}: {ahead:?} {once:?}");
        }
    }
}

#[test]
fn many_vcpus_that_write_do_not_break_static_best() {
    let write = r#"kind = "sequential", size = "16MiB", write = 1.0, ops = 4_000_000"#;
    let uniform = r#"kind = "hotset", size = "16MiB", hot = 1.0, hot_access = 1.0, write = 0.5, duration = "40ms""#;
    for load in [write, uniform] {
        let rate = |policy: &str| {
            let text = format!(
                "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 1\nvcpus_per_vm = 64\n[[vm]]\nname = \"a\"\n\
                 fast = \"8MiB\"\nslow = \"16MiB\"\npolicy = \"{policy}\"\nworkload = {{ {load} }}\n"
            );
            let scenario =
                Scenario::parse(&text, "test", Path::new(".")).expect("a valid scenario");
            vm(&scenario).ops_per_s
        };
        let (start, once) = (rate("first-touch"), rate("static-best"));
        assert!(once > start * 0.99, "{load}: {once} {start}");
    }
}
