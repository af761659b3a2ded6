//! HyperTier: guests that place their own pages.

mod many_vms;
mod parameters;

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
    &many_vms::FIGURE_1,
    &waiting(
        "hypertier/figure-4",
        "Updates by how fast memory is given to nine VMs",
        "HyperFlex (elastic sizes of the tiers)",
    ),
    &many_vms::FIGURE_6,
    &many_vms::FIGURE_7,
    &parameters::FIGURE_8,
];
