//! Tests of [`super`], with runs that do nothing but say what they were asked.

use std::path::Path;
use std::sync::Mutex;

use terrace_sim::VmResult;

use super::*;

const TWO: &str = r#"[machine]
tiers = ["dram", "pmem"]
sizes = ["20GiB", "64GiB"]
[[vm]]
name = "a"
fast = "8GiB"
slow = "24GiB"
policy = "random"
workload = { kind = "hotset", size = "16GiB", hot = 0.2, hot_access = 0.9, write = 0.5, duration = "60s" }
[[vm]]
name = "b"
fast = "8GiB"
slow = "16GiB"
policy = "all-fast"
workload = { kind = "hotset", size = "16GiB", hot = 0.2, hot_access = 0.9, write = 0.5, ops = 1000000 }
"#;

fn scenario() -> Scenario {
    Scenario::parse(TWO, "two", Path::new("")).unwrap()
}

fn names(policies: &[&str]) -> Vec<String> {
    policies.iter().map(|p| (*p).to_owned()).collect()
}

/// A run's output: under `all-fast` both VMs take 10 s and give 100 operations a second, else 15 s and 50.
fn output(scenario: &Scenario) -> Output {
    let fast = scenario
        .vms
        .iter()
        .all(|vm| vm.policy == HostPolicy::AllFast);
    let (runtime_s, ops_per_s) = if fast { (10.0, 100.0) } else { (15.0, 50.0) };
    let vm = |name: &str| VmResult {
        name: name.into(),
        runtime_s,
        ops_per_s,
        cost: Some(if fast { 16.0 } else { 12.0 }),
        ..VmResult::default()
    };
    Output {
        result: RunResult {
            scenario: scenario.name.clone(),
            seed: scenario.seed,
            policy: "its own".into(),
            vms: scenario.vms.iter().map(|v| vm(&v.name)).collect(),
            ..RunResult::default()
        },
        timeline: terrace_sim::Timeline::default(),
    }
}

fn with_control<T>(threads: usize, cancelled: &AtomicBool, run: impl Fn(&Control) -> T) -> T {
    run(&Control {
        threads: NonZeroUsize::new(threads).unwrap(),
        on_progress: &|_| {},
        cancelled,
    })
}

#[test]
fn a_sweep_doubles_unless_a_step_is_given() {
    let values = |text: &str| FastSweep::from_str(text).unwrap().values;
    assert_eq!(values("fast=1GiB..5GiB"), [1 << 30, 2 << 30, 4 << 30]);
    assert_eq!(values("fast=1GiB..3GiB:1GiB"), [1 << 30, 2 << 30, 3 << 30]);
    assert_eq!(values("fast=1GiB..1GiB"), [1 << 30]);
    // The next value would not fit 64 bits.
    assert_eq!(values("fast=16777215TiB..16777215TiB").len(), 1);
}

#[test]
fn a_sweep_that_has_no_values_or_too_many_is_refused() {
    let refused = |text: &str| FastSweep::from_str(text).unwrap_err();
    for text in ["", "fast", "fast=1GiB", "slow=1GiB..2GiB"] {
        assert!(refused(text).contains("is no sweep"), "{text}");
    }
    for text in ["fast=2GiB..1GiB", "fast=0B..1GiB", "fast=1GiB..2GiB:0B"] {
        assert!(refused(text).contains("has no values"), "{text}");
    }
    assert!(refused("fast=1GiB..x").contains("is not a size"));
    assert!(refused("fast=1B..1GiB:1B").contains("more than 1000"));
}

#[test]
fn each_sweep_point_has_one_reference_and_all_fast_is_its_own() {
    let sweep = FastSweep::from_str("fast=4GiB..8GiB").unwrap();
    let plan = Plan::compare(&scenario(), &names(&["vtmm", "oracle"]), Some(&sweep)).unwrap();
    let references: Vec<_> = plan.jobs.iter().map(|j| (j.wanted, j.reference)).collect();
    let expected = [
        (false, 0),
        (true, 0),
        (true, 0),
        (false, 3),
        (true, 3),
        (true, 3),
    ];
    assert_eq!(references, expected);
    let plan = Plan::compare(&scenario(), &names(&["vtmm", "all-fast"]), None).unwrap();
    let references: Vec<_> = plan.jobs.iter().map(|j| (j.wanted, j.reference)).collect();
    assert_eq!(references, [(true, 1), (true, 1)]);
}

#[test]
fn a_sweep_keeps_each_vms_memory_and_the_machines_excess() {
    let swept = scenario().with_fast(4 << 30).unwrap();
    let sizes: Vec<_> = swept.vms.iter().map(|vm| vm.sizes.clone()).collect();
    assert_eq!(sizes, [[4 << 30, 28 << 30], [4 << 30, 20 << 30]]);
    let tiers: Vec<_> = swept.machine.tiers.iter().map(|t| t.bytes).collect();
    assert_eq!(
        tiers,
        [12 << 30, 72 << 30],
        "20 - 2 x 4 GiB, 64 + 2 x 4 GiB"
    );
}

#[test]
fn a_sweep_that_does_not_suit_the_scenario_is_refused() {
    let refused = |text: &str| {
        let sweep = FastSweep::from_str(text).unwrap();
        let plan = Plan::compare(&scenario(), &names(&["vtmm"]), Some(&sweep));
        plan.unwrap_err().to_string()
    };
    let error = refused("fast=8GiB..32GiB");
    assert!(
        error.contains("fast=32GiB: vm.fast: VM \"b\" has 24GiB"),
        "{error}"
    );
    let error = refused("fast=4097B..5000B");
    assert!(error.contains("no whole number of pages"), "{error}");
}

#[test]
fn each_rule_of_sharing_is_run_at_each_size() {
    let shares = names(&["island", "pool"]);
    let sweep = "fast=1GiB..2GiB".parse().unwrap();
    let plan = Plan::over_shares(&scenario(), &names(&["vtmm"]), &shares, Some(&sweep)).unwrap();
    let wanted = plan.jobs.iter().filter(|job| job.wanted);
    let places = wanted.map(|job| {
        let sweep = job.place.sweep.as_ref().unwrap();
        let of = &job.scenario;
        assert_eq!(job.place.share.as_deref(), Some(of.host.share.name()));
        (of.host.share.name(), sweep.bytes >> 30)
    });
    assert_eq!(
        places.collect::<Vec<_>>(),
        [("island", 1), ("island", 2), ("pool", 1), ("pool", 2)]
    );
}

#[test]
fn each_rule_of_sharing_has_its_runs_which_say_so() {
    let shares = names(&["island", "pool"]);
    let plan = Plan::over_shares(&scenario(), &names(&["vtmm", "random"]), &shares, None).unwrap();
    let finished = with_control(2, &AtomicBool::new(false), |control| {
        plan.run_by(control, |job, _| Ok(Some(output(&job.scenario))))
            .unwrap()
    });
    let of = |run: &Output| (run.result.share.clone().unwrap(), run.result.policy.clone());
    let runs: Vec<_> = finished.runs.iter().map(of).collect();
    let expected = [
        ("island", "vtmm"),
        ("island", "random"),
        ("pool", "vtmm"),
        ("pool", "random"),
    ];
    assert_eq!(runs, expected.map(|(a, b)| (a.to_owned(), b.to_owned())));
    let rules = plan.jobs.iter().filter(|job| job.wanted);
    let rules: Vec<_> = rules.map(|job| job.scenario.host.share.name()).collect();
    assert_eq!(rules, ["island", "island", "pool", "pool"]);
    let error = Plan::over_shares(&scenario(), &names(&["vtmm"]), &names(&["none"]), None);
    let error = error.unwrap_err();
    assert!(
        error.to_string().contains("cannot be simulated: allowed"),
        "{error}"
    );
}

#[test]
fn a_policy_goes_over_those_of_all_vms_and_is_told_as_given() {
    let plan = Plan::compare(&scenario(), &names(&["vtmm@host"]), None).unwrap();
    let finished = with_control(2, &AtomicBool::new(false), |control| {
        plan.run_by(control, |job, _| Ok(Some(output(&job.scenario))))
            .unwrap()
    });
    assert_eq!(finished.runs[0].result.policy, "vtmm@host");
    let policies = plan.jobs[1].scenario.vms.iter().map(|vm| &vm.policy);
    for policy in policies {
        assert!(matches!(policy, HostPolicy::Engine(name, _) if name == "vtmm@host"));
    }
    let error = Plan::compare(&scenario(), &names(&["gpac@guest"]), None).unwrap_err();
    assert!(error.to_string().contains("in the guest"), "{error}");
}

#[test]
fn slowdown_is_of_run_times_or_of_inverse_rates() {
    let plan = Plan::single(&scenario(), None).unwrap();
    let finished = with_control(1, &AtomicBool::new(false), |control| {
        plan.run_by(control, |job, _| Ok(Some(output(&job.scenario))))
            .unwrap()
    });
    assert_eq!((finished.wanted, finished.runs.len()), (1, 1));
    let result = &finished.runs[0].result;
    assert_eq!(result.policy, "its own");
    let slowdowns: Vec<_> = result
        .vms
        .iter()
        .map(|vm| vm.slowdown_vs_all_fast)
        .collect();
    assert_eq!(slowdowns, [Some(2.0), Some(1.5)]);
}

#[test]
fn phases_that_end_by_the_clock_are_compared_by_rates() {
    let hotset = r#"kind = "hotset", size = "8GiB", hot = 0.2, hot_access = 0.9, write = 0.5"#;
    let slowdown = |first: &str, second: &str| {
        let load =
            format!("kind = \"phases\", of = [{{ {hotset}, {first} }}, {{ {hotset}, {second} }}]");
        let text = TWO.replace(
            r#"kind = "hotset", size = "16GiB", hot = 0.2, hot_access = 0.9, write = 0.5, ops = 1000000"#,
            &load,
        );
        let scenario = Scenario::parse(&text, "phases", Path::new("")).unwrap();
        let plan = Plan::single(&scenario, None).unwrap();
        let finished = with_control(1, &AtomicBool::new(false), |control| {
            plan.run_by(control, |job, _| Ok(Some(output(&job.scenario))))
                .unwrap()
        });
        finished.runs[0].result.vms[1].slowdown_vs_all_fast
    };
    assert_eq!(slowdown("ops = 1000000", "ops = 1000000"), Some(1.5));
    assert_eq!(slowdown("ops = 1000000", "duration = \"6s\""), Some(2.0));
}

#[test]
fn performance_per_cost_is_slowdown_and_cost_over_the_reference() {
    let finished = |cost: Option<f64>| {
        let plan = Plan::single(&scenario(), None).unwrap();
        let run = |job: &Job, _: &dyn Fn(f64) -> bool| {
            let mut output = output(&job.scenario);
            if job.wanted {
                output.result.vms[1].cost = cost;
            }
            Ok(Some(output))
        };
        with_control(1, &AtomicBool::new(false), |control| {
            plan.run_by(control, run).unwrap()
        })
    };
    let per_cost = |cost: Option<f64>| {
        let finished = finished(cost);
        let vms = finished.runs[0].result.vms.iter();
        vms.map(|vm| vm.performance_per_cost).collect::<Vec<_>>()
    };
    // Half as fast for three quarters of the money; two thirds for a half.
    let expected = [Some(16.0 / 12.0 / 2.0), Some(16.0 / 8.0 / 1.5)];
    assert_eq!(per_cost(Some(8.0)), expected);
    assert_eq!(per_cost(None), [expected[0], None]);
    assert_eq!(per_cost(Some(0.0)), [expected[0], None], "no number");
}

#[test]
fn results_come_in_the_plans_order_whatever_ends_first() {
    let policies = names(&["vtmm", "random", "oracle", "first-touch"]);
    let plan = Plan::compare(&scenario(), &policies, None).unwrap();
    let order = |threads| {
        let finished = with_control(threads, &AtomicBool::new(false), |control| {
            plan.run_by(control, |job, _| {
                // The earlier in the plan, the later it ends.
                let place = policies.iter().position(|p| Some(p) == job.policy.as_ref());
                let wait = 4 - place.unwrap_or(4);
                std::thread::sleep(std::time::Duration::from_millis(
                    5 * u64::try_from(wait).unwrap(),
                ));
                Ok(Some(output(&job.scenario)))
            })
            .unwrap()
        });
        let runs = finished.runs.into_iter();
        runs.map(|run| run.result.policy).collect::<Vec<_>>()
    };
    let expected = names(&["vtmm", "random", "oracle", "first-touch", "static-best"]);
    assert_eq!(order(5), expected);
    assert_eq!(order(1), expected);
}

#[test]
fn static_best_runs_beside_first_touch_once() {
    let jobs = |policies: &[&str]| {
        Plan::compare(&scenario(), &names(policies), None)
            .unwrap()
            .wanted()
    };
    assert_eq!(jobs(&["first-touch"]), 2);
    assert_eq!(jobs(&["static-best", "first-touch"]), 2);
    assert_eq!(jobs(&["vtmm", "oracle"]), 2);
    assert_eq!(
        Plan::single(&scenario(), Some("first-touch"))
            .unwrap()
            .wanted(),
        1
    );
}

#[test]
fn a_bound_that_does_not_suit_a_scenario_is_left_out() {
    let text = "[machine]\ntiers = [\"dram\", \"pmem\"]\nsizes = [\"8GiB\", \"32GiB\"]\nscale = 64\n[[vm]]\nname = \"a\"\n\
                fast = \"2GiB\"\nslow = \"2GiB\"\nswap = \"8GiB\"\npolicy = \"first-touch\"\nprovision = \"balloon\"\n\
                workload = { kind = \"hotset\", size = \"1GiB\", hot = 0.5, duration = \"1s\" }\n";
    let scenario = Scenario::parse(text, "test", std::path::Path::new("/s")).unwrap();
    let shares = names(&["island", "dp", "fair"]);
    let plan = Plan::over_shares(&scenario, &names(&["first-touch"]), &shares, None).unwrap();
    assert_eq!(plan.wanted(), 3);
    let error = Plan::compare(&scenario, &names(&["static-best"]), None).unwrap_err();
    assert!(error.to_string().contains("static-best"), "{error}");
}

#[test]
fn an_interruption_keeps_what_is_finished() {
    let plan = Plan::compare(&scenario(), &names(&["vtmm", "random", "oracle"]), None).unwrap();
    let cancelled = AtomicBool::new(false);
    let finished = with_control(1, &cancelled, |control| {
        plan.run_by(control, |job, report| {
            if job.policy.as_deref() == Some("random") {
                cancelled.store(true, Ordering::Relaxed);
            }
            Ok(report(0.5).then(|| output(&job.scenario)))
        })
        .unwrap()
    });
    assert_eq!((finished.wanted, finished.runs.len()), (3, 1));
    let vm = &finished.runs[0].result.vms[0];
    assert_eq!(
        vm.slowdown_vs_all_fast,
        Some(2.0),
        "its reference was finished"
    );
}

#[test]
fn a_run_that_fails_ends_the_others_and_is_told() {
    let plan = Plan::compare(&scenario(), &names(&["vtmm", "random", "oracle"]), None).unwrap();
    let seen = Mutex::new(Vec::new());
    let error = with_control(1, &AtomicBool::new(false), |control| {
        plan.run_by(control, |job, _| {
            seen.lock().unwrap().push(job.policy.clone());
            match job.policy.as_deref() {
                Some("vtmm") => Err(RunError("no".into())),
                _ => Ok(Some(output(&job.scenario))),
            }
        })
        .unwrap_err()
    });
    assert_eq!(error.to_string(), "no");
    assert_eq!(seen.into_inner().unwrap(), [None, Some("vtmm".to_owned())]);
}

#[test]
fn progress_rises_to_the_end() {
    let plan = Plan::single(&scenario(), None).unwrap();
    let seen = Mutex::new(Vec::new());
    let control = Control {
        threads: NonZeroUsize::MIN,
        on_progress: &|p| seen.lock().unwrap().push((p.finished, p.done)),
        cancelled: &AtomicBool::new(false),
    };
    let finished = plan.run_by(&control, |job, report| {
        report(0.5);
        Ok(Some(output(&job.scenario)))
    });
    finished.unwrap();
    let expected = [(0, 0.25), (1, 0.5), (1, 0.75), (2, 1.0)];
    assert_eq!(seen.into_inner().unwrap(), expected);
}
