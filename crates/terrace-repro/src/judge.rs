//! Policies judged over several scenarios: how far each goes from `first-touch` to `static-best`, in each and in all together.
//!
//! Responsible for: the runs of one scenario, and sums over all. It leaves to others: the runs themselves ([`crate::compare`]), and printing.

use serde::Serialize;
use terrace_sim::{Fault, Options, RunError, RunResult, Scenario, number::float};

use crate::compare::way::{ENDS, slowdown};
use crate::compare::{Control, Plan};

/// The result of a policy in a scenario.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The scenario's name.
    pub scenario: String,
    /// Bytes of the first tier of all its VMs.
    pub fast_bytes: u64,
    /// Seed of all random streams.
    pub seed: u64,
    /// The policy.
    pub policy: String,
    /// Run time against all memory in the first tier, the VMs' geometric mean.
    pub slowdown: f64,
    /// The part of the way from `first-touch` to `static-best`; none if the two are alike.
    pub way: Option<f64>,
    /// Bytes that were promoted.
    pub promoted_bytes: u64,
    /// Time of tracking, percent of the vCPUs' time.
    pub track_percent: f64,
    /// The engine's state, bytes a page of 4 KiB.
    pub state_bytes_per_page: f64,
}

/// The part of the way that a policy goes in all scenarios together: the sum of what it gains over the sum of what `static-best` gains, in
/// slowdowns.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sum {
    /// Seed.
    pub seed: u64,
    /// The policy.
    pub policy: String,
    /// The part of the way.
    pub way: f64,
    /// Bytes that were promoted.
    pub promoted_bytes: u64,
}

/// A scenario with its first tier so many times as large.
///
/// # Errors
/// If the size does not suit the scenario.
pub fn sized(scenario: &Scenario, times: u32) -> Result<Scenario, RunError> {
    let fast = scenario.vms.iter().filter_map(|vm| vm.sizes.first());
    let fast = fast.max().copied().unwrap_or(0);
    let wrong = |fault: Fault| RunError(format!("{}: {fault}", scenario.name));
    match times {
        1 => Ok(scenario.clone()),
        _ => scenario
            .with_fast(fast.saturating_mul(times.into()))
            .map_err(wrong),
    }
}

/// Runs a scenario under each policy, and under both ends of the way. None if the end was asked for meanwhile.
///
/// # Errors
/// If a policy is unknown, or does not suit the scenario, or a run fails.
pub fn judge(
    scenario: &Scenario,
    policies: &[String],
    control: &Control,
) -> Result<Option<Vec<Verdict>>, RunError> {
    let mut all: Vec<String> = ENDS.map(str::to_owned).into();
    all.extend(
        policies
            .iter()
            .filter(|p| !ENDS.contains(&p.as_str()))
            .cloned(),
    );
    let finished = Plan::compare(scenario, &all, None)?.run(Options::default(), control)?;
    if finished.runs.len() < finished.wanted {
        return Ok(None);
    }
    let runs = finished.runs.iter().map(|run| &run.result);
    let verdicts = runs.map(|run| verdict(scenario, run));
    verdicts.collect::<Option<_>>().map(Some).ok_or_else(|| {
        RunError(format!(
            "{}: a run has no time to compare: give its loads ops or a longer duration",
            scenario.name
        ))
    })
}

fn verdict(scenario: &Scenario, run: &RunResult) -> Option<Verdict> {
    let vcpu_s = run.vms.iter().zip(&scenario.vms);
    let vcpu_s: f64 = vcpu_s
        .map(|(vm, of)| vm.runtime_s * f64::from(of.vcpus))
        .sum();
    let track_s: f64 = run.vms.iter().map(|vm| vm.overhead_s.track).sum();
    let promoted: u64 = run.vms.iter().map(|vm| vm.promoted_pages).sum();
    let fast = scenario.vms.iter().filter_map(|vm| vm.sizes.first());
    Some(Verdict {
        scenario: scenario.name.clone(),
        fast_bytes: fast.sum(),
        seed: run.seed,
        policy: run.policy.clone(),
        slowdown: slowdown(run)?,
        way: run.way.and_then(|way| way.0),
        promoted_bytes: promoted * terrace_proto::PAGE_SIZE,
        track_percent: 100.0 * track_s / vcpu_s.max(f64::MIN_POSITIVE),
        state_bytes_per_page: run.state_bytes_per_page,
    })
}

/// The sums of each policy and seed, in the order in which they come.
#[must_use]
pub fn sums(verdicts: &[Verdict]) -> Vec<Sum> {
    let mut sums: Vec<(Sum, f64, f64)> = Vec::new();
    // A scenario's verdicts follow each other, and name the ends once.
    let same = |a: &Verdict, b: &Verdict| {
        (&a.scenario, a.fast_bytes, a.seed) == (&b.scenario, b.fast_bytes, b.seed)
    };
    for of_one in verdicts.chunk_by(same) {
        let end = |name: &str| of_one.iter().find(|verdict| verdict.policy == name);
        let [Some(first), Some(best)] = ENDS.map(end) else {
            continue;
        };
        for verdict in of_one {
            let gained = first.slowdown - verdict.slowdown;
            let gap = first.slowdown - best.slowdown;
            let key = (verdict.seed, &verdict.policy);
            let known = sums
                .iter_mut()
                .find(|(sum, ..)| (sum.seed, &sum.policy) == key);
            match known {
                Some((sum, gains, gaps)) => {
                    sum.promoted_bytes += verdict.promoted_bytes;
                    (*gains, *gaps) = (*gains + gained, *gaps + gap);
                }
                None => {
                    let sum = Sum {
                        seed: verdict.seed,
                        policy: verdict.policy.clone(),
                        way: 0.0,
                        promoted_bytes: verdict.promoted_bytes,
                    };
                    sums.push((sum, gained, gap));
                }
            }
        }
    }
    let end = |(sum, gains, gaps): (Sum, f64, f64)| Sum {
        way: if gaps > 0.0 { gains / gaps } else { float(0) },
        ..sum
    };
    sums.into_iter().map(end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(scenario: &str, policy: &str, slowdown: f64) -> Verdict {
        Verdict {
            scenario: scenario.into(),
            fast_bytes: 1,
            seed: 1,
            policy: policy.into(),
            slowdown,
            way: None,
            promoted_bytes: 5,
            track_percent: 0.0,
            state_bytes_per_page: 0.0,
        }
    }

    #[test]
    fn a_sum_weighs_scenarios_by_what_there_is_to_gain() {
        let [first, best] = ENDS;
        let verdicts = [
            verdict("wide", first, 3.0),
            verdict("wide", best, 1.0),
            verdict("wide", "own", 1.5),
            verdict("narrow", first, 1.5),
            verdict("narrow", best, 1.0),
            verdict("narrow", "own", 1.5),
        ];
        let sums = sums(&verdicts);
        let ways: Vec<(&str, f64)> = sums.iter().map(|s| (s.policy.as_str(), s.way)).collect();
        assert_eq!(ways, [(first, 0.0), (best, 1.0), ("own", 0.6)]);
        assert_eq!(sums[2].promoted_bytes, 10);
    }

    #[test]
    fn scenarios_with_nothing_to_gain_sum_up_to_no_way() {
        let [first, best] = ENDS;
        let verdicts = [
            verdict("flat", first, 1.0),
            verdict("flat", best, 1.0),
            verdict("flat", "own", 1.1),
        ];
        assert!(sums(&verdicts).iter().all(|sum| sum.way == 0.0));
        assert_eq!(sums(&verdicts[1..]), []);
    }
}
