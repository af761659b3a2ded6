//! Tests of faults around the guest agent: no room, memory that comes and goes, a sampler that is taken.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use terrace_lab_programs::native::HotSet;

use crate::control::agent::AgentSetup;
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};

const PATIENCE: Duration = Duration::from_secs(300);

/// Epochs in which a hot set comes if nothing is in the way, on a busy machine too.
const EPOCHS: u64 = 60;
/// Epochs for which pages are exchanged before the result is checked.
const EXCHANGES: u64 = 15;
/// Memory of the fast node that is left free, MiB: far less than the hot set.
const LEFT_MIB: u64 = 2;
/// Most memory that the agent may hold while processes and mappings come and go, bytes.
const MAX_RESIDENT: u64 = 24 << 20;

/// Least number of forks: fewer would be no storm.
const MIN_FORKS: u64 = 50;
const MIN_MAPPINGS: u64 = 200;

pub const TESTS: &[Test] = &[
    Test {
        name: "agent_with_a_full_fast_node_loses_nothing_and_goes_on",
        needs: Needs::Product,
        boot: Boot::L1(agent_with_a_full_fast_node_loses_nothing_and_goes_on),
    },
    Test {
        name: "agent_survives_storms_of_mappings_forks_and_exits",
        needs: Needs::Product,
        boot: Boot::L1(agent_survives_storms_of_mappings_forks_and_exits),
    },
    Test {
        name: "agent_says_who_has_its_sampler_and_goes_on_when_it_is_free",
        needs: Needs::Product,
        boot: Boot::L1(agent_says_who_has_its_sampler_and_goes_on_when_it_is_free),
    },
];

fn agent_with_a_full_fast_node_loses_nothing_and_goes_on(lab: &mut Lab) -> Result<()> {
    let spec = HotSet::default();
    let name = &spec.name;
    lab.become_a_guest()?;
    lab.start_hot_set(&spec)?;
    lab.fill_fast_node(LEFT_MIB)?;
    let killed = oom_kills(lab)?;
    lab.start_agent(AgentSetup::SEEDED)?;
    lab.wait_for_epoch(EPOCHS)?;
    let full = lab.native_on_fast(name)?;
    println!("the fast node is full from the start: {full}");
    ensure!(
        full.fast * 10 < full.hot * 9,
        "the fast node was not full: {full}"
    );
    lab.empty_fast_node()?;
    let first = lab.agent_status()?.epochs()?;
    let taken = lab.epochs_to_place(name, first, EPOCHS)?;
    ensure!(taken.is_some(), "the node has room again, but nothing came");
    // Now what is there can only be exchanged.
    lab.fill_fast_node(LEFT_MIB)?;
    let killed_by_filling = oom_kills(lab)?;
    lab.ask(name, "move 5")?;
    let first = lab.agent_status()?.epochs()?;
    lab.wait_for_epoch(first + EXCHANGES)?;
    let exchanged = lab.native_on_fast(name)?;
    println!("the hot set moved while the fast node is full: {exchanged}");
    let oom_kills = oom_kills(lab)?;
    ensure!(
        oom_kills == killed_by_filling,
        "the kernel ended {} processes for their memory",
        oom_kills - killed
    );
    lab.expect_native_intact(name)?;
    lab.finish_agent()
}

fn oom_kills(lab: &mut Lab) -> Result<u64> {
    let count = lab.check("awk '/^oom_kill / {print $2}' /proc/vmstat")?;
    count.trim().parse().context("oom_kill")
}

/// Commands for processes of the managed name that are killed while they fill their memory or just after.
const EXITS: &str = "for i in $(seq 40); do \
     lab-native hotset '{\"name\":\"short\",\"region_mib\":40,\"hot_mib\":8,\"processor\":0}' & \
     usleep $((200000 + i % 4 * 200000)); kill -9 $!; wait; echo $i >/run/lab/exits; \
     done >/dev/null 2>&1";

fn agent_survives_storms_of_mappings_forks_and_exits(lab: &mut Lab) -> Result<()> {
    let spec = HotSet::default();
    let name = &spec.name;
    lab.become_a_guest()?;
    lab.start_hot_set(&spec)?;
    lab.start_agent(AgentSetup {
        // The short-lived processes are to be managed too.
        min: "256KiB",
        ..AgentSetup::SEEDED
    })?;
    lab.wait_for_epoch(2)?;
    let calm = lab.agent_status()?;
    lab.ask(name, "mappings 1")?;
    lab.ask(name, "churn 2")?;
    lab.check(&format!("({EXITS}) </dev/null >/dev/null 2>&1 &"))?;
    lab.wait_until("the storm of exits is over", PATIENCE, |lab| {
        let status = lab.agent_status()?;
        let resident = status.count("resident_bytes")?;
        ensure!(resident < MAX_RESIDENT, "the agent holds {resident} bytes");
        let exits = lab.check("cat /run/lab/exits || true")?;
        // A slow machine takes longer to make a storm.
        let stats = lab.ask(name, "stats")?;
        let counted = |what: &str| stats[what].as_u64().context("a count is missing");
        let is_storm = counted("churn_forks")? > MIN_FORKS && counted("mapped")? > MIN_MAPPINGS;
        Ok((exits.trim() == "40" && is_storm).then_some(()))
    })?;
    lab.ask(name, "mappings 0")?;
    println!("{}", lab.ask(name, "churn 0")?);
    lab.expect_native_intact(name)?;
    let after = lab.agent_status()?;
    println!(
        "the agent's memory: {} KiB before the storms, {} KiB after",
        calm.count("resident_bytes")? >> 10,
        after.count("resident_bytes")? >> 10
    );
    let taken = lab.epochs_to_place(name, after.epochs()?, EPOCHS)?;
    ensure!(
        taken.is_some(),
        "after the storms the hot set does not come"
    );
    lab.finish_agent()
}

/// Commands by which DAMON watches init, as a person with a script would have it.
const TAKE_DAMON: &str = "cd /sys/kernel/mm/damon/admin/kdamonds && echo 1 >nr_kdamonds && cd 0 && \
     echo 1 >contexts/nr_contexts && echo vaddr >contexts/0/operations && \
     echo 1 >contexts/0/targets/nr_targets && echo 1 >contexts/0/targets/0/pid_target && echo on >state";

const FREE_DAMON: &str =
    "cd /sys/kernel/mm/damon/admin/kdamonds && echo off >0/state && echo 0 >nr_kdamonds";

fn agent_says_who_has_its_sampler_and_goes_on_when_it_is_free(lab: &mut Lab) -> Result<()> {
    let spec = HotSet::default();
    let name = &spec.name;
    lab.become_a_guest()?;
    lab.start_hot_set(&spec)?;
    lab.check(TAKE_DAMON)?;
    lab.start_agent(AgentSetup::SEEDED)?;
    let taken = lab.wait_for_epoch(2)?;
    println!(
        "taken: sampler {}, {}",
        taken.word("sampler"),
        taken.word("sampler_reason")
    );
    ensure!(
        taken.word("sampler") != "damon" && taken.word("sampler_reason").contains("in use"),
        "the agent does not say that its sampler is taken: {}",
        taken.0
    );
    let doctor = lab.run("terrace-agent doctor", PATIENCE)?;
    ensure!(
        doctor.stdout.contains("in use"),
        "doctor does not say that DAMON is taken: {doctor:?}"
    );
    let state = lab.check("cat /sys/kernel/mm/damon/admin/kdamonds/0/state")?;
    ensure!(state.trim() == "on", "the agent stopped another's kdamond");
    lab.check(FREE_DAMON)?;
    let free = lab.wait_for_agent("the agent samples", |status| {
        Ok(status.word("sampler") == "damon")
    })?;
    println!("free: sampler damon, {}", free.word("sampler_reason"));
    let placed = lab.epochs_to_place(name, free.epochs()?, EPOCHS)?;
    ensure!(
        placed.is_some(),
        "DAMON is free, but the hot set does not come"
    );
    lab.expect_native_intact(name)?;
    lab.finish_agent()
}
