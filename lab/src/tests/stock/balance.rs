//! Memory that moves between real guests: by stock devices, with stock drivers.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;

use crate::control::lab::Lab;
use crate::guests::balanced::{
    BUSY, Balanced, By, CAPACITY_MIB, CEILING_MIB, FILES, FILES_MIB, IDLE, MARK, RAM_MIB,
    REVIEW_MS, program, vmstat,
};
use crate::guests::tiered::{self, MIB};

/// Major faults between two looks that are noise: of programs that start, and of the shell.
const FEW_FAULTS: u64 = 100;
/// Memory of a program that does not fit into what a guest has at first, MiB, all of it in use. Of plugged memory the guest's
/// kernel leaves programs less.
pub const LOAD_MIB: usize = 330;
const LOAD_PLUGGED_MIB: usize = 270;
/// Memory of a program that does not fit into a guest at its floor, MiB.
const SHORT_MIB: usize = 200;
/// Time in which constant load moves nothing.
const CONSTANT: Duration = Duration::from_secs(300);
/// Time for which both are short.
const SHORT: Duration = Duration::from_secs(60);
/// Time for which page cache is watched.
const CACHE: Duration = Duration::from_secs(60);
/// Memory of a program, and the part of it that it uses, MiB; and memory of other programs of its guest.
const HAS_MIB: usize = 260;
const USES_MIB: usize = 32;
const OTHERS_MIB: u64 = 24;
/// Lines about a guest that is scanned: rounds are short and come more often than once a minute.
const SCANNED_OFTEN: &str = "scan = true\n[engine]\npolicy = \"vtmm\"\nfirst_round_after_ms = 2000\nperiod_ms = 20000\nwindows = 4\n\
                             window_ms = 250";
/// Bytes of a sector, as the kernel counts reads.
const SECTOR: u64 = 512;

/// A guest that swaps beside one that idles, minutes of constant load, the same the other way round, and both short: by the
/// balloon.
pub fn moves() -> Result<()> {
    let mut guests = Balanced::start(By::Balloon)?;
    let (own, load) = relief(&mut guests, LOAD_MIB)?;
    constant_load_moves_nothing(&mut guests)?;
    reverse(&mut guests, &own, &load)
}

/// The same without the minutes of constant load: memory is unplugged and plugged.
pub fn moves_by_virtio_mem() -> Result<()> {
    let mut guests = Balanced::start(By::VirtioMem)?;
    let (own, load) = relief(&mut guests, LOAD_PLUGGED_MIB)?;
    let shown = guests.provisioning(IDLE)?;
    ensure!(shown["by"] == "virtio-mem", "{shown}");
    reverse(&mut guests, &own, &load)
}

/// The same by HyperFlex, whose driver reports statistics too.
pub fn moves_by_hyperflex() -> Result<()> {
    let mut guests = Balanced::start(By::HyperFlex)?;
    let (own, load) = relief(&mut guests, LOAD_MIB)?;
    let shown = guests.provisioning(IDLE)?;
    ensure!(shown["by"] == "hyperflex", "{shown}");
    reverse(&mut guests, &own, &load)
}

/// A guest that swaps beside one that idles. Returns their programs.
pub fn relief(guests: &mut Balanced, load_mib: usize) -> Result<(HotSet, HotSet)> {
    let (own, load) = (program("own", 64, 16), program("load", load_mib, load_mib));
    guests.idle.start_hot_set(&own)?;
    within_capacity(guests)?;
    println!("at first: {}", sizes(guests)?);
    let passes = passes(&mut guests.idle)?;
    guests.daemon.set(&format!("memory_ceiling={RAM_MIB}MiB"))?;
    guests.busy.begin_hot_set(&load)?;
    relieved(guests, BUSY)?;
    guests.busy.wait_for_workload(&load.name)?;
    println!(
        "the idle guest had {passes} passes a second before, {} now",
        self::passes(&mut guests.idle)?
    );
    guests.busy.expect_native_intact(&load.name)?;
    guests.idle.expect_native_intact(&own.name)?;
    let events = guests.daemon.events()?;
    ensure!(
        events.contains("it swaps") && events.contains("arbiter"),
        "no reason: {events}"
    );
    Ok((own, load))
}

/// The guest that idled swaps, then both do.
fn reverse(guests: &mut Balanced, own: &HotSet, load: &HotSet) -> Result<()> {
    guests.busy.end_workload(&load.name)?;
    guests.idle.begin_hot_set(load)?;
    relieved(guests, IDLE)?;
    guests.idle.wait_for_workload(&load.name)?;
    // So much that it swaps for all the time, and so little that its passes end.
    guests
        .busy
        .begin_hot_set(&program("load", SHORT_MIB, SHORT_MIB))?;
    guests.watch(SHORT)?;
    println!("both are short: {}", sizes(guests)?);
    guests.busy.wait_for_workload(&load.name)?;
    for guest in [&mut guests.busy, &mut guests.idle] {
        guest.expect_native_intact(&load.name)?;
        tiered::expect_a_quiet_kernel(guest, MARK)?;
    }
    guests.idle.expect_native_intact(&own.name)
}

/// A guest whose program has much memory and uses little of it, beside one that swaps.
pub fn unused() -> Result<()> {
    let mut guests = Balanced::start_with(By::Balloon, SCANNED_OFTEN)?;
    // A guest that never swapped might have no swap.
    let all = program("all", 440, 440);
    guests.idle.begin_hot_set(&all)?;
    guests.until("the idle guest has swapped", |guests| {
        Ok(count(guests, IDLE, "pswpout")? > 0)
    })?;
    // It may not answer yet.
    guests
        .idle
        .check("killall lab-native; while pidof lab-native; do sleep 0.2; done")?;
    let own = HotSet {
        elsewhere: 0,
        ..program("own", HAS_MIB, USES_MIB)
    };
    guests.idle.start_hot_set(&own)?;
    within_capacity(&mut guests)?;
    guests.daemon.set(&format!("memory_ceiling={RAM_MIB}MiB"))?;
    let load = program("load", LOAD_MIB, LOAD_MIB);
    guests.busy.begin_hot_set(&load)?;
    let mut ages = Value::Null;
    // What it had before fades, and a program that got no processor yet has used nothing.
    let uses = USES_MIB as u64 * MIB..=(2 * USES_MIB as u64 + OTHERS_MIB) * MIB;
    guests.until("memory that its program does not use is known", |guests| {
        ages = guests.provisioning(IDLE)?["balance"]["ages"].take();
        let mapped = ages["mapped_bytes"].as_u64().unwrap_or_default();
        let unused = ages["unused_bytes"].as_u64().unwrap_or_default();
        Ok(unused > 0 && uses.contains(&mapped.saturating_sub(unused)))
    })?;
    expect_curve(&ages)?;
    expect_phases(&guests)?;
    let had = guests.size_mib(BUSY)?;
    // How much of it is enough depends on how fast the machine is: what helps nobody comes back.
    guests.until("the guest that swaps has some of it", |guests| {
        let is_said = guests.daemon.events()?.contains("do not use, by its age");
        Ok(is_said && guests.size_mib(BUSY)? > had)
    })?;
    println!("{}", sizes(&guests)?);
    let passes = passes(&mut guests.idle)?;
    ensure!(passes > 0, "the idle guest's program stands still");
    guests.idle.expect_native_intact(&own.name)?;
    tiered::expect_a_quiet_kernel(&mut guests.busy, MARK)?;
    tiered::expect_a_quiet_kernel(&mut guests.idle, MARK)
}

/// The first program of the idle guest has ended, and another one began: its phase is not the first one.
fn expect_phases(guests: &Balanced) -> Result<()> {
    let phase = guests.provisioning(IDLE)?["balance"]["phase"].take();
    println!("its phase: {phase}");
    // Which of the two, the machine's processors decide.
    let source = phase["source"].as_str();
    ensure!(
        matches!(source, Some("statistics" | "page-walks")),
        "{phase}"
    );
    ensure!(phase["changes"].as_u64() > Some(0), "{phase}");
    Ok(())
}

/// The curve of a program that uses a part of its memory again and again: little below that part is enough, and all above it is.
fn expect_curve(ages: &Value) -> Result<()> {
    let mib = |name: &str| ages[name].as_u64().unwrap_or_default() / MIB;
    let used = mib("mapped_bytes") - mib("unused_bytes");
    let points = ages["curve"].as_array().into_iter().flatten();
    let misses = |at: u64| {
        let mut points = points.clone();
        let after = points.find(|point| point["bytes"].as_u64() >= Some(at * MIB));
        after.map_or(0, |point| {
            point["misses_per_s"].as_u64().unwrap_or_default()
        })
    };
    let uses = USES_MIB as u64;
    let (below, above) = (misses(uses / 2), misses(2 * uses + OTHERS_MIB));
    println!(
        "its programs map {} MiB and use {used}; {below} misses a second with {} MiB, {above} with {}",
        mib("mapped_bytes"),
        uses / 2,
        2 * uses + OTHERS_MIB
    );
    ensure!((uses..=2 * uses + OTHERS_MIB).contains(&used), "{ages}");
    // All pages of the part, at least once in a few seconds.
    ensure!(below > 10 * above.max(10), "{ages}");
    Ok(())
}

/// The page cache of a guest that reads all of it again and again, beside one that swaps.
pub fn page_cache() -> Result<()> {
    let mut guests = Balanced::start(By::Balloon)?;
    within_capacity(&mut guests)?;
    // It reads all of its files every other second: they stay in its page cache while somebody has the device open.
    let reader = format!(
        "echo 'exec 3</dev/{FILES}; while :; do cat /dev/{FILES}; sleep 2; done >/dev/null' >/tmp/reader; \
         setsid sh /tmp/reader </dev/null >/dev/null 2>&1 &"
    );
    guests.idle.check(&reader)?;
    guests.until("its files are in its page cache", |guests| {
        let buffers = guests.idle.check("grep ^Buffers: /proc/meminfo")?;
        let kib = buffers.split_whitespace().nth(1).unwrap_or_default();
        Ok(kib.parse::<u64>()? >> 10 >= FILES_MIB - 4)
    })?;
    println!("files in use: {}", sizes(&guests)?);
    let before = files_read(&mut guests.idle)?;
    let load = program("load", 370, 370);
    guests.daemon.set(&format!("memory_ceiling={RAM_MIB}MiB"))?;
    guests.busy.begin_hot_set(&load)?;
    guests.watch(CACHE)?;
    let read = (files_read(&mut guests.idle)? - before) / MIB;
    println!(
        "{read} MiB of {FILES_MIB} read again in {} s beside a guest that swaps: {}",
        CACHE.as_secs(),
        sizes(&guests)?
    );
    // Each try costs it a few passes, and there are at most two.
    ensure!(
        read <= 8 * FILES_MIB,
        "its page cache was taken: {read} MiB"
    );
    tiered::expect_a_quiet_kernel(&mut guests.busy, MARK)?;
    tiered::expect_a_quiet_kernel(&mut guests.idle, MARK)
}

fn within_capacity(guests: &mut Balanced) -> Result<()> {
    guests.until("both are within what there is", |guests| {
        let is_little = guests
            .size_mib(BUSY)?
            .is_some_and(|size| size <= CEILING_MIB);
        Ok(is_little && sum(guests)?.is_some_and(|sum| sum <= CAPACITY_MIB))
    })
}

/// Waits until a guest that swaps has what it needs.
fn relieved(guests: &mut Balanced, vm: &str) -> Result<()> {
    let begin = Instant::now();
    let had = guests.size_mib(vm)?.unwrap_or_default();
    let mut first = None;
    let out = count(guests, vm, "pswpout")?;
    let mut was = count(guests, vm, "pgmajfault")?;
    let mut calm = 0;
    guests.until("the guest that swaps has what it needs", |guests| {
        let has = guests.size_mib(vm)?.unwrap_or_default();
        if has > had && first.is_none() {
            first = Some(begin.elapsed().as_secs_f64());
        }
        let now = count(guests, vm, "pgmajfault")?;
        let swapped = count(guests, vm, "pswpout")? > out;
        // Once it has swapped, and three looks in a row found hardly a fault.
        let is_calm = swapped && now - was < FEW_FAULTS && has > CAPACITY_MIB / 2;
        calm = if is_calm { calm + 1 } else { 0 };
        was = now;
        Ok(calm >= 3)
    })?;
    println!(
        "relieved: first after {:.1} s, in all after {:.1} s: {}",
        first.unwrap_or_default(),
        begin.elapsed().as_secs_f64(),
        sizes(guests)?
    );
    ensure!(sum(guests)?.is_some_and(|sum| sum <= CAPACITY_MIB));
    Ok(())
}

/// Waits until sizes have settled.
pub fn settle(guests: &mut Balanced) -> Result<()> {
    let mut last = (guests.orders()?, Instant::now());
    let settled = Duration::from_millis(3 * REVIEW_MS);
    guests.until("sizes have settled", |guests| {
        let orders = guests.orders()?;
        if orders != last.0 {
            last = (orders, Instant::now());
        }
        Ok(last.1.elapsed() >= settled)
    })
}

/// Once sizes have settled, nothing is ordered for minutes.
fn constant_load_moves_nothing(guests: &mut Balanced) -> Result<()> {
    settle(guests)?;
    let orders = guests.orders()?;
    guests.watch(CONSTANT)?;
    let orders = guests.orders()? - orders;
    println!(
        "{orders} orders in {} s of constant load",
        CONSTANT.as_secs()
    );
    ensure!(orders == 0, "{}", guests.daemon.events()?);
    Ok(())
}

/// A number of one guest's `/proc/vmstat`.
fn count(guests: &mut Balanced, vm: &str, name: &str) -> Result<u64> {
    let guest = if vm == BUSY {
        &mut guests.busy
    } else {
        &mut guests.idle
    };
    vmstat(guest, name)
}

/// Passes of the idle guest's program in a second.
fn passes(guest: &mut Lab) -> Result<u64> {
    let passes =
        |guest: &mut Lab| Ok::<_, anyhow::Error>(guest.ask("own", "stats")?["passes"].as_u64());
    let (begin, before) = (Instant::now(), passes(guest)?.unwrap_or_default());
    std::thread::sleep(Duration::from_secs(5));
    let more = passes(guest)?.unwrap_or_default() - before;
    Ok(more * 1000 / u64::try_from(begin.elapsed().as_millis())?)
}

/// Bytes that a guest has read from the device with its files.
fn files_read(guest: &mut Lab) -> Result<u64> {
    let sectors = guest.check(&format!("awk '{{print $3}}' /sys/block/{FILES}/stat"))?;
    Ok(sectors.trim().parse::<u64>()? * SECTOR)
}

fn sum(guests: &Balanced) -> Result<Option<u64>> {
    let (busy, idle) = (guests.size_mib(BUSY)?, guests.size_mib(IDLE)?);
    Ok(busy.zip(idle).map(|(busy, idle)| busy + idle))
}

fn sizes(guests: &Balanced) -> Result<String> {
    let of = |vm| Ok::<_, anyhow::Error>(guests.size_mib(vm)?.unwrap_or_default());
    Ok(format!(
        "{BUSY} {} MiB, {IDLE} {} MiB of {CAPACITY_MIB}",
        of(BUSY)?,
        of(IDLE)?
    ))
}
