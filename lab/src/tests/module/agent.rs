//! The agent with the guest module: samples by its SCAN, and pages that change places where no node has room.

use anyhow::{Result, ensure};
use terrace_lab_programs::native::HotSet;

use super::{MARK, load};
use crate::control::agent::AgentSetup;
use crate::control::lab::Lab;
use crate::guests::{module, tiered};
use crate::machine::kernel::Kernel;

/// Epochs that the agent may take to find the hot set and exchange it.
const EPOCHS: u64 = 120;
/// Epochs after which nothing will have come any more.
const STOPPED_EPOCHS: u64 = 30;
/// Tiers are named: the guest's kernel knows of no difference between its nodes.
const TIERS: &str =
    "[[tier]]\nname = \"fast\"\nnodes = [0]\n[[tier]]\nname = \"slow\"\nnodes = [1]\n";

/// A process whose hot pages lie on the slow node.
fn hot() -> HotSet {
    HotSet {
        region_mib: 64,
        hot_mib: 16,
        ..HotSet::default()
    }
}

/// One that keeps cold pages on the fast node.
fn cold() -> HotSet {
    HotSet {
        name: "cold".to_owned(),
        region_mib: 64,
        hot_mib: 1,
        elsewhere: 0,
        node: 0,
        pause_ms: 50,
        ..HotSet::default()
    }
}

/// Both nodes are full: without the module the agent stops and says why, with it hot and cold pages change places.
pub fn full_nodes() -> Result<()> {
    let mut guest = module::start(super::MODULE, &Kernel::get(false)?)?;
    load(&mut guest)?;
    guest.install_agent()?;
    guest.install_native()?;
    guest.check("echo madvise >/sys/kernel/mm/transparent_hugepage/enabled")?;
    // An eighth of a node may rest in the processors' lists, and come back when the node is full.
    guest.check("echo 100000 >/proc/sys/vm/percpu_pagelist_high_fraction")?;
    guest.start_hot_set(&cold())?;
    guest.start_hot_set(&hot())?;
    expect_findings(&mut guest)?;
    // Between their high watermarks and the lower ones the nodes have room for the programs that look. The watermarks rise
    // once more: pages that return from the processors' lists are not to make room for a batch.
    reserve_kib(&mut guest, 48 << 10)?;
    for node in [0, 1] {
        guest.fill_node(node, 0)?;
    }
    reserve_kib(&mut guest, 56 << 10)?;
    start_agent(&mut guest, "module = false\n")?;
    expect_stopped(&mut guest)?;
    start_agent(&mut guest, "")?;
    expect_exchanged(&mut guest)?;
    for process in [hot(), cold()] {
        guest.expect_native_intact(&process.name)?;
    }
    guest.finish_agent()?;
    tiered::expect_a_quiet_kernel(&mut guest, MARK)
}

/// The memory that the kernel keeps to itself.
fn reserve_kib(guest: &mut Lab, kib: u64) -> Result<()> {
    guest.check(&format!("echo {kib} >/proc/sys/vm/min_free_kbytes"))?;
    Ok(())
}

/// Doctor names each call of the module.
fn expect_findings(guest: &mut Lab) -> Result<()> {
    let said = guest
        .run("terrace-agent doctor", crate::control::agent::PATIENCE)?
        .stdout;
    for call in ["scan", "consolidate", "exchange", "migrate"] {
        ensure!(
            said.contains(&format!("ok       guest-module-{call}: works")),
            "no guest-module-{call} in {said}"
        );
    }
    ensure!(said.contains("run would take scan"), "{said}");
    Ok(())
}

fn start_agent(guest: &mut Lab, head: &'static str) -> Result<()> {
    guest.start_agent(AgentSetup {
        head,
        min: "32MiB",
        fast: "256MiB",
        sections: TIERS,
        ..AgentSetup::SEEDED
    })
}

fn expect_stopped(guest: &mut Lab) -> Result<()> {
    let first = guest.agent_status()?.epochs()?;
    let why = "neither tier has room for a batch, and pages cannot be exchanged in place: the configuration \
               switches it off";
    let status = guest.wait_for_agent("the agent stops and says why", |status| {
        let late = status.epochs()? > first + EPOCHS;
        ensure!(!late, "it does not say {why:?}:\n{}", status.events());
        Ok(status.events().contains(why) && status.epochs()? > first + STOPPED_EPOCHS)
    })?;
    let now = guest.native_on_fast(&hot().name)?;
    println!("without the module: {now}\n{}", status.events());
    ensure!(now.fast * 2 < now.hot, "the nodes were not full: {now}");
    guest.stop_agent()
}

fn expect_exchanged(guest: &mut Lab) -> Result<()> {
    let before = guest.native_on_fast(&hot().name)?;
    let taken = guest.epochs_to_place(&hot().name, 0, EPOCHS)?;
    let now = guest.agent_status()?;
    ensure!(
        taken.is_some(),
        "the hot pages did not come up: {}\n{}",
        now.0,
        now.events()
    );
    // Both pages of each pair; some may come up through what becomes free. The status follows when the epoch is over.
    let came = before.hot - before.fast;
    let status = guest.wait_for_agent("pages were exchanged in place", |status| {
        Ok(status.count("swapped_pages")? >= came)
    })?;
    let after = guest.native_on_fast(&hot().name)?;
    println!(
        "with the module: {after} after epoch {taken:?}, {} pages in place, sampler {}",
        status.count("swapped_pages")?,
        status.word("sampler")
    );
    ensure!(status.word("sampler") == "scan", "sampler {}", status.0);
    Ok(())
}
