//! Scattered hot pages of a program come together, in a guest with a small second node: on that node without any module, and
//! in blocks of their own node by the guest module.

mod faults;
mod figures;
mod heat;
mod plugged;
mod rounds;

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use terrace_lab_programs::native::HotSet;
use terrace_lab_programs::pages::PageRange;

use super::{MARK, MODULE, load};
use crate::control::agent::PATIENCE;
use crate::control::lab::Lab;
use crate::guests::module::{self, More};
use crate::guests::tiered;
use crate::machine::checked;
use crate::machine::kernel::Kernel;
use crate::tests::test::Test;

/// Pages of 2 MiB, and hot base pages in each.
const BLOCKS: u64 = 96;
const EACH: u64 = 4;
/// Blocks that the pages may fill beside those that they fit in (1), and hot blocks of what else the program has.
const MORE_BLOCKS: u64 = 8;
/// Time for which NUMA balancing has its way.
const BALANCED: Duration = Duration::from_secs(15);
/// Time over which passes are counted.
const RATED: Duration = Duration::from_secs(2);
const LIST: &str = "/run/hot";
const FILE: &str = "/run/gather.toml";

fn sparse() -> HotSet {
    HotSet {
        name: "sparse".to_owned(),
        region_mib: 2 * usize::try_from(BLOCKS).unwrap_or(0),
        sparse: usize::try_from(EACH).unwrap_or(0),
        elsewhere: 0,
        node: 0,
        ..HotSet::default()
    }
}

pub use plugged::plugged;

/// Tests that print figures.
pub const FIGURES: &[&[Test]] = &[figures::TESTS, heat::TESTS];

/// Faults while pages are gathered.
pub const FAULTS: &[Test] = faults::TESTS;
/// Rounds beside the agent, and larger pages.
pub const ROUNDS: &[Test] = rounds::TESTS;

/// By the node, with a list of hot pages and no module; then with the module's SCAN; then by the module alone.
pub fn gather(kernel: &Kernel) -> Result<()> {
    let mut guest = start_with(&sparse(), kernel)?;
    by_list(&mut guest)?;
    hot_set_moves(&mut guest)?;
    balancing(&mut guest)?;
    undo(&mut guest)?;
    load(&mut guest)?;
    guest.ask(&sparse().name, "move 300")?;
    expect_gathered(&mut guest, "node, by SCAN", "")?;
    expect_on_node(&mut guest)?;
    undo(&mut guest)?;
    guest.ask(&sparse().name, "move 400")?;
    by_module(&mut guest)?;
    finish(&mut guest)
}

/// By idle-page tracking, on a kernel that has it, with a module whose SCAN does not work.
pub fn by_idle_pages() -> Result<()> {
    let mut guest = start_with(&sparse(), &checked::get()?)?;
    guest.check(&format!("insmod /{MODULE}.ko hide=flush_tlb_mm_range"))?;
    configure(&mut guest, "")?;
    expect_gathered(&mut guest, "module, by idle pages", "")?;
    finish(&mut guest)
}

/// A guest with a program whose hot pages are scattered over one of its nodes, and another node that is free.
fn start() -> Result<Lab> {
    start_with(&sparse(), &Kernel::get(false)?)
}

fn start_with(program: &HotSet, kernel: &Kernel) -> Result<Lab> {
    let mut guest = module::start_with(MODULE, kernel, More::SmallNode)?;
    guest.check(&format!("echo {MARK} >/dev/kmsg"))?;
    guest.install_agent()?;
    guest.install_native()?;
    guest.check("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")?;
    guest.check("echo 0 >/proc/sys/kernel/numa_balancing")?;
    guest.start_hot_set(program)?;
    configure(&mut guest, "node = 1")?;
    Ok(guest)
}

fn finish(guest: &mut Lab) -> Result<()> {
    guest.expect_native_intact(&sparse().name)?;
    tiered::expect_a_quiet_kernel(guest, MARK)
}

/// Other pages become hot: those of before leave the node.
fn hot_set_moves(guest: &mut Lab) -> Result<()> {
    guest.ask(&sparse().name, "move 200")?;
    list(guest)?;
    let round = expect_gathered(guest, "other pages", &format!("--pages {LIST}"))?;
    let back = round["returned_pages"].as_u64().unwrap_or(0);
    ensure!(
        back * 100 >= BLOCKS * EACH * 90,
        "{back} went home: {round}"
    );
    expect_on_node(guest)
}

/// NUMA balancing takes what was gathered home: it is refused, but for tiering (2). How many pages have gone after a while is
/// printed.
fn balancing(guest: &mut Lab) -> Result<()> {
    let set = |guest: &mut Lab, mode: u32| {
        guest.check(&format!("echo {mode} >/proc/sys/kernel/numa_balancing"))
    };
    set(guest, 2)?;
    guest.ask(&sparse().name, "move 250")?;
    list(guest)?;
    expect_gathered(guest, "beside tiering", &format!("--pages {LIST}"))?;
    expect_on_node(guest)?;
    set(guest, 1)?;
    let gather = format!("terrace-agent gather --once --config {FILE} --pages {LIST}");
    let said = guest.run(&gather, PATIENCE)?;
    ensure!(
        said.exit != 0
            && said
                .stderr
                .contains("NUMA balancing takes every page home within seconds"),
        "{said:?}"
    );
    let before = on_node_1(guest)?;
    std::thread::sleep(BALANCED);
    let after = on_node_1(guest)?;
    println!(
        "NUMA balancing: {} of {before} gathered pages went home in {} s",
        before.saturating_sub(after),
        BALANCED.as_secs()
    );
    set(guest, 0).map(drop)
}

fn expect_on_node(guest: &mut Lab) -> Result<()> {
    let on_node = on_node_1(guest)?;
    ensure!(
        on_node * 100 >= BLOCKS * EACH * 95,
        "{on_node} pages are on node 1"
    );
    Ok(())
}

/// The configuration, with keys of `[gather]`.
fn configure(guest: &mut Lab, keys: &str) -> Result<()> {
    let text = format!(
        "[processes]\nnames = [\"lab-native\"]\nmin = \"32MiB\"\n[gather]\nwindow_s = 2\nrest_s = 1\n{keys}\n"
    );
    let output = guest.run_with_input(&format!("cat >{FILE}"), &text, PATIENCE)?;
    ensure!(output.exit == 0, "writing {FILE}: {}", output.stderr);
    Ok(())
}

/// The hot pages, as another tool would list them.
fn list(guest: &mut Lab) -> Result<()> {
    let truth = guest.ask(&sparse().name, "truth")?;
    let pid = truth["pid"].as_u64().context("no pid")?;
    let ranges: Vec<PageRange> = serde_json::from_value(truth["ranges"].clone())?;
    let pages = ranges.into_iter().flat_map(PageRange::frames);
    let lines: String = pages
        .map(|page| format!("{pid} {:#x}\n", page << 12))
        .collect();
    let output = guest.run_with_input(&format!("cat >{LIST}"), &lines, PATIENCE)?;
    ensure!(output.exit == 0, "writing {LIST}: {}", output.stderr);
    Ok(())
}

fn by_list(guest: &mut Lab) -> Result<()> {
    list(guest)?;
    print!(
        "{}",
        guest.check(&format!(
            "terrace-agent skew --config {FILE} --pages {LIST}"
        ))?
    );
    let options = format!("--pages {LIST}");
    let said = guest.check(&format!(
        "terrace-agent gather --dry-run --config {FILE} {options} --json"
    ))?;
    let plan: Value = serde_json::from_str(&said)?;
    let hot = BLOCKS * EACH;
    ensure!(
        plan["hot_pages"] == hot && plan["copy_pages"] == hot && on_node_1(guest)? == 0,
        "a dry run: {plan}"
    );
    with_rates(guest, |guest| {
        expect_gathered(guest, "node, by a list", &options).map(drop)
    })?;
    expect_on_node(guest)
}

fn by_module(guest: &mut Lab) -> Result<()> {
    configure(guest, "")?;
    with_rates(guest, |guest| {
        expect_gathered(guest, "module", "").map(drop)
    })?;
    ensure!(on_node_1(guest)? == 0, "the module gathers within the node");
    Ok(())
}

/// Prints how fast the program goes before, while and after something is done. Nothing of it is judged.
fn with_rates(guest: &mut Lab, what: impl FnOnce(&mut Lab) -> Result<()>) -> Result<()> {
    let before = rate(guest, pause)?;
    let meanwhile = rate(guest, what)?;
    let after = rate(guest, pause)?;
    println!("passes a second: {before:.0} before, {meanwhile:.0} meanwhile, {after:.0} after");
    Ok(())
}

fn pause(_: &mut Lab) -> Result<()> {
    std::thread::sleep(RATED);
    Ok(())
}

/// The program's passes a second while something is done.
fn rate(guest: &mut Lab, what: impl FnOnce(&mut Lab) -> Result<()>) -> Result<f64> {
    let passes = |guest: &mut Lab| -> Result<f64> {
        let stats = guest.ask(&sparse().name, "stats")?;
        stats["passes"].as_f64().context("no passes")
    };
    let (first, begun) = (passes(guest)?, Instant::now());
    what(guest)?;
    Ok((passes(guest)? - first) / begun.elapsed().as_secs_f64())
}

/// Gathers once: nearly all hot pages move, and few blocks are hot.
fn expect_gathered(guest: &mut Lab, how: &str, options: &str) -> Result<Value> {
    let said = guest.check(&format!(
        "terrace-agent gather --once --config {FILE} {options} --json"
    ))?;
    let round: Value = serde_json::from_str(&said).with_context(|| said.clone())?;
    println!("{how}: {round}");
    let of = |when: &str, what: &str| round[when][what].as_u64().unwrap_or(0);
    let moved = round["moved_pages"].as_u64().unwrap_or(0);
    // Two neighbours of the program's may share a block of physical memory.
    ensure!(
        of("before", "hot_blocks") * 4 >= BLOCKS * 3,
        "{how}: {said}"
    );
    ensure!(moved * 100 >= BLOCKS * EACH * 95, "{how}: {said}");
    ensure!(
        of("after", "hot_blocks") <= of("after", "fewest_blocks") + MORE_BLOCKS,
        "{how}: {said}"
    );
    ensure!(
        round["refused"].as_array().is_some_and(Vec::is_empty),
        "{how}: {said}"
    );
    Ok(round)
}

/// All pages go home, and the node's memory is the guest's again.
fn undo(guest: &mut Lab) -> Result<()> {
    let said = guest.check(&format!("terrace-agent gather --undo --config {FILE}"))?;
    let pool = guest
        .check("cat /sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages")?;
    ensure!(
        on_node_1(guest)? == 0 && pool.trim() == "0",
        "{said}, pool {pool}"
    );
    Ok(())
}

/// Hot pages on the small node.
fn on_node_1(guest: &mut Lab) -> Result<u64> {
    Ok(guest.native_placement(&sparse().name, "truth")?.on(1))
}
