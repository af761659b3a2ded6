//! The line protocol on the truth port: one word, perhaps a number; one JSON object back.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use terrace_lab::pages::coalesce;

use crate::cache::CachedFile;
use crate::churn::Churn;
use crate::hotset::Layout;
use crate::lazyfree::{self, LazyFree};
use crate::pagemap;
use crate::sleepers::Sleepers;
use crate::workload::Workload;

/// All that a guest can be asked to do.
pub struct Guest {
    pub workload: Workload,
    pub churn: Churn,
    pub sleepers: Sleepers,
    pub lazyfree: Option<LazyFree>,
    pub cache: Option<CachedFile>,
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
    let mut words = line.split_whitespace();
    let command = words.next().unwrap_or_default();
    let argument = words.next();
    match command {
        "ping" => Ok(json!({ "pong": number(argument)? })),
        "truth" => hot(workload, workload.hot_indices()),
        "written" => hot(workload, workload.written_indices()),
        "region" => region(workload),
        "move" => {
            let layout = layout(words.next())?.unwrap_or(workload.layout());
            workload.move_hot_set(number(argument)?, layout);
            Ok(stats(workload, churn))
        }
        "idle" | "run" => {
            workload.running = command == "run";
            Ok(stats(workload, churn))
        }
        "churn" => {
            churn.set(number(argument)?)?;
            Ok(stats(workload, churn))
        }
        "hot" => {
            workload.set_hot_pages(usize::try_from(number(argument)?)?);
            Ok(stats(workload, churn))
        }
        "stats" => Ok(stats(workload, churn)),
        "verify" => Ok(verify(workload, churn)),
        _ => on_request(guest, command, argument),
    }
}

/// What a guest does only when it is asked to.
fn on_request(guest: &mut Guest, command: &str, argument: Option<&str>) -> Result<Value> {
    let count = || anyhow::Ok(usize::try_from(number(argument)?)?);
    let freed = "no page was freed lazily; `lazyfree N` first";
    match command {
        "mapped" => Ok(json!({ "ranges": coalesce(pagemap::all_mapped()?) })),
        "sleepers" => {
            guest.sleepers.set(number(argument)?)?;
            Ok(json!({ "ranges": coalesce(guest.sleepers.frames()?) }))
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
            "no command {other:?}; there are truth, written, region, move SEED [clustered], hot N, idle, run, churn N, \
             verify, \
             stats, ping N, mapped, sleepers N, cache N, uncache, lazyfree N, rewrite N, contents, pressure"
        ),
    }
}

/// The guest frames of some hot pages. Read afresh: the guest's kernel may have moved them.
fn hot(workload: &Workload, pages: impl Iterator<Item = usize>) -> Result<Value> {
    let frames = pagemap::frames(workload.address(), workload.pages())?;
    let hot = pages.map(|page| frames[page]).collect();
    Ok(json!({ "hot": workload.hot_pages(), "ranges": coalesce(hot) }))
}

fn region(workload: &Workload) -> Result<Value> {
    let frames = pagemap::frames(workload.address(), workload.pages())?;
    Ok(json!({ "pages": workload.pages(), "ranges": coalesce(frames) }))
}

fn stats(workload: &Workload, churn: &Churn) -> Value {
    json!({
        "running": workload.running,
        "passes": workload.passes,
        "errors": workload.errors,
        "pages": workload.pages(),
        "hot": workload.hot_pages(),
        "seed": workload.seed(),
        "churn_workers": churn.workers(),
        "churn_forks": churn.forks(),
        "churn_errors": churn.errors(),
    })
}

fn verify(workload: &Workload, churn: &Churn) -> Value {
    let bad = workload.count_bad_pages();
    println!("VERIFY pages={} bad={bad}", workload.pages());
    json!({
        "pages": workload.pages(),
        "bad": bad,
        "errors": workload.errors,
        "churn_forks": churn.forks(),
        "churn_errors": churn.errors(),
    })
}

/// None: as it was.
fn layout(word: Option<&str>) -> Result<Option<Layout>> {
    match word {
        None => Ok(None),
        Some("clustered") => Ok(Some(Layout::Clustered)),
        Some(other) => bail!("no layout {other:?}; there is `clustered`"),
    }
}

fn number(argument: Option<&str>) -> Result<u64> {
    let text = argument.context("this command needs a number")?;
    text.parse()
        .with_context(|| format!("{text} is no whole number"))
}
