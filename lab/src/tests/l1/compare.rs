//! The counts of `cargo xtask lab compare`, on moves that are known.

use anyhow::{Result, ensure};
use terrace_lab_programs::pages::{PageRange, coalesce};

use crate::control::daemon::{FAST, VM};
use crate::control::lab::Lab;
use crate::measure::compare::Watch;
use crate::tests::test::{Boot, Needs, Test};

/// L1's node of slow memory.
const SLOW: i32 = 1;

pub const TESTS: &[Test] = &[Test {
    name: "comparison_counts_useless_moves_and_hot_pages_that_leave",
    needs: Needs::Nothing,
    boot: Boot::L1(comparison_counts_useless_moves_and_hot_pages_that_leave),
}];

fn comparison_counts_useless_moves_and_hot_pages_that_leave(lab: &mut Lab) -> Result<()> {
    lab.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
    // Pages that stray there by themselves would be counted, rightly.
    let strayed = lab.frames_on(VM, FAST)?;
    lab.move_pages(VM, &strayed, SLOW)?;
    let hot: Vec<u64> = frames(&lab.hot_pages(VM)?);
    let region: Vec<PageRange> = serde_json::from_value(lab.guest("region")?["ranges"].clone())?;
    let cold: Vec<u64> = frames(&region)
        .into_iter()
        .filter(|frame| hot.binary_search(frame).is_err())
        .collect();
    let mut watch = Watch::begin(lab, "known moves")?;
    lab.move_pages(VM, &coalesce(hot[..100].to_vec()), FAST)?;
    lab.move_pages(VM, &coalesce(cold[..50].to_vec()), FAST)?;
    watch.sample(lab)?;
    lab.move_pages(VM, &coalesce(hot[..30].to_vec()), SLOW)?;
    lab.move_pages(VM, &coalesce(cold[..20].to_vec()), SLOW)?;
    let seen = watch.end(lab)?;
    let counted = (
        seen.hot_on_fast,
        seen.others_on_fast,
        seen.useless,
        seen.demoted_hot,
    );
    println!("{seen:?}");
    ensure!(counted == (70, 30, 50, 30), "{counted:?}");
    ensure!(seen.migrated >= 200, "{} pages migrated", seen.migrated);
    ensure!(seen.passes > 0, "the guest made no pass");
    Ok(())
}

/// The frames of ranges, in ascending order, as the guest gives its ranges.
fn frames(ranges: &[PageRange]) -> Vec<u64> {
    ranges.iter().flat_map(|range| range.frames()).collect()
}
