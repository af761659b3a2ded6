//! `terrace-agent skew` and `gather`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use terrace_core::gather::{Limits, Plan, Worth};
use terrace_sys::HostRoot;
use terrace_sys::guest_module::GuestModule;

use super::hot::{HotPages, read_list};
use super::location::locate;
use super::pool::Pool;
use super::report::{self, SkewReport};
use super::round::Rounds;
use super::{scan, way};
use crate::config::Config;
use crate::processes;

/// Source of hot pages.
#[derive(Debug, Args)]
pub struct HeatArgs {
    /// The configuration; as for `run`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Hot pages from another tool, a line for each: PID ADDRESS, as in `1234 0x7f0000001000`. Without it, pages that
    /// were accessed in two of three windows of `gather.window_s` seconds, by the guest module's SCAN.
    #[arg(long, value_name = "FILE")]
    pages: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `gather`.
#[derive(Debug, Args)]
pub struct GatherArgs {
    #[command(flatten)]
    heat: HeatArgs,
    /// One round; without it, rounds until a signal ends it, `gather.rest_s` seconds apart.
    #[arg(long)]
    once: bool,
    /// Print what would be moved, and move nothing.
    #[arg(long)]
    dry_run: bool,
    /// Send all pages home from `gather.node` and give its memory back to the guest.
    #[arg(long, conflicts_with_all = ["once", "dry_run", "pages"])]
    undo: bool,
}

/// Prints how hot pages are spread over this machine's memory.
///
/// # Errors
/// If they cannot be found, with what to do.
pub fn skew(root: &HostRoot, args: &HeatArgs) -> Result<()> {
    let config = Config::read(args.config.as_deref())?;
    let hot = hot_pages(root, &config, args.pages.as_deref())?;
    let located = locate(root, &hot)?;
    let mut skew = located.skew(root)?;
    if let Some(node) = config.gather.node {
        skew.target(Pool::open(root, node)?.memory()?.frames);
    }
    let limits = Limits {
        cl: config.gather.cl,
        pages: u64::MAX,
        room: u64::MAX,
    };
    let plan = Plan::new(&skew, &BTreeSet::new(), limits);
    let report = SkewReport::new(&skew, &plan, located.staying, hot.huge);
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&report)?),
        false => print!("{}", report.text()),
    }
    Ok(())
}

/// Gathers, or undoes it.
///
/// # Errors
/// If nothing here can gather, with what to change.
pub fn gather(root: &HostRoot, args: &GatherArgs) -> Result<()> {
    if args.dry_run {
        return skew(root, &args.heat);
    }
    let config = Config::read(args.heat.config.as_deref())?;
    let mut rounds = Rounds {
        root,
        gathering: &config.gather,
        bytes_per_s: config.budgets.bytes_per_s(),
        way: way::choose(root, &config)?,
        worth: Worth::default(),
    };
    if args.undo {
        return undo(root, &config, &mut rounds);
    }
    loop {
        let hot = hot_pages(root, &config, args.heat.pages.as_deref())?;
        let round = rounds.gather(&hot)?;
        match args.heat.json {
            true => println!("{}", serde_json::to_string(&round)?),
            false => print!("{}", report::round(&round)),
        }
        if args.once {
            return Ok(());
        }
        if rounds.worth.rests() {
            bail!(
                "three rounds in a row freed less than half of what was planned: it does not pay here"
            );
        }
        std::thread::sleep(config.gather.rest);
    }
}

fn undo(root: &HostRoot, config: &Config, rounds: &mut Rounds<'_>) -> Result<()> {
    let Some(node) = config.gather.node else {
        println!("nothing to undo: the guest module gathers within each node");
        return Ok(());
    };
    let sent = rounds.undo()?;
    Pool::open(root, node)?.give_up()?;
    println!("{sent} pages were sent home; node {node}'s memory is the guest's again");
    Ok(())
}

/// The hot pages: a list's, or those that SCAN sees.
fn hot_pages(root: &HostRoot, config: &Config, list: Option<&Path>) -> Result<HotPages> {
    if let Some(list) = list {
        return read_list(list);
    }
    ensure!(
        config.module,
        "no source of hot base pages: module = false switches the guest module off; name a list (--pages FILE)"
    );
    let module = GuestModule::open(root).context(
        "no source of hot base pages: load the guest module, or name a list (--pages FILE)",
    )?;
    let found = processes::find(root, &config.following.wanted, &BTreeSet::new())?;
    let pids: Vec<u32> = found.iter().map(|process| process.pid).collect();
    ensure!(
        !pids.is_empty(),
        "no process that the configuration selects has {} or more",
        bytesize::ByteSize(config.following.wanted.min_bytes)
    );
    let window = config.gather.window;
    scan::watch(root, &module, &pids, window, &|number| {
        eprintln!(
            "window {number} of {} ({} s), {} processes",
            terrace_core::gather::WINDOWS,
            window.as_secs(),
            pids.len()
        );
    })
}
