//! The line protocol on the truth port: one word, perhaps a number; one JSON object back.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use terrace_lab_programs::churn::Churn;
use terrace_lab_programs::commands::{self, COMMANDS};
use terrace_lab_programs::move_pages;
use terrace_lab_programs::pages::{PAGE_SIZE, Placement, coalesce};
use terrace_lab_programs::workload::Workload;

use crate::agent::Agent;
use crate::cache::CachedFile;
use crate::held::Held;
use crate::lazyfree::{self, LazyFree};
use crate::pagemap;
use crate::sleepers::Sleepers;

/// The guest's parts, each of which answers commands.
pub struct Guest {
    pub workload: Workload,
    pub churn: Churn,
    pub sleepers: Sleepers,
    pub agent: Agent,
    pub lazyfree: Option<LazyFree>,
    pub cache: Option<CachedFile>,
    pub held: Option<Held>,
}

impl Guest {
    /// Does what the line asks for. A line that makes no sense gets an `error`, never silence.
    pub fn answer(&mut self, line: &str) -> Value {
        execute(self, line).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
    }
}

fn execute(guest: &mut Guest, line: &str) -> Result<Value> {
    let Guest {
        workload, churn, ..
    } = &mut *guest;
    let mut args = line.split_whitespace();
    let command = args.next().unwrap_or_default();
    if let Some(answer) = commands::answer(workload, churn, command, args.clone())? {
        return Ok(answer);
    }
    match command {
        "truth" => hot(workload, workload.hot_indices()),
        "written" => hot(workload, workload.written_indices()),
        "region" => region(workload),
        "placement" => placement(workload),
        _ => on_request(guest, command, args.next()),
    }
}

/// Does what a guest does only when it is asked to.
fn on_request(guest: &mut Guest, command: &str, argument: Option<&str>) -> Result<Value> {
    let count = || anyhow::Ok(usize::try_from(commands::number(argument)?)?);
    let freed = "no page was freed lazily; `lazyfree N` first";
    let unheld = "no pages are held; `hold N` first";
    match command {
        "mapped" => Ok(json!({ "ranges": coalesce(pagemap::all_mapped()?) })),
        "sleepers" => {
            guest.sleepers.set(commands::number(argument)?)?;
            Ok(json!({ "ranges": coalesce(guest.sleepers.frames()?) }))
        }
        "agent" => guest.agent.command(argument),
        "gather" => {
            let workload = &guest.workload;
            let pages = workload.hot_indices();
            let addresses = pages.map(|page| workload.address() + page * PAGE_SIZE);
            guest.agent.gather_listed(addresses)
        }
        "cache" => {
            let file = guest.cache.insert(CachedFile::new(count()?)?);
            Ok(json!({ "ranges": coalesce(file.frames()?) }))
        }
        "uncache" => {
            let file = guest.cache.as_mut();
            file.context("no file is mapped; `cache N` first")?.unmap();
            Ok(json!({}))
        }
        "hold" => {
            // First, so that there is room for the new ones.
            guest.held = None;
            guest.held.insert(Held::new(count()?)?).ranges()
        }
        "more" => {
            guest.held.as_mut().context(unheld)?.add(count()?)?;
            Ok(json!({}))
        }
        "held" => Ok(guest.held.as_ref().context(unheld)?.state()),
        "lazyfree" => {
            let pages = guest.lazyfree.insert(LazyFree::new(count()?)?);
            Ok(json!({ "frames": pages.frames()? }))
        }
        "rewrite" => {
            let pages = guest.lazyfree.as_mut().context(freed)?;
            pages.rewrite(count()?)?;
            Ok(json!({}))
        }
        "contents" => Ok(guest.lazyfree.as_ref().context(freed)?.contents()),
        "pressure" => lazyfree::pressure(),
        other => bail!(
            "no command {other:?}; there are {COMMANDS}, truth, written, region, placement, mapped, \
             agent start|status|doctor|module|gather|round|log|kill, gather, sleepers N, cache N, \
             uncache, hold N, more N, held, lazyfree N, rewrite N, contents, pressure"
        ),
    }
}

/// The guest frames of some hot pages. Read afresh: the guest's kernel may have moved them.
fn hot(workload: &Workload, pages: impl Iterator<Item = usize>) -> Result<Value> {
    let frames = pagemap::frames(workload.address(), workload.pages())?;
    let hot = pages.map(|page| frames[page]).collect();
    Ok(json!({ "hot": workload.hot_pages(), "ranges": coalesce(hot) }))
}

/// The guest's own nodes that the hot pages are on, by the word of its kernel.
fn placement(workload: &Workload) -> Result<Value> {
    let pages = workload.hot_indices();
    let addresses: Vec<usize> = pages
        .map(|page| workload.address() + page * PAGE_SIZE)
        .collect();
    let mut placement = Placement::default();
    for status in move_pages::query(0, &addresses)? {
        placement.count(status);
    }
    Ok(serde_json::to_value(placement)?)
}

fn region(workload: &Workload) -> Result<Value> {
    let frames = pagemap::frames(workload.address(), workload.pages())?;
    Ok(json!({ "pages": workload.pages(), "ranges": coalesce(frames) }))
}
