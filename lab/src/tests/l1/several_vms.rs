//! Two VMs and a fast tier that holds less than both want.

use std::time::Duration;

use anyhow::{Result, ensure};
use terrace_lab_programs::vm::{VmSpec, truth_port};

use crate::control::daemon::{FAST, Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const SECOND: &str = "vm2";
const PATIENCE: Duration = Duration::from_secs(400);

const MIB: u64 = 1 << 20;
const PAGES_PER_MIB: u64 = 256;

/// Nominal size of each VM, and the limits that are its 75 % and 125 % by default, MiB.
const NOMINAL_MIB: u64 = 24;
const LOWER_MIB: u64 = 18;
const UPPER_MIB: u64 = 30;

/// Pages of a hot set of 40 MiB: more than a VM may have.
const HOT_PAGES: u64 = 40 * PAGES_PER_MIB;

pub const TESTS: &[Test] = &[Test {
    name: "pool_shifts_fast_memory_from_idle_to_busy_and_back",
    needs: Needs::Product,
    boot: Boot::L1(pool_shifts_fast_memory_from_idle_to_busy_and_back),
}];

const POOL: Setup = Setup {
    defaults: "fast = \"24MiB\"",
    // Memory that two VMs of 24 MiB share.
    sections: "[[tier]]\nname = \"fast\"\nnodes = [0]\ncapacity = \"48MiB\"\n\
               [[tier]]\nname = \"slow\"\nnodes = [1]",
    ..Setup::DEFAULT
};

fn pool_shifts_fast_memory_from_idle_to_busy_and_back(lab: &mut Lab) -> Result<()> {
    lab.start_vm(&VmSpec {
        name: SECOND.to_owned(),
        truth_port: truth_port(2),
        seed: 2,
        ..VmSpec::default()
    })?;
    for vm in [VM, SECOND] {
        lab.guest_of(vm, &format!("hot {HOT_PAGES}"))?;
    }
    lab.start_daemon(POOL)?;
    lab.wait_until_managed(SECOND)?;
    settle(lab, "both are busy", [NOMINAL_MIB, NOMINAL_MIB])?;
    lab.guest_of(VM, "idle")?;
    settle(lab, "the first is idle", [LOWER_MIB, UPPER_MIB])?;
    lab.guest_of(VM, "run")?;
    lab.guest_of(SECOND, "idle")?;
    settle(lab, "the second is idle", [UPPER_MIB, LOWER_MIB])?;
    for vm in [VM, SECOND] {
        lab.expect_intact(vm)?;
    }
    Ok(())
}

/// Waits until each VM holds what it should in fast memory, to the MiB, and most of it is hot if the VM is busy. At
/// no time may a VM hold more than its upper limit.
fn settle(lab: &mut Lab, when: &str, wanted_mib: [u64; 2]) -> Result<()> {
    let mut last = [u64::MAX; 2];
    lab.wait_until(&format!("the pool has settled: {when}"), PATIENCE, |lab| {
        let held = [held_mib(lab, VM)?, held_mib(lab, SECOND)?];
        if held != last {
            println!(
                "{when}: {VM} {} MiB, {SECOND} {} MiB on fast",
                held[0], held[1]
            );
            last = held;
        }
        for mib in held {
            ensure!(
                mib <= UPPER_MIB,
                "a VM holds {mib} MiB, more than its limit"
            );
        }
        let near = |(held, wanted): (&u64, &u64)| held.abs_diff(*wanted) <= 1;
        Ok(held.iter().zip(&wanted_mib).all(near).then_some(()))
    })?;
    for (vm, wanted) in [VM, SECOND].into_iter().zip(wanted_mib) {
        let hot = lab.hot_on_fast(vm)?;
        println!("{when}: {vm}: {hot}");
        if wanted > LOWER_MIB {
            ensure!(
                hot.fast * 10 >= wanted * PAGES_PER_MIB * 8,
                "{vm} holds {wanted} MiB of fast memory, but {hot}"
            );
        }
    }
    Ok(())
}

/// Fast memory of a VM, by the word of L1's kernel, rounded to MiB.
fn held_mib(lab: &mut Lab, vm: &str) -> Result<u64> {
    let pages = lab.residents(vm)?.on(FAST);
    Ok((pages * 4096 + MIB / 2) / MIB)
}
