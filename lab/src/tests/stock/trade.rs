//! A real guest that trades fast memory for slow at equal cost (HMvisor §3.3).

use anyhow::{Result, ensure};

use crate::guests::balanced::{BUSY, Balanced, FLOOR_MIB, IDLE, MARK, program, vmstat};
use crate::guests::tiered;

/// Fast and slow memory that each guest has at first, MiB: its nodes are larger.
const FAST_MIB: u64 = 192;
const SLOW_MIB: u64 = 80;
/// Memory of a program that does not fit into that, MiB.
const LOAD_MIB: usize = 270;
/// The price of fast memory over slow.
const RATIO: u64 = 4;
/// Major faults between two looks that are noise.
const FEW_FAULTS: u64 = 100;

/// The price of such sizes.
fn price(sizes: &[u64]) -> u64 {
    let slow: u64 = sizes.iter().skip(1).sum();
    sizes.first().unwrap_or(&0) * RATIO + slow
}

/// A guest whose program does not fit buys slow memory with fast until it does; another one, which idles, stays as it is.
pub fn at_equal_cost() -> Result<()> {
    let first = vec![FAST_MIB, SLOW_MIB];
    let mut guests = Balanced::start_trading(RATIO, [FAST_MIB, SLOW_MIB])?;
    for guest in [&mut guests.busy, &mut guests.idle] {
        guest.check("echo 1 >/sys/kernel/mm/numa/demotion_enabled")?;
    }
    guests.until(
        "both are balanced, one with less than it was started with",
        |guests| {
            let events = guests.daemon.events()?;
            let both = events.matches("its memory is balanced from now on").count() >= 2;
            Ok(both && guests.sizes_mib(BUSY)? == first)
        },
    )?;
    // What the other one has no more, the host has.
    let sizes = [("--fast", FAST_MIB), ("--slow", SLOW_MIB)];
    guests.daemon.resize_vm(IDLE, &sizes)?;
    guests.until("the idle one has as much", |guests| {
        Ok(guests.sizes_mib(IDLE)? == first)
    })?;
    guests.daemon.set_of(IDLE, "balance=on")?;
    let (own, load) = (program("own", 64, 16), program("load", LOAD_MIB, LOAD_MIB));
    guests.idle.start_hot_set(&own)?;
    guests.busy.begin_hot_set(&load)?;
    let (mut was, mut calm, mut most) = (vmstat(&mut guests.busy, "pgmajfault")?, 0, 0);
    guests.until("it has what it needs, and faults no more", |guests| {
        let now = vmstat(&mut guests.busy, "pgmajfault")?;
        let sizes = guests.sizes_mib(BUSY)?;
        let has_bought = sizes.get(1).is_some_and(|slow| *slow > SLOW_MIB);
        let is_calm = has_bought && now - was < FEW_FAULTS;
        (calm, most) = (if is_calm { calm + 1 } else { 0 }, most.max(now - was));
        was = now;
        Ok(calm >= 10)
    })?;
    let sizes = guests.sizes_mib(BUSY)?;
    println!(
        "from {FAST_MIB} + {SLOW_MIB} to {sizes:?} MiB at {RATIO} to 1: price {} after {}; at most {most} major faults between two \
         looks, hardly any at the end",
        price(&sizes),
        price(&first)
    );
    guests.until("it has paid", |guests| {
        Ok(price(&guests.sizes_mib(BUSY)?) <= price(&first))
    })?;
    ensure!(guests.size_mib(BUSY)? >= Some(FLOOR_MIB));
    ensure!(
        guests.sizes_mib(IDLE)? == first,
        "the other one traded, too"
    );
    let events = guests.daemon.events()?;
    ensure!(
        events.contains("it buys slow memory"),
        "no reason: {events}"
    );
    guests.busy.wait_for_workload(&load.name)?;
    guests.busy.expect_native_intact(&load.name)?;
    guests.idle.expect_native_intact(&own.name)?;
    tiered::expect_a_quiet_kernel(&mut guests.busy, MARK)?;
    tiered::expect_a_quiet_kernel(&mut guests.idle, MARK)
}
