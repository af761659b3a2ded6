//! The guest agent in a nested guest with a node per tier, and the daemon of its host.
//!
//! The guest reports which of its pages are hot, and its kernel where they are: to L1 this guest's nodes are two parts
//! of its QEMU's memory, each bound to a node of L1.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use terrace_lab_programs::pages::Placement;
use terrace_lab_programs::vm::{GUEST_FAST_NODE, VmSpec, truth_port};

use crate::control::agent::{AgentSetup, AgentStatus};
use crate::control::daemon::{HotOnFast, Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const PATIENCE: Duration = Duration::from_secs(200);

/// Epochs that the hot set may take: three or four times as many as on a machine that does nothing else.
const EPOCHS: u64 = 60;

/// The nested guest.
pub const GUEST: &str = "tiered";

pub const TESTS: &[Test] = &[Test {
    name: "agent_of_a_nested_guest_places_pages_and_reports_to_the_host",
    needs: Needs::Product,
    boot: Boot::L1(agent_of_a_nested_guest_places_pages_and_reports_to_the_host),
}];

/// A daemon that may not scan the guest, whatever happens.
const GUEST_MANAGED: Setup = Setup {
    defaults: "",
    sections: "[vm.tiered]\nmode = \"guest\"\nscan = false",
    ..Setup::DEFAULT
};

fn agent_of_a_nested_guest_places_pages_and_reports_to_the_host(lab: &mut Lab) -> Result<()> {
    start(lab)?;
    let before = on_fast(lab)?;
    ensure!(
        before.fast == 0 && before.hot > 1000,
        "the hot set does not start in slow memory: {before}"
    );
    lab.configure(GUEST_MANAGED)?;
    lab.launch_daemon()?;
    lab.guest_of(GUEST, "agent start")?;
    expect_placed(lab, 0)?;
    lab.guest_of(GUEST, "move 5")?;
    let first = status(lab)?.epochs()?;
    expect_placed(lab, first)?;
    lab.expect_intact(GUEST)?;
    expect_heartbeats(lab)?;
    println!("{}", status(lab)?.cost()?);
    lab.guest_of(GUEST, "agent kill")?;
    let agent = wait_for_fallback(lab, true)?;
    println!("the agent was killed: {}", agent["fallback"]);
    lab.guest_of(GUEST, "agent start")?;
    let agent = wait_for_fallback(lab, false)?;
    println!("it was started again: {}", agent["in_force"]);
    lab.expect_intact(GUEST)
}

fn start(lab: &mut Lab) -> Result<()> {
    start_with(lab, true)
}

/// A guest with a node per tier whose hot pages are scattered over the slow one.
pub fn start_scattered(lab: &mut Lab) -> Result<()> {
    start_with(lab, false)
}

fn start_with(lab: &mut Lab, clustered: bool) -> Result<()> {
    lab.end_vm(VM)?;
    push_agent(lab)?;
    start_again(lab, clustered)
}

/// Gives the guests to come an agent.
pub fn push_agent(lab: &mut Lab) -> Result<()> {
    lab.push_agent_files(AgentSetup {
        process: "lab-guest",
        fast: "24MiB",
        sections: "[host]\nchannel = true",
        ..AgentSetup::SEEDED
    })
}

/// Starts the guest; no other one runs.
pub fn start_again(lab: &mut Lab, clustered: bool) -> Result<()> {
    lab.start_vm(&two_nodes(clustered))
}

/// A guest with a node per tier and an agent.
pub fn two_nodes(clustered: bool) -> VmSpec {
    VmSpec {
        name: GUEST.to_owned(),
        truth_port: truth_port(2),
        memory_mib: 448,
        fast_mib: 160,
        region_mib: 160,
        clustered,
        agent: true,
        pause_ms: 2,
        ..VmSpec::default()
    }
}

/// How much of the guest's hot set is on its own fast node, by the word of its own kernel.
pub fn on_fast(lab: &mut Lab) -> Result<HotOnFast> {
    let placement: Placement = serde_json::from_value(lab.guest_of(GUEST, "placement")?)?;
    Ok(HotOnFast {
        fast: placement.on(GUEST_FAST_NODE),
        hot: placement.total(),
    })
}

fn status(lab: &mut Lab) -> Result<AgentStatus> {
    let answer = lab.guest_of(GUEST, "agent status")?;
    let status = answer.get("answer").filter(|status| status.is_object());
    let status = status.with_context(|| format!("the guest's agent: {answer}"))?;
    Ok(AgentStatus(status.clone()))
}

/// Expects at least 90 % of the hot set to be in fast memory within [`EPOCHS`] after epoch `first`. The agent is
/// asked only now and then: each question is a program that the nested guest has to start.
fn expect_placed(lab: &mut Lab, first: u64) -> Result<()> {
    let (now, status) = lab.wait_until("the hot set is in fast memory", PATIENCE, |lab| {
        let now = on_fast(lab)?;
        std::thread::sleep(Duration::from_millis(300));
        // It has no socket yet right after its start.
        let Ok(status) = status(lab) else {
            return Ok(None);
        };
        let taken = status.epochs()?.saturating_sub(first);
        println!("epoch {taken}: {now}");
        let over = taken > EPOCHS;
        Ok((over || now.fast * 10 >= now.hot * 9).then_some((now, status)))
    })?;
    println!("{now} (sampler {})", status.word("sampler"));
    if now.fast * 10 < now.hot * 9 {
        let log = lab.guest_of(GUEST, "agent log")?;
        bail!(
            "less than 90 % of the hot set is in fast memory after {EPOCHS} epochs: {now}\n{}\n{log}",
            status.0
        );
    }
    Ok(())
}

/// The daemon's knowledge of the guest's agent. `None` if it has heard nothing.
fn heard(lab: &mut Lab) -> Result<Option<Value>> {
    let vm = lab.vm(GUEST)?;
    Ok(vm.map(|mut vm| vm["agent"].take()).filter(|a| !a.is_null()))
}

/// Expects heartbeats to come and to carry the agent's own figures, and the host to move nothing.
fn expect_heartbeats(lab: &mut Lab) -> Result<()> {
    let beats = |agent: &Value| agent["heartbeats"].as_u64().unwrap_or(0);
    let agent = lab.wait_until("the agent's heartbeats arrive", PATIENCE, |lab| {
        Ok(heard(lab)?.filter(|agent| beats(agent) >= 3))
    })?;
    println!("{}", lab.check(&format!("terrace show {GUEST}"))?);
    let report = &agent["report"];
    println!("the host heard: {agent}");
    ensure!(
        report["sampler"] == "damon"
            && report["nodes"].as_array().is_some_and(|n| n.len() == 2)
            && report["promoted_pages"].as_u64() > Some(1000)
            && agent["fallback"].is_null(),
        "not what the agent says of itself: {agent}"
    );
    let vm = lab.vm(GUEST)?.context("the daemon forgot the guest")?;
    ensure!(
        vm["mode"] == "guest" && vm["promoted_pages"] == 0,
        "the host does not leave the guest alone: {vm}"
    );
    Ok(())
}

fn wait_for_fallback(lab: &mut Lab, wanted: bool) -> Result<Value> {
    lab.wait_until("the host notices", PATIENCE, |lab| {
        let agent = heard(lab)?;
        Ok(agent.filter(|agent| agent["fallback"].is_string() == wanted))
    })
}
