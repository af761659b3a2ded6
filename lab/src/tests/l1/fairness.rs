//! Two VMs of equal weight, one of which sets all of its accessed bits.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::vm::{VmSpec, truth_port};

use crate::control::daemon::{FAST, Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

/// The VM that shows all of its pages as accessed; the other one is the lab's first.
const GREEDY: &str = "vm2";
const PATIENCE: Duration = Duration::from_secs(600);

/// Fast memory that both VMs share, and the part of each, MiB.
const TIER_MIB: u64 = 48;
const SHARE_MIB: u64 = TIER_MIB / 2;

/// Pages of a hot set that fits its VM's share: 16 MiB.
const HOT_PAGES: u64 = 16 * 256;

pub const TESTS: &[Test] = &[Test {
    name: "a_vm_that_sets_all_its_accessed_bits_costs_the_other_nothing",
    needs: Needs::Product,
    boot: Boot::L1(a_vm_that_sets_all_its_accessed_bits_costs_the_other_nothing),
}];

/// A setup in which neither VM has a nominal size or a ceiling. The budgets are less than both want.
const FAIR: Setup = Setup {
    engine: "move_budget_bytes_per_s = 4194304\nplan_max_bytes = 2097152\nscan_cpu_budget_percent = 6",
    period_ms: 5000,
    defaults: "",
    sections: "[[tier]]\nname = \"fast\"\nnodes = [0]\ncapacity = \"48MiB\"\n\
               [[tier]]\nname = \"slow\"\nnodes = [1]",
    ..Setup::VTMM
};

/// The setup of before there were shares by weight.
const BEFORE: Setup = Setup {
    engine: "move_budget_bytes_per_s = 4194304\nplan_max_bytes = 2097152\nscan_cpu_budget_percent = 6\n\
             fair_shares = false",
    ..FAIR
};

fn a_vm_that_sets_all_its_accessed_bits_costs_the_other_nothing(lab: &mut Lab) -> Result<()> {
    lab.start_vm(&VmSpec {
        name: GREEDY.to_owned(),
        truth_port: truth_port(2),
        seed: 2,
        region_mib: 96,
        hot_percent: 100,
        pause_ms: 100,
        ..VmSpec::default()
    })?;
    lab.guest_of(VM, &format!("hot {HOT_PAGES}"))?;
    lab.guest_of(VM, "idle")?;
    lab.start_daemon(BEFORE)?;
    lab.wait_until_managed(GREEDY)?;
    wait_for(lab, "the greedy VM has all that there is", |_, greedy| {
        greedy + 2 >= TIER_MIB
    })?;
    lab.guest_of(VM, "run")?;
    rounds_of_both(lab, 3)?;
    let before = lab.hot_on_fast(VM)?;
    figures(lab, "before")?;
    ensure!(
        !before.is_placed(),
        "without shares by weight the other VM is placed too, so this shows nothing: {before}"
    );

    lab.end_daemon()?;
    lab.start_daemon(FAIR)?;
    lab.wait_until_managed(GREEDY)?;
    let hot_mib = HOT_PAGES / 256;
    wait_for(
        lab,
        "the other VM has its hot set in fast memory",
        |other, _| other + 1 >= hot_mib,
    )?;
    lab.wait_until("its hot set is placed", PATIENCE, |lab| {
        Ok(lab.hot_on_fast(VM)?.is_placed().then_some(()))
    })?;
    // All that the tier has, as the greedy VM wants more than its share.
    lab.guest_of(VM, &format!("hot {}", SHARE_MIB * 256 * 2))?;
    wait_for(lab, "both want more than their shares", |other, greedy| {
        other.abs_diff(SHARE_MIB) <= 1 && greedy.abs_diff(SHARE_MIB) <= 1
    })?;
    lab.guest_of(VM, &format!("hot {HOT_PAGES}"))?;
    rounds_of_both(lab, 3)?;
    lab.wait_until("its hot set is placed again", PATIENCE, |lab| {
        Ok(lab.hot_on_fast(VM)?.is_placed().then_some(()))
    })?;
    figures(lab, "after")?;
    let [other, greedy] = [costs(lab, VM)?, costs(lab, GREEDY)?];
    for n in [&other, &greedy] {
        let right = number(n, "right_bytes")? >> 20;
        ensure!(right.abs_diff(SHARE_MIB) <= 1, "its share is {right} MiB");
    }
    ensure!(
        number(&greedy, "refused_bytes")? > 0,
        "the greedy VM was refused nothing: {greedy}"
    );
    ensure!(
        number(&other, "moved_bytes")? >= hot_mib << 20,
        "the other VM's hot set came without moves: {other}"
    );
    let shown = lab.check(&format!("terrace show {GREEDY}"))?;
    ensure!(shown.contains("what it costs the other VMs"), "{shown}");
    for vm in [VM, GREEDY] {
        lab.expect_intact(vm)?;
    }
    Ok(())
}

/// Waits until `holds` is true of the fast memory of both VMs, MiB.
fn wait_for(lab: &mut Lab, what: &str, holds: impl Fn(u64, u64) -> bool) -> Result<()> {
    let mut last = [u64::MAX; 2];
    lab.wait_until(what, PATIENCE, |lab| {
        let held = [held_mib(lab, VM)?, held_mib(lab, GREEDY)?];
        if held != last {
            println!(
                "until {what}: {VM} {} MiB, {GREEDY} {} MiB on fast",
                held[0], held[1]
            );
            last = held;
        }
        ensure!(
            // Both are rounded.
            held[0] + held[1] <= TIER_MIB + 1,
            "both hold {} MiB, more than the tier has",
            held[0] + held[1]
        );
        Ok(holds(held[0], held[1]).then_some(()))
    })
}

/// Waits for some more rounds of each VM.
fn rounds_of_both(lab: &mut Lab, more: u64) -> Result<()> {
    let first = [lab.rounds(VM)?, lab.rounds(GREEDY)?];
    for (vm, first) in [VM, GREEDY].into_iter().zip(first) {
        lab.wait_for_round(vm, first + more)?;
    }
    Ok(())
}

/// Prints the fast memory, the moves and the scan time of each VM.
fn figures(lab: &mut Lab, when: &str) -> Result<()> {
    for vm in [VM, GREEDY] {
        let (held, hot, n) = (held_mib(lab, vm)?, lab.hot_on_fast(vm)?, costs(lab, vm)?);
        println!(
            "{when}: {vm}: {held} MiB on fast, {hot}; moved {} of {} MiB; scans {} of {} ms of CPU in {} rounds, \
             {} windows longer by {} ms; {} plans later by {} ms",
            number(&n, "moved_bytes")? >> 20,
            number(&n, "all_moved_bytes")? >> 20,
            number(&n, "scan_cpu_ns")? / 1_000_000,
            number(&n, "all_scan_cpu_ns")? / 1_000_000,
            lab.rounds(vm)?,
            number(&n, "late_scans")?,
            number(&n, "late_scans_ns")? / 1_000_000,
            number(&n, "late_plans")?,
            number(&n, "late_plans_ns")? / 1_000_000,
        );
    }
    Ok(())
}

/// The section of `terrace show` about a VM's neighbours.
fn costs(lab: &mut Lab, vm: &str) -> Result<Value> {
    let text = lab.check(&format!("terrace show {vm} --json"))?;
    let detail: Value = serde_json::from_str(&text).context("terrace show --json")?;
    Ok(detail["neighbours"].clone())
}

fn number(value: &Value, key: &str) -> Result<u64> {
    value[key]
        .as_u64()
        .with_context(|| format!("no {key} in {value}"))
}

/// Fast memory of a VM, by the word of L1's kernel, rounded to MiB.
fn held_mib(lab: &mut Lab, vm: &str) -> Result<u64> {
    let pages = lab.residents(vm)?.on(FAST);
    Ok((pages * 4096 + (1 << 19)) >> 20)
}
