//! `terrace-agent skew` and `gather`.

use std::collections::BTreeSet;
use std::fs::{File, TryLockError};
use std::os::unix::process::parent_id;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use serde::Serialize;
use terrace_core::gather::{Limits, Plan};
use terrace_sys::{HostRoot, KernelPages, die_with_parent};

use super::damos::Damos;
use super::heat::Source;
use super::location::locate;
use super::pool::{self, Pool};
use super::report::SkewReport;
use super::residents::{Returns, Which, pages_in, until_none};
use super::session::{Output, Session};
use super::split::{KernelAdvice, Splitter};
use super::{picture, way};
use crate::config::Config;
use crate::output;

/// Time for which an undo tries to send pages home.
const PATIENCE: Duration = Duration::from_secs(5);

/// Source of hot pages.
#[derive(Debug, Args)]
pub struct HeatArgs {
    /// The configuration; as for `run`.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Hot pages from another tool, a line for each: PID ADDRESS, as in `1234 0x7f0000001000`. Without it, pages that
    /// were accessed in two of three windows of `gather.window_s` seconds, by the guest module's SCAN, idle-page tracking, PEBS or
    /// IBS; or those that the host names (`gather.heat`).
    #[arg(long, value_name = "FILE")]
    pages: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Options of `skew`.
#[derive(Debug, Args)]
pub struct SkewArgs {
    #[command(flatten)]
    heat: HeatArgs,
    /// Write a picture, too: blocks by their number of hot pages.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
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
    /// Send all pages home from the node on which was gathered, give its memory back to the guest, and make whole the pages of
    /// 2 MiB that were split.
    #[arg(long, conflicts_with_all = ["once", "dry_run", "pages"])]
    undo: bool,
    /// Tell the agent that started it of each change, and end with it.
    #[arg(long, value_name = "PID", hide = true, conflicts_with_all = ["once", "dry_run", "pages", "undo", "json"])]
    report: Option<u32>,
}

/// Prints how hot pages are spread over this machine's memory.
///
/// # Errors
/// If they cannot be found, with what to do.
pub fn skew(root: &HostRoot, args: &SkewArgs) -> Result<()> {
    give_way();
    let config = Config::read(args.heat.config.as_deref())?;
    show_skew(root, &config, &args.heat, args.svg.as_ref())
}

fn show_skew(
    root: &HostRoot,
    config: &Config,
    heat: &HeatArgs,
    svg: Option<&PathBuf>,
) -> Result<()> {
    let source = Source::choose(root, config, heat.pages.as_deref())?;
    let hot = source.hot_pages(root, config, &mut |text| {
        eprintln!("{text}");
        Ok(())
    })?;
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
    let report = SkewReport::new(&skew, &plan, located.staying, hot.large.len() as u64);
    if let Some(file) = svg {
        let picture = picture::svg(&report)?;
        std::fs::write(file, picture).with_context(|| format!("writing {}", file.display()))?;
    }
    match heat.json {
        true => output::print_line(serde_json::to_string_pretty(&report)?),
        false => output::print(report.text()),
    }
}

/// Gathers, or undoes it.
///
/// # Errors
/// If nothing here can gather, with what to change; if pages could not go home.
pub fn gather(root: &HostRoot, args: &GatherArgs) -> Result<()> {
    if let Some(parent) = args.report {
        die_with_parent()?;
        // It may have ended before that.
        ensure!(parent_id() == parent, "the agent has ended");
    }
    give_way();
    if args.undo {
        // Whatever the configuration says by now.
        let _lock = lock(root, false)?;
        return undo(root, args.heat.json);
    }
    let config = Config::read(args.heat.config.as_deref())?;
    if args.dry_run {
        way::choose(root, &config)?;
        return show_skew(root, &config, &args.heat, None);
    }
    let _lock = lock(root, args.report.is_some())?;
    let ended = root.clone();
    ctrlc::set_handler(move || {
        // The kernel would go on to move pages.
        Damos::stop_leftovers(&ended);
        std::process::exit(130);
    })?;
    let output = match (args.report, args.heat.json) {
        (Some(_), _) => Output::Report,
        (None, true) => Output::Json,
        (None, false) => Output::Text,
    };
    let mut session = Session::new(root, &config, args.heat.pages.as_deref(), output);
    match args.once {
        true => session.round(),
        false => session.go_on(),
    }
}

/// If memory is short, this program is to end and none of the guest's.
fn give_way() {
    // Each process may raise its own.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// One program at a time gathers or undoes; the agent's waits for the others.
fn lock(root: &HostRoot, waits: bool) -> Result<File> {
    let file = root.join(pool::FOLDER).join("gather.lock");
    let open = || {
        pool::make_folder(root)?;
        File::create(&file)
    };
    let opened = open().with_context(|| format!("{}: run as root", file.display()))?;
    if waits {
        opened.lock().context(file.display().to_string())?;
        return Ok(opened);
    }
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => {
            bail!(
                "another terrace-agent gather runs; end it first (gather.rounds = true starts one beside terrace-agent run)"
            )
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
/// one that the configuration names by mistake has its programs' pages. Split pages are made whole last, once their parts are
/// home.
fn undo(root: &HostRoot, json: bool) -> Result<()> {
    Damos::stop_leftovers(root);
    let nodes = Pool::known(root);
    let mut left = 0;
    let mut lines = Vec::new();
    for node in &nodes {
        let undone = undo_node(root, *node)?;
        left += undone.left_pages;
        lines.push(match json {
            true => serde_json::to_string(&undone)?,
            false => format!(
                "{} pages went home from node {node}; its memory is the guest's again",
                undone.returned_pages
            ),
        });
    }
    let splitter = Splitter {
        root,
        advice: &KernelAdvice,
    };
    let split = splitter.known().len();
    let joined = splitter.join_all()?;
    if split > 0 && !json {
        lines.push(format!(
            "{joined} of {split} split pages of 2 MiB are whole again"
        ));
    }
    if nodes.is_empty() && split == 0 && !json {
        lines.push("nothing to undo: nothing was gathered on a node".into());
    }
    // Last of all: what cannot be printed must leave nothing undone.
    lines.iter().try_for_each(output::print_line)?;
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
    let before = pages_in(root, &frames, Which::All)?;
    let left = until_none(
        before.clone(),
        PATIENCE,
        |pid, pages| returns.send(pid, pages),
        || pages_in(root, &frames, Which::All),
    )?;
    ensure!(
        left.unreadable == 0,
        "{} processes could not be looked at, and may have pages on node {node}; its free memory is the guest's. Try again later",
        left.unreadable
    );
    let left_pages = left.count();
    if left_pages == 0 {
        pool.forget()?;
    }
    Ok(Undone {
        node,
        returned_pages: before.count().saturating_sub(left_pages),
        left_pages,
    })
}
