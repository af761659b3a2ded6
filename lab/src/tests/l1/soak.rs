//! The main job over and over: a hot set that keeps moving, with every byte of the guest checked.

use anyhow::{Result, ensure};

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

/// Number of moves of the hot set.
const MOVES: u64 = 20;

pub const TESTS: &[Test] = &[Test {
    name: "twenty_moving_hot_sets_are_followed_and_no_byte_is_lost",
    needs: Needs::Product,
    boot: Boot::L1(twenty_moving_hot_sets_are_followed_and_no_byte_is_lost),
}];

fn twenty_moving_hot_sets_are_followed_and_no_byte_is_lost(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup::VTMM)?;
    for seed in 100..100 + MOVES {
        lab.guest(&format!("move {seed}"))?;
        ensure!(
            lab.converges_within_rounds(VM, 3)?,
            "hot set {seed} is not in fast memory after three rounds"
        );
        lab.expect_intact(VM)?;
    }
    Ok(())
}
