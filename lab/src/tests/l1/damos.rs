//! A nested guest gathers its scattered hot pages, and the host tiers by the kernel's own means: DAMON's migrations in L1.
//!
//! What an idle guest has in fast memory is left there, and the host has room for a few pages of 2 MiB more. Two threads place:
//! one brings what is hot, one takes what is cold. The first is stopped while there is no room. That is what newer kernels
//! do by a goal for the node's free memory; 6.12 has none. A node that is really full has DAMON break huge pages: the last
//! test prints it.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use terrace_lab_programs::pages::PageRange;

use super::gather::{BLOCKS, EACH, GUEST, gather, start_with_module, start_with_node};
use crate::control::daemon::FAST;
use crate::control::damos::{self, COLD, HOT};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

/// The threads, by their place.
const TO_FAST: u32 = 0;
const TO_SLOW: u32 = 1;
/// Number of accesses that no region has.
const NEVER: u64 = 1000;
/// Pages of 2 MiB that fit beside what the idle guest has. Some more come before the host is stopped.
const ROOM: u64 = 6;
/// Time and bytes of a quota: the host tries a page of 2 MiB in each.
const WINDOW_MS: u64 = 500;
const TRIED: u64 = 2 << 20;
/// So many times as much while the host looks for what was gathered: there is room for more then.
const LOOKING: u64 = 4;
/// Time in which the host finds what an idle guest has.
const IDLE: Duration = Duration::from_secs(12);
/// Longest time until the room is filled, and until the gathered pages are there.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time for which a full node is watched.
const WATCHED: Duration = Duration::from_secs(20);
/// Memory that is free on a full node, MiB.
const FREE_MIB: u64 = 24;
/// Blocks that may be hot beside those that the pages fit in.
const MORE_BLOCKS: u64 = 4;
const UNIT_PAGES: u64 = 512;

pub const TESTS: &[Test] = &[
    Test {
        name: "a_gathered_hot_set_fits_under_damos",
        needs: Needs::Product,
        boot: Boot::L1(|lab| {
            start_with_module(lab)?;
            expect_to_fit_once_gathered(lab, "agent gather")
        }),
    },
    Test {
        name: "a_hot_set_gathered_on_a_node_fits_under_damos",
        needs: Needs::Product,
        boot: Boot::L1(|lab| {
            start_with_node(lab)?;
            expect_to_fit_once_gathered(lab, "gather")
        }),
    },
];

pub const LONG_TESTS: &[Test] = &[Test {
    name: "damos_beside_a_full_fast_node_is_watched",
    needs: Needs::Product,
    boot: Boot::L1(full_node),
}];

fn expect_to_fit_once_gathered(lab: &mut Lab, command: &str) -> Result<()> {
    let most = place_the_idle_guest(lab)? + ROOM;
    // Nothing of that leaves until the guest has gathered.
    lab.check(&damos::state(TO_SLOW, "off"))?;
    lab.guest_of(GUEST, "run")?;
    lab.wait_until("the host has filled its room", PATIENCE, |lab| {
        Ok((!admit(lab, most)?).then_some(()))
    })?;
    let before = lab.hot_on_fast(GUEST)?;
    println!("scattered: {before}; {} units of the guest", units(lab)?);
    ensure!(
        before.hot == BLOCKS * EACH && before.fast * 100 <= before.hot * 15,
        "a scattered hot set does not fit: {before}"
    );
    let round = gather(lab, command)?;
    println!("gathered: {}: {round}", lab.hot_on_fast(GUEST)?);
    let begun = Instant::now();
    lab.check(&damos::state(TO_SLOW, "on"))?;
    set(lab, &[("quotas/bytes", LOOKING * TRIED)])?;
    lab.wait_until("the hot set is in fast memory", PATIENCE, |lab| {
        admit(lab, most)?;
        Ok(lab.hot_on_fast(GUEST)?.is_placed().then_some(()))
    })?;
    let seconds = begun.elapsed().as_secs();
    println!(
        "in fast memory after {seconds} s; {} units of the guest, {} of them hot",
        units(lab)?,
        hot_blocks(lab)?
    );
    let blocks = hot_blocks(lab)?;
    ensure!(
        blocks <= BLOCKS * EACH / UNIT_PAGES + MORE_BLOCKS,
        "{blocks} blocks are hot: {round}"
    );
    lab.expect_intact(GUEST)
}

/// The whole fast node has room for a few pages of 2 MiB, and nothing stops the host. For people: where there is no free block
/// for a huge page, DAMON's migration breaks it, and hot base pages come one by one.
fn full_node(lab: &mut Lab) -> Result<()> {
    start_with_node(lab)?;
    place_the_idle_guest(lab)?;
    lab.leave_free_on_fast(FREE_MIB)?;
    lab.guest_of(GUEST, "run")?;
    set(
        lab,
        &[("access_pattern/nr_accesses/min", 1), ("quotas/bytes", 0)],
    )?;
    let begun = Instant::now();
    while begun.elapsed() < WATCHED {
        let now = lab.hot_on_fast(GUEST)?;
        let broken = lab.check("awk '/^thp_split_page / { print $2 }' /proc/vmstat")?;
        println!(
            "scattered, {} s: {now}; {} huge pages were broken",
            begun.elapsed().as_secs(),
            broken.trim()
        );
        std::thread::sleep(Duration::from_secs(3));
    }
    let round = gather(lab, "gather")?;
    println!("gathered: {round}");
    lab.wait_until("the hot set is in fast memory", PATIENCE, |lab| {
        Ok(lab.hot_on_fast(GUEST)?.is_placed().then_some(()))
    })?;
    lab.expect_intact(GUEST)
}

/// Starts both threads, with an idle guest, and lets them place; then the one that brings pages is stopped. Returns how many
/// pages of 2 MiB they left in fast memory.
fn place_the_idle_guest(lab: &mut Lab) -> Result<u64> {
    lab.check(
        "echo 0 >/proc/sys/kernel/numa_balancing; echo 0 >/sys/kernel/mm/numa/demotion_enabled",
    )?;
    lab.guest_of(GUEST, "idle")?;
    lab.check(&damos::prepare(&[HOT, COLD]))?;
    // All pages were accessed once, when the guest began: a pass to their own node takes note of that and moves none.
    let own_node = [
        ("quotas/reset_interval_ms", WINDOW_MS),
        ("target_nid", HOT.from.into()),
        ("access_pattern/nr_accesses/min", 0),
    ];
    for (file, value) in own_node {
        lab.check(&damos::set(TO_FAST, file, value))?;
    }
    lab.check(&damos::state(TO_FAST, "on"))?;
    lab.check(&damos::state(TO_SLOW, "on"))?;
    lab.wait_until("all regions were tried", PATIENCE, |lab| {
        Ok((tried(lab)? > 1000).then_some(()))
    })?;
    set(
        lab,
        &[
            ("target_nid", HOT.to.into()),
            ("access_pattern/nr_accesses/min", 1),
        ],
    )?;
    std::thread::sleep(IDLE);
    set(
        lab,
        &[
            ("access_pattern/nr_accesses/min", NEVER),
            ("quotas/bytes", TRIED),
        ],
    )?;
    // The first window of a quota has no bound in 6.12.
    lab.wait_until("the quota is in force", PATIENCE, |lab| {
        Ok((effective_quota(lab)? == TRIED).then_some(()))
    })?;
    let idle = units(lab)?;
    println!("idle: {idle} units of the guest are in fast memory");
    Ok(idle)
}

/// Lets hot pages come if there is room for them; returns whether there is.
fn admit(lab: &mut Lab, most: u64) -> Result<bool> {
    let is_room = units(lab)? < most;
    let accesses = if is_room { 1 } else { NEVER };
    set(lab, &[("access_pattern/nr_accesses/min", accesses)])?;
    Ok(is_room)
}

/// Settings of the thread that brings pages, while it runs.
fn set(lab: &mut Lab, files: &[(&str, u64)]) -> Result<()> {
    for (file, value) in files {
        lab.check(&damos::set(TO_FAST, file, *value))?;
    }
    lab.check(&damos::state(TO_FAST, "commit")).map(drop)
}

/// Regions that the thread has tried.
fn tried(lab: &mut Lab) -> Result<u64> {
    lab.check(&damos::state(TO_FAST, "update_schemes_stats"))?;
    let tried = lab.check(&damos::get(TO_FAST, "stats/nr_tried"))?;
    tried.trim().parse().context("nr_tried")
}

/// The bytes that the quota of the thread that brings pages allows just now.
fn effective_quota(lab: &mut Lab) -> Result<u64> {
    lab.check(&damos::state(TO_FAST, "update_schemes_effective_quotas"))?;
    let bytes = lab.check(&damos::get(TO_FAST, "quotas/effective_bytes"))?;
    bytes.trim().parse().context("effective_bytes")
}

/// Memory of the guest on the fast node, in pages of 2 MiB.
fn units(lab: &mut Lab) -> Result<u64> {
    Ok(lab.residents(GUEST)?.on(FAST).div_ceil(UNIT_PAGES))
}

/// Blocks of the guest's memory that have hot pages, by its own word.
fn hot_blocks(lab: &mut Lab) -> Result<u64> {
    let pages = lab.hot_pages(GUEST)?;
    let mut blocks: Vec<u64> = pages
        .into_iter()
        .flat_map(PageRange::frames)
        .map(|frame| frame / UNIT_PAGES)
        .collect();
    blocks.dedup();
    Ok(blocks.len() as u64)
}

impl Lab {
    /// Leaves so many MiB above the high watermark free on the fast node: a pool of huge pages, which nothing can move, takes
    /// all the rest.
    fn leave_free_on_fast(&mut self, mib: u64) -> Result<()> {
        self.check(&format!(
            "echo 16384 >/proc/sys/vm/min_free_kbytes
            pool=/sys/devices/system/node/node{FAST}/hugepages/hugepages-2048kB/nr_hugepages
            free() {{ awk '/MemFree/ {{ print $4 }}' /sys/devices/system/node/node{FAST}/meminfo; }}
            high=$(awk '/^Node/ {{ node = $2 }} node == \"{FAST},\" && $1 == \"high\" {{ pages += $2 }}
                        END {{ print 4 * pages }}' /proc/zoneinfo)
            for try in 1 2 3; do
                echo $(($(cat $pool) + ($(free) - high - {mib} * 1024) / 2048)) >$pool
            done"
        ))
        .map(drop)
    }
}
