//! A nested guest gathers its scattered hot pages, and its host, which knows nothing of that, needs a fraction of the fast
//! memory for them.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::Value;
use terrace_lab_programs::vm::{VmSpec, truth_port};

use crate::control::agent::AgentSetup;
use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::machine::kernel::Kernel;
use crate::modules;
use crate::tests::test::{Boot, Needs, Test};

pub const GUEST: &str = "scattered";
/// Pages of 2 MiB, and hot base pages in each.
pub const BLOCKS: u64 = 96;
pub const EACH: u64 = 4;
/// Size of the second node, MiB.
pub const NODE_MIB: u64 = 64;
/// Longest time of a round in the guest.
const PATIENCE: Duration = Duration::from_secs(200);
/// Time over which passes are counted.
const RATED: Duration = Duration::from_secs(2);
/// Rounds that the host gets to place what it can.
const ROUNDS: u64 = 3;

pub const TESTS: &[Test] = &[
    Test {
        name: "a_gathered_hot_set_fits_in_fast_memory",
        needs: Needs::Product,
        boot: Boot::L1(by_module),
    },
    Test {
        name: "a_hot_set_gathered_on_a_node_fits_in_fast_memory",
        needs: Needs::Product,
        boot: Boot::L1(by_node),
    },
];

/// A host that moves pages of 2 MiB, with fast memory for 12 of them.
const TWELVE_UNITS: Setup = Setup {
    defaults: "ceiling = { fast = \"24MiB\" }",
    ..Setup::DEFAULT
};

/// By the guest module, in a guest with one node.
fn by_module(lab: &mut Lab) -> Result<()> {
    start_with_module(lab)?;
    expect_to_fit_once_gathered(lab, "agent gather")
}

/// On a second node, without a module, by a list of the guest's own.
fn by_node(lab: &mut Lab) -> Result<()> {
    start_with_node(lab)?;
    expect_to_fit_once_gathered(lab, "gather")
}

/// A guest with one node and the guest module.
pub fn start_with_module(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    let module = modules::build_for(&Kernel::get(false)?, "terrace_guest")?;
    lab.push_agent_files_with(
        AgentSetup {
            process: "lab-guest",
            sections: "[gather]\nwindow_s = 2",
            ..AgentSetup::SEEDED
        },
        &[("terrace_guest.ko", &module)],
    )?;
    start(lab, 0)?;
    lab.guest_of(GUEST, "agent module").map(drop)
}

/// A guest with a second node.
pub fn start_with_node(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    lab.push_agent_files(AgentSetup {
        process: "lab-guest",
        sections: "[gather]\nnode = 1",
        ..AgentSetup::SEEDED
    })?;
    start(lab, NODE_MIB)
}

/// A guest whose RAM L1 backs with huge pages, with a hot page here and there.
pub fn start(lab: &mut Lab, gather_mib: u64) -> Result<()> {
    lab.start_vm(&VmSpec {
        name: GUEST.to_owned(),
        truth_port: truth_port(2),
        memory_mib: 448 + gather_mib,
        region_mib: 2 * BLOCKS,
        gather_mib,
        sparse: EACH,
        host_thp: true,
        agent: true,
        ..VmSpec::default()
    })
}

/// The host places what it can; then the guest gathers, and all fits.
fn expect_to_fit_once_gathered(lab: &mut Lab, command: &str) -> Result<()> {
    lab.start_daemon_for(TWELVE_UNITS, GUEST)?;
    let first = lab.rounds(GUEST)?;
    lab.wait_for_round(GUEST, first + ROUNDS)?;
    let before = lab.hot_on_fast(GUEST)?;
    println!("scattered: {before}");
    ensure!(
        before.hot == BLOCKS * EACH && before.fast * 5 <= before.hot,
        "a scattered hot set does not fit: {before}"
    );
    let round = gather(lab, command)?;
    println!("gathered: {round}");
    ensure!(
        lab.converges(GUEST)?,
        "the gathered hot set is not in fast memory: {round}"
    );
    lab.expect_intact(GUEST)
}

/// Rounds of the agent in the guest until the hot pages are together: one, or another one for pages that were in use during the first, or that
/// it could not see right after it moved them. What counts is where a round finds them at its end.
pub fn gather(lab: &mut Lab, command: &str) -> Result<Value> {
    let mut together = 0;
    for _ in 0..3 {
        let round = one_round(lab, command)?;
        let after = |count: &str| round["after"][count].as_u64().unwrap_or(0);
        if after("hot_blocks") <= after("fewest_blocks") + 1 {
            together = after("hot_pages");
        }
        if together * 100 >= BLOCKS * EACH * 95 {
            return Ok(round);
        }
        println!("not all of them: {round}");
    }
    bail!("{together} of {} hot pages came together", BLOCKS * EACH)
}

/// One round. How fast the guest goes before, meanwhile and after is printed and not judged.
fn one_round(lab: &mut Lab, command: &str) -> Result<Value> {
    let before = rate(lab, pause)?.1;
    let (round, meanwhile) = rate(lab, |lab| {
        lab.guest_of(GUEST, command)?;
        lab.wait_until("the guest has gathered", PATIENCE, |lab| {
            let answer = lab.guest_of(GUEST, "agent round")?;
            Ok((answer["over"] == true).then(|| answer["round"].clone()))
        })
    })?;
    let after = rate(lab, pause)?.1;
    println!(
        "passes of the guest a second: {before:.0} before, {meanwhile:.0} meanwhile, {after:.0} after"
    );
    Ok(round)
}

fn pause(_: &mut Lab) -> Result<()> {
    std::thread::sleep(RATED);
    Ok(())
}

/// Does something, and counts the guest's passes a second meanwhile.
fn rate<T>(lab: &mut Lab, what: impl FnOnce(&mut Lab) -> Result<T>) -> Result<(T, f64)> {
    let passes = |lab: &mut Lab| -> Result<f64> {
        let stats = lab.guest_of(GUEST, "stats")?;
        stats["passes"].as_f64().context("no passes")
    };
    let (first, begun) = (passes(lab)?, Instant::now());
    let done = what(lab)?;
    let rate = (passes(lab)? - first) / begun.elapsed().as_secs_f64();
    Ok((done, rate))
}
