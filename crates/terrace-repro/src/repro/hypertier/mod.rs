//! HyperTier: guests that place their own pages.

mod many_vms;
mod parameters;
mod provision;

use super::Experiment;

/// The experiments of HyperTier.
pub const EXPERIMENTS: &[&Experiment] = &[
    &many_vms::FIGURE_1,
    &provision::FIGURE_4,
    &many_vms::FIGURE_6,
    &many_vms::FIGURE_7,
    &parameters::FIGURE_8,
];
