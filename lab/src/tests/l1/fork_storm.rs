//! A guest that frees and reuses page-table pages all the time while it is scanned and moved.
//!
//! Its processes fill their memory with words that resemble page-table entries and read them back, so
//! a scan that takes a reused page for a table still is noticed by the process that uses the page now.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const ROUNDS: u64 = 3;

/// Least number of forks. Far fewer than a guest under two emulators manages in that time; fewer would be no storm.
const MIN_FORKS: u64 = 50;

pub const TESTS: &[Test] = &[Test {
    name: "page_tables_freed_and_reused_under_a_fork_storm_lose_no_byte",
    needs: Needs::Product,
    boot: Boot::L1(page_tables_freed_and_reused_under_a_fork_storm_lose_no_byte),
}];

fn page_tables_freed_and_reused_under_a_fork_storm_lose_no_byte(lab: &mut Lab) -> Result<()> {
    lab.guest("churn 2")?;
    lab.start_daemon(Setup {
        defaults: "ceiling = { fast = \"24MiB\" }\nscan_threads = 2",
        ..Setup::VTMM
    })?;
    let first_round = lab.rounds(VM)?;
    let before = forks(&lab.guest("stats")?)?;
    lab.wait_for_round(VM, first_round + ROUNDS)?;
    let during = forks(&lab.guest("stats")?)? - before;
    lab.guest("churn 0")?;
    let verified = lab.guest("verify")?;
    println!("{during} forks during {ROUNDS} rounds; then: {verified}");
    ensure!(
        during > MIN_FORKS,
        "only {during} forks during {ROUNDS} rounds: that is no storm"
    );
    for count in ["bad", "errors", "churn_errors"] {
        ensure!(
            verified[count] == 0,
            "the guest's memory is damaged: {verified}"
        );
    }
    Ok(())
}

fn forks(answer: &Value) -> Result<u64> {
    answer["churn_forks"]
        .as_u64()
        .context("the guest counts no forks")
}
