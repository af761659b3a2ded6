//! DAMON's `migrate_hot` with the `young` filter as a source of hot pages: tried, for people. What was accessed in a window goes
//! to the small node, and what is not accessed in the next one goes home.

use anyhow::{Context as _, Result, ensure};

use super::{
    BLOCKS, EACH, FILE, LIST, expect_gathered, expect_on_node, finish, list, on_node_1, sparse,
    start, undo,
};
use crate::control::agent::PATIENCE;
use crate::control::damos::{self, COLD, HOT, Scheme};
use crate::control::lab::Lab;
use crate::tests::test::Test;

/// Windows, ms, and pages anywhere that each pass of the program touches beside its hot ones.
const WINDOWS: [(u64, u32); 5] = [(200, 0), (1000, 0), (3000, 0), (200, 1), (1000, 1)];

/// A pass to their own node takes note of what was accessed before, and moves nothing. The next ones go to the small node.
const FIND: Scheme = Scheme {
    from: 0,
    to: 0,
    accesses: (0, u32::MAX),
    ..HOT
};
/// Pages that are not accessed in the window after it go home.
const RETURN: Scheme = Scheme {
    from: 1,
    to: 0,
    accesses: (0, u32::MAX),
    age: 0,
    ..COLD
};

pub const TESTS: &[Test] = &[
    Test::on_guest("hot_pages_that_damos_finds_in_a_guest", by_damos),
    Test::on_guest("hot_pages_that_damos_finds_come_together", gathered),
];

/// The agent has DAMOS find them: no module, no list. Others become hot; and a kill leaves threads that undoing ends.
fn gathered() -> Result<()> {
    let mut guest = start()?;
    expect_gathered(&mut guest, "node, by DAMOS", "")?;
    expect_on_node(&mut guest)?;
    guest.ask(&sparse().name, "move 700")?;
    let round = expect_gathered(&mut guest, "other pages, by DAMOS", "")?;
    let back = round["returned_pages"].as_u64().unwrap_or(0);
    ensure!(
        back * 100 >= BLOCKS * EACH * 90,
        "{back} went home: {round}"
    );
    expect_on_node(&mut guest)?;
    guest.check(&format!(
        "terrace-agent gather --once --config {FILE} </dev/null >/run/killed 2>&1 & echo $! >/run/pid"
    ))?;
    let threads = "cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds";
    guest.wait_until("DAMOS works", PATIENCE, |guest| {
        Ok((guest.check(threads)?.trim() != "0").then_some(()))
    })?;
    // It may wait for DAMON in the kernel.
    guest.check(
        "kill -9 $(cat /run/pid); while kill -0 $(cat /run/pid) 2>/dev/null; do sleep 0.1; done",
    )?;
    undo(&mut guest)?;
    let left = guest.check(threads)?;
    ensure!(left.trim() == "0", "{left} threads are left");
    finish(&mut guest)
}

fn by_damos() -> Result<()> {
    let mut guest = start()?;
    for ((window, elsewhere), seed) in WINDOWS.into_iter().zip(500..) {
        guest.ask(&sparse().name, &format!("elsewhere {elsewhere}"))?;
        guest.ask(&sparse().name, &format!("move {seed}"))?;
        list(&mut guest)?;
        guest.check(&damos::prepare(&[FIND, RETURN]))?;
        for index in 0..2 {
            guest.check(&format!(
                "cd /sys/kernel/mm/damon/admin/kdamonds/{index}/contexts/0/monitoring_attrs
                echo {window}000 >intervals/aggr_us; echo {window}00 >intervals/sample_us
                echo 10 >nr_regions/min; echo 20 >nr_regions/max"
            ))?;
        }
        println!("a window of {window} ms, {elsewhere} pages elsewhere in each pass:");
        let migrated = migrated(&mut guest)?;
        guest.check(&damos::state(0, "on"))?;
        passes(&mut guest, 0, 3)?;
        guest.check(&damos::set(0, "target_nid", 1))?;
        guest.check(&damos::state(0, "commit"))?;
        passes(&mut guest, 0, 1)?;
        end(&mut guest, 0)?;
        report(&mut guest, migrated)?;
        guest.check(&damos::state(1, "on"))?;
        passes(&mut guest, 1, 1)?;
        end(&mut guest, 1)?;
        report(&mut guest, migrated)?;
        guest.check(&format!(
            "lab-native ask {} region | lab-native move 0 2>/dev/null",
            sparse().name
        ))?;
    }
    finish(&mut guest)
}

/// Ends the thread of a scheme; prints the CPU time that it took.
fn end(guest: &mut Lab, index: u32) -> Result<()> {
    let hundredths = guest.check(&format!(
        "awk '{{ print $14 + $15 }}' /proc/$(cat /sys/kernel/mm/damon/admin/kdamonds/{index}/pid)/stat"
    ))?;
    guest.check(&damos::state(index, "off"))?;
    let hundredths: u64 = hundredths.trim().parse()?;
    println!("  {} ms of CPU time", 10 * hundredths);
    Ok(())
}

fn report(guest: &mut Lab, before: u64) -> Result<()> {
    let moved = migrated(guest)? - before;
    let hot = on_node_1(guest)?;
    let region = guest.native_placement(&sparse().name, "region")?.on(1);
    let skew = guest.check(&format!(
        "terrace-agent skew --config {FILE} --pages {LIST} --json"
    ))?;
    let skew: serde_json::Value = serde_json::from_str(&skew)?;
    println!(
        "  {hot} of {} hot pages are on node 1, {} others of the program; {moved} moves in all; {} blocks are hot",
        BLOCKS * EACH,
        region - hot,
        skew["hot_blocks"]
    );
    Ok(())
}

/// Waits until the scheme was applied so often to all of its node.
fn passes(guest: &mut Lab, index: u32, more: u64) -> Result<()> {
    let tried = |guest: &mut Lab| -> Result<u64> {
        guest.check(&damos::state(index, "update_schemes_stats"))?;
        let bytes = guest.check(&damos::get(index, "stats/sz_tried"))?;
        bytes.trim().parse().context("sz_tried")
    };
    let kib = guest.check(&format!(
        "awk '/MemTotal/ {{ print $4 }}' /sys/devices/system/node/node{index}/meminfo"
    ))?;
    let all = kib.trim().parse::<u64>()? << 10;
    let before = tried(guest)?;
    guest.wait_until("the scheme was applied", PATIENCE, |guest| {
        Ok((tried(guest)? >= before + more * all).then_some(()))
    })
}

fn migrated(guest: &mut Lab) -> Result<u64> {
    let count = guest.check("awk '/^pgmigrate_success / { print $2 }' /proc/vmstat")?;
    count.trim().parse().context("pgmigrate_success")
}
