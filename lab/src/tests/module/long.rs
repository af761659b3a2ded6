//! The guest module for minutes, beside all that moves, shares and reclaims pages, and on a kernel that checks itself.

use std::fs;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{MODULE, NEAR_MIB, expect_nothing_left, load};
use crate::control::lab::Lab;
use crate::guests::module;
use crate::machine::checked;
use crate::machine::kernel::Kernel;
use crate::{modules, places};

/// The program that moves pages beside forks, KSM, swap and small cgroups.
const STRESS: &str = "stress";
/// Modules for swap on compressed memory; of those for compression a kernel has the one that it prefers.
const SWAP: [&str; 4] = ["lzo", "lzo_rle", "lz4", "zram"];
/// Time beyond that of the stress within which it must end, and that of the test of itself on a slow kernel.
const END: Duration = Duration::from_secs(600);
/// Freed memory that KASAN keeps for a while, to see that nobody uses it, MiB: 1/32 of the guest's.
const QUARANTINE_MIB: u64 = 16;
/// Lines of the kernel's log by which to see that it does check itself.
const CHECKS: [&str; 2] = [
    "KernelAddressSanitizer initialized",
    "Lock dependency validator",
];

/// Stress for ten minutes, and for five that swap pages in place, leaves a kernel that has nothing to complain of and has its memory back.
pub fn stress(kernel: &Kernel) -> Result<()> {
    let mut guest = module::start(MODULE, kernel)?;
    under_stress(&mut guest, kernel, Duration::from_secs(600), NEAR_MIB)
}

/// The module's test of itself and stress on a kernel that would report a wrong access, lock or page table.
pub fn on_a_checked_kernel() -> Result<()> {
    let kernel = checked::get()?;
    let mut guest = module::start(MODULE, &kernel)?;
    let log = guest.check("dmesg")?;
    for check in CHECKS {
        ensure!(log.contains(check), "not in the kernel's log: {check}");
    }
    let near = NEAR_MIB + QUARANTINE_MIB;
    under_stress(&mut guest, &kernel, Duration::from_secs(120), near)
}

/// The times that the calls take. None is judged: the processor is emulated.
pub fn timings() -> Result<()> {
    let mut guest = module::start(MODULE, &Kernel::get(false)?)?;
    guest.check(&format!("insmod /{MODULE}.ko"))?;
    print!("{}", guest.check("/selftest --timings")?);
    guest.check(&format!("rmmod {MODULE} && insmod /{MODULE}.ko in_place=1"))?;
    println!("pages are exchanged in place:");
    print!("{}", guest.check("/selftest --timings")?);
    Ok(())
}

fn under_stress(guest: &mut Lab, kernel: &Kernel, time: Duration, near: u64) -> Result<()> {
    let folder = places::lab("module")?;
    for (name, bytes) in kernel.modules(&SWAP)? {
        let (file, path) = (folder.join(&name), format!("/{name}.ko"));
        fs::write(&file, bytes)?;
        guest.push(&file, &path)?;
        guest.check(&format!("insmod {path}"))?;
    }
    guest.push(&modules::program(MODULE, STRESS)?, "/stress")?;
    let before = load(guest)?;
    until_ok(guest, "/selftest", END)?;
    stress_for(guest, time)?;
    guest.check(&format!("rmmod {MODULE} && insmod /{MODULE}.ko in_place=1"))?;
    until_ok(guest, "/selftest", END)?;
    stress_for(guest, time / 2)?;
    guest.check(&format!("rmmod {MODULE}"))?;
    expect_nothing_left(guest, before, near)
}

fn stress_for(guest: &mut Lab, time: Duration) -> Result<()> {
    until_ok(guest, &format!("/stress {}", time.as_secs()), time + END)
}

/// Runs a program whose last line is `ok` if nothing was wrong.
fn until_ok(guest: &mut Lab, command: &str, timeout: Duration) -> Result<()> {
    let mut last = String::new();
    let exit = guest.stream(command, timeout, |line| {
        println!("{line}");
        line.clone_into(&mut last);
    })?;
    ensure!(exit == 0 && last == "ok", "{command}: {last} with {exit}");
    Ok(())
}
