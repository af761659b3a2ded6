//! The worth of a placement, in misses of the guest's program in slow memory, as the emulator's plugin counts them.
//!
//! Misses for each pass of the program are asserted, and no rate: they are the same however busy this machine is.

use std::thread::sleep;
use std::time::Duration;

use anyhow::{Result, ensure};

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::measure::proof::{Moment, Row};
use crate::progress::say;
use crate::tests::test::{Boot, Needs, Test};

pub const TESTS: &[Test] = &[Test {
    name: "placed_pages_no_longer_miss_in_slow_memory",
    needs: Needs::Counters,
    boot: Boot::L1(placed_pages_no_longer_miss_in_slow_memory),
}];

/// Passes of the program that are enough to count by.
const PASSES: u64 = 100;

fn placed_pages_no_longer_miss_in_slow_memory(lab: &mut Lab) -> Result<()> {
    let before = count(lab)?;
    let [_, slow_before] = before.misses();
    ensure!(
        before.hot_on_fast == 0 && slow_before > before.hot as f64,
        "a pass over {} hot pages, {} of them in fast memory, has {slow_before:.0} misses in slow memory",
        before.hot,
        before.hot_on_fast
    );
    lab.start_daemon(Setup::DEFAULT)?;
    ensure!(
        lab.converges(VM)?,
        "the hot set is not in fast memory after many rounds"
    );
    // Its own scans are counted, too.
    lab.end_daemon()?;
    let after = count(lab)?;
    let [fast, slow] = after.misses();
    say(&format!(
        "misses of a pass in slow memory: {slow_before:.0} before, {slow:.0} after; in fast memory {fast:.0}"
    ));
    ensure!(
        slow * 5.0 < slow_before && fast > slow_before / 2.0,
        "a pass has {slow:.0} misses in slow memory and {fast:.0} in fast memory; before there were {slow_before:.0} in slow memory"
    );
    lab.expect_intact(VM)
}

/// Misses over some passes from now on.
fn count(lab: &mut Lab) -> Result<Row> {
    let node = lab.slow_node()?;
    let begin = Moment::now(lab, &node)?;
    let end = lab.wait_until(
        "the guest makes some passes",
        Duration::from_secs(300),
        |lab| {
            sleep(Duration::from_secs(1));
            let now = Moment::now(lab, &node)?;
            Ok((now.passes_since(&begin) >= PASSES).then_some(now))
        },
    )?;
    let placed = lab.hot_on_fast(VM)?;
    Row::between(&begin, &begin, &end, placed)
}
