//! DAMON as the tracker: the pages that it finds if page tables are out of reach, and those that it cannot see.

use std::time::Duration;

use anyhow::{Result, ensure};
use terrace_lab_programs::vm::VmSpec;

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const ROUNDS: u64 = 3;

pub const TESTS: &[Test] = &[
    Test {
        name: "damon_finds_a_contiguous_hot_set_without_page_tables",
        needs: Needs::Product,
        boot: Boot::L1(damon_finds_a_contiguous_hot_set_without_page_tables),
    },
    Test {
        name: "damon_as_the_tracker_fails_on_a_scattered_hot_set",
        needs: Needs::Product,
        boot: Boot::L1(damon_as_the_tracker_fails_on_a_scattered_hot_set),
    },
    Test {
        name: "damon_has_parts_where_all_rounds_have_them",
        needs: Needs::Product,
        boot: Boot::L1(damon_has_parts_where_all_rounds_have_them),
    },
];

fn damon_finds_a_contiguous_hot_set_without_page_tables(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    // A huge page would be watched and moved as one, which is another test's matter.
    lab.check("echo never >/sys/kernel/mm/transparent_hugepage/enabled")?;
    lab.start_vm(&VmSpec {
        private: true,
        clustered: true,
        ..VmSpec::default()
    })?;
    lab.start_daemon(Setup::DEFAULT)?;
    expect_damon(lab, "share=on")?;
    ensure!(
        lab.converges(VM)?,
        "the hot set is not in fast memory after many rounds"
    );
    lab.expect_intact(VM)?;
    // A kdamond that a crash leaves running is known by its mark to the next daemon, which takes over.
    lab.check("kill -9 $(cat /run/terrace/pid)")?;
    ensure!(kdamonds(lab)? != "0", "a killed daemon stopped its kdamond");
    lab.start_daemon(Setup::DEFAULT)?;
    expect_damon(lab, "share=on")?;
    lab.check("kill $(cat /run/terrace/pid)")?;
    lab.wait_until("DAMON is given back", Duration::from_secs(60), |lab| {
        Ok((kdamonds(lab)? == "0").then_some(()))
    })
}

fn kdamonds(lab: &mut Lab) -> Result<String> {
    let count = lab.check("cat /sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds")?;
    Ok(count.trim().to_owned())
}

/// A VM that falls back to DAMON on a host whose rounds are by parts: its blocks are drawn as leaf tables are.
fn damon_has_parts_where_all_rounds_have_them(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    lab.check("echo never >/sys/kernel/mm/transparent_hugepage/enabled")?;
    lab.start_vm(&VmSpec {
        private: true,
        clustered: true,
        ..VmSpec::default()
    })?;
    lab.start_daemon(Setup {
        engine: "scan_parts = 2\nwindow_ms = 300",
        ..Setup::DEFAULT
    })?;
    expect_damon(lab, "share=on")?;
    ensure!(
        lab.converges_within_rounds(VM, ROUNDS)?,
        "the hot set is not in fast memory after three rounds"
    );
    lab.expect_intact(VM)
}

/// The same guest and the same rounds as in the placement test, which passes with the page tables.
fn damon_as_the_tracker_fails_on_a_scattered_hot_set(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(Setup {
        defaults: "ceiling = { fast = \"24MiB\" }\ntracker = \"damon\"",
        ..Setup::DEFAULT
    })?;
    expect_damon(lab, "is configured")?;
    let first = lab.rounds(VM)?;
    lab.wait_for_round(VM, first + ROUNDS)?;
    let after = lab.hot_on_fast(VM)?;
    println!("with DAMON, {after}");
    let promoted = lab.vm(VM)?.and_then(|vm| vm["promoted_pages"].as_u64());
    println!("promoted: {promoted:?} pages");
    ensure!(
        after.fast * 100 < after.hot * 60,
        "DAMON found a scattered hot set: this test shows nothing"
    );
    lab.expect_intact(VM)
}

fn expect_damon(lab: &mut Lab, why: &str) -> Result<()> {
    let shown = lab.check(&format!("terrace show {VM}"))?;
    ensure!(
        shown.contains("damon (vaddr)") && shown.contains(why),
        "{shown}"
    );
    Ok(())
}
