//! The guest agent in a guest with a node per tier: L1 itself.
//!
//! The workload reports which of its pages are hot, L1's kernel where they are; the agent's status only counts its
//! epochs.

use anyhow::{Context, Result, bail, ensure};
use terrace_lab_programs::native::{HotSet, Load};

use crate::control::agent::AgentSetup;
use crate::control::lab::Lab;
use crate::tests::test::{Boot, Needs, Test};
use crate::{host, programs};

/// Epochs that the hot set may take if the ranges are a process's mappings.
const SEEDED_EPOCHS: u64 = 30;
/// Epochs for a hot set that moved: the counts of the old one decay first, and a range that lies between hot and cold
/// is split once more.
const FOLLOW_EPOCHS: u64 = 60;
/// Epochs that the agent may take to come to rest.
const RESTLESS_EPOCHS: u64 = 60;
/// Pages that each pass of a uniform load touches, anywhere.
const UNIFORM_PAGES: u64 = 8192;

const SLOW: u32 = 1;
const MIB: u64 = 1 << 20;

pub const TESTS: &[Test] = &[
    Test {
        name: "agent_is_one_static_program_below_8_mib",
        needs: Needs::Nothing,
        boot: Boot::L1(agent_is_one_static_program_below_8_mib),
    },
    Test {
        name: "agent_places_a_slow_hot_set_follows_it_and_goes_quiet",
        needs: Needs::Product,
        boot: Boot::L1(agent_places_a_slow_hot_set_follows_it_and_goes_quiet),
    },
    Test {
        name: "agent_finds_a_hot_set_from_the_papers_root",
        needs: Needs::Product,
        boot: Boot::L1(agent_finds_a_hot_set_from_the_papers_root),
    },
    Test {
        name: "agent_moves_huge_pages_whole",
        needs: Needs::Product,
        boot: Boot::L1(agent_moves_huge_pages_whole),
    },
    Test {
        name: "agent_places_the_hot_keys_of_redis",
        needs: Needs::Product,
        boot: Boot::L1(agent_places_the_hot_keys_of_redis),
    },
];

fn agent_is_one_static_program_below_8_mib(_: &mut Lab) -> Result<()> {
    let built = programs::build_product()?;
    let agent = built.iter().find(|path| path.ends_with(programs::AGENT));
    let agent = agent.context("the agent was not built")?;
    let bytes = std::fs::metadata(agent)?.len();
    println!("{}: {bytes} bytes", programs::AGENT);
    ensure!(bytes < 8 * MIB, "the agent has {bytes} bytes");
    ensure!(host::is_static(agent), "the agent needs shared libraries");
    Ok(())
}

fn agent_places_a_slow_hot_set_follows_it_and_goes_quiet(lab: &mut Lab) -> Result<()> {
    let spec = HotSet::default();
    lab.become_a_guest()?;
    lab.start_hot_set(&spec)?;
    let name = &spec.name;
    expect_nothing_without_moves(lab, name)?;
    lab.start_agent(AgentSetup::SEEDED)?;
    expect_placed(lab, name, 0, SEEDED_EPOCHS)?;
    lab.wait_until_quiet(RESTLESS_EPOCHS)?;
    follow(lab, name, FOLLOW_EPOCHS)?;
    lab.wait_until_quiet(RESTLESS_EPOCHS)?;
    let placed = lab.native_on_fast(name)?;
    ensure!(
        placed.fast * 10 >= placed.hot * 9,
        "at rest, but the hot set is no longer in fast memory: {placed}"
    );
    expect_rest_under_a_uniform_load(lab, name)?;
    lab.expect_native_intact(name)?;
    lab.finish_agent()
}

/// Checks that the test fails if pages do not move: with as many epochs, all of the hot set is still slow.
fn expect_nothing_without_moves(lab: &mut Lab, name: &str) -> Result<()> {
    lab.start_agent(AgentSetup {
        moves: false,
        ..AgentSetup::SEEDED
    })?;
    lab.wait_for_epoch(SEEDED_EPOCHS)?;
    let still = lab.native_on_fast(name)?;
    println!("moves are off: {still}");
    ensure!(
        still.fast == 0,
        "pages moved although moves are off: {still}"
    );
    lab.stop_agent()
}

/// Expects at least 90 % of the hot set to be in fast memory within that many epochs after epoch `first`.
fn expect_placed(lab: &mut Lab, name: &str, first: u64, most: u64) -> Result<()> {
    let taken = lab.epochs_to_place(name, first, most)?;
    let now = lab.native_on_fast(name)?;
    let status = lab.agent_status()?;
    println!(
        "{now} (sampler {}, epoch {taken:?} of {most})",
        status.word("sampler")
    );
    ensure!(
        taken.is_some(),
        "less than 90 % of the hot set is in fast memory after {most} epochs: {now}\n{}",
        status.0
    );
    Ok(())
}

/// Moves the hot set; the new one must come as the first did. The pages beside the hot set in fast memory are up to
/// chance, so of several new hot sets the first is taken that is not there already.
fn follow(lab: &mut Lab, name: &str, most: u64) -> Result<()> {
    for seed in [5, 3, 11, 13] {
        lab.ask(name, &format!("move {seed}"))?;
        let first = lab.agent_status()?.epochs()?;
        let moved = lab.native_on_fast(name)?;
        if moved.fast * 2 < moved.hot {
            return expect_placed(lab, name, first, most);
        }
    }
    bail!("each new hot set is in fast memory already")
}

fn expect_rest_under_a_uniform_load(lab: &mut Lab, name: &str) -> Result<()> {
    lab.ask(name, "hot 0")?;
    lab.ask(name, &format!("elsewhere {UNIFORM_PAGES}"))?;
    let before = lab.agent_status()?;
    // The learned hot set must be forgotten first.
    lab.wait_for_epoch(before.epochs()? + SEEDED_EPOCHS)?;
    println!("uniform load, leaves before: {}", before.leaves());
    let after = lab.wait_until_quiet(RESTLESS_EPOCHS)?;
    println!(
        "uniform load, leaves after: {}, pages moved: {}",
        after.leaves(),
        after.moved()? - before.moved()?
    );
    Ok(())
}

fn agent_finds_a_hot_set_from_the_papers_root(lab: &mut Lab) -> Result<()> {
    // On the heap, which is the low end of the root; mappings are at its other end.
    let spec = HotSet {
        heap: true,
        ..HotSet::default()
    };
    lab.become_a_guest()?;
    lab.start_hot_set(&spec)?;
    let root = root_bytes(lab)?;
    let hot = spec.hot_mib as u64 * MIB;
    let halvings = (0..).find(|n| hot << n >= root).unwrap_or(0);
    println!(
        "root {} GiB, {halvings} halvings to the hot set's size",
        root >> 30
    );
    lab.start_agent(AgentSetup::PAPER)?;
    // An epoch whose samples all miss the hot pages halves nothing: on a busy machine some do.
    expect_placed(lab, &spec.name, 0, 2 * halvings)?;
    lab.wait_until_quiet(RESTLESS_EPOCHS)?;
    lab.expect_native_intact(&spec.name)?;
    lab.finish_agent()
}

/// Bytes from the start of the heap to the base of mappings, by the kernel's word.
fn root_bytes(lab: &mut Lab) -> Result<u64> {
    let maps = lab.check("cat /proc/$(pidof lab-native | awk '{print $NF}')/maps")?;
    let bound = |line: &str, at: usize| {
        let address = line.split(' ').next()?.split('-').nth(at)?;
        u64::from_str_radix(address, 16).ok()
    };
    let heap = maps.lines().find(|line| line.ends_with("[heap]"));
    let stack = maps.lines().find(|line| line.ends_with("[stack]"));
    let start = heap.and_then(|line| bound(line, 0)).context("no heap")?;
    // Mappings begin a little below the stack.
    let end = stack.and_then(|line| bound(line, 0)).context("no stack")?;
    end.checked_sub(start)
        .context("the heap is above the stack")
}

fn agent_moves_huge_pages_whole(lab: &mut Lab) -> Result<()> {
    let spec = HotSet {
        thp: true,
        // More would touch each huge page in nearly every pass.
        elsewhere: 2,
        ..HotSet::default()
    };
    lab.become_a_guest()?;
    lab.start_hot_set(&spec)?;
    let before = huge_mib(lab)?;
    ensure!(
        before + 2 >= spec.region_mib as u64,
        "only {before} MiB of the region are huge pages"
    );
    let moved_before = huge_moves(lab)?;
    lab.start_agent(AgentSetup::SEEDED)?;
    expect_placed(lab, &spec.name, 0, SEEDED_EPOCHS)?;
    follow(lab, &spec.name, FOLLOW_EPOCHS)?;
    let (after, moved) = (huge_mib(lab)?, huge_moves(lab)?);
    println!(
        "huge pages before {before} MiB, after {after} MiB; {} moved whole",
        moved - moved_before
    );
    ensure!(after == before, "moving split huge pages");
    ensure!(moved > moved_before, "no huge page was moved");
    lab.expect_native_intact(&spec.name)?;
    lab.finish_agent()
}

/// Anonymous memory in huge pages, MiB.
fn huge_mib(lab: &mut Lab) -> Result<u64> {
    let kib = lab.check("awk '/^AnonHugePages/ {print $2}' /proc/meminfo")?;
    Ok(kib.trim().parse::<u64>().context("AnonHugePages")? >> 10)
}

/// Number of huge pages that the kernel has moved whole since it started.
fn huge_moves(lab: &mut Lab) -> Result<u64> {
    let count = lab.check("awk '/^thp_migration_success/ {print $2}' /proc/vmstat")?;
    count.trim().parse().context("thp_migration_success")
}

fn agent_places_the_hot_keys_of_redis(lab: &mut Lab) -> Result<()> {
    let load = Load::default();
    lab.become_a_guest()?;
    lab.start_redis(&load, SLOW)?;
    let name = &load.name;
    lab.start_agent(AgentSetup {
        process: "redis-server",
        fast: "32MiB",
        ..AgentSetup::SEEDED
    })?;
    expect_placed(lab, name, 0, SEEDED_EPOCHS)?;
    lab.wait_until_quiet(RESTLESS_EPOCHS)?;
    follow(lab, name, FOLLOW_EPOCHS)?;
    lab.expect_native_intact(name)?;
    println!("redis: {}", lab.ask(name, "stats")?);
    lab.finish_agent()
}
