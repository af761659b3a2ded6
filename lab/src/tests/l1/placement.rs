//! The main job: the hot pages of a VM that starts wholly in slow memory come into fast memory.
//!
//! The guest reports which of its pages are hot (by its pagemap, over a channel that the daemon cannot open); L1's
//! kernel reports where they are (`move_pages`), asked by a program of the lab's own.

use anyhow::{Context as _, Result, ensure};

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

pub const TESTS: &[Test] = &[
    Test {
        name: "hot_pages_reach_fast_memory_and_follow_a_moving_set",
        needs: Needs::Product,
        boot: Boot::L1(hot_pages_reach_fast_memory_and_follow_a_moving_set),
    },
    Test {
        name: "placement_test_fails_with_moves_off",
        needs: Needs::Product,
        boot: Boot::L1(placement_test_fails_with_moves_off),
    },
    Test {
        name: "placement_test_fails_with_a_shuffled_ranking",
        needs: Needs::Product,
        boot: Boot::L1(placement_test_fails_with_a_shuffled_ranking),
    },
    Test {
        name: "hot_lists_bring_hot_pages_into_fast_memory",
        needs: Needs::Product,
        boot: Boot::L1(hot_lists_bring_hot_pages_into_fast_memory),
    },
    Test {
        name: "rounds_of_vtmm_bring_hot_pages_too",
        needs: Needs::Product,
        boot: Boot::L1(rounds_of_vtmm_bring_hot_pages_too),
    },
    Test {
        name: "hot_pages_are_found_part_by_part",
        needs: Needs::Product,
        boot: Boot::L1(hot_pages_are_found_part_by_part),
    },
    Test {
        name: "daemon_cannot_open_the_truth_channel",
        needs: Needs::Nothing,
        boot: Boot::L1(daemon_cannot_open_the_truth_channel),
    },
];

fn hot_pages_reach_fast_memory_and_follow_a_moving_set(lab: &mut Lab) -> Result<()> {
    let before = lab.hot_on_fast(VM)?;
    ensure!(
        before.fast == 0,
        "the hot set does not start in slow memory: {before}"
    );
    lab.start_daemon(Setup::DEFAULT)?;
    ensure!(
        lab.converges(VM)?,
        "the hot set is not in fast memory after many rounds"
    );
    let shown = lab.check(&format!("terrace show {VM}"))?;
    ensure!(
        shown.contains("touches per second"),
        "the default policy is not shown: {shown}"
    );
    lab.expect_intact(VM)?;
    lab.guest("move 99")?;
    let moved = lab.hot_on_fast(VM)?;
    ensure!(
        !moved.is_placed(),
        "the new hot set is in fast memory already: {moved}"
    );
    ensure!(
        lab.converges(VM)?,
        "the moved hot set is not in fast memory after many rounds"
    );
    lab.expect_intact(VM)
}

fn placement_test_fails_with_moves_off(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup {
        moves: false,
        ..Setup::DEFAULT
    })?;
    ensure!(
        !lab.converges_within_rounds(VM, 6)?,
        "the placement test passes without moves: it shows nothing"
    );
    let after = lab.hot_on_fast(VM)?;
    ensure!(
        after.fast == 0,
        "pages moved although moves are off: {after}"
    );
    lab.expect_intact(VM)
}

fn placement_test_fails_with_a_shuffled_ranking(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup {
        policy: "random",
        ..Setup::VTMM
    })?;
    ensure!(
        !lab.converges_within_rounds(VM, 3)?,
        "the placement test passes with a shuffled ranking: it shows nothing"
    );
    let promoted = lab.vm(VM)?.and_then(|vm| vm["promoted_pages"].as_u64());
    ensure!(
        promoted > Some(1000),
        "the shuffled ranking moved nothing: {promoted:?}"
    );
    lab.expect_intact(VM)
}

/// Epochs in which hot lists must place the hot set: three to climb the lists, and 1,024 pages a second while the next
/// ones are scanned.
const EPOCHS: u64 = 12;

fn hot_lists_bring_hot_pages_into_fast_memory(lab: &mut Lab) -> Result<()> {
    let before = lab.hot_on_fast(VM)?;
    ensure!(
        before.fast == 0,
        "the hot set does not start in slow memory: {before}"
    );
    lab.start_daemon(Setup {
        policy: "hmvisor",
        ..Setup::VTMM
    })?;
    ensure!(
        lab.converges_within_rounds(VM, EPOCHS)?,
        "the hot set is not in fast memory after {EPOCHS} epochs"
    );
    let reasons = lab.check(&format!("terrace show {VM}"))?;
    ensure!(
        reasons.contains("sub-epochs of 100 ms"),
        "the policy is not shown: {reasons}"
    );
    lab.expect_intact(VM)
}

fn rounds_of_vtmm_bring_hot_pages_too(lab: &mut Lab) -> Result<()> {
    let before = lab.hot_on_fast(VM)?;
    ensure!(
        before.fast == 0,
        "the hot set does not start in slow memory: {before}"
    );
    lab.start_daemon(Setup::VTMM)?;
    ensure!(
        lab.converges_within_rounds(VM, 3)?,
        "the hot set is not in fast memory after three rounds"
    );
    lab.expect_intact(VM)
}

/// The guest's tables are looked at in four parts, one after the other; each pass reads a part and writes to nothing else.
fn hot_pages_are_found_part_by_part(lab: &mut Lab) -> Result<()> {
    let before = lab.hot_on_fast(VM)?;
    ensure!(
        before.fast == 0,
        "the hot set does not start in slow memory: {before}"
    );
    lab.start_daemon(Setup {
        engine: "scan_parts = 4\nwindow_ms = 300",
        ..Setup::VTMM
    })?;
    ensure!(
        lab.converges_within_rounds(VM, 3)?,
        "the hot set is not in fast memory after three rounds"
    );
    let shown = lab.check(&format!("terrace show {VM} --json"))?;
    let shown: serde_json::Value = serde_json::from_str(&shown)?;
    let last = shown["history"].as_array().and_then(|all| all.last());
    let scans = &last.context("a round that ended")?["scans"];
    ensure!(
        scans
            .as_u64()
            .is_some_and(|scans| scans.is_multiple_of(4 * 9)),
        "a round of four parts has {scans} passes"
    );
    lab.expect_intact(VM)
}

/// Checks that the test's knowledge of the hot set does not leak to the daemon, which runs as root in L1: the
/// channel's device takes one opener, and the lab's supervisor holds it.
fn daemon_cannot_open_the_truth_channel(lab: &mut Lab) -> Result<()> {
    let opened = lab.run(
        "for name in /sys/class/virtio-ports/*/name; do
            grep -q '^truth1$' $name || continue
            port=/dev/$(basename $(dirname $name))
            (exec 3<>$port) 2>&1 && echo opened
        done",
        std::time::Duration::from_secs(30),
    )?;
    ensure!(
        opened.stdout.contains("busy") && !opened.stdout.contains("opened"),
        "the truth channel can be opened: {opened:?}"
    );
    Ok(())
}
