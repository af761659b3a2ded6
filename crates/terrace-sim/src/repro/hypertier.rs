//! HyperTier: places for its figures, which are not carried out yet.

use super::row::Row;
use super::runs::{Load, Results, Run};
use super::{Experiment, Kind, Paper};

const fn waiting(name: &'static str, title: &'static str, what: &'static str) -> Experiment {
    Experiment {
        paper: Paper::Hypertier,
        name,
        title,
        kind: Kind::Waiting(what),
        file: None,
        inputs: &[],
        runs: no_runs,
        rows: no_rows,
        why: &[],
    }
}

fn no_runs(_: &Load) -> Vec<Run> {
    Vec::new()
}

fn no_rows(_: &Results) -> Vec<Row> {
    Vec::new()
}

/// Its experiments.
pub const EXPERIMENTS: &[&Experiment] = &[
    &waiting(
        "hypertier/figure-1",
        "What management costs, by the number of VMs that do the same updates together",
        "the rest of HyperPlace (its ranges can be simulated already: the policy hyperplace)",
    ),
    &waiting(
        "hypertier/figure-4",
        "Updates by how fast memory is given to nine VMs",
        "HyperFlex (elastic sizes of the tiers)",
    ),
    &waiting(
        "hypertier/figure-7",
        "What each stage of management costs on nine VMs",
        "the rest of HyperPlace (its ranges can be simulated already: the policy hyperplace)",
    ),
    &waiting(
        "hypertier/figure-8",
        "Run time of updates by the parameters of sampling and classification",
        "the rest of HyperPlace (its ranges can be simulated already: the policy hyperplace)",
    ),
];
