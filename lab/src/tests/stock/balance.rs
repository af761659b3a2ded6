//! Memory that moves between real guests: by stock balloons, with stock drivers.

use anyhow::{Result, ensure};

use crate::guests::balanced::{
    BUSY, Balanced, CAPACITY_MIB, CEILING_MIB, IDLE, MARK, program, vmstat,
};
use crate::guests::tiered;

/// Major faults between two looks that are noise: of programs that start, and of the shell.
const FEW_FAULTS: u64 = 100;

/// A guest that swaps beside one that idles.
pub fn moves() -> Result<()> {
    let mut guests = Balanced::start()?;
    let own = program("own", 64, 16);
    guests.idle.start_hot_set(&own)?;
    guests.until("both are within what there is", |guests| {
        let is_little = guests
            .size_mib(BUSY)?
            .is_some_and(|size| size <= CEILING_MIB);
        Ok(is_little && sum(guests)?.is_some_and(|sum| sum <= CAPACITY_MIB))
    })?;
    println!("at first: {}", sizes(&guests)?);
    let out = vmstat(&mut guests.busy, "pswpout")?;
    let load = program("load", 330, 330);
    guests.busy.start_hot_set(&load)?;
    guests.until("the busy guest swaps", |guests| {
        Ok(vmstat(&mut guests.busy, "pswpout")? > out)
    })?;
    println!("it swaps: {}", sizes(&guests)?);
    guests.daemon.set("memory_ceiling=512MiB")?;
    let mut was = vmstat(&mut guests.busy, "pgmajfault")?;
    let mut calm = 0;
    guests.until("the busy guest has what it needs", |guests| {
        let now = vmstat(&mut guests.busy, "pgmajfault")?;
        let swapped = vmstat(&mut guests.busy, "pswpout")? > out;
        // Once it has swapped, and three looks in a row found hardly a fault.
        calm = if swapped && now - was < FEW_FAULTS {
            calm + 1
        } else {
            0
        };
        was = now;
        Ok(calm >= 3)
    })?;
    println!("at last: {}", sizes(&guests)?);
    let busy = guests.size_mib(BUSY)?.unwrap_or_default();
    ensure!(busy > CAPACITY_MIB / 2, "the busy guest has {busy} MiB");
    ensure!(sum(&guests)?.is_some_and(|sum| sum <= CAPACITY_MIB));
    guests.busy.expect_native_intact(&load.name)?;
    guests.idle.expect_native_intact(&own.name)?;
    let events = guests.daemon.events()?;
    ensure!(
        events.contains("it swaps") && events.contains("arbiter"),
        "no reason: {events}"
    );
    tiered::expect_a_quiet_kernel(&mut guests.busy, MARK)?;
    tiered::expect_a_quiet_kernel(&mut guests.idle, MARK)
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
