//! Rounds that go on beside the agent, and larger pages of the guest that are split to see their hot parts.

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;

use super::{
    BLOCKS, EACH, FILE, MORE_BLOCKS, configure, expect_on_node, finish, sparse, start, start_with,
};
use crate::control::agent::{AgentSetup, AgentStatus};
use crate::control::lab::Lab;
use crate::machine::kernel::Kernel;
use crate::tests::module::load;
use crate::tests::test::Test;

pub const TESTS: &[Test] = &[
    Test::on_guest("rounds_of_gathering_go_on_beside_the_agent", beside),
    Test::on_guest("larger_pages_are_split_to_see_their_hot_parts", larger),
];

/// The capability's bit.
const CAP_SYS_ADMIN: u64 = 1 << 21;
/// The sections of the agent's configuration.
const SECTIONS: &str = "[gather]\nrounds = true\nnode = 1\nwindow_s = 2\nrest_s = 1\n";

/// The agent starts rounds, shows them, rests meanwhile from what clears accessed bits, and ends them with itself.
fn beside() -> Result<()> {
    let mut guest = start()?;
    load(&mut guest)?;
    guest.start_agent(AgentSetup {
        sections: SECTIONS,
        ..AgentSetup::SEEDED
    })?;
    let status = guest.wait_for_agent("hot pages came together", |status| {
        let written = status.events().contains("blocks of 2 MiB hot before");
        Ok(written && gathered(status) * 100 >= BLOCKS * EACH * 95)
    })?;
    expect_on_node(&mut guest)?;
    let text = guest.check("terrace-agent top --once")?;
    print!("{text}");
    ensure!(
        text.contains("by SCAN and the node") && text.contains("hot blocks"),
        "{text}"
    );
    let running = processes(&mut guest)?;
    println!("{running:x?}");
    let admin = |process: &&(String, u64)| process.1 & CAP_SYS_ADMIN != 0;
    let with: Vec<&str> = running
        .iter()
        .filter(admin)
        .map(|it| it.0.as_str())
        .collect();
    // One opens files for the agent, in case that the host names frames, and one for gathering.
    ensure!(
        running.len() == 4 && with == ["opener", "opener"],
        "{running:x?}"
    );
    let other = guest.run(
        &format!("terrace-agent gather --once --config {FILE}"),
        crate::control::agent::PATIENCE,
    )?;
    ensure!(
        other.exit != 0 && other.stderr.contains("another terrace-agent gather runs"),
        "{other:?}"
    );
    guest.ask(&sparse().name, "move 300")?;
    let rounds = count(&status.0["gather"], "rounds");
    guest.wait_for_agent("other pages came together", |status| {
        let gather = &status.0["gather"];
        Ok(count(gather, "rounds") > rounds
            && count(gather, "returned_pages") * 100 >= BLOCKS * EACH * 90)
    })?;
    guest.stop_agent()?;
    guest.wait_until(
        "its processes have ended",
        crate::control::agent::PATIENCE,
        |guest| Ok(processes(guest)?.is_empty().then_some(())),
    )?;
    super::undo(&mut guest)?;
    finish(&mut guest)
}

/// The agent's processes: the command of each, and its capabilities.
fn processes(guest: &mut Lab) -> Result<Vec<(String, u64)>> {
    let said = guest.check(
        "for p in /proc/[0-9]*; do [ \"$(cat $p/comm 2>/dev/null)\" = terrace-agent ] || [ \"$(cat $p/comm 2>/dev/null)\" = exe ] || continue; \
         echo $(tr '\\0' ' ' <$p/cmdline | cut -d' ' -f2) $(sed -n 's/^CapEff://p' $p/status); done",
    )?;
    let process = |line: &str| {
        let (command, capabilities) = line.split_once(' ')?;
        Some((
            command.to_owned(),
            u64::from_str_radix(capabilities.trim(), 16).ok()?,
        ))
    };
    said.lines()
        .map(|line| process(line).with_context(|| format!("{line:?} in {said}")))
        .collect()
}

fn count(of: &Value, what: &str) -> u64 {
    of[what].as_u64().unwrap_or(0)
}

/// Pages that came together, if few blocks were hot after it.
fn gathered(status: &AgentStatus) -> u64 {
    let gather = &status.0["gather"];
    let after = &gather["last"]["after"];
    let few = count(after, "hot_blocks") <= count(after, "fewest_blocks") + MORE_BLOCKS;
    if few { count(gather, "moved_pages") } else { 0 }
}

/// One whose memory is hot from end to end.
fn dense() -> HotSet {
    HotSet {
        name: "dense".to_owned(),
        region_mib: 40,
        hot_mib: 40,
        elsewhere: 0,
        node: 0,
        thp: true,
        ..HotSet::default()
    }
}

/// Nothing is known of the parts of larger pages; once those are split, hot parts come together, and what is hot all over
/// is made whole again.
fn larger() -> Result<()> {
    let program = HotSet {
        thp: true,
        ..sparse()
    };
    let mut guest = start_with(&program, &Kernel::get(false)?)?;
    guest.check(
        "echo 4294967295 >/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs",
    )?;
    guest.start_hot_set(&dense())?;
    load(&mut guest)?;
    configure(&mut guest, "node = 1\nsplit = 400")?;
    let before = huge_kib(&mut guest)?;
    let first = round(&mut guest, "larger pages, first round")?;
    let split = count(&first["large_pages"], "split");
    ensure!(split * 4 >= BLOCKS * 3, "{first}");
    let second = round(&mut guest, "larger pages, second round")?;
    ensure!(
        count(&second, "moved_pages") * 100 >= BLOCKS * EACH * 95,
        "{second}"
    );
    ensure!(count(&second["large_pages"], "joined") >= 5, "{second}");
    expect_on_node(&mut guest)?;
    let said = guest.check(&format!("terrace-agent gather --undo --config {FILE}"))?;
    let after = huge_kib(&mut guest)?;
    println!("{said}{before} KiB of huge pages before, {after} KiB after it was undone");
    ensure!(after * 10 >= before * 9, "{said}: {before} to {after} KiB");
    guest.expect_native_intact(&dense().name)?;
    finish(&mut guest)
}

fn round(guest: &mut Lab, what: &str) -> Result<Value> {
    let said = guest.check(&format!(
        "terrace-agent gather --once --config {FILE} --json"
    ))?;
    println!("{what}: {said}");
    serde_json::from_str(&said).context(said)
}

/// Memory in larger pages, KiB.
fn huge_kib(guest: &mut Lab) -> Result<u64> {
    let said = guest.check("sed -n 's/^AnonHugePages: *//p' /proc/meminfo")?;
    let kib = said.split_whitespace().next().unwrap_or_default();
    kib.parse().with_context(|| said.clone())
}
