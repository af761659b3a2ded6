//! Memory that moves between simulated VMs: who swaps gets it from whom it costs little.

use std::path::Path;

use terrace_sim::{Options, RunResult, Scenario, Simulation, VmResult};

/// Two VMs of 4 GiB that may have 8: the first one's second program does not fit into 4, the second one needs 1.
fn scenario(share: &str) -> Scenario {
    let text = format!(
        r#"
        [machine]
        tiers = ["dram", "pmem"]
        sizes = ["8GiB", "32GiB"]
        scale = 64
        vcpus_per_vm = 1
        cache = "none"
        [host]
        share = "{share}"
        [[vm]]
        name = "grows"
        fast = "2GiB"
        slow = "2GiB"
        swap = "8GiB"
        policy = "first-touch"
        provision = {{ by = "balloon", nodes = ["8GiB", "8GiB"] }}
        memory_floor = "512MiB"
        memory_ceiling = "8GiB"
        [vm.workload]
        kind = "phases"
        fresh = true
        of = [
          {{ kind = "hotset", size = "2GiB", hot = 0.5, hot_access = 0.9, duration = "10s" }},
          {{ kind = "hotset", size = "5GiB", hot = 0.5, hot_access = 0.9, duration = "60s" }},
        ]
        [[vm]]
        name = "idle"
        fast = "2GiB"
        slow = "2GiB"
        swap = "8GiB"
        policy = "first-touch"
        provision = {{ by = "balloon", nodes = ["8GiB", "8GiB"] }}
        memory_floor = "512MiB"
        memory_ceiling = "8GiB"
        workload = {{ kind = "hotset", size = "1GiB", hot = 0.5, hot_access = 0.9, duration = "70s" }}
        "#
    );
    Scenario::parse(&text, "test", Path::new("/s")).unwrap_or_else(|error| panic!("{error}"))
}

/// A look at the first VM.
#[derive(Clone, Copy, Debug)]
struct Look {
    at_s: f64,
    major_faults: u64,
}

/// The run, and a look ten times a second.
fn run(share: &str) -> (RunResult, Vec<Look>) {
    let simulation = Simulation::new(&scenario(share), Options::default());
    let mut simulation = simulation.expect("a simulation");
    let mut looks = Vec::new();
    for tenth in 1..1000_u32 {
        let runs = simulation.advance(u64::from(tenth) * 100_000_000);
        let result = simulation.result();
        looks.push(Look {
            at_s: f64::from(tenth) / 10.0,
            major_faults: result.vms[0].major_faults,
        });
        if !runs {
            return (result, looks);
        }
    }
    panic!("it does not end")
}

#[test]
fn a_vm_that_swaps_gets_memory_from_an_idle_one() {
    let (island, _) = run("island");
    let (dp, looks) = run("dp");
    let calm = looks.iter().filter(|look| look.major_faults == 0);
    let faults_after = calm.map(|look| look.at_s).fold(0.0, f64::max);
    let mut orders_after = orders(&dp, 0).into_iter().filter(|o| o.0 > faults_after);
    let (at_s, why) = orders_after.next().expect("relief");
    // From the last look before the first fault: no earlier than the fault itself.
    assert!(at_s - faults_after <= 2.0, "{at_s} s, {faults_after} s");
    assert!(
        why.contains("it swaps") && why.contains("with the reserve"),
        "{why}"
    );
    // Faults end while the program still runs.
    let [first, last] = [looks.len() - 120, looks.len() - 20].map(|at| looks[at].major_faults);
    assert!(last - first < dp.vms[0].major_faults / 100, "{looks:?}");
    assert!(dp.vms[0].major_faults * 2 < island.vms[0].major_faults);
    assert!(dp.vms[0].ops_per_s > 1.5 * island.vms[0].ops_per_s);
    // The giver does not pay.
    assert_eq!(dp.vms[1].major_faults, 0);
    let longer = island.vms[1].ops_per_s / dp.vms[1].ops_per_s;
    assert!(longer <= 1.02, "{longer}");
    for vm in 0..dp.vms.len() {
        let ours = orders(&dp, vm);
        assert!(!ours.is_empty() && ours.len() < 40, "{ours:?}");
    }
}

/// Two VMs that share the first tier: one accesses a part of its memory all the time, the other one as large a part once
/// in a while.
fn fast_share(share: &str) -> RunResult {
    let vm = |name: &str, pace: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nfast = \"2GiB\"\nslow = \"6GiB\"\npolicy = \"vtmm\"\nstart = \"slow\"\n\
             workload = {{ kind = \"hotset\", size = \"7GiB\", hot = 0.4, hot_access = 0.9, {pace}duration = \"60s\" }}\n"
        )
    };
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 64\nvcpus_per_vm = 1\ncache = \"none\"\n\
         [host]\nshare = \"{share}\"\n[engine]\nperiod_ms = 10000\n{}{}",
        vm("busy", ""),
        vm("calm", "compute_ns = 2000, "),
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("a simulation");
    assert!(!simulation.advance(100_000_000_000), "it does not end");
    simulation.result()
}

#[test]
fn fast_memory_goes_where_it_saves_most_time() {
    let (pool, dp) = (fast_share("pool"), fast_share("dp"));
    let hits = |run: &RunResult, vm: usize| run.vms[vm].fast_hit_ratio;
    assert!(
        hits(&dp, 0) > hits(&pool, 0) + 0.2,
        "{} {}",
        hits(&dp, 0),
        hits(&pool, 0)
    );
    let ops = |run: &RunResult, vm: usize| run.vms[vm].ops_per_s;
    assert!(ops(&dp, 0) > 1.05 * ops(&pool, 0));
    assert!(ops(&dp, 1) > 0.95 * ops(&pool, 1));
}

/// Two VMs of 1 GiB of each tier that HyperFlex sizes, under this rule: one accesses nearly all of it all the time, the
/// other one once in a while.
fn sized_by_tier(share: &str) -> RunResult {
    let vm = |name: &str, pace: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\nfast = \"1GiB\"\nslow = \"1GiB\"\nswap = \"4GiB\"\nstart = \"slow\"\n\
             policy = \"hmvisor\"\nprovision = {{ by = \"hyperflex\", nodes = [\"2GiB\", \"2GiB\"] }}\n\
             workload = {{ kind = \"hotset\", size = \"1900MiB\", hot = 1.0, hot_access = 1.0, {pace}\
             duration = \"300s\" }}\n"
        )
    };
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"4GiB\", \"8GiB\"]\nscale = 64\nvcpus_per_vm = 1\n\
         cache = \"none\"\n[host]\nshare = \"{share}\"\n{}{}",
        vm("hot", ""),
        vm("calm", "compute_ns = 20000, "),
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("a simulation");
    assert!(!simulation.advance(1_000_000_000_000), "it does not end");
    simulation.result()
}

#[test]
fn fast_memory_of_vms_sized_by_tier_changes_hands_and_it_pays() {
    const MIB: u64 = 1 << 20;
    let (fixed, run) = (sized_by_tier("island"), sized_by_tier("dp"));
    let sizes = [0, 1].map(|vm: usize| {
        let device = run.vms[vm].provision.as_ref().expect("a device");
        device.given_bytes.clone()
    });
    let [hot, calm] = &sizes;
    assert!(hot[0] > 1800 * MIB && calm[0] < 200 * MIB, "{sizes:?}");
    // Each has as much memory as before, but for the reserve and a step under way, and none swaps for it.
    for (vm, sizes) in sizes.iter().enumerate() {
        let total: u64 = sizes.iter().sum();
        assert!(total.abs_diff(1946 * MIB) <= 64 * MIB, "{sizes:?}");
        let swapped = run.vms[vm].swapped_out_bytes;
        assert_eq!(swapped, fixed.vms[vm].swapped_out_bytes);
    }
    let ops = |run: &RunResult, vm: usize| run.vms[vm].ops_per_s;
    assert!(
        ops(&run, 0) > 1.05 * ops(&fixed, 0),
        "{} {}",
        ops(&run, 0),
        ops(&fixed, 0)
    );
    assert!(
        ops(&run, 1) > 0.99 * ops(&fixed, 1),
        "{} {}",
        ops(&run, 1),
        ops(&fixed, 1)
    );
}

/// VMs of 4 GiB that may have 8, with these workloads and keys, to the end.
fn together(share: &str, scale: u32, vms: &[(&str, &str)]) -> RunResult {
    let scenario = beside(share, scale, (1, ""), vms);
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("a simulation");
    assert!(!simulation.advance(3_000_000_000_000), "it does not end");
    simulation.result()
}

/// The scenario of such VMs, all sizes `times` as large, with further tables.
fn beside(share: &str, scale: u32, (times, tables): (u32, &str), vms: &[(&str, &str)]) -> Scenario {
    let names = ["honest", "second", "third"];
    let gib = |gib: u32| format!("\"{}GiB\"", gib * times);
    let vms = vms.iter().zip(names).map(|((load, keys), name)| {
        format!(
            "[[vm]]\nname = \"{name}\"\nfast = {two}\nslow = {two}\nswap = {}\n\
             provision = {{ by = \"balloon\", nodes = [{eight}, {eight}] }}\n\
             memory_ceiling = {eight}\n{keys}\nworkload = {load}\n",
            gib(12),
            two = gib(2),
            eight = gib(8),
        )
    });
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [{}, {}]\nscale = {scale}\n\
         vcpus_per_vm = 1\ncache = \"none\"\n[host]\nshare = \"{share}\"\n{tables}\n{}",
        gib(12),
        gib(32),
        vms.collect::<String>()
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    scenario.unwrap_or_else(|error| panic!("{error}"))
}

/// Keys of a VM of which nothing but its guest's words is known.
const PLAIN: &str = "policy = \"first-touch\"";

fn hotset(gib: &str, s: u32) -> String {
    format!(
        "{{ kind = \"hotset\", size = \"{gib}GiB\", hot = 0.5, hot_access = 0.9, duration = \"{s}s\" }}"
    )
}

fn phases(of: &[String]) -> String {
    format!(
        "{{ kind = \"phases\", fresh = true, of = [{}] }}",
        of.join(", ")
    )
}

/// A VM that needs 1 GiB and 3.5 in turn, for a time in all.
fn wave(is_first_small: bool, turn_s: u32, s: u32) -> String {
    let size = |turn: u32| match turn.is_multiple_of(2) == is_first_small {
        true => "1",
        false => "3.5",
    };
    let turns = (0..s / turn_s).map(|turn| hotset(size(turn), turn_s));
    phases(&turns.collect::<Vec<_>>())
}

#[test]
fn adversaries_cost_honest_vms_at_most_a_twentieth() {
    let (greedy, greedy_long) = (hotset("12", 420), hotset("12", 600));
    // It idles, and then needs most of what it brought.
    let late = phases(&[hotset("1", 60), hotset("3.5", 360)]);
    let steady = hotset("3.5", 420);
    let both = |turn_s, s| [wave(true, turn_s, s), wave(false, turn_s, s)];
    // The name, the loads, and how many of them are honest.
    for (name, loads, honest) in [
        ("swaps on purpose", [steady, greedy.clone()], 1),
        ("takes and never gives", [late, greedy], 1),
        (
            "takes and never gives, from one that lends again and again",
            [wave(true, 30, 600), greedy_long],
            1,
        ),
        ("antiphase", both(30, 240), 2),
        // Valleys that are longer than `valley_ms` are lent.
        ("slow antiphase", both(120, 720), 2),
    ] {
        let loads = loads.each_ref().map(|load| (load.as_str(), PLAIN));
        let island = together("island", 64, &loads);
        for share in ["dp", "fair"] {
            let run = together(share, 64, &loads);
            if name == "slow antiphase" {
                assert!(!orders(&run, 0).is_empty(), "nothing moves");
            }
            for vm in 0..honest {
                let work = |run: &RunResult| run.vms[vm].ops_per_s * run.vms[vm].runtime_s;
                let part = work(&run) / work(&island);
                assert!(part >= 1.0 / 1.05, "{name}, {share}, VM {vm}: {part}");
            }
        }
    }
}

/// The arbiter's orders to a VM: when, and why.
fn orders(run: &RunResult, vm: usize) -> Vec<(f64, &str)> {
    let device = run.vms[vm].provision.as_ref().expect("a device");
    let ours = device.orders.iter().filter(|o| o.origin == "arbiter");
    ours.map(|o| (o.at_s, o.reason.as_str())).collect()
}

/// Keys of a VM whose demand is tracked.
const TRACKED: &str = "policy = \"hpmbs\"\npage = \"2MiB\"";

/// The table by which it is tracked all the time.
const ALWAYS: &str = "[engine.demand]\ntrack = \"always\"";

/// An honest VM that needs 6 of its 8 GiB beside one that accesses 16 GiB which it does not need, both tracked.
fn beside_a_liar(share: &str, s: u32) -> Scenario {
    let honest = hotset("6", s);
    let liar = format!(
        "{{ kind = \"hotset\", size = \"16GiB\", hot = 0.5, hot_access = 0.5, duration = \"{s}s\" }}"
    );
    let vms = [(honest.as_str(), TRACKED), (liar.as_str(), TRACKED)];
    beside(share, 4, (2, ALWAYS), &vms)
}

/// A guest can lie about its curve by accesses alone: it touches what it does not need.
#[test]
fn a_lie_about_a_curve_costs_others_at_most_a_twentieth() {
    // Longer than a cycle and the review after it.
    let run = |share| {
        let scenario = beside_a_liar(share, 45);
        let simulation = Simulation::new(&scenario, Options::default());
        let mut simulation = simulation.expect("a simulation");
        assert!(!simulation.advance(60_000_000_000), "it does not end");
        simulation.result()
    };
    let (island, dp) = (run("island"), run("dp"));
    let found = dp.vms[1].demand.as_ref().expect("the liar is tracked");
    assert!(found.tracked_faults > 1000 && found.curve.is_some());
    let liars = orders(&dp, 1);
    // It has filled its memory by then.
    assert!(!liars.is_empty() && liars[0].0 < 20.0, "{liars:?}");
    let ops = |run: &RunResult| run.vms[0].ops_per_s;
    let part = ops(&dp) / ops(&island);
    assert!(part >= 1.0 / 1.05, "{part}");
}

#[test]
fn a_recorded_run_under_dp_is_replayed_to_the_byte() {
    use terrace_core::session::replay::replay;
    use terrace_proto::log::{Record, Start, frame, header};
    use terrace_proto::{Action, Tick};

    let scenario = beside_a_liar("dp", 12);
    let simulation = Simulation::recorded(&scenario, Options::default());
    let mut simulation = simulation.expect("a simulation");
    while simulation.advance(u64::MAX) {}
    let result = simulation.result();
    let by_curve = (0..2).flat_map(|vm| orders(&result, vm));
    let by_curve = by_curve.filter(|(_, why)| why.contains("working set"));
    assert!(
        by_curve.count() > 0,
        "{:?} {:?}",
        orders(&result, 0),
        orders(&result, 1)
    );
    let start = Record::Start(Start {
        version: "test".into(),
        config: serde_json::to_string(simulation.engine().config()).expect("JSON"),
    });
    let log = simulation.take_log();
    let ordered =
        |(_, record): &&(Tick, Record)| matches!(record, Record::Action(Action::Resize(_)));
    // The first two are for the sizes to begin with.
    assert!(log.iter().filter(ordered).count() > 2);
    let mut bytes = header();
    for (at, record) in std::iter::once((Tick(0), start)).chain(log) {
        bytes.extend(frame(at, &record).expect("short enough"));
    }
    let replayed = replay(&bytes[..]).expect("the same actions");
    assert!(replayed.actions > 1000, "{replayed:?}");
}

#[test]
fn too_little_for_all_loses_no_more_time_than_fixed_sizes() {
    let work = |gib: &str, mops: u32| {
        format!(
            "{{ kind = \"hotset\", size = \"{gib}GiB\", hot = 0.5, hot_access = 0.9, ops = {} }}",
            mops * 1_000_000
        )
    };
    // The first one lends what it needs itself half a minute later.
    let late = phases(&[hotset("1", 30), work("5", 20)]);
    let loads = [late, work("6", 20), work("8", 4)];
    let loads: Vec<(&str, &str)> = loads.iter().map(|load| (load.as_str(), PLAIN)).collect();
    let lost = |share| {
        let run = together(share, 64, &loads);
        let moved = (0..run.vms.len()).map(|vm| orders(&run, vm).len());
        let moved: usize = moved.sum();
        assert_eq!(moved > 0, share != "island", "{moved} orders");
        let waited = run.vms.iter().map(|vm| vm.memory_wait_s);
        let ran = run.vms.iter().map(|vm| vm.runtime_s);
        [waited.sum::<f64>(), ran.sum()]
    };
    let (island, dp) = (lost("island"), lost("dp"));
    // The time that vCPUs waited for memory, and what it cost them.
    for (island, dp) in island.into_iter().zip(dp) {
        assert!(dp <= 1.02 * island, "{dp} s lost, {island} s without");
    }
}

#[test]
fn a_tier_too_small_for_what_vms_may_have_is_refused() {
    let text = "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 64\n[host]\nshare = \"dp\"\n[[vm]]\nname = \"a\"\n\
                fast = \"2GiB\"\nslow = \"2GiB\"\nswap = \"8GiB\"\npolicy = \"first-touch\"\nprovision = \"balloon\"\n\
                workload = { kind = \"hotset\", size = \"1GiB\", hot = 0.5, duration = \"1s\" }\n";
    let error = Scenario::parse(text, "test", Path::new("/s")).expect_err("2 GiB of DRAM");
    let error = error.to_string();
    assert!(
        error.contains("\"dram\" has 2GiB") && error.contains("4GiB"),
        "{error}"
    );
}

/// A VM of 400 and 900 MiB that accesses 1.7 GB evenly, on a host that has more.
fn trades(share: &str) -> RunResult {
    let text = format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"2GiB\", \"8GiB\"]\nscale = 64\nvcpus_per_vm = 1\n\
         cache = \"none\"\n[host]\nshare = \"{share}\"\nprice_ratio = 4\n[[vm]]\nname = \"mcf\"\nfast = \"400MiB\"\n\
         slow = \"900MiB\"\nswap = \"4GiB\"\npolicy = \"first-touch\"\nprovision = {{ by = \"hyperflex\", nodes = \
         [\"512MiB\", \"2GiB\"] }}\nmemory_ceiling = \"2GiB\"\n\
         workload = {{ kind = \"hotset\", size = \"1700MiB\", hot = 0.5, hot_access = 0.5, duration = \"90s\" }}\n"
    );
    let scenario = Scenario::parse(&text, "test", Path::new("/s"));
    let scenario = scenario.unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("a simulation");
    simulation.advance(100_000_000_000);
    simulation.result()
}

#[test]
fn a_vm_pays_for_slow_memory_with_fast_and_faults_less() {
    let (island, trade) = (trades("island"), trades("trade"));
    let of = |run: &RunResult| {
        run.vms[0]
            .provision
            .as_ref()
            .expect("a device")
            .given_bytes
            .clone()
    };
    let (before, after) = (of(&island), of(&trade));
    assert!(after[0] < before[0] && after[1] > before[1], "{after:?}");
    let cost = |sizes: &[u64]| sizes[0] * 4 + sizes[1];
    assert!(cost(&after) <= cost(&before), "{after:?} for {before:?}");
    assert!(
        trade.vms[0].major_faults * 2 < island.vms[0].major_faults,
        "{} of {}",
        trade.vms[0].major_faults,
        island.vms[0].major_faults
    );
    assert!(trade.vms[0].ops_per_s > 1.2 * island.vms[0].ops_per_s);
}

#[test]
fn fair_slows_the_slowest_down_less_than_fixed_sizes_do() {
    let slowest = |run: &RunResult, best: &RunResult| {
        let of = |(run, best): (&VmResult, &VmResult)| best.ops_per_s / run.ops_per_s;
        let all = run.vms.iter().zip(&best.vms).map(of);
        all.fold(0.0, f64::max)
    };
    let loads = [hotset("5", 60), hotset("1", 60)];
    let vms: Vec<(&str, &str)> = loads.iter().map(|load| (load.as_str(), PLAIN)).collect();
    let of = |share| together(share, 64, &vms);
    let (island, fair) = (of("island"), of("fair"));
    assert!(
        slowest(&fair, &island) < 1.05,
        "{}",
        slowest(&fair, &island)
    );
    assert!(fair.vms[0].ops_per_s > 1.2 * island.vms[0].ops_per_s);
}

/// A host of which two VMs want more than the idle third one can lend: the first one waits most of the time, the second one computes. `dp`
/// shares by weight, as both swap; `fair` gives to whom it slows down most.
#[test]
fn fair_gives_the_slowest_more_than_dp_does() {
    let calm = "{ kind = \"hotset\", size = \"14GiB\", hot = 0.5, hot_access = 0.9, compute_ns = 300000, duration = \"150s\" }";
    let loads = [hotset("7", 150), calm.into(), hotset("1", 150)];
    let vms: Vec<(&str, &str)> = loads.iter().map(|load| (load.as_str(), PLAIN)).collect();
    let of = |share| together(share, 64, &vms);
    let (dp, fair) = (of("dp"), of("fair"));
    let has = |run: &RunResult, vm: usize| {
        let device = run.vms[vm].provision.as_ref().expect("a device");
        device.given_bytes.iter().sum::<u64>()
    };
    // Both grew, and they are short still.
    for run in [&dp, &fair] {
        assert!((0..2).all(|vm| has(run, vm) > 4 << 30), "{:?}", run.vms);
        assert!(has(run, 0) < 7 << 30);
    }
    let more = has(&fair, 0).saturating_sub(has(&dp, 0));
    assert!(more >= 128 << 20, "{more}");
    let faster = fair.vms[0].ops_per_s / dp.vms[0].ops_per_s;
    assert!(faster > 1.05, "{faster}");
    // The other one does not pay for it.
    assert!(fair.vms[1].ops_per_s * 1.05 >= dp.vms[1].ops_per_s);
}
