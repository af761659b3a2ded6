//! Tests of what balloons must survive: the device's process killed, the guest started anew.

use anyhow::{Context, Result, ensure};

use super::sizes::{SLACK, checksums, expect_about, expect_all_back, fill, sizes};
use crate::guests::flex::device::Device;
use crate::guests::flex::guest::{FlexGuest, Reboot};
use crate::guests::flex::product::Hyperflex;
use crate::guests::flex::shape::{BASE, HUGE, NODE_BYTES, PAGE};
use crate::guests::tiered::{MIB, TIERS};
use crate::progress::say;

pub fn device_killed() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE | HUGE)?;
    guest.insert()?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    let target = [20_000, 50_001];
    guest.resize(target)?;
    guest.device.kill();
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    expect_given(&guest, target)?;
    guest.device.start_again()?;
    // Before the hypervisor is back: these sizes come from the state.
    ensure!(guest.device.actual()? == target, "the state is forgotten");
    guest.replug()?;
    guest.wait_for(target)?;
    expect_given(&guest, target)?;
    guest.device.expect_no_wrong_request()?;
    guest.resize([40_000, 10_000])?;
    expect_given(&guest, [40_000, 10_000])?;
    for round in 0..2 {
        // Below what the kernel and the files leave of the smaller node.
        kill_under_way(&mut guest, [60_000 + round, 60_000 - round])?;
        kill_under_way(&mut guest, [round, 7])?;
        ensure!(checksums(&mut guest)? == expected, "files have changed");
    }
    guest.resize([0, 0])?;
    expect_all_back(&mut guest, &before)?;
    // Memory that was in the balloons can be used.
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    fill(&mut guest)?;
    guest.expect_a_quiet_kernel()
}

/// Kills the device on the way to a target, which the next one must reach.
fn kill_under_way(guest: &mut FlexGuest<Hyperflex>, target: [u64; TIERS]) -> Result<()> {
    let from = guest.device.actual()?;
    guest.device.set_targets(target)?;
    guest.until("the balloons are under way", |guest| {
        Ok(guest.device.actual()? != from)
    })?;
    let at = guest.device.actual()?;
    guest.device.kill();
    guest.device.start_again()?;
    guest.replug()?;
    guest
        .wait_for(target)
        .with_context(|| format!("killed at {at:?}"))?;
    say(&format!("killed at {at:?} on the way to {target:?} pages"));
    guest.device.expect_no_wrong_request()?;
    expect_given(guest, target)
}

/// Expects the host to have at least as much memory back as is in the balloons.
fn expect_given(guest: &FlexGuest<Hyperflex>, balloons: [u64; TIERS]) -> Result<()> {
    for (tier, (held, pages)) in guest.host_bytes()?.into_iter().zip(balloons).enumerate() {
        ensure!(
            held <= NODE_BYTES - pages * PAGE,
            "the host holds {} MiB of tier {tier} with {pages} pages in its balloon",
            held / MIB
        );
    }
    Ok(())
}

pub fn guest_rebooted() -> Result<()> {
    let mut guest = FlexGuest::<Hyperflex>::start(BASE | HUGE)?;
    let before = sizes(&mut guest)?;
    guest.insert()?;
    let target = [60_000, 80_000];
    guest.resize(target)?;
    for (round, by) in [Reboot::Guest, Reboot::Button].into_iter().enumerate() {
        guest = guest.reboot(by)?;
        // Without a driver nothing is held back, and all of it works.
        let after = sizes(&mut guest)?;
        // Of all nodes: the kernel puts itself where chance has it.
        let [after, before] = [&after, &before].map(|sizes| sizes.total.iter().sum());
        expect_about("the guest's memory", after, before)?;
        let expected = fill(&mut guest)?;
        let filled = guest.host_bytes()?;
        ensure!(
            filled.iter().all(|held| *held + SLACK > 300 * MIB),
            "{filled:?}"
        );
        guest.insert()?;
        guest.wait_for(target)?;
        expect_given(&guest, target)?;
        ensure!(checksums(&mut guest)? == expected, "files have changed");
        let status = guest.device.status(true)?;
        let resets = status["resets"].as_u64().context("no resets")?;
        // Pages that are in a balloon already would have been refused.
        guest.device.expect_no_wrong_request()?;
        let inflated = status["counters"]["inflated_pages"].as_u64();
        let wanted = (round as u64 + 2) * target.iter().sum::<u64>();
        ensure!(
            resets > round as u64 && inflated >= Some(wanted),
            "{status}"
        );
        say(&format!("resets {resets}, inflated {inflated:?} pages"));
    }
    guest.resize([0, 0])?;
    guest.expect_a_quiet_kernel()
}
