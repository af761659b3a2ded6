//! The demand of simulated VMs by protection faults (`hpmbs`).

use std::collections::BTreeSet;
use std::path::Path;

use terrace_sim::{Demand, Options, RunResult, Scenario, Simulation};

/// All of 4 GiB alike. Each access is the only one of the program: ratios are per access.
const UNIFORM: &str = r#"kind = "hotset", size = "4GiB", hot = 1.0, hot_access = 1.0, write = 0.5, compute_ns = 0, duration = "3s""#;

/// A machine with a VM of 8 GiB in pages of 2 MiB at scale 4, all of it tracked all the time.
fn text(engine: &str, vm: &str, load: &str) -> String {
    format!(
        "[machine]\ntiers = [\"dram\", \"pmem\"]\nscale = 4\nvcpus_per_vm = 2\n[engine.demand]\n{engine}\n\
         [[vm]]\nname = \"a\"\nfast = \"4GiB\"\nslow = \"4GiB\"\npage = \"2MiB\"\npolicy = \"hpmbs\"\n{vm}\n\
         workload = {{ {load} }}\n"
    )
}

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse(text, "demand", Path::new("/s")).map_err(|error| error.to_string())
}

fn run(text: &str) -> RunResult {
    let scenario = parse(text).unwrap_or_else(|error| panic!("{error}"));
    let mut simulation = Simulation::new(&scenario, Options::default()).expect("it fits");
    while simulation.advance(u64::MAX) {}
    simulation.result()
}

fn demand(result: &RunResult) -> &Demand {
    result.vms[0].demand.as_ref().expect("it is tracked")
}

const ALWAYS: &str = "track = \"always\"\nmax_tracking_percent = 100";

#[test]
fn uniform_accesses_are_found_with_their_size_and_their_curve() {
    let result = run(&text(
        &format!("{ALWAYS}\nresize_hot_set = false"),
        "",
        UNIFORM,
    ));
    let found = demand(&result);
    let curve = found.curve.as_ref().expect("a curve");
    assert_eq!(curve.source, "restored");
    assert!(found.tracked_faults > 100_000, "{}", found.tracked_faults);
    // 2,048 pages, all alike: of the accesses to them, as many miss as pages do not fit.
    let last = curve.points.last().expect("points");
    assert!((1990..=2048).contains(&last.pages), "{last:?}");
    for point in curve
        .points
        .iter()
        .filter(|p| p.bytes >= curve.guess_below_bytes)
    {
        let wanted = 1.0 - point.bytes as f64 / (4_u64 << 30) as f64;
        assert!(
            (point.miss_ratio - wanted).abs() < 0.01,
            "{point:?}, not {wanted}"
        );
    }
    assert!(curve.points.len() <= 256);
    let set = found.working_sets.last().expect("seconds");
    let off = |bytes: u64, share: f64| (bytes as f64 / (4_u64 << 30) as f64 - share).abs();
    assert!(
        off(set.bytes_99, 0.99) < 0.02 && off(set.footprint_bytes, 1.0) < 0.02,
        "{set:?}"
    );
    assert_eq!(set.demand_bytes, set.bytes_99);
    // A fault costs an exit; the hot set of 62 of 512 blocks lets nearly each access fault.
    assert!(result.vms[0].vm_exits >= found.tracked_faults);
    assert!(result.vms[0].overhead_s.track > 0.1);
}

#[test]
fn a_run_is_a_function_of_its_scenario() {
    let text = text("track = \"always\"", "", UNIFORM);
    let [one, two] = [(); 2].map(|()| run(&text));
    assert_eq!(one, two);
    assert!(demand(&one).tracked_faults > 0);
}

#[test]
fn tracking_rests_where_the_largest_hot_set_costs_too_much() {
    let fixed = "track = \"always\"\nresize_hot_set = false\nmax_tracking_percent";
    let rested = run(&text(&format!("{fixed} = 5"), "", UNIFORM));
    let never = run(&text(&format!("{fixed} = 100"), "", UNIFORM));
    let [rested, never] = [rested, never].map(|result| result.vms[0].clone());
    let (found, all) = (
        rested.demand.expect("tracked"),
        never.demand.expect("tracked"),
    );
    assert!(
        found.rests > 0 && found.rest_s > 1.0 && all.rests == 0,
        "{found:?}"
    );
    assert!(all.tracked_faults > 2 * found.tracked_faults);
    assert_eq!((&found.tracking[..], &all.tracking[..]), ("resting", "on"));
    let outlives = |cautions: Vec<&str>| cautions.iter().any(|c| c.starts_with("the last rest"));
    assert!(outlives(found.cautions()) && !outlives(all.cautions()));
    assert!(rested.ops_per_s > 1.5 * never.ops_per_s);
}

#[test]
fn the_hot_set_grows_where_faults_are_frequent() {
    let growing = run(&text(
        "track = \"always\"\nmax_tracking_percent = 100",
        "",
        UNIFORM,
    ));
    let found = demand(&growing);
    // At most half of the load's memory, unless a key says more.
    assert_eq!(found.largest_hot_set_bytes, 2 << 30);
    let whole = run(&text(
        &format!("{ALWAYS}\nmax_hot_set_percent = 100"),
        "",
        UNIFORM,
    ));
    assert!(demand(&whole).largest_hot_set_bytes > 3 << 30);
    assert!(2 * demand(&whole).tracked_faults < found.tracked_faults);
}

/// 2 GiB, then more than the VM has; pages of 4 KiB, so that single ones can be swapped.
fn two_phases() -> String {
    let load = r#"kind = "phases", fresh = true, of = [
        { kind = "hotset", size = "2GiB", hot = 1.0, hot_access = 1.0, write = 0.5, duration = "5s" },
        { kind = "hotset", size = "9GiB", hot = 1.0, hot_access = 1.0, write = 0.5, duration = "9s" } ]"#;
    let text = text("max_tracking_percent = 100", "swap = \"4GiB\"", load);
    text.replace("2MiB", "4KiB").replace("\n        ", " ")
}

#[test]
fn a_phase_of_a_short_vm_is_tracked_until_it_is_stable() {
    let result = run(&two_phases());
    let found = demand(&result);
    let began: Vec<f64> = found
        .phases
        .iter()
        .filter(|p| p.change == "began")
        .map(|p| p.at_s)
        .collect();
    assert!(
        began.iter().any(|at| (5.0..7.0).contains(at)),
        "{:?}",
        found.phases
    );
    let sets = found.working_sets.iter();
    let tracked: Vec<f64> = sets
        .filter(|set| set.tracked_faults > 0)
        .map(|set| set.at_s)
        .collect();
    let stable = found.phases.last().expect("it is stable in the end");
    assert_eq!(stable.change, "stable");
    assert!(tracked.len() > 3, "{tracked:?}");
    assert!(
        tracked
            .iter()
            .all(|at| *at > 5.0 && *at < stable.at_s + 0.2),
        "{tracked:?}"
    );
    // The demand of a guest that swaps is more than it has, tracked or not.
    let last = found.working_sets.last().expect("seconds");
    assert!(last.is_swapping && last.tracked_faults == 0, "{last:?}");
    assert!(
        (8.5..9.2).contains(&(last.demand_bytes as f64 / (1_u64 << 30) as f64)),
        "{last:?}"
    );
}

#[test]
fn a_vm_with_enough_memory_is_never_tracked() {
    let load = r#"kind = "hotset", size = "4GiB", hot = 1.0, hot_access = 1.0, write = 0.5, duration = "3s""#;
    let result = run(&text("", "", load));
    let found = demand(&result);
    assert_eq!((found.tracked_faults, &found.curve), (0, &None));
    assert_eq!(found.tracking, "off");
    assert!(
        found.cautions()[0].starts_with("never tracked"),
        "{found:?}"
    );
    assert_eq!(result.vms[0].vm_exits, 0);
}

#[test]
fn a_scale_that_leaves_too_few_faults_is_refused() {
    let error = parse(&text("", "", UNIFORM).replace("scale = 4", "scale = 8"));
    let error = error.expect_err("refused");
    assert!(error.contains("the largest scale allowed is 4"), "{error}");
    let first = text("", "", UNIFORM).replace("hpmbs", "first-touch");
    assert!(
        parse(
            &first
                .replace("page = \"2MiB\"\n", "")
                .replace("scale = 4", "scale = 8")
        )
        .is_ok()
    );
}

#[test]
fn only_a_policy_that_moves_nothing_observes_protection_faults() {
    let policy = r#"policy = { base = "vtmm", observe = "protection-faults" }"#;
    let error = parse(&text("", "", UNIFORM).replace("policy = \"hpmbs\"", policy));
    assert!(
        error
            .expect_err("refused")
            .contains("place = \"exchange\" cannot rank by them")
    );
}

#[test]
fn a_vm_that_is_not_tracked_has_no_demand() {
    let result = run(&text("", "", UNIFORM).replace("hpmbs", "first-touch"));
    assert_eq!(result.vms[0].demand, None);
    let json = serde_json::to_string(&result).expect("JSON");
    assert!(!json.contains("\"demand\":"), "{json}");
}

#[test]
fn a_recorded_run_is_replayed_with_the_same_actions() {
    use terrace_core::session::replay::replay;
    use terrace_proto::Tick;
    use terrace_proto::log::{Record, Start, frame, header};

    let short = UNIFORM.replace("3s", "1s");
    let scenario = parse(&text(ALWAYS, "", &short)).expect("valid");
    let mut simulation = Simulation::recorded(&scenario, Options::default()).expect("it fits");
    while simulation.advance(u64::MAX) {}
    let start = Record::Start(Start {
        version: "test".into(),
        config: serde_json::to_string(simulation.engine().config()).expect("JSON"),
    });
    let log = simulation.take_log();
    let faulted = log.iter().filter_map(|(at, record)| match record {
        Record::Event(terrace_proto::Event::Faulted(report)) => Some((*at, report.vm)),
        _ => None,
    });
    let faulted: Vec<_> = faulted.collect();
    assert!(faulted.len() > 1000);
    let different: BTreeSet<_> = faulted.iter().collect();
    assert_eq!(
        different.len(),
        faulted.len(),
        "at most one for a VM and tick"
    );
    let mut bytes = header();
    for (at, record) in std::iter::once((Tick(0), start)).chain(log) {
        bytes.extend(frame(at, &record).expect("short enough"));
    }
    let replayed = replay(&bytes[..]).expect("the same actions");
    assert!(replayed.actions > 1000, "{replayed:?}");
}
