//! Tests of what the driver must survive if its device misbehaves.

use anyhow::{Result, ensure};

use super::sizes::{checksums, expect_all_back, fill, sizes};
use crate::guests::flex::device::Device;
use crate::guests::flex::guest::FlexGuest;
use crate::guests::flex::hostile::Hostile;
use crate::guests::flex::shape::{BASE, HUGE};

pub fn manners() -> Result<()> {
    let mut guest = FlexGuest::<Hostile>::start(BASE)?;
    guest.insert()?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    for manner in ["refuse", "short"] {
        guest.device.set_manner(manner)?;
        guest.device.set_targets([10_000, 10_000])?;
        guest.until("refusals are counted", |guest| {
            Ok(guest.driver()?.iter().all(|tier| tier.refused > 1000))
        })?;
        ensure!(guest.driver()?.iter().all(|tier| tier.base == 0));
        guest.device.set_manner("good")?;
        guest.resize([0, 0])?;
    }
    guest.device.set_manner("boast")?;
    guest.resize([10_000, 10_000])?;
    guest.resize([0, 0])?;
    guest.device.set_manner("refuse-half")?;
    guest.device.set_targets([10_000, 10_000])?;
    guest.until("the driver has what it can get", |guest| {
        Ok(guest.driver()?.iter().all(|tier| tier.base == 10_000))
    })?;
    guest.resize([0, 0])?;
    guest.device.set_manner("silent")?;
    guest.device.set_targets([10_000, 10_000])?;
    guest.until("requests are on their way", |guest| {
        Ok(guest.driver()?.iter().all(|tier| tier.in_flight > 0))
    })?;
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    guest.device.set_manner("good")?;
    guest.resize([10_000, 10_000])?;
    guest.resize([0, 0])?;
    expect_all_back(&mut guest, &before)?;
    guest.expect_a_quiet_kernel()
}

pub fn removal() -> Result<()> {
    let mut guest = FlexGuest::<Hostile>::start(BASE | HUGE)?;
    let expected = fill(&mut guest)?;
    let before = sizes(&mut guest)?;
    guest.insert()?;
    guest.resize([20_000, 50_001])?;
    guest.device.set_manner("silent")?;
    guest.device.set_targets([60_000, 60_000])?;
    guest.until("requests are on their way", |guest| {
        Ok(guest.driver()?.iter().all(|tier| tier.in_flight > 0))
    })?;
    guest.lab.check("rmmod hyperflex")?;
    guest.device.set_manner("good")?;
    expect_all_back(&mut guest, &before)?;
    guest.insert()?;
    guest.resize([20_000, 50_001])?;
    ensure!(checksums(&mut guest)? == expected, "files have changed");
    guest.expect_a_quiet_kernel()?;
    drop(guest);
    left_alone()
}

/// Checks that the driver leaves a device alone that offers no page order that it knows.
fn left_alone() -> Result<()> {
    let mut guest = FlexGuest::<Hostile>::start(1 << 4)?;
    guest.lab.check("insmod /hyperflex.ko")?;
    let log = guest.lab.check("dmesg | grep hyperflex")?;
    ensure!(log.contains("not for this driver"), "{log}");
    guest.lab.check("rmmod hyperflex")?;
    guest.expect_a_quiet_kernel()
}
