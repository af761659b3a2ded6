//! Predictions on pages of their own: `terrace sim repro --predict NAME`.
//!
//! Responsible for: which sets of predictions there are, one page each ([`page`]). They are made before anything is there
//! to compare them with, so no row has a paper's figure. The earlier ones (`super::predictions`) are part of all
//! experiments, and their page stays as it is.

pub mod page;

mod antagonists;
mod dram_sizes;
mod gathering;
mod huge_pages;
mod programs;
mod sharing;
mod trade;

#[cfg(test)]
mod tests;

use super::Experiment;
use super::row::{Claim, Row};
use super::runs::{Load, Results, Run};
use terrace_sim::Scenario;

/// Predictions that share a page.
#[derive(Clone, Copy)]
pub struct PredictionSet {
    /// The set's name on the command line and in the page's file name.
    pub name: &'static str,
    /// The page's title.
    pub title: &'static str,
    /// Number of seeds that the set's processor time allows.
    pub seeds: u64,
    /// The experiments, in the page's order.
    pub experiments: &'static [&'static Experiment],
}

/// All sets.
pub const SETS: &[PredictionSet] = &[
    PredictionSet {
        name: "dram-sizes",
        title: "four programs of vTMM's on 1 to 16 GiB of DRAM",
        seeds: 3,
        experiments: &[&dram_sizes::DRAM_SIZES],
    },
    PredictionSet {
        name: "huge-pages",
        title: "VMs with huge pages, alone and two at a time",
        seeds: 1,
        experiments: &[&huge_pages::ALONE, &huge_pages::TOGETHER],
    },
    PredictionSet {
        name: "programs",
        title: "HyperTier's seven programs on two kinds of slow memory",
        seeds: 3,
        experiments: &[&programs::PMEM, &programs::REMOTE],
    },
    PredictionSet {
        name: "antagonists",
        title: "updates beside programs that load DRAM",
        seeds: 3,
        experiments: &[&antagonists::ANTAGONISTS],
    },
    PredictionSet {
        name: "sharing",
        title: "HPMBS's eight groups of VMs that share memory",
        seeds: 1,
        experiments: &[&sharing::GROUPS_OF_TABLE_4],
    },
    PredictionSet {
        name: "trade",
        title: "HMvisor's trade of fast memory for slow",
        seeds: 3,
        experiments: &[&trade::TRADE],
    },
    PredictionSet {
        name: "gpac",
        title: "guests that gather their hot pages, many at a time",
        seeds: 1,
        experiments: gathering::EXPERIMENTS,
    },
];

/// The names of all sets.
pub fn set_names() -> impl Iterator<Item = &'static str> {
    SETS.iter().map(|set| set.name)
}

/// The set of a name.
///
/// # Errors
/// Names the sets that there are.
pub fn set(name: &str) -> Result<&'static PredictionSet, String> {
    SETS.iter().find(|set| set.name == name).ok_or_else(|| {
        let names: Vec<_> = set_names().collect();
        format!(
            "there is no set of predictions \"{name}\": there are {}",
            names.join(", ")
        )
    })
}

/// The run to which slowdowns are relative.
const FAST: &str = "all-fast";

/// A policy: its name in the rows, and as a scenario has it.
type Policy = (&'static str, &'static str);

/// The scenario under each of the policies.
fn under(policies: &[Policy], prefix: &str, base: &Result<Scenario, String>) -> Vec<Run> {
    let run = |(name, policy): &Policy| {
        let base = base.as_ref().map_err(Clone::clone);
        let scenario = base.and_then(|base| base.with_policy_text(policy));
        Run::new(format!("{prefix}{name}"), scenario)
    };
    policies.iter().map(run).collect()
}

/// The scenario with all of its memory in the first tier.
fn all_fast(prefix: &str, base: &Result<Scenario, String>) -> Run {
    let base = base.clone().map(|base| base.all_fast());
    Run::new(format!("{prefix}{FAST}"), base)
}

/// A program: its name in the rows, its keys, and the number of its vCPUs if that is not the scenario's.
type Program = (&'static str, &'static str, Option<u32>);

/// The scenario with a program as its first VM's load for so many seconds.
fn program(load: &Load, (_, keys, vcpus): Program, seconds: u64) -> Result<Scenario, String> {
    let mut scenario = load.workload(&format!("{{ {keys}, duration = \"{seconds}s\" }}"))?;
    if let Some(vcpus) = vcpus {
        scenario.vms[0].vcpus = vcpus;
    }
    Ok(scenario)
}

/// Slowdowns of the first VM under each policy.
fn slowdowns(results: &Results, policies: &[Policy], prefix: &str, fast: &str) -> Vec<Row> {
    let row = |(name, _): &Policy| {
        let run = format!("{prefix}{name}");
        predicted(
            format!("{run}: slower than all-fast"),
            "%",
            results.slower_percent(&run, fast),
        )
    };
    policies.iter().map(row).collect()
}

/// A row without a paper's figure.
fn predicted(what: String, unit: &str, simulated: Result<f64, String>) -> Row {
    Row::new(what, unit, Claim::Nothing, simulated)
}
