//! Tests of what device and driver must do together.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::sizes::{SLACK, checksums, expect_about, expect_all_back, expect_free, fill, sizes};
use crate::guests::flex::device::Device;
use crate::guests::flex::guest::FlexGuest;
use crate::guests::flex::product::Hyperflex;
use crate::guests::flex::shape::{BASE, HUGE, NODE_BYTES, PAGE};
use crate::guests::tiered::{MIB, TIERS};
use crate::progress::say;

pub fn resize() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE | HUGE)?;
    guest.insert()?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    let mut last = sizes(&mut guest)?;
    let moved = 256 * MIB;
    let mut huge = 0;
    // Each tier alone, both, and neither; at last a number that is no multiple of a block.
    for wanted in [
        [0, moved],
        [moved, 0],
        [moved / 2, moved / 4],
        [0, 0],
        [77 * PAGE, 1001 * PAGE],
    ] {
        let begin = Instant::now();
        guest.resize(wanted.map(|bytes| bytes / PAGE))?;
        let seconds = begin.elapsed().as_secs_f64();
        let now = sizes(&mut guest)?;
        say(&format!(
            "balloons of {:?} MiB after {seconds:.2} s: free {:?} MiB, host {:?} MiB",
            wanted.map(|bytes| bytes / MIB),
            now.free.map(|bytes| bytes / MIB),
            now.host.map(|bytes| bytes / MIB)
        ));
        for (tier, wanted) in wanted.into_iter().enumerate() {
            expect_free(&mut guest, tier, before.free[tier] - wanted)?;
            ensure!(now.total[tier] == before.total[tier] - wanted);
            // Nothing of the balloon is with the host, and what is not in it stays there.
            let host = now.host[tier];
            ensure!(
                host <= NODE_BYTES - wanted && host + wanted + SLACK >= last.host[tier],
                "the host holds {} MiB of tier {tier}, {} before",
                host / MIB,
                last.host[tier] / MIB
            );
        }
        huge = huge.max(guest.driver()?.iter().map(|tier| tier.huge).sum());
        last = now;
    }
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    ensure!(huge > 50, "only {huge} pages were given by 2 MiB");
    guest.device.expect_no_wrong_request()?;
    verification(&guest)?;
    statistics(&mut guest)?;
    guest.expect_a_quiet_kernel()
}

/// Checks that the memory that the guest claims to have given back is gone by the device's verification of the files.
fn verification(guest: &FlexGuest<Hyperflex>) -> Result<()> {
    let status = guest.device.status(true)?;
    for (tier, claimed) in [77, 1001].into_iter().enumerate() {
        let said = &status["tiers"][tier];
        let verified = &said["verified"];
        let is_so = verified["claimed_pages"] == claimed && verified["absent_pages"] == claimed;
        ensure!(is_so && said["honesty"] == 1.0, "tier {tier}: {said}");
    }
    Ok(())
}

/// Checks that the statistics queue has the figures of the guest's own files.
fn statistics(guest: &mut FlexGuest<Hyperflex>) -> Result<()> {
    let mut said = Value::Null;
    guest.until("statistics arrive", |guest| {
        said = guest.device.status(false)?["tiers"].take();
        Ok(said[1]["guest"]["balloon_pages"] == 1001)
    })?;
    for node in 0..TIERS {
        let value = |name: &str| {
            let value = said[node]["guest"][name].as_u64();
            value.with_context(|| format!("no {name} of node {node}: {said}"))
        };
        let free = guest.meminfo(node, "MemFree")?;
        expect_about("free bytes", value("free_bytes")?, free)?;
        let total = guest.meminfo(node, "MemTotal")?;
        ensure!(value("total_bytes")? == total + value("balloon_pages")? * PAGE);
        ensure!(said[node]["guest"]["is_stuck"] == false, "{said}");
    }
    for name in ["major_faults", "swapped_in_pages", "swapped_out_pages"] {
        ensure!(said[0]["guest"][name].is_u64(), "no {name}: {said}");
    }
    Ok(())
}

pub fn replaced() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE)?;
    guest.insert()?;
    for round in 1..=10 {
        guest.device.set_targets([90_000, 90_000])?;
        guest.device.set_targets([0, 90_000])?;
        guest.device.set_targets([90_000, 100 * round])?;
        guest.resize([1000 * round, 7])?;
    }
    guest.resize([0, 0])?;
    guest.device.expect_no_wrong_request()?;
    guest.expect_a_quiet_kernel()
}

pub fn pressure() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE | HUGE)?;
    guest.insert()?;
    let target = 340 * MIB / PAGE;
    guest.resize([target, target])?;
    // Pages that can go nowhere, more of them than are left outside of the balloons.
    let mib = 600;
    guest.lab.check(&format!(
        "mkdir /hog && mount -t tmpfs -o size={mib}M hog /hog && \
         dd if=/dev/zero of=/hog/file bs=1M count={mib} 2>/dev/null",
    ))?;
    let given: u64 = guest.driver()?.iter().map(|tier| tier.given_back).sum();
    say(&format!(
        "{} MiB came back under pressure",
        given * PAGE / MIB
    ));
    ensure!(given > 0, "nothing was given back");
    ensure!(
        guest
            .driver()?
            .iter()
            .map(|tier| tier.base + tier.huge)
            .sum::<u64>()
            < 2 * target,
        "the balloons are as they were"
    );
    guest.expect_a_quiet_kernel()?;
    // The target stands: once memory is free, it is met.
    guest.lab.check("rm /hog/file")?;
    guest.wait_for([target, target])?;
    // Memory that leaves for a new target does not count as given back.
    let given = |guest: &mut FlexGuest<Hyperflex>| -> Result<u64> {
        Ok(guest.driver()?.iter().map(|tier| tier.given_back).sum())
    };
    let before = given(&mut guest)?;
    guest.resize([0, 0])?;
    ensure!(given(&mut guest)? == before);
    Ok(())
}

pub fn removal() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE | HUGE)?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    let target = [20_000, 50_001];
    guest.device.set_targets(target)?;
    guest.insert()?;
    // Targets of before the driver came.
    guest.wait_for(target)?;
    for _ in 0..2 {
        guest.lab.check("rmmod hyperflex")?;
        expect_all_back(&mut guest, &before)?;
        guest.insert()?;
        guest.wait_for(target)?;
    }
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    guest.device.expect_no_wrong_request()?;
    guest.expect_a_quiet_kernel()
}

pub fn sleep() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE | HUGE)?;
    guest.insert()?;
    let expected = fill(&mut guest)?;
    let target = [30_000, 60_000];
    guest.resize(target)?;
    for round in 0..3 {
        guest.sleep_and_wake()?;
        // The device has forgotten what was in the balloons, and the driver too.
        guest.wait_for(target)?;
        ensure!(checksums(&mut guest)? == expected, "files have changed");
        say(&format!("slept {} times", round + 1));
    }
    guest.resize([0, 0])?;
    guest.device.expect_no_wrong_request()?;
    guest.expect_a_quiet_kernel()
}

pub fn compaction() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE)?;
    guest.insert()?;
    let expected = fill(&mut guest)?;
    let target = [60_000, 60_000];
    guest.resize(target)?;
    // Holes among the balloon's pages, then memory is made whole. The kernel chooses the places of the holes: of some
    // rounds nothing needs to move.
    let mut moved = 0;
    let mut driver = Vec::new();
    for round in 0..30 {
        if round >= 5 && moved > 0 {
            break;
        }
        let less = round % 5;
        guest.resize([60_000 - 7000 * less, 60_000 - 9000 * less])?;
        guest.lab.check("echo 1 >/proc/sys/vm/compact_memory")?;
        guest.resize(target)?;
        driver = guest.driver()?;
        moved = driver.iter().map(|tier| tier.moved).sum::<u64>();
    }
    say(&format!("the kernel moved {moved} pages of the balloons"));
    ensure!(moved > 0, "no page was moved: {driver:?}");
    guest.wait_for(target)?;
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    guest.resize([0, 0])?;
    guest.device.expect_no_wrong_request()?;
    guest.expect_a_quiet_kernel()
}
