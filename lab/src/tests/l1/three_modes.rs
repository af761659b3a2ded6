//! The same load under the three modes: the host alone, the agent alone, and both (HMvisor §3.2).
//!
//! What a mode costs is what it moves beside what had to come, and for how long the guest stands still.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use terrace_lab_programs::vm::{GUEST_SLOW_NODE, VmSpec, truth_port};

use super::agent_nested::{GUEST, push_agent, start_again};
use super::coordinated::{expect_in_force, expect_never_stopped};
use crate::control::agent::AgentStatus;
use crate::control::daemon::{HotOnFast, Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const PATIENCE: Duration = Duration::from_secs(150);

pub const LONG_TESTS: &[Test] = &[Test {
    name: "three_modes_on_a_scattered_hot_set",
    needs: Needs::Product,
    boot: Boot::L1(three_modes_on_a_scattered_hot_set),
}];

/// A mode, and who moves pages in it.
struct Mode {
    name: &'static str,
    sections: &'static str,
    is_by_host: bool,
    in_force: Option<&'static str>,
}

const MODES: [Mode; 3] = [
    Mode {
        name: "host",
        sections: "[vm.tiered]\nmode = \"host\"\nscan = true",
        is_by_host: true,
        in_force: None,
    },
    Mode {
        name: "guest",
        sections: "[vm.tiered]\nmode = \"guest\"\nscan = false",
        is_by_host: false,
        in_force: Some("the agent in the guest"),
    },
    Mode {
        name: "coordinated",
        sections: "[vm.tiered]\nmode = \"coordinated\"\nscan = true",
        is_by_host: false,
        in_force: Some("both: the host counts"),
    },
];

fn three_modes_on_a_scattered_hot_set(lab: &mut Lab) -> Result<()> {
    let mut table = String::from(
        "| mode | hot pages | on fast after start, after the move | seconds | moved up | useless | longest gap, ms |\n\
         |---|--:|--:|--:|--:|--:|--:|\n",
    );
    push_agent(lab)?;
    for (number, mode) in MODES.iter().enumerate() {
        if number == 0 {
            lab.end_vm(VM)?;
        }
        match mode.is_by_host {
            // The host moves the backing: one node is what such a guest has.
            true => lab.start_vm(&one_node())?,
            false => start_again(lab, false)?,
        }
        table += &row(lab, mode)?;
        lab.end_daemon()?;
        lab.end_vm(GUEST)?;
    }
    println!("{table}");
    Ok(())
}

fn one_node() -> VmSpec {
    VmSpec {
        name: GUEST.to_owned(),
        truth_port: truth_port(2),
        memory_mib: 448,
        region_mib: 160,
        clustered: false,
        node: GUEST_SLOW_NODE,
        pause_ms: 2,
        ..VmSpec::default()
    }
}

/// The load in one mode, as a row of the table.
fn row(lab: &mut Lab, mode: &Mode) -> Result<String> {
    let begins = lab.hot_on_fast(GUEST)?;
    ensure!(
        begins.fast * 20 <= begins.hot,
        "the hot set does not start in slow memory: {begins}"
    );
    lab.configure(Setup {
        sections: mode.sections,
        ..Setup::VTMM
    })?;
    lab.launch_daemon()?;
    if let Some(in_force) = mode.in_force {
        lab.guest_of(GUEST, "agent start")?;
        expect_in_force(lab, in_force)?;
    } else {
        lab.wait_until_managed(GUEST)?;
    }
    lab.guest_of(GUEST, "gap")?;
    let first = until_placed(lab, mode)?;
    lab.guest_of(GUEST, "move 5")?;
    let between = lab.hot_on_fast(GUEST)?;
    let second = until_placed(lab, mode)?;
    let gap = lab.guest_of(GUEST, "gap")?["longest_ms"].as_f64();
    lab.expect_intact(GUEST)?;
    expect_never_stopped(lab)?;
    let moved = moved_up(lab, mode)?;
    let came = first.now.fast + second.now.fast.saturating_sub(between.fast);
    Ok(format!(
        "| {} | {} | {}, {} | {:.0}, {:.0} | {moved} | {} | {:.0} |\n",
        mode.name,
        first.now.hot,
        first.now.fast,
        second.now.fast,
        first.took.as_secs_f64(),
        second.took.as_secs_f64(),
        moved.saturating_sub(came),
        gap.context("no longest_ms")?,
    ))
}

struct Placed {
    now: HotOnFast,
    took: Duration,
}

/// Waits until the hot set is in fast memory, or for as long as is worth it.
fn until_placed(lab: &mut Lab, mode: &Mode) -> Result<Placed> {
    let begin = Instant::now();
    loop {
        let now = lab.hot_on_fast(GUEST)?;
        println!("{}: {now}", mode.name);
        if now.is_placed() || begin.elapsed() > PATIENCE {
            let took = begin.elapsed();
            return Ok(Placed { now, took });
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

/// Pages that came up, by the count of who moves them.
fn moved_up(lab: &mut Lab, mode: &Mode) -> Result<u64> {
    if !mode.is_by_host {
        let status = lab.guest_of(GUEST, "agent status")?;
        return AgentStatus(status["answer"].clone()).count("promoted_pages");
    }
    let vm = lab.vm(GUEST)?.context("the daemon forgot the guest")?;
    vm["promoted_pages"].as_u64().context("no promoted_pages")
}
