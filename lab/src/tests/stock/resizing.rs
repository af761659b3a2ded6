//! Tests of `terrace resize` if QEMU has no device of ours.

use anyhow::{Context, Result, bail, ensure};

use crate::guests::stock::guest::{MARK, SLACK, Sizes, StockGuest};
use crate::guests::stock::machine::{Means, NAME};
use crate::guests::tiered::{self, MIB, TIERS};

const FAST: usize = 0;
const SLOW: usize = 1;

pub fn virtio_mem() -> Result<()> {
    let mut guest = StockGuest::start(Means::VirtioMem)?;
    guest.insert()?;
    // The sizes that they have; from now on the daemon manages it.
    guest.daemon.resize_and_wait(Some(512), Some(512))?;
    guest.start_writer(1)?;
    guest.touch(FAST)?;
    let begin = guest.sizes()?;
    let host = tiered::host_bytes(NAME)?;
    ensure!(host.len() == 2 * TIERS, "files of memory: {host:?}");

    let answer = guest.daemon.resize_and_wait(Some(256), None)?;
    ensure!(answer.contains("virtio-mem"), "{answer}");
    let small = expect_one_changed(&mut guest, "fast 512 → 256 MiB", &begin, FAST, -256)?;
    // All of what was plugged there is unplugged.
    let plugged = tiered::host_bytes(NAME)?[TIERS + FAST];
    println!(
        "host memory behind it: {} → {} MiB",
        host[TIERS + FAST] / MIB,
        plugged / MIB
    );
    ensure!(
        host[TIERS + FAST] > 128 * MIB && plugged == 0,
        "the host holds {plugged} bytes of what was unplugged, {} before",
        host[TIERS + FAST]
    );
    guest.expect_writer_intact()?;

    honest(&mut guest)?;
    guest.daemon.resize_and_wait(None, Some(768))?;
    expect_one_changed(&mut guest, "slow 512 → 768 MiB", &small, SLOW, 256)?;
    guest.expect_writer_intact()?;
    let shown = guest.daemon.show()?;
    ensure!(shown.contains("virtio-mem"), "{shown}");

    replaced(&mut guest)?;
    back(&mut guest, &begin)?;
    pressure(&mut guest)?;
    limits(&guest)?;
    guest.expect_writer_intact()?;
    tiered::expect_a_quiet_kernel(&mut guest.lab, MARK)
}

/// Checks that the product's own verification of the host's memory agrees with this machine's.
fn honest(guest: &mut StockGuest) -> Result<()> {
    let mut seen = None;
    guest.until("the host's memory is looked at", |guest| {
        seen = guest.daemon.tiers()?.into_iter().nth(FAST);
        Ok(seen
            .as_ref()
            .is_some_and(|tier| tier.verified_ratio.is_some()))
    })?;
    let host = tiered::host_bytes(NAME)?;
    println!("by `terrace show`: {seen:?}");
    let present = seen.as_ref().and_then(|tier| tier.present_bytes);
    let present = present.context("no present_bytes")?;
    ensure!(seen.is_some_and(|tier| tier.verified_ratio == Some(1.0)));
    expect_about("host memory behind fast", present, host[FAST])
}

fn expect_about(what: &str, value: u64, wanted: u64) -> Result<()> {
    let is_about = value.abs_diff(wanted) <= SLACK;
    ensure!(is_about, "{what}: {value} bytes, not {wanted}");
    Ok(())
}

/// A guest that cannot be resized: without a driver, and with memory in use that cannot be moved.
pub fn stuck() -> Result<()> {
    let mut guest = StockGuest::start(Means::VirtioMem)?;
    expect_stuck(&guest, Some(512), Some(512), "modprobe virtio_mem")?;
    // Against the advice that goes with the reason.
    guest
        .lab
        .check("echo online_kernel >/sys/devices/system/memory/auto_online_blocks")?;
    guest.insert()?;
    guest.wait_for(&[512, 512])?;
    // Pages of a ramfs go nowhere.
    guest.lab.check(
        "mkdir /ram && mount -t ramfs ram /ram && \
         lab-native start 1 1 /bin/busybox dd if=/dev/urandom of=/ram/reference bs=1M count=300 2>/dev/null",
    )?;
    let reference = guest.lab.check("md5sum /ram/reference")?;
    expect_stuck(
        &guest,
        None,
        Some(256),
        "memhp_default_state=online_movable",
    )?;
    let tiers = guest.daemon.tiers()?;
    println!("stuck: {:?}", tiers[SLOW]);
    ensure!(tiers[SLOW].size_bytes > 256 * MIB, "{tiers:?}");
    ensure!(
        guest.lab.check("md5sum /ram/reference")? == reference,
        "a file has changed"
    );
    guest.lab.check("rm /ram/reference")?;
    // A new target has the guest try at once.
    guest.daemon.resize_and_wait(None, Some(258))?;
    tiered::expect_a_quiet_kernel(&mut guest.lab, MARK)
}

fn expect_stuck(
    guest: &StockGuest,
    fast: Option<u64>,
    slow: Option<u64>,
    word: &str,
) -> Result<()> {
    let Err(error) = guest.daemon.resize_and_wait(fast, slow) else {
        bail!("a guest that cannot was resized to {fast:?}, {slow:?} MiB");
    };
    let said = format!("{error:#}");
    println!("{said}");
    ensure!(said.contains("stuck") && said.contains(word), "{said}");
    Ok(())
}

/// Checks that a newer target replaces one that is under way.
fn replaced(guest: &mut StockGuest) -> Result<()> {
    for (fast, slow) in [(1024, 1024), (300, 512), (700, 900), (384, 640)] {
        guest.daemon.resize(Some(fast), Some(slow))?;
    }
    guest.wait_for(&[384, 640])?;
    guest.expect_writer_intact()
}

/// Resizes back, and expects all of it to be as it was.
fn back(guest: &mut StockGuest, begin: &Sizes) -> Result<()> {
    guest.daemon.resize_and_wait(Some(512), Some(512))?;
    expect_totals(guest, begin.total)?;
    for node in 0..TIERS {
        expect_free(guest, node, begin.free[node])?;
    }
    Ok(())
}

/// Takes the tier away under a program that fills it and a file beside it, all of which goes elsewhere.
fn pressure(guest: &mut StockGuest) -> Result<()> {
    let free = guest.meminfo(SLOW, "MemFree")? / MIB;
    guest.lab.check(&format!(
        "dd if=/dev/urandom of=/node1/reference bs=1M count={} 2>/dev/null",
        free - 40
    ))?;
    let reference = guest.lab.check("md5sum /node1/reference")?;
    // In the fast tier there is just room enough.
    guest.daemon.resize_and_wait(None, Some(256))?;
    println!("under pressure: {:?}", guest.sizes()?);
    guest.expect_writer_intact()?;
    ensure!(
        guest.lab.check("md5sum /node1/reference")? == reference,
        "a file has changed"
    );
    guest.lab.check("rm /node1/reference")?;
    guest.daemon.resize_and_wait(None, Some(512)).map(drop)
}

/// Checks that impossible sizes are refused, and that sizes that are no whole number of blocks are reported.
fn limits(guest: &StockGuest) -> Result<()> {
    for (fast, word) in [(200, "too little"), (2000, "too much")] {
        let Err(error) = guest.daemon.resize(Some(fast), None) else {
            bail!("{fast} MiB of 256 to 1280 MiB were taken");
        };
        let said = format!("{error:#}");
        println!("{said}");
        ensure!(
            said.contains(word) && said.contains("256 MiB to 1280 MiB"),
            "{said}"
        );
    }
    let rounded = guest.daemon.resize(Some(513), None)?;
    ensure!(rounded.contains("rounded down to blocks of"), "{rounded}");
    Ok(())
}

/// Expects totals and free memory to be as before, but for one tier, which has that much more.
fn expect_one_changed(
    guest: &mut StockGuest,
    what: &str,
    before: &Sizes,
    tier: usize,
    mib: i64,
) -> Result<Sizes> {
    let mut totals = before.total;
    totals[tier] = totals[tier].saturating_add_signed(mib * MIB.cast_signed());
    expect_totals(guest, totals)?;
    let now = guest.sizes()?;
    let mib_of = |bytes: [u64; TIERS]| bytes.map(|bytes| bytes / MIB);
    println!(
        "{what}: total {:?} → {:?} MiB, free {:?} → {:?} MiB",
        mib_of(before.total),
        mib_of(now.total),
        mib_of(before.free),
        mib_of(now.free)
    );
    for node in 0..TIERS {
        let wanted = if node == tier {
            mib * MIB.cast_signed()
        } else {
            0
        };
        expect_free(guest, node, before.free[node].saturating_add_signed(wanted))?;
    }
    Ok(now)
}

/// Expects the nodes to get so much in all: the device counts what it plugs in before the guest has it online.
fn expect_totals(guest: &mut StockGuest, wanted: [u64; TIERS]) -> Result<()> {
    let mut totals = wanted;
    let arrive = guest.until("the nodes have their sizes", |guest| {
        totals = guest.sizes()?.total;
        Ok(totals == wanted)
    });
    arrive.with_context(|| format!("the nodes have {totals:?} bytes, not {wanted:?}"))
}

/// Expects a node's free memory to get there; freed memory rests for a while in lists of each processor.
fn expect_free(guest: &mut StockGuest, node: usize, wanted: u64) -> Result<()> {
    let mut free = 0;
    let arrives = guest.until("freed memory is counted", |guest| {
        free = guest.meminfo(node, "MemFree")?;
        Ok(free.abs_diff(wanted) <= SLACK)
    });
    arrives.with_context(|| {
        let [free, wanted] = [free, wanted].map(|bytes| bytes / MIB);
        format!("node {node} has {free} MiB free, not {wanted}")
    })
}

pub fn balloon() -> Result<()> {
    let mut guest = StockGuest::start(Means::Balloon)?;
    guest.start_writer(1)?;
    guest.touch(FAST)?;
    guest.touch(SLOW)?;
    let host: u64 = tiered::host_bytes(NAME)?.into_iter().sum();
    let before: u64 = guest.sizes()?.total.into_iter().sum();

    let Err(refused) = guest.daemon.resize(Some(256), None) else {
        bail!("one tier was resized by a balloon");
    };
    println!("{refused:#}");
    ensure!(format!("{refused:#}").contains("both"), "{refused:#}");

    let answer = guest.daemon.resize(Some(256), Some(512))?;
    ensure!(
        answer.contains("balloon") && answer.contains("768"),
        "{answer}"
    );
    ensure!(answer.contains("which tier"), "{answer}");
    // No driver in the guest does it yet.
    expect_stuck(&guest, Some(256), Some(512), "modprobe virtio_balloon")?;

    guest.insert()?;
    guest.wait_for(&[768])?;
    let after: u64 = guest.sizes()?.total.into_iter().sum();
    let host_after: u64 = tiered::host_bytes(NAME)?.into_iter().sum();
    println!(
        "the guest has {} → {} MiB in all, the host holds {} → {} MiB",
        before / MIB,
        after / MIB,
        host / MIB,
        host_after / MIB
    );
    ensure!(before - after == 256 * MIB, "{before} → {after}");
    ensure!(
        host_after + 256 * MIB <= host + SLACK,
        "{host} → {host_after}"
    );
    guest.expect_writer_intact()?;
    let shown = guest.daemon.show()?;
    println!("{shown}");
    ensure!(shown.contains("balloon"), "{shown}");

    guest.daemon.resize_and_wait(Some(512), Some(512))?;
    let back: u64 = guest.sizes()?.total.into_iter().sum();
    ensure!(back == before, "{before} → {back}");
    guest.expect_writer_intact()?;
    tiered::expect_a_quiet_kernel(&mut guest.lab, MARK)
}
