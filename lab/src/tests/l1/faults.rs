//! Tests of faults under a daemon that moves a real guest's pages.

use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const PATIENCE: Duration = Duration::from_secs(300);

/// Memory of the fast node that is left free, MiB: far less than the hot set.
const LEFT_MIB: u64 = 2;

pub const TESTS: &[Test] = &[
    Test {
        name: "daemon_killed_mid_move_leaves_the_guest_whole",
        needs: Needs::Product,
        boot: Boot::L1(daemon_killed_mid_move_leaves_the_guest_whole),
    },
    Test {
        name: "full_fast_node_stops_promotions_and_loses_nothing",
        needs: Needs::Product,
        boot: Boot::L1(full_fast_node_stops_promotions_and_loses_nothing),
    },
    Test {
        name: "guest_killed_mid_round_is_forgotten_and_comes_back",
        needs: Needs::Product,
        boot: Boot::L1(guest_killed_mid_round_is_forgotten_and_comes_back),
    },
];

/// A setup that moves so slowly (1 MiB a second) that the kill falls among the moves.
const SLOW_MOVES: Setup = Setup {
    engine: "move_budget_bytes_per_s = 1048576\nplan_max_bytes = 2097152",
    ..Setup::DEFAULT
};

fn daemon_killed_mid_move_leaves_the_guest_whole(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(SLOW_MOVES)?;
    let hot = lab.wait_until("some of the hot set has moved", PATIENCE, |lab| {
        let now = lab.hot_on_fast(VM)?;
        Ok((now.fast > 0).then_some(now))
    })?;
    ensure!(!hot.is_placed(), "all moved before the kill: {hot}");
    lab.check("kill -9 $(cat /run/terrace/pid)")?;
    println!("killed; {hot}");
    lab.wait_until("no worker of the daemon is left", PATIENCE, |lab| {
        let left = lab.check("pidof terraced exe || true")?;
        Ok(left.trim().is_empty().then_some(()))
    })?;
    lab.expect_intact(VM)?;
    let passes = passes(lab)?;
    lab.wait_until("the guest works on", PATIENCE, |lab| {
        Ok((self::passes(lab)? > passes).then_some(()))
    })?;
    lab.start_daemon(Setup::DEFAULT)?;
    ensure!(
        lab.converges(VM)?,
        "after a restart the hot set is not in fast memory after many rounds"
    );
    lab.expect_intact(VM)
}

fn full_fast_node_stops_promotions_and_loses_nothing(lab: &mut Lab) -> Result<()> {
    lab.fill_fast_node(LEFT_MIB)?;
    lab.start_daemon(Setup {
        defaults: "",
        ..Setup::DEFAULT
    })?;
    lab.wait_for_round(VM, 2)?;
    let full = lab.hot_on_fast(VM)?;
    println!("fast node full: {full}");
    ensure!(!full.is_placed(), "the fast node was not full: {full}");
    let output = lab.check("terrace explain vm1")?;
    ensure!(
        output.contains("the first tier has no room"),
        "`terrace explain` does not say that the node is full:\n{output}"
    );
    lab.expect_intact(VM)?;
    lab.empty_fast_node()?;
    ensure!(
        lab.converges(VM)?,
        "the node has room again, but the hot set is not in fast memory after many rounds"
    );
    lab.expect_intact(VM)
}

fn guest_killed_mid_round_is_forgotten_and_comes_back(lab: &mut Lab) -> Result<()> {
    lab.start_daemon(SLOW_MOVES)?;
    lab.wait_until("pages are on their way", PATIENCE, |lab| {
        Ok((lab.hot_on_fast(VM)?.fast > 0).then_some(()))
    })?;
    lab.check("kill -9 $(cat /run/lab/vm1.pid)")?;
    lab.wait_until("the daemon has forgotten the guest", PATIENCE, |lab| {
        let answered = lab.run("terrace vms --json", PATIENCE)?;
        ensure!(answered.exit == 0, "the daemon is gone: {answered:?}");
        let vm = lab.vm(VM)?;
        Ok(vm.is_none_or(|vm| vm["mode"] == "gone").then_some(()))
    })?;
    lab.start_vm(&terrace_lab_programs::vm::VmSpec::default())?;
    // A discovery scan may have met the killed QEMU on its way out, whose monitor answers no more; the
    // next one must find the new guest.
    lab.wait_until("the daemon manages the new guest", PATIENCE, |lab| {
        let vm = lab.vm(VM)?;
        Ok(vm.is_some_and(|vm| vm["mode"] == "managed").then_some(()))
    })?;
    let before = lab.hot_on_fast(VM)?;
    lab.wait_until("its hot set comes", PATIENCE, |lab| {
        Ok((lab.hot_on_fast(VM)?.fast > before.fast).then_some(()))
    })?;
    lab.expect_intact(VM)
}

fn passes(lab: &mut Lab) -> Result<u64> {
    lab.guest("stats")?["passes"]
        .as_u64()
        .context("the guest counts no passes")
}
