//! `terrace-agent skew` and `gather`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use clap::Args;
use serde::Serialize;
use terrace_core::gather::{Limits, Plan, WINDOWS, Worth};
use terrace_sys::guest_module::GuestModule;
use terrace_sys::{HostRoot, KernelPages};

use super::hot::{HotPages, read_list};
use super::idle::IdleBits;
use super::location::locate;
use super::pool::{self, Pool};
use super::report::{self, SkewReport};
use super::residents::{Returns, Which, pages_in};
use super::round::Rounds;
use super::scan::ScanBits;
use super::watch::{AccessedBits, watch};
use super::way;
use crate::config::Config;
use crate::processes;

/// Source of hot pages.
#[derive(Debug, Args)]
pub struct HeatArgs {
    /// The configuration; as for `run`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Hot pages from another tool, a line for each: PID ADDRESS, as in `1234 0x7f0000001000`. Without it, pages that
    /// were accessed in two of three windows of `gather.window_s` seconds, by the guest module's SCAN or idle-page tracking.
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
    /// Send all pages home from the node on which was gathered, and give its memory back to the guest.
    #[arg(long, conflicts_with_all = ["once", "dry_run", "pages"])]
    undo: bool,
}

/// Prints how hot pages are spread over this machine's memory.
///
/// # Errors
/// If they cannot be found, with what to do.
pub fn skew(root: &HostRoot, args: &HeatArgs) -> Result<()> {
    give_way();
    let config = Config::read(args.config.as_deref())?;
    let hot = hot_pages(root, &config, args.pages.as_deref())?;
    let located = locate(root, &hot)?;
    let mut skew = located.skew(root)?;
    let mut room = u64::MAX;
    if let Some(node) = config.gather.node {
        let frames = Pool::open(root, node)?.memory()?.frames;
        room = frames.end - frames.start;
        skew.target(frames);
    }
    let limits = Limits {
        cl: config.gather.cl,
        pages: u64::MAX,
        room,
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
/// If nothing here can gather, with what to change; if pages could not go home.
pub fn gather(root: &HostRoot, args: &GatherArgs) -> Result<()> {
    give_way();
    let config = Config::read(args.heat.config.as_deref())?;
    if args.dry_run {
        way::choose(root, &config)?;
        return skew(root, &args.heat);
    }
    let _lock = lock(root)?;
    if args.undo {
        return undo(root, args.heat.json);
    }
    let way = way::choose(root, &config)?;
    let mut rounds = Rounds {
        root,
        gathering: &config.gather,
        bytes_per_s: config.budgets.bytes_per_s(),
        way,
        worth: Worth::default(),
    };
    let hot = hot_pages(root, &config, args.heat.pages.as_deref());
    let first = hot.and_then(|hot| round(&mut rounds, &hot, args));
    if let Some(left) = rounds.way.left() {
        eprintln!("{left}");
    }
    first?;
    match args.once {
        true => Ok(()),
        false => go_on(&mut rounds, &config, args),
    }
}

/// Rounds until they do not pay.
fn go_on(rounds: &mut Rounds<'_>, config: &Config, args: &GatherArgs) -> Result<()> {
    let rest = config.gather.rest;
    while !rounds.worth.rests() {
        std::thread::sleep(rest);
        // A list that is just being written, a process that has ended: the next one may be good again.
        let hot = hot_pages(rounds.root, config, args.heat.pages.as_deref());
        if let Err(error) = hot.and_then(|hot| round(rounds, &hot, args)) {
            eprintln!("{error:#}; tried again in {} s", rest.as_secs());
        }
    }
    bail!(
        "three rounds in a row freed less than half of what was planned: it does not pay here. Hot pages change too fast, or \
         something takes them back (khugepaged, NUMA balancing, another tiering program)"
    )
}

fn round(rounds: &mut Rounds<'_>, hot: &HotPages, args: &GatherArgs) -> Result<()> {
    let round = rounds.gather(hot)?;
    match args.heat.json {
        true => println!("{}", serde_json::to_string(&round)?),
        false => print!("{}", report::round(&round)),
    }
    Ok(())
}

/// If memory is short, this program is to end and none of the guest's.
fn give_way() {
    // Each process may raise its own.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// One program at a time gathers or undoes.
fn lock(root: &HostRoot) -> Result<File> {
    let folder = root.join(pool::FOLDER);
    let file = folder.join("gather.lock");
    let open = || {
        std::fs::create_dir_all(&folder)?;
        File::create(&file)
    };
    let opened = open().with_context(|| format!("{}: run as root", file.display()))?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => {
            bail!("another terrace-agent gather runs; end it first")
        }
        Err(TryLockError::Error(error)) => Err(error).context(file.display().to_string()),
    }
}

/// The result of an undo.
#[derive(Debug, Serialize)]
struct Undone {
    node: u32,
    returned_pages: u64,
    /// Pages that are on the node still.
    left_pages: u64,
}

/// Gives the pool up first, whatever comes; then pages go home as far as the kernel moves them. Only nodes on which was gathered:
/// one that the configuration names by mistake has its programs' pages.
fn undo(root: &HostRoot, json: bool) -> Result<()> {
    let nodes = Pool::known(root);
    if nodes.is_empty() {
        println!("nothing to undo: nothing was gathered on a node");
        return Ok(());
    }
    let mut left = 0;
    for node in nodes {
        let undone = undo_node(root, node)?;
        left += undone.left_pages;
        match json {
            true => println!("{}", serde_json::to_string(&undone)?),
            false => println!(
                "{} pages went home from node {node}; its memory is the guest's again",
                undone.returned_pages
            ),
        }
    }
    ensure!(
        left == 0,
        "{left} pages of programs stay there: pinned, in use, of a cpuset without other nodes, or without room elsewhere; try \
         again later"
    );
    Ok(())
}

fn undo_node(root: &HostRoot, node: u32) -> Result<Undone> {
    let pool = Pool::open(root, node)?;
    pool.give_up()?;
    let frames = pool.memory()?.frames;
    let returns = Returns {
        root,
        node,
        pages: &KernelPages,
        which: Which::All,
    };
    let found = pages_in(root, &frames, Which::All)?;
    for (pid, pages) in &found {
        let _ = returns.send(*pid, pages);
    }
    let count =
        |found: &BTreeMap<u32, Vec<u64>>| found.values().map(|pages| pages.len() as u64).sum();
    let before: u64 = count(&found);
    let left_pages = count(&pages_in(root, &frames, Which::All)?);
    if left_pages == 0 {
        pool.forget()?;
    }
    Ok(Undone {
        node,
        returned_pages: before.saturating_sub(left_pages),
        left_pages,
    })
}

/// The hot pages: a list's, or those that were accessed.
fn hot_pages(root: &HostRoot, config: &Config, list: Option<&Path>) -> Result<HotPages> {
    if let Some(list) = list {
        return read_list(list);
    }
    let mut bits = accessed_bits(root, config)?;
    let found = processes::find(root, &config.following.wanted, &BTreeSet::new())?;
    let pids: Vec<u32> = found.iter().map(|process| process.pid).collect();
    ensure!(
        !pids.is_empty(),
        "no process that the configuration selects has {} or more",
        bytesize::ByteSize(config.following.wanted.min_bytes)
    );
    let window = config.gather.window;
    watch(root, bits.as_mut(), &pids, window, &|number| {
        eprintln!(
            "window {number} of {WINDOWS} ({} s), {} processes",
            window.as_secs(),
            pids.len()
        );
    })
}

/// The first source that works: the module's SCAN, the kernel's idle-page tracking.
fn accessed_bits(root: &HostRoot, config: &Config) -> Result<Box<dyn AccessedBits>> {
    let scan = match config.module {
        true => GuestModule::open(root)
            .map_err(anyhow::Error::from)
            .and_then(ScanBits::new),
        false => Err(anyhow!("module = false switches the guest module off")),
    };
    let why = match scan {
        Ok(scan) => return Ok(Box::new(scan)),
        Err(error) => error,
    };
    match IdleBits::open(root)? {
        Some(idle) => Ok(Box::new(idle)),
        None => bail!(
            "no source of hot base pages: {why:#}, and this kernel has no idle-page tracking (CONFIG_IDLE_PAGE_TRACKING). Load \
             the module, or name a list (--pages FILE)"
        ),
    }
}
