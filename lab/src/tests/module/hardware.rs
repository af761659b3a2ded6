//! The guest module beside a slow disk for swap, and beside memory that goes offline.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::{MODULE, NEAR_MIB, expect_nothing_left, load};
use crate::control::lab::Lab;
use crate::guests::module::{self, More};
use crate::machine::kernel::{Kernel, OLDEST};
use crate::modules;
use crate::tests::test::Test;

/// Time for which pages go to swap while they are moved by frame, and as long while they are exchanged, s.
const SWAPPING_S: u64 = 30;
/// Longest time beyond it.
const END: Duration = Duration::from_secs(240);

pub const TESTS: &[Test] = &[
    Test::on_guest("pages_under_writeback_are_left_by_the_guest_module", || {
        writeback(&Kernel::get(false)?)
    }),
    Test::on_guest(
        "pages_under_writeback_are_left_by_the_guest_module_on_6_1",
        || writeback(&Kernel::of(OLDEST, false)?),
    ),
    Test::on_guest("memory_goes_offline_beside_the_guest_module", offline),
];

/// The kernel's move stops the machine at a page that is being written to swap: such a page is left.
fn writeback(kernel: &Kernel) -> Result<()> {
    let mut guest = module::start_with(MODULE, kernel, More::SlowDisk)?;
    let before = load(&mut guest)?;
    guest.check("mkswap /dev/nvme0n1 && swapon /dev/nvme0n1")?;
    run(&mut guest, "writeback", &SWAPPING_S.to_string())?;
    guest.check(&format!("swapoff /dev/nvme0n1 && rmmod {MODULE}"))?;
    expect_nothing_left(&mut guest, before, NEAR_MIB)
}

/// Pages that are kept for exchanges, and those of an open block, do not hold memory that is to go offline.
fn offline() -> Result<()> {
    let mut guest = module::start_with(MODULE, &Kernel::get(false)?, More::Dimm)?;
    let before = load(&mut guest)?;
    run(&mut guest, "offline", "")?;
    guest.check(&format!("rmmod {MODULE}"))?;
    expect_nothing_left(&mut guest, before, NEAR_MIB)
}

/// Runs a program that tries the module, whose last line is `ok` if nothing was wrong.
fn run(guest: &mut Lab, program: &str, argument: &str) -> Result<()> {
    guest.push(&modules::program(MODULE, program)?, &format!("/{program}"))?;
    let said = guest.run(&format!("/{program} {argument}"), END)?;
    print!("{}", said.stdout);
    ensure!(said.exit == 0 && said.stdout.ends_with("ok\n"), "{said:?}");
    Ok(())
}
