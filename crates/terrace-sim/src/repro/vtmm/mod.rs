//! vTMM's figures.

mod migration;

use super::Experiment;

/// Its experiments.
pub const EXPERIMENTS: &[&Experiment] = &[
    &migration::TABLE_4,
    &migration::TABLE_5,
    &migration::TABLE_6,
];
