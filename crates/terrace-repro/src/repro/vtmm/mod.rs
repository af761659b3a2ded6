//! vTMM's figures.

mod migration;
mod tracking;
mod whole;

use super::Experiment;

/// The experiments of vTMM.
pub const EXPERIMENTS: &[&Experiment] = &[
    &whole::TABLE_2,
    &tracking::FIGURE_2A,
    &tracking::FIGURE_2B,
    &tracking::BUFFER_FULL,
    &tracking::FIGURE_3,
    &migration::TABLE_4,
    &migration::TABLE_5,
    &migration::TABLE_6,
    &whole::FIGURE_4,
];
