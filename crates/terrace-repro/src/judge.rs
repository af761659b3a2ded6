//! Policies judged over several scenarios: how far each goes from `first-touch` to `static-best`, in each and in all together.
//!
//! Responsible for: the runs of one scenario, and sums over all. It leaves to others: the runs themselves ([`crate::compare`]), and printing.

use serde::Serialize;
use terrace_sim::{Options, RunError, RunResult, Scenario};

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
    /// The part of the way from `first-touch` to `static-best`; none if the two are within 1 %, or `static-best` is the slower one.
    pub way: Option<f64>,
    /// Rounds, of the VM that has the fewest.
    pub rounds: u64,
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

/// The runs of a scenario under each policy, and under both ends of the way.
///
/// # Errors
/// If a policy is unknown, or does not suit the scenario.
pub fn plan(scenario: &Scenario, policies: &[String]) -> Result<Plan, RunError> {
    let mut all: Vec<String> = ENDS.map(str::to_owned).into();
    for policy in policies {
        if !all.contains(policy) {
            all.push(policy.clone());
        }
    }
    let wrong = |error: RunError| RunError(format!("{}: {}", scenario.name, error.0));
    Plan::compare(scenario, &all, None).map_err(wrong)
}

/// Does a scenario's runs. None if the end was asked for meanwhile.
///
/// # Errors
/// If a run fails, or has no time to compare.
pub fn judge(
    scenario: &Scenario,
    plan: &Plan,
    control: &Control,
) -> Result<Option<Vec<Verdict>>, RunError> {
    let wrong = |why: &str| RunError(format!("{}: {why}", scenario.name));
    let finished = plan.run(Options::default(), control);
    let finished = finished.map_err(|error| wrong(&error.0))?;
    if finished.runs.len() < finished.wanted {
        return Ok(None);
    }
    let runs = finished.runs.iter().map(|run| &run.result);
    let verdicts: Option<_> = runs.map(|run| verdict(scenario, run)).collect();
    let none = || wrong("a run has no time to compare: give its loads ops or a longer duration");
    verdicts.map(Some).ok_or_else(none)
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
        rounds: run.vms.iter().map(|vm| vm.rounds).min().unwrap_or(0),
        promoted_bytes: promoted * terrace_proto::PAGE_SIZE,
        track_percent: 100.0 * track_s / vcpu_s.max(f64::MIN_POSITIVE),
        state_bytes_per_page: run.state_bytes_per_page,
    })
}

/// The sums of each policy and seed, from the verdicts of each scenario, in the order in which they come. A scenario without a way counts for none.
#[must_use]
pub fn sums(judged: &[Vec<Verdict>]) -> Vec<Sum> {
    let mut sums: Vec<(Sum, f64, f64)> = Vec::new();
    for verdicts in judged {
        let end = |name: &str| verdicts.iter().find(|verdict| verdict.policy == name);
        let [Some(first), Some(best)] = ENDS.map(end) else {
            continue;
        };
        if best.way.is_none() {
            continue;
        }
        let gap = first.slowdown - best.slowdown;
        for verdict in verdicts {
            let key = (verdict.seed, &verdict.policy);
            let known = sums
                .iter()
                .position(|(sum, ..)| (sum.seed, &sum.policy) == key);
            let at = known.unwrap_or_else(|| {
                sums.push((Sum::none(verdict), 0.0, 0.0));
                sums.len() - 1
            });
            let (sum, gains, gaps) = &mut sums[at];
            sum.promoted_bytes += verdict.promoted_bytes;
            *gains += first.slowdown - verdict.slowdown;
            *gaps += gap;
        }
    }
    let end = |(sum, gains, gaps): (Sum, f64, f64)| Sum {
        way: gains / gaps,
        ..sum
    };
    sums.into_iter().map(end).collect()
}

impl Sum {
    /// A sum of nothing, of a verdict's policy and seed.
    fn none(of: &Verdict) -> Self {
        Self {
            seed: of.seed,
            policy: of.policy.clone(),
            way: 0.0,
            promoted_bytes: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(scenario: &str, policy: &str, slowdown: f64, way: Option<f64>) -> Verdict {
        Verdict {
            scenario: scenario.into(),
            fast_bytes: 1,
            seed: 1,
            policy: policy.into(),
            slowdown,
            way,
            rounds: 3,
            promoted_bytes: 5,
            track_percent: 0.0,
            state_bytes_per_page: 0.0,
        }
    }

    /// A scenario's verdicts, by the slowdowns of both ends and of one more policy.
    fn judged(scenario: &str, [first, best, own]: [f64; 3]) -> Vec<Verdict> {
        let is_long = first > best;
        let way = |it: f64| is_long.then_some((first - it) / (first - best));
        let of = |policy: &str, it: f64| verdict(scenario, policy, it, way(it));
        vec![of(ENDS[0], first), of(ENDS[1], best), of("own", own)]
    }

    fn ways(judged: &[Vec<Verdict>]) -> Vec<f64> {
        sums(judged).into_iter().map(|sum| sum.way).collect()
    }

    #[test]
    fn a_sum_weighs_scenarios_by_what_there_is_to_gain() {
        let all = [
            judged("wide", [3.0, 1.0, 1.5]),
            judged("narrow", [1.5, 1.0, 1.5]),
        ];
        assert_eq!(ways(&all), [0.0, 1.0, 0.6]);
        assert_eq!(sums(&all)[2].promoted_bytes, 10);
    }

    #[test]
    fn scenarios_of_one_name_are_summed_each_by_its_own_ends() {
        let all = [
            judged("same", [3.0, 1.0, 2.0]),
            judged("same", [2.0, 1.0, 2.0]),
        ];
        assert_eq!(ways(&all)[2], 1.0 / 3.0);
    }

    #[test]
    fn what_has_no_way_counts_for_none() {
        let flat = judged("flat", [1.0, 1.0, 1.1]);
        assert!(ways(std::slice::from_ref(&flat)).is_empty());
        assert_eq!(ways(&[flat, judged("sound", [2.0, 1.0, 1.5])])[2], 0.5);
    }
}
