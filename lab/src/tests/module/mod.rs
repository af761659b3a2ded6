//! Tests of the guest module, which is optional.

mod agent;
mod gather;
mod hardware;
mod long;
mod named;

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::control::lab::{Lab, Output};
use crate::guests::{module, tiered};
use crate::machine::kernel::{Kernel, OLDEST};
use crate::modules::{self, Mutation};
use crate::tests::test::Test;

/// The module.
const MODULE: &str = "terrace_guest";
/// The line in the guest's log after which nothing may be complained of.
const MARK: &str = "module-begins";
/// Memory that may be missing after it is gone, MiB: the kernel's own caches. Each try moves 60 MiB.
const NEAR_MIB: u64 = 8;
/// Time within which the kernel's own threads have put back what they moved.
const SETTLED: Duration = Duration::from_secs(30);

/// Longest time of the module's test of itself, which takes half a minute on a calm machine.
const SELFTEST: Duration = Duration::from_secs(600);

/// A page is copied before it is taken out of the tables and forgotten: what is written meanwhile is lost.
const EARLY_COPY: Mutation = Mutation {
    file: "page.c",
    from: "	int err = migrate_vma_setup(&args);

	if (err)
		return err;
	if (tg_is_same(src, page))
		dst = copy(page, to);
",
    to: "	int err;

	copy_highpage(to, page);
	err = migrate_vma_setup(&args);
	if (err)
		return err;
	if (tg_is_same(src, page)) {
		get_page(to);
		lock_page(to);
		dst = migrate_pfn(page_to_pfn(to));
	}
",
};

pub const TESTS: &[Test] = &[
    Test::on_guest("the_guest_module_moves_pages_beside_a_writer", || {
        moves_pages(&Kernel::get(false)?)
    }),
    Test::on_guest(
        "the_guest_module_moves_pages_beside_a_writer_on_6_1",
        || moves_pages(&Kernel::of(OLDEST, false)?),
    ),
    Test::on_guest("a_copy_before_the_flush_is_caught", early_copy),
    Test::on_guest(
        "the_agent_exchanges_pages_of_full_nodes_by_the_guest_module",
        agent::full_nodes,
    ),
    Test::on_guest("scattered_hot_pages_come_together", || {
        gather::gather(&Kernel::get(false)?)
    }),
    Test::on_guest("scattered_hot_pages_come_together_on_6_1", || {
        gather::gather(&Kernel::of(OLDEST, false)?)
    }),
    Test::on_guest(
        "hot_pages_are_gathered_on_memory_that_is_plugged_in",
        gather::plugged,
    ),
];

/// Tests with a disk or a DIMM.
pub const HARDWARE_TESTS: &[Test] = hardware::TESTS;

/// Tests of what may go wrong while pages are gathered.
pub const GATHER_FAULTS: &[Test] = gather::FAULTS;

/// Tests of gathering beside the agent, and of the guest's larger pages.
pub const GATHER_ROUNDS: &[Test] = gather::ROUNDS;

/// Tests of frames that a host names.
pub const NAMED: &[Test] = named::TESTS;

/// Tests that print what moving named frames costs.
pub const NAMED_FIGURES: &[Test] = named::FIGURES;

/// Tests that print what gathering costs.
pub const GATHER_FIGURES: &[&[Test]] = gather::FIGURES;

/// The tests that take minutes.
pub const LONG_TESTS: &[Test] = &[
    Test::on_guest("the_guest_module_under_ten_minutes_of_stress", || {
        long::stress(&Kernel::get(false)?)
    }),
    Test::on_guest(
        "the_guest_module_under_ten_minutes_of_stress_on_6_1",
        || long::stress(&Kernel::of(OLDEST, false)?),
    ),
    Test::on_guest(
        "the_guest_module_on_a_kernel_that_checks_itself",
        long::on_a_checked_kernel,
    ),
    Test::on_guest("the_guest_module_tells_its_timings", long::timings),
    Test::on_guest(
        "hot_pages_are_found_by_idle_page_tracking",
        gather::by_idle_pages,
    ),
];

/// Scattered pages of a program that goes on writing them are found, gathered, exchanged and sent, again and again.
fn moves_pages(kernel: &Kernel) -> Result<()> {
    let mut guest = module::start(MODULE, kernel)?;
    let before = load(&mut guest)?;
    let said = selftest(&mut guest)?;
    print!("{}", said.stdout);
    ensure!(
        said.exit == 0 && said.stdout.ends_with("ok\n") && !said.stdout.contains("does not work"),
        "{said:?}"
    );
    hidden_symbols(&mut guest)?;
    let in_use = guest.check(&format!(
        "exec 3</dev/{MODULE}; rmmod {MODULE} 2>&1 && echo unloaded; exec 3<&-; rmmod {MODULE}"
    ))?;
    ensure!(!in_use.contains("unloaded"), "in use: {in_use}");
    expect_nothing_left(&mut guest, before, NEAR_MIB)
}

/// A symbol of the kernel's less: the call that needs it says so, and the others work. Pages are swapped in place meanwhile.
fn hidden_symbols(guest: &mut Lab) -> Result<()> {
    guest.check(&format!(
        "rmmod {MODULE} && insmod /{MODULE}.ko in_place=1 hide=remove_migration_ptes"
    ))?;
    let calls = guest.check("/selftest --calls")?;
    ensure!(
        calls.contains("SCAN: works")
            && calls
                .contains("EXCHANGE: does not work here: the kernel has no remove_migration_ptes"),
        "{calls}"
    );
    guest.check(&format!(
        "rmmod {MODULE} && insmod /{MODULE}.ko in_place=1 hide=flush_tlb_mm_range"
    ))?;
    let said = selftest(guest)?;
    print!("{}", said.stdout);
    ensure!(
        said.stdout
            .contains("SCAN: does not work here: the kernel has no flush_tlb_mm_range")
            && said.stdout.contains("CONSOLIDATE: ")
            && said
                .stdout
                .contains(" have each other's, 0 lie elsewhere; 0 words are wrong")
            && said.stdout.ends_with("ok\n"),
        "{said:?}"
    );
    Ok(())
}

/// Runs the module's test of itself.
fn selftest(guest: &mut Lab) -> Result<Output> {
    guest.run("/selftest", SELFTEST)
}

/// Loads the module; returns the free memory before, MiB.
fn load(guest: &mut Lab) -> Result<u64> {
    guest.check(&format!("echo {MARK} >/dev/kmsg"))?;
    let free = free_mib(guest)?;
    guest.check(&format!("insmod /{MODULE}.ko"))?;
    Ok(free)
}

/// Fails if the kernel complained since the module was loaded, or the module, which was unloaded, took pages along: `near`
/// MiB may be missing.
fn expect_nothing_left(guest: &mut Lab, before: u64, near: u64) -> Result<()> {
    tiered::expect_a_quiet_kernel(guest, MARK)?;
    // The kernel's own threads may have some just now, and each processor counts for itself for a second.
    guest.wait_until("no page is isolated", SETTLED, |guest| {
        let isolated =
            guest.check("cat /proc/sys/vm/stat_refresh; grep nr_isolated /proc/vmstat")?;
        let none = isolated.lines().all(|line| line.ends_with(" 0"));
        Ok(none.then_some(()))
    })?;
    let after = free_mib(guest)?;
    ensure!(
        after + near >= before,
        "{before} MiB were free, {after} are"
    );
    Ok(())
}

/// The module's test of itself sees that writes are lost.
fn early_copy() -> Result<()> {
    let kernel = Kernel::get(false)?;
    let mutant = modules::build_mutant(&kernel, MODULE, &EARLY_COPY)?;
    let mut guest = module::start(MODULE, &kernel)?;
    guest.push(&mutant, &format!("/{MODULE}.ko"))?;
    guest.check(&format!("insmod /{MODULE}.ko"))?;
    let said = selftest(&mut guest)?;
    print!("{}", said.stdout);
    let wrong = said.stdout.lines().any(|line| {
        line.starts_with("CONSOLIDATE: ")
            && line.ends_with(" words are wrong")
            && !line.ends_with(" 0 words are wrong")
    });
    ensure!(
        wrong && said.exit != 0 && said.stdout.ends_with("FAILED\n"),
        "{} with {}",
        said.stdout,
        said.exit
    );
    Ok(())
}

fn free_mib(guest: &mut Lab) -> Result<u64> {
    guest.check("echo 3 >/proc/sys/vm/drop_caches")?;
    Ok((tiered::free_bytes(guest, 0)? + tiered::free_bytes(guest, 1)?) / tiered::MIB)
}
