//! The main job over and over: a hot set that keeps moving, with every byte of the guest checked.

use anyhow::{Result, ensure};

use super::LabTest;
use crate::lab::Lab;
use crate::lab::daemon::{Setup, VM};

/// How often the hot set moves.
const MOVES: u64 = 20;

pub const TESTS: &[LabTest] = &[LabTest {
    name: "twenty_moving_hot_sets_are_followed_and_no_byte_is_lost",
    needs_product: true,
    run: twenty_moving_hot_sets_are_followed_and_no_byte_is_lost,
}];

fn twenty_moving_hot_sets_are_followed_and_no_byte_is_lost(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup::VTMM)?;
    for seed in 100..100 + MOVES {
        lab.guest(&format!("move {seed}"))?;
        ensure!(
            lab.converges_within_three_rounds(VM)?,
            "hot set {seed} is not in fast memory after three rounds"
        );
        lab.expect_intact(VM)?;
    }
    Ok(())
}
