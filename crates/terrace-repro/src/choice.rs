//! The choice of a size from a sweep: the cheapest that keeps every VM within the slowdown that its operator accepts
//! (`max_slowdown`).
//!
//! Responsible for: finding it among finished runs, and saying it in words. It leaves to others: what
//! memory costs ([`terrace_sim::Simulation`]) and how much slower a VM was ([`crate::compare`]).

use serde::Serialize;
use terrace_sim::{RunResult, Sweep, policy, quantity};

/// The size to take under one policy.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Choice {
    /// The policy.
    pub policy: String,
    /// The rule by which the host shares memory, if rules are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// The size. `None` if no finished run keeps every VM within its bound.
    pub sweep: Option<Sweep>,
    /// Cost of all VMs at that size. `None` if a tier has no price: then the least size stands for the cheapest.
    pub cost: Option<f64>,
}

/// The size to take under each policy and rule of sharing, in order of appearance; empty if nothing is swept, or no VM says what slowdown
/// it accepts.
#[must_use]
pub fn choices(runs: &[&RunResult]) -> Vec<Choice> {
    let asks =
        |run: &RunResult| run.sweep.is_some() && run.vms.iter().any(|vm| vm.max_slowdown.is_some());
    let mut found: Vec<Choice> = Vec::new();
    // A bound is nothing that one could take.
    for run in runs
        .iter()
        .filter(|run| asks(run) && !policy::is_bound(&run.policy))
    {
        let is_of = |choice: &Choice| choice.policy == run.policy && choice.share == run.share;
        if !found.iter().any(is_of) {
            found.push(choose(run, runs));
        }
    }
    found
}

/// The size to take under the policy and the rule of this run.
fn choose(like: &RunResult, runs: &[&RunResult]) -> Choice {
    let mut best: Option<&RunResult> = None;
    let is_ours = |run: &&&RunResult| run.policy == like.policy && run.share == like.share;
    let ours = runs.iter().filter(is_ours);
    for run in ours.filter(|run| is_within(run)) {
        if best.is_none_or(|best| is_cheaper(run, best)) {
            best = Some(run);
        }
    }
    Choice {
        policy: like.policy.clone(),
        share: like.share.clone(),
        sweep: best.and_then(|run| run.sweep.clone()),
        cost: best.and_then(cost),
    }
}

/// Whether each VM with a bound is within it. A VM whose slowdown is not known is not known to be within its bound.
fn is_within(run: &RunResult) -> bool {
    let bounds = run.vms.iter().filter_map(|vm| Some((vm, vm.max_slowdown?)));
    let mut within = bounds.map(|(vm, most)| vm.slowdown_vs_all_fast.is_some_and(|s| s <= most));
    within.all(|within| within)
}

fn is_cheaper(run: &RunResult, than: &RunResult) -> bool {
    match cost(run).zip(cost(than)) {
        Some((a, b)) => a < b,
        None => run.sweep.as_ref().map(|s| s.bytes) < than.sweep.as_ref().map(|s| s.bytes),
    }
}

fn cost(run: &RunResult) -> Option<f64> {
    run.vms.iter().map(|vm| vm.cost).sum()
}

impl Choice {
    /// The choice as a sentence.
    #[must_use]
    pub fn sentence(&self) -> String {
        let share = self.share.as_ref();
        let share = share.map_or(String::new(), |share| format!(", share {share}"));
        let policy = self.policy.clone() + &share;
        let Some(sweep) = &self.sweep else {
            return format!(
                "{policy}: no size that was run keeps every VM within its max_slowdown"
            );
        };
        let (key, size) = (&sweep.key, quantity::size_text(sweep.bytes));
        match self.cost {
            Some(cost) => format!(
                "{policy}: {key} = {size} is the cheapest that keeps every VM within its max_slowdown (cost {})",
                money(cost)
            ),
            None => format!(
                "{policy}: {key} = {size} is the least that keeps every VM within its max_slowdown (give every tier price_per_gib to know the cost)"
            ),
        }
    }
}

/// A cost as text: four digits after the point if it is less than 1, else two.
#[must_use]
pub fn money(cost: f64) -> String {
    if cost < 1.0 {
        format!("{cost:.4}")
    } else {
        format!("{cost:.2}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use terrace_sim::VmResult;

    /// VM "a" accepts 1.2, VM "b" says nothing.
    fn run(policy: &str, gib: u64, slowdown: Option<f64>, cost: Option<f64>) -> RunResult {
        let a = VmResult {
            slowdown_vs_all_fast: slowdown,
            max_slowdown: Some(1.2),
            cost,
            ..VmResult::default()
        };
        let b = VmResult {
            slowdown_vs_all_fast: Some(9.0),
            cost: Some(1.0),
            ..VmResult::default()
        };
        RunResult {
            policy: policy.into(),
            sweep: Some(Sweep {
                key: "fast".into(),
                bytes: gib << 30,
            }),
            vms: vec![a, b],
            ..RunResult::default()
        }
    }

    fn chosen(runs: &[RunResult]) -> Vec<(String, Option<u64>, Option<f64>)> {
        let runs: Vec<&RunResult> = runs.iter().collect();
        let all = choices(&runs).into_iter();
        all.map(|c| (c.policy, c.sweep.map(|s| s.bytes >> 30), c.cost))
            .collect()
    }

    #[test]
    fn the_cheapest_size_within_the_bound_is_taken_for_each_policy() {
        let runs = [
            run("vtmm", 2, Some(1.3), Some(5.0)),
            run("vtmm", 8, Some(1.1), Some(8.0)),
            run("vtmm", 4, Some(1.2), Some(6.0)),
            run("tpp", 2, Some(1.1), Some(5.0)),
            run("tpp", 4, Some(1.0), Some(6.0)),
        ];
        let expected = [
            ("vtmm".into(), Some(4), Some(7.0)),
            ("tpp".into(), Some(2), Some(6.0)),
        ];
        assert_eq!(chosen(&runs), expected);
    }

    #[test]
    fn a_larger_size_that_is_cheaper_is_taken() {
        // Slow memory may be the dearer: HBM beside it, or a remote node.
        let runs = [
            run("vtmm", 2, Some(1.1), Some(9.0)),
            run("vtmm", 4, Some(1.1), Some(6.0)),
        ];
        assert_eq!(chosen(&runs), [("vtmm".into(), Some(4), Some(7.0))]);
    }

    #[test]
    fn without_prices_the_least_size_is_taken_and_no_cost_is_told() {
        let runs = [
            run("vtmm", 8, Some(1.1), None),
            run("vtmm", 4, Some(1.1), None),
        ];
        assert_eq!(chosen(&runs), [("vtmm".into(), Some(4), None)]);
        let runs: Vec<&RunResult> = runs.iter().collect();
        let said = choices(&runs)[0].sentence();
        assert!(said.starts_with("vtmm: fast = 4GiB is the least"), "{said}");
    }

    #[test]
    fn a_bound_that_is_not_met_or_not_known_to_be_is_said() {
        let runs = [
            run("vtmm", 4, Some(1.21), Some(1.0)),
            run("vtmm", 8, None, Some(2.0)),
        ];
        assert_eq!(chosen(&runs), [("vtmm".into(), None, None)]);
        let runs: Vec<&RunResult> = runs.iter().collect();
        let said = choices(&runs)[0].sentence();
        assert!(said.contains("no size that was run"), "{said}");
    }

    #[test]
    fn nothing_is_chosen_without_a_sweep_or_without_a_bound() {
        let mut alone = run("vtmm", 4, Some(1.1), Some(1.0));
        alone.sweep = None;
        assert_eq!(chosen(&[alone]), []);
        let mut free = run("vtmm", 4, Some(1.1), Some(1.0));
        free.vms[0].max_slowdown = None;
        assert_eq!(chosen(&[free]), []);
    }

    #[test]
    fn costs_below_one_keep_their_digits() {
        assert_eq!(money(20.0), "20.00");
        assert_eq!(money(0.0125), "0.0125");
    }
}
