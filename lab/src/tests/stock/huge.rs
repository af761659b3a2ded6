//! Single pages behind a guest that got memory back become huge ones again.

use anyhow::{Result, ensure};

use crate::guests::balanced::{BUSY, Balanced, By, FLOOR_MIB, MARK, RAM_MIB, program};
use crate::guests::tiered::{self, MIB};

/// Memory of a program that needs what the balloon gives back, MiB.
const LOAD_MIB: usize = 330;

/// A guest whose balloon took half of its memory and gave it back uses it; its huge pages come back, and no other page does.
pub fn restored() -> Result<()> {
    let mut guests = Balanced::start_alone(By::Private)?;
    let sizes = |mib| [("--fast", mib), ("--slow", 0)];
    guests.daemon.resize_vm(BUSY, &sizes(FLOOR_MIB))?;
    guests.until("its balloon has what it is to have", |guests| {
        Ok(guests.size_mib(BUSY)? == Some(FLOOR_MIB))
    })?;
    guests.daemon.resize_vm(BUSY, &sizes(RAM_MIB))?;
    guests.until("its balloon is empty", |guests| {
        Ok(guests.size_mib(BUSY)? == Some(RAM_MIB))
    })?;
    let load = program("load", LOAD_MIB, 16);
    guests.busy.start_hot_set(&load)?;
    guests.until("single pages have become huge ones", |guests| {
        let huge = &guests.provisioning(BUSY)?["huge"];
        Ok(huge["collapsed_bytes"].as_u64() >= Some(64 * MIB))
    })?;
    // The share is measured at both ends of a search.
    guests.until("it is said", |guests| {
        Ok(guests.daemon.events()?.contains("huge pages were made of"))
    })?;
    let huge = guests.provisioning(BUSY)?["huge"].take();
    println!("{huge}");
    ensure!(huge["after_percent"].as_f64() > huge["before_percent"].as_f64());
    guests.busy.expect_native_intact(&load.name)?;
    tiered::expect_a_quiet_kernel(&mut guests.busy, MARK)
}
