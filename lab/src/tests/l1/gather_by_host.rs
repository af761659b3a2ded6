//! A nested guest without heat of its own gathers by its host's word: no module, no PMU, and no DAMON in the guest. The host's scan finds
//! hot base pages and names them.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::gather::{BLOCKS, EACH, GUEST, NODE_MIB, start};
use crate::control::agent::{AgentSetup, AgentStatus};
use crate::control::daemon::{Setup, VM};
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const PATIENCE: Duration = Duration::from_secs(200);

pub const TESTS: &[Test] = &[Test {
    name: "a_hot_set_is_gathered_by_the_hosts_word",
    needs: Needs::Product,
    boot: Boot::L1(a_hot_set_is_gathered_by_the_hosts_word),
}];

/// A host that names hot pages, with rounds that follow each other even if little moves.
const NAMES: Setup = Setup {
    engine: "quiet_counter_max = 0",
    sections: "[vm.scattered]\nscan = true\ngather = true\nagent_socket = \"/run/terrace/agent/scattered.sock\"",
    ..Setup::DEFAULT
};

fn a_hot_set_is_gathered_by_the_hosts_word(lab: &mut Lab) -> Result<()> {
    lab.end_vm(VM)?;
    lab.push_agent_files(AgentSetup {
        process: "lab-guest",
        sections: "[gather]\nnode = 1\nheat = \"host\"\nrounds = true\nrest_s = 1\n[host]\nchannel = true",
        ..AgentSetup::SEEDED
    })?;
    start(lab, NODE_MIB)?;
    lab.configure(NAMES)?;
    lab.launch_daemon()?;
    lab.wait_until_managed(GUEST)?;
    expect_advice(lab)?;
    lab.guest_of(GUEST, "agent start")?;
    let result = expect_gathered(lab);
    if result.is_err() {
        println!("{}", lab.check("terrace events | tail -n 30")?);
        println!("{}", lab.check(&format!("terrace show {GUEST}"))?);
        println!("{}", lab.guest_of(GUEST, "agent log")?);
        println!("{}", lab.guest_of(GUEST, "agent status")?);
    }
    result
}

/// An agent that hears no host says so.
fn expect_advice(lab: &mut Lab) -> Result<()> {
    let doctor = lab.guest_of(GUEST, "agent doctor")?.to_string();
    ensure!(
        doctor.contains("the host has named no hot page yet") && doctor.contains("gather = true"),
        "doctor does not say that no host speaks: {doctor}"
    );
    Ok(())
}

fn expect_gathered(lab: &mut Lab) -> Result<()> {
    let before = lab.wait_until("the host names hot pages", PATIENCE, |lab| {
        Ok(Some(named(lab)?).filter(|hot| !hot.is_null()))
    })?;
    println!("before, by the host: {before}");
    ensure!(
        count(&before, "hot_blocks") >= BLOCKS && count(&before, "named_pages") >= BLOCKS * EACH,
        "the hot set is not scattered: {before}"
    );
    let status = lab.wait_until("the guest has gathered", PATIENCE, |lab| {
        let gather = gathering(lab)?;
        let moved = gather["moved_pages"].as_u64().unwrap_or(0);
        Ok((moved * 100 >= BLOCKS * EACH * 95).then_some(gather))
    })?;
    println!("in the guest: {status}");
    let most = BLOCKS / 8;
    let after = lab.wait_until("few blocks are hot by the host's word", PATIENCE, |lab| {
        let hot = named(lab)?;
        let is_all = count(&hot, "hot_pages") >= BLOCKS * EACH;
        Ok((is_all && count(&hot, "hot_blocks") <= most).then_some(hot))
    })?;
    println!("after, by the host: {after}");
    let blocks = |hot: &Value| count(hot, "hot_blocks");
    println!(
        "hot blocks: {} before, {} after",
        blocks(&before),
        blocks(&after)
    );
    println!("{}", lab.check(&format!("terrace show {GUEST}"))?);
    let agent = agent_status(lab)?;
    ensure!(
        status["heat"] == "the host" && status["by_host"]["pages"].as_u64() >= Some(BLOCKS * EACH),
        "not by the host's word: {status}"
    );
    ensure!(
        agent.word("mode") == "off" && agent.0["channel"]["hot_taken"].as_u64() > Some(0),
        "the host does not own the accessed bits: {}",
        agent.0
    );
    lab.expect_intact(GUEST)
}

/// The hot pages that the host named last; null if it named none.
fn named(lab: &mut Lab) -> Result<Value> {
    let vm = lab.vm(GUEST)?.context("the daemon forgot the guest")?;
    Ok(vm["agent"]["gather"].clone())
}

fn count(of: &Value, name: &str) -> u64 {
    of[name].as_u64().unwrap_or(0)
}

fn agent_status(lab: &mut Lab) -> Result<AgentStatus> {
    let answer = lab.guest_of(GUEST, "agent status")?;
    let status = answer.get("answer").filter(|status| status.is_object());
    let status = status.with_context(|| format!("the guest's agent: {answer}"))?;
    Ok(AgentStatus(status.clone()))
}

/// The agent's rounds; null while it has no socket yet.
fn gathering(lab: &mut Lab) -> Result<Value> {
    std::thread::sleep(Duration::from_millis(500));
    Ok(agent_status(lab).map_or(Value::Null, |status| status.0["gather"].clone()))
}
