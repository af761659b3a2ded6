//! Balancing for an hour: nothing moves under constant load, and nothing is left of guests that come and go.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::balance;
use crate::guests::balanced::{BUSY, Balanced, By, IDLE, MARK, program};
use crate::guests::tiered;
use crate::progress::say;

/// Time of constant load.
const HOUR: Duration = Duration::from_secs(3600);
/// Guests that come and go; after the first ones the daemon has all that it needs.
const GUESTS: usize = 60;
const FIRST: usize = 10;
/// CPU time of the daemon, of a processor for each guest, millionths.
const MOST_COST_PPM: u128 = 5_000;
/// More memory of the daemon that is no leak, KiB: what a log of the last changes may still grow by.
const NEAR_KIB: u64 = 4096;
/// Descriptors of a guest that is being connected to.
const NEAR_DESCRIPTORS: usize = 4;

/// A guest that got what it needs keeps that for an hour.
pub fn constant() -> Result<()> {
    let mut guests = Balanced::start(By::Balloon)?;
    balance::relief(&mut guests, balance::LOAD_MIB)?;
    balance::settle(&mut guests)?;
    let (orders, cost) = (guests.orders()?, cpu_time(&guests)?);
    let begin = Instant::now();
    guests.watch(HOUR)?;
    let cost = (cpu_time(&guests)? - cost).as_micros() * 1_000_000;
    let ppm = cost / begin.elapsed().as_micros().max(1) / 2;
    println!(
        "{} orders in an hour; the daemon takes {ppm} millionths of a processor for each guest, of {MOST_COST_PPM}",
        guests.orders()? - orders
    );
    ensure!(guests.orders()? == orders, "{}", guests.daemon.events()?);
    ensure!(ppm < MOST_COST_PPM, "{ppm} millionths");
    tiered::expect_a_quiet_kernel(&mut guests.idle, MARK)
}

/// Guests are started and killed beside one that swaps and gets what they do not use.
pub fn churn() -> Result<()> {
    let mut guests = Balanced::start(By::Balloon)?;
    let (_, load) = balance::relief(&mut guests, balance::LOAD_MIB)?;
    let mut first = None;
    for number in 1..=GUESTS {
        guests = guests.replace_idle(By::Balloon)?;
        guests.until_known(IDLE)?;
        // Some grow beyond what they have, and some end at once.
        if number % 3 > 0 {
            let more = program("own", 64 + 60 * (number % 5), 16 * (number % 5));
            guests.idle.start_hot_set(&more)?;
        }
        let now = held_by(&guests)?;
        say(&format!(
            "guest {number}: {} descriptors, {} KiB; {BUSY} has {:?} MiB, {IDLE} {:?}",
            now.0,
            now.1,
            guests.size_mib(BUSY)?,
            guests.size_mib(IDLE)?
        ));
        if number == FIRST {
            first = Some(now);
        }
    }
    let ((descriptors, kib), now) = (first.context("too few guests")?, held_by(&guests)?);
    println!(
        "after {FIRST} guests {descriptors} descriptors and {kib} KiB, after {GUESTS} {} and {}",
        now.0, now.1
    );
    ensure!(now.0 <= descriptors + NEAR_DESCRIPTORS && now.1 <= kib + NEAR_KIB);
    guests.busy.wait_for_workload(&load.name)?;
    guests.busy.expect_native_intact(&load.name)?;
    tiered::expect_a_quiet_kernel(&mut guests.busy, MARK)
}

/// CPU time of the daemon and its children so far.
fn cpu_time(guests: &Balanced) -> Result<Duration> {
    let mut ticks = 0;
    for pid in guests.daemon.processes()? {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        // The name may have blanks.
        let (_, after) = stat.rsplit_once(')').context("/proc/PID/stat")?;
        let times = after.split_whitespace().skip(11).take(2);
        ticks += times
            .filter_map(|time| time.parse::<u64>().ok())
            .sum::<u64>();
    }
    // USER_HZ is 100 on all machines.
    Ok(Duration::from_millis(ticks * 10))
}

/// Descriptors and resident memory, KiB, of the daemon and its children.
fn held_by(guests: &Balanced) -> Result<(usize, u64)> {
    let (mut descriptors, mut kib) = (0, 0);
    for pid in guests.daemon.processes()? {
        descriptors += fs::read_dir(format!("/proc/{pid}/fd"))?.count();
        let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:"));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        kib += number.context("no VmRSS")?.parse::<u64>()?;
    }
    Ok((descriptors, kib))
}
