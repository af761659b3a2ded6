//! Tests of what the guest must survive while its device hangs: all threads of the device are stopped, and continue
//! later.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::sizes::{checksums, expect_all_back, fill, sizes};
use crate::guests::flex::device::Device;
use crate::guests::flex::guest::FlexGuest;
use crate::guests::flex::product::Hyperflex;
use crate::guests::flex::shape::{BASE, HUGE};
use crate::guests::tiered::{self, MIB, TIERS};
use crate::progress::say;

type Guest = FlexGuest<Hyperflex>;

const COMPACT: &str = "echo 1 >/proc/sys/vm/compact_memory";

/// The last line of the kernel's log about the programs that it killed.
const MARK: &str = "nobody-is-killed-from-here-on";

/// Memory that each node keeps free while the rest of it is filled.
const FREE_BYTES: u64 = 72 * MIB;

pub fn compaction() -> Result<()> {
    let mut guest = Guest::start(BASE)?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    guest.insert()?;
    hang_in_a_move(&mut guest)?;
    let driver = guest.driver()?;
    say(&format!("a move was given up: {driver:?}"));
    expect_reported(&mut guest)?;
    guest.lab.check(COMPACT)?;
    guest.expect_a_quiet_kernel()?;
    run_out_of_memory(&mut guest)?;
    mark(&mut guest)?;
    let all = fill_the_rest(&mut guest)?;
    expect_to_stay(&mut guest)?;
    let lost = |guest: &mut Guest| -> Result<Vec<u64>> {
        Ok(guest.driver()?.iter().map(|tier| tier.lost).collect())
    };
    let lost_before = lost(&mut guest)?;
    guest.device.go_on()?;
    wait_for_late_answers(&mut guest)?;
    ensure!(lost(&mut guest)? == lost_before, "lost pages are in use");
    ensure!(checksums_of_all(&mut guest)? == all, "files have changed");
    // The reset gives back what was lost.
    guest
        .lab
        .check("rm /node0/rest /node1/rest && rmmod hyperflex")?;
    expect_all_back(&mut guest, &before)?;
    guest.insert()?;
    guest.resize([60_000, 60_000])?;
    guest.resize([0, 0])?;
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    guest.device.expect_no_wrong_request()?;
    tiered::expect_a_quiet_kernel(&mut guest.lab, MARK)
}

pub fn pressure() -> Result<()> {
    let mut guest = Guest::start(BASE | HUGE)?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    guest.insert()?;
    guest.resize([20_000, 20_000])?;
    let target = hang_with_requests(&mut guest, 60_000)?;
    guest.lab.check(COMPACT)?;
    wait_in_vain(&mut guest)?;
    expect_reported(&mut guest)?;
    let all = fill_the_rest(&mut guest)?;
    expect_to_stay(&mut guest)?;
    // Now the device takes pages that it was asked to take long ago.
    guest.device.go_on()?;
    wait_for_late_answers(&mut guest)?;
    ensure!(checksums_of_all(&mut guest)? == all, "files have changed");
    guest
        .lab
        .check("rm /node0/rest /node1/rest && rmmod hyperflex")?;
    guest.insert()?;
    guest.wait_for(target)?;
    guest.resize([10_000, 20_000])?;
    // A device that never answers is replaced.
    let target = hang_with_requests(&mut guest, 60_000)?;
    wait_in_vain(&mut guest)?;
    mark(&mut guest)?;
    guest.device.kill();
    guest.device.start_again()?;
    guest.replug()?;
    guest.wait_for(target)?;
    guest.resize([0, 0])?;
    guest.device.expect_no_wrong_request()?;
    guest.lab.check("rmmod hyperflex")?;
    expect_all_back(&mut guest, &before)?;
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    tiered::expect_a_quiet_kernel(&mut guest.lab, MARK)
}

/// Has the device hang while the kernel wants to move a page of a balloon. The kernel chooses the pages: in some
/// rounds it moves none of a balloon.
fn hang_in_a_move(guest: &mut Guest) -> Result<()> {
    for round in 0..30 {
        guest.resize([60_000, 60_000])?;
        let less = 1 + round % 5;
        guest.resize([60_000 - 7000 * less, 60_000 - 9000 * less])?;
        guest.device.hang()?;
        guest
            .lab
            .check(COMPACT)
            .context("compaction waits for the device")?;
        if guest.driver()?.iter().any(|tier| tier.dead > 0) {
            return Ok(());
        }
        guest.device.go_on()?;
    }
    anyhow::bail!("no page was to be moved")
}

/// Has the device hang with requests of both tiers on their way to a target below this one.
fn hang_with_requests(guest: &mut Guest, most: u64) -> Result<[u64; TIERS]> {
    for round in 0..30 {
        // The events are on their way; if the device was faster it is tried again with less.
        let target = [most - 1000 * (30 - round); TIERS];
        guest.device.set_targets(target)?;
        guest.device.hang()?;
        std::thread::sleep(Duration::from_millis(500));
        let driver = guest.driver()?;
        let are_under_way = driver.iter().all(|tier| tier.in_flight > 0);
        if are_under_way {
            say(&format!("hangs with requests: {driver:?}"));
            return Ok(target);
        }
        guest.device.go_on()?;
        guest.wait_for(target)?;
    }
    anyhow::bail!("the device is always faster than the test")
}

/// Expects the log to have one line for each queue that is dead, and the device's files to say the same.
fn expect_reported(guest: &mut Guest) -> Result<()> {
    let dead: u32 = guest
        .driver()?
        .iter()
        .map(|tier| tier.dead.count_ones())
        .sum();
    let lines = guest.lab.check("dmesg | grep 'no answer on its'")?;
    ensure!(
        lines.lines().count() == dead as usize && lines.contains("unload and load hyperflex"),
        "{dead} queues are dead: {lines}"
    );
    let device = "/sys/bus/virtio/drivers/hyperflex/virtio*";
    let said = guest.lab.check(&format!("cat {device}/dead_queues"))?;
    ensure!(said.trim() == dead.to_string(), "{said} of {dead}");
    let lost = guest.lab.check(&format!("cat {device}/lost_pages"))?;
    ensure!(lost.trim().parse::<u64>()? > 0, "no page is lost");
    Ok(())
}

/// Runs a program that takes more memory than there is; it is killed, or there would be no end to waiting for the
/// balloons.
fn run_out_of_memory(guest: &mut Guest) -> Result<()> {
    let hog = "echo 1 >/proc/sys/vm/overcommit_memory; \
               sh -c 'echo 1000 >/proc/self/oom_score_adj; exec dd if=/dev/zero of=/dev/null bs=1000M count=1'";
    let ended = guest.lab.run(hog, Duration::from_secs(120))?;
    ensure!(ended.exit == 137, "the program was not killed: {ended:?}");
    Ok(())
}

fn mark(guest: &mut Guest) -> Result<()> {
    let mark = format!("echo {MARK} >/dev/kmsg");
    guest.lab.check(&mark).map(drop)
}

/// Runs out of memory until no process waits for the device any more.
fn wait_in_vain(guest: &mut Guest) -> Result<()> {
    for _ in 0..10 {
        run_out_of_memory(guest)?;
        let driver = guest.driver()?;
        if driver.iter().all(|tier| tier.dead > 0) {
            say(&format!("queues are dead: {driver:?}"));
            return Ok(());
        }
    }
    anyhow::bail!("the driver waits for a device that hangs")
}

/// Writes files into nearly all that is free: a write of anybody else would show.
fn fill_the_rest(guest: &mut Guest) -> Result<String> {
    for node in 0..TIERS {
        let free = guest.free_bytes(node)?;
        let mib = free.saturating_sub(FREE_BYTES) / MIB;
        say(&format!("{mib} MiB of node {node} are filled"));
        guest.lab.check(&format!(
            "dd if=/dev/urandom of=/node{node}/rest bs=1M count={mib} 2>/dev/null"
        ))?;
    }
    checksums_of_all(guest)
}

fn checksums_of_all(guest: &mut Guest) -> Result<String> {
    guest.lab.check("md5sum /node*/kept /node*/rest")
}

/// Expects the driver neither to go nor to let the guest sleep while the device may act on pages, and to say so at
/// once.
fn expect_to_stay(guest: &mut Guest) -> Result<()> {
    for (what, command) in [
        ("unloaded", "rmmod hyperflex"),
        ("asleep", "echo mem >/sys/power/state"),
    ] {
        let ended = guest.lab.run(command, Duration::from_secs(120))?;
        ensure!(ended.exit != 0, "{what} beside a device that hangs");
    }
    guest
        .lab
        .check("grep -q ^hyperflex /proc/modules")
        .map(drop)
}

/// Waits until the device has answered all that it had not: the driver is free to go then.
fn wait_for_late_answers(guest: &mut Guest) -> Result<()> {
    guest.until("late answers arrive", |guest| {
        let used = guest.lab.check("cat /sys/module/hyperflex/refcnt")?;
        Ok(used.trim() == "0")
    })?;
    let driver = guest.driver()?;
    ensure!(
        driver.iter().any(|tier| tier.late > 0) && driver.iter().any(|tier| tier.dead > 0),
        "{driver:?}"
    );
    Ok(())
}
