//! The sensitivity of a comparison: which orders of policies hold on every model of the machine, and which depend on one.

use serde::Serialize;
use terrace_sim::{RunResult, VmResult, policy};

use super::way::slowdown;

/// Rounds below which a policy's figures say little.
pub const MIN_ROUNDS: u64 = 3;

/// Part by which two policies must differ to be told apart.
const TELLS: f64 = 0.01;

/// A policy's slowdowns over the models: geometric means over the VMs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Range {
    /// The policy.
    pub policy: String,
    /// On the model as written.
    pub as_written: f64,
    /// The least on any model.
    pub least: f64,
    /// The most on any model.
    pub most: f64,
}

/// The order of two policies, of which the first is the faster one on the model as written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Order {
    /// The faster policy.
    pub faster: String,
    /// The slower policy.
    pub slower: String,
    /// Slowdown of the slower over that of the faster: the least on any model.
    pub least_ratio: f64,
    /// The same: the most on any model.
    pub most_ratio: f64,
    /// Names of the models on which the order is not as on the model as written: turned, or within 1 %. If there are none,
    /// it holds.
    pub depends_on: Vec<String>,
}

/// Two policies that cannot be told apart on the model as written.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Close {
    /// The two.
    pub policies: [String; 2],
    /// Slowdown of the second over that of the first: the least on any model.
    pub least_ratio: f64,
    /// The same: the most on any model.
    pub most_ratio: f64,
}

/// The sensitivity of a comparison to the model of the machine.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// The models that were run beside the one as written.
    pub models: Vec<String>,
    /// Each policy's slowdowns.
    pub slowdowns: Vec<Range>,
    /// Each pair of policies that can be told apart on the model as written.
    pub orders: Vec<Order>,
    /// Each pair of policies within 1 % of each other on the model as written.
    pub close: Vec<Close>,
    /// Policies that ended fewer than [`MIN_ROUNDS`] rounds in some run: nothing said of them counts.
    pub few_rounds: Vec<String>,
}

impl Sensitivity {
    /// The sensitivity that runs show: those without a model's name are as written. `None` if no other model was
    /// run.
    #[must_use]
    pub fn of(runs: &[&RunResult]) -> Option<Self> {
        let mut models: Vec<String> = Vec::new();
        for model in runs.iter().filter_map(|run| run.model.clone()) {
            if !models.contains(&model) {
                models.push(model);
            }
        }
        if models.is_empty() {
            return None;
        }
        let rows: Vec<Row> = runs
            .iter()
            .filter(|run| run.model.is_none())
            .filter_map(|run| Row::of(run, runs, &models))
            .collect();
        let slowdowns = rows.iter().map(Row::range).collect();
        let (mut orders, mut close) = (Vec::new(), Vec::new());
        for (at, one) in rows.iter().enumerate() {
            for other in &rows[at + 1..] {
                match one.order(other, &models) {
                    Some(order) => orders.push(order),
                    None => close.push(one.close(other)),
                }
            }
        }
        Some(Self {
            models,
            slowdowns,
            orders,
            close,
            few_rounds: few_rounds(runs),
        })
    }

    /// The orders of policies that somebody could run, as sentences: first those that hold, then those that depend on a
    /// model.
    #[must_use]
    pub fn sentences(&self) -> Vec<String> {
        let is_real = |name: &String| !policy::is_bound(name);
        let real = |order: &&Order| is_real(&order.faster) && is_real(&order.slower);
        let (holds, depends): (Vec<&Order>, Vec<&Order>) = self
            .orders
            .iter()
            .filter(real)
            .partition(|order| order.depends_on.is_empty());
        let mut all: Vec<String> = Vec::new();
        for order in holds {
            all.push(format!(
                "{} is faster than {} on all {} models: by {} to {}",
                order.faster,
                order.slower,
                self.models.len() + 1,
                percent(order.least_ratio),
                percent(order.most_ratio)
            ));
        }
        for order in depends {
            all.push(format!(
                "{} and {}: which is faster depends on the model: {}",
                order.faster,
                order.slower,
                order.depends_on.join(", ")
            ));
        }
        for pair in self.close.iter().filter(|c| c.policies.iter().all(is_real)) {
            let [one, other] = &pair.policies;
            all.push(format!(
                "{one} and {other} cannot be told apart as written: {other} is slower by {} to {} over the models",
                percent(pair.least_ratio),
                percent(pair.most_ratio)
            ));
        }
        let few: Vec<&str> = self.few_rounds.iter().map(String::as_str).collect();
        if !few.is_empty() {
            all.push(format!(
                "Too few rounds to judge, on one model at least: {}",
                few.join(", ")
            ));
        }
        all
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.0} %", (ratio - 1.0) * 100.0)
}

/// The policies that ended too few rounds in some run, each once.
fn few_rounds(runs: &[&RunResult]) -> Vec<String> {
    let too_few = |vm: &VmResult| {
        let unmanaged = vm.guest_policy.is_none() && policy::is_unmanaged(&vm.policy);
        vm.rounds < MIN_ROUNDS && !unmanaged
    };
    let mut found: Vec<String> = Vec::new();
    for run in runs.iter().filter(|run| run.vms.iter().any(too_few)) {
        if !found.contains(&run.policy) {
            found.push(run.policy.clone());
        }
    }
    found
}

fn least(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::INFINITY, f64::min)
}

fn most(all: &[f64]) -> f64 {
    all.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

/// A policy's slowdown on each model.
struct Row<'a> {
    policy: &'a str,
    as_written: f64,
    /// In the order of the models.
    models: Vec<f64>,
}

impl<'a> Row<'a> {
    /// `None` if a run is missing, or has no slowdown.
    fn of(run: &'a RunResult, runs: &[&RunResult], models: &[String]) -> Option<Self> {
        let on = |model: &String| {
            let same = runs
                .iter()
                .find(|other| other.policy == run.policy && other.model.as_ref() == Some(model))?;
            slowdown(same)
        };
        Some(Self {
            policy: &run.policy,
            as_written: slowdown(run)?,
            models: models.iter().map(on).collect::<Option<_>>()?,
        })
    }

    fn all(&self) -> impl Iterator<Item = f64> + '_ {
        self.models.iter().copied().chain([self.as_written])
    }

    fn range(&self) -> Range {
        Range {
            policy: self.policy.into(),
            as_written: self.as_written,
            least: least(&self.all().collect::<Vec<_>>()),
            most: most(&self.all().collect::<Vec<_>>()),
        }
    }

    fn ratios(&self, slower: &Self) -> Vec<f64> {
        let pairs = self.all().zip(slower.all());
        pairs.map(|(fast, slow)| slow / fast).collect()
    }

    fn close(&self, other: &Self) -> Close {
        let ratios = self.ratios(other);
        Close {
            policies: [self.policy.into(), other.policy.into()],
            least_ratio: least(&ratios),
            most_ratio: most(&ratios),
        }
    }

    /// The order of two policies. `None` if they cannot be told apart on the model as written.
    fn order(&self, other: &Self, models: &[String]) -> Option<Order> {
        let (faster, slower) = if self.as_written <= other.as_written {
            (self, other)
        } else {
            (other, self)
        };
        if slower.as_written / faster.as_written < 1.0 + TELLS {
            return None;
        }
        let ratios = faster.ratios(slower);
        let turned = models.iter().zip(&ratios);
        Some(Order {
            faster: faster.policy.into(),
            slower: slower.policy.into(),
            least_ratio: least(&ratios),
            most_ratio: most(&ratios),
            depends_on: turned
                .filter(|(_, ratio)| **ratio < 1.0 + TELLS)
                .map(|(model, _)| model.clone())
                .collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(policy: &str, model: Option<&str>, slowdown: f64) -> RunResult {
        RunResult {
            policy: policy.into(),
            model: model.map(str::to_owned),
            vms: vec![VmResult {
                policy: policy.into(),
                rounds: if policy == "nomad" { 2 } else { 3 },
                slowdown_vs_all_fast: Some(slowdown),
                ..VmResult::default()
            }],
            ..RunResult::default()
        }
    }

    fn sensitivity(runs: &[RunResult]) -> Option<Sensitivity> {
        Sensitivity::of(&runs.iter().collect::<Vec<_>>())
    }

    #[test]
    fn an_order_holds_if_no_model_turns_it() {
        let found = sensitivity(&[
            run("tpp", None, 2.0),
            run("vtmm", None, 1.2),
            run("nomad", None, 1.21),
            run("tpp", Some("seed 2"), 1.8),
            run("vtmm", Some("seed 2"), 1.5),
            run("nomad", Some("seed 2"), 1.9),
        ])
        .unwrap();
        assert_eq!(found.models, ["seed 2"]);
        assert_eq!(
            found.slowdowns[1],
            Range {
                policy: "vtmm".into(),
                as_written: 1.2,
                least: 1.2,
                most: 1.5
            }
        );
        let orders: Vec<(&str, &str, usize)> = found
            .orders
            .iter()
            .map(|o| (&*o.faster, &*o.slower, o.depends_on.len()))
            .collect();
        // vtmm and nomad are within a hundredth of each other.
        assert_eq!(orders, [("vtmm", "tpp", 0), ("nomad", "tpp", 1)]);
        assert_eq!(
            found.sentences(),
            [
                "vtmm is faster than tpp on all 2 models: by 20 % to 67 %",
                "nomad and tpp: which is faster depends on the model: seed 2",
                "vtmm and nomad cannot be told apart as written: nomad is slower by 1 % to 27 % over the models",
                "Too few rounds to judge, on one model at least: nomad"
            ]
        );
    }

    #[test]
    fn one_model_says_nothing_and_unfinished_policies_are_left_out() {
        assert_eq!(sensitivity(&[run("tpp", None, 2.0)]), None);
        let found = sensitivity(&[
            run("tpp", None, 2.0),
            run("vtmm", None, 1.2),
            run("tpp", Some("seed 2"), 1.8),
        ])
        .unwrap();
        assert_eq!(found.slowdowns.len(), 1);
        assert!(found.orders.is_empty());
    }
}
