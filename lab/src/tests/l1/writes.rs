//! Sources of writes on a real guest, of whose hot pages every other one is written.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

/// Number of hot pages that are asked about.
const ASKED: usize = 60;

const PATIENCE: Duration = Duration::from_secs(300);

pub const TESTS: &[Test] = &[
    Test {
        name: "dirty_bits_moved_aside_tell_written_pages_from_read_ones",
        needs: Needs::Product,
        boot: Boot::L1(dirty_bits_moved_aside_tell_written_pages_from_read_ones),
    },
    Test {
        name: "soft_dirty_bits_separate_written_from_read_within_budget",
        needs: Needs::Product,
        boot: Boot::L1(soft_dirty_bits_separate_written_from_read_within_budget),
    },
];

fn dirty_bits_moved_aside_tell_written_pages_from_read_ones(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup {
        defaults: "ceiling = { fast = \"24MiB\" }\nwrites = \"soft-bit\"",
        ..Setup::VTMM
    })?;
    expect_half_written(lab, "bit 58")
}

fn soft_dirty_bits_separate_written_from_read_within_budget(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup {
        defaults: "writes = \"soft-dirty\"\nwrite_pause_budget_ms = 1",
        ..Setup::VTMM
    })?;
    lab.wait_for_round(VM, 1)?;
    let shown = observed(lab)?;
    println!("{shown}");
    ensure!(
        shown.contains("reads only (soft-dirty would take ~") && shown.contains("budget 1 ms"),
        "{shown}"
    );
    lab.end_daemon()?;
    lab.start_daemon(Setup {
        defaults: "ceiling = { fast = \"24MiB\" }\nwrites = \"soft-dirty\"\n\
                   write_pause_budget_ms = 10000",
        ..Setup::VTMM
    })?;
    expect_half_written(lab, "soft-dirty once a round")
}

fn expect_half_written(lab: &mut Lab, source: &str) -> Result<()> {
    lab.wait_for_round(VM, 2)?;
    let shown = observed(lab)?;
    println!("{shown}");
    ensure!(
        shown.contains("accessed bits and writes") && shown.contains(source),
        "{shown}"
    );
    pause_between_rounds(lab)?;
    let hot = lab.hot_pages(VM)?;
    let frames: Vec<u64> = hot.iter().flat_map(|range| range.frames()).collect();
    let mut written = 0;
    let asked = frames.iter().step_by((frames.len() / ASKED).max(1));
    for frame in asked.take(ASKED) {
        let asked = format!("terrace explain {VM} --page {:#x} --json", frame << 12);
        let page: Value = serde_json::from_str(&lab.check(&asked)?)?;
        let writes = page["writes"].as_u64().context("no writes")?;
        written += usize::from(writes > 0);
    }
    println!("written: {written} of {ASKED} hot pages that were asked about; half are");
    ensure!(
        (ASKED * 3 / 10..=ASKED * 7 / 10).contains(&written),
        "half of the hot pages are written"
    );
    lab.expect_intact(VM)
}

/// Pauses the daemon between two rounds: a round clears the counts of the one before, so they are only read while
/// none is under way.
fn pause_between_rounds(lab: &mut Lab) -> Result<()> {
    lab.wait_until("a round ends undisturbed", PATIENCE, |lab| {
        lab.check(&format!("terrace pause {VM}"))?;
        let shown: Value = serde_json::from_str(&lab.check(&format!("terrace show {VM} --json"))?)?;
        let last = shown["history"].as_array().and_then(|rounds| rounds.last());
        if last.is_some_and(|round| round["abandoned"].is_null()) {
            return Ok(Some(()));
        }
        let rounds = lab.rounds(VM)?;
        lab.check(&format!("terrace resume {VM}"))?;
        lab.wait_for_round(VM, rounds + 1)?;
        Ok(None)
    })
}

/// The observe stage, in the product's words.
fn observed(lab: &mut Lab) -> Result<String> {
    let shown = lab.check(&format!("terrace show {VM} --json"))?;
    let shown: Value = serde_json::from_str(&shown)?;
    let stages = shown["stages"].as_array().context("no stages")?;
    let stage = stages.iter().find(|stage| stage["stage"] == "observe");
    let text = stage.and_then(|stage| stage["mechanism"].as_str());
    text.map(str::to_owned).context("no observe stage")
}
