//! The line protocol on the truth port: one word, perhaps a number; one JSON object back.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use terrace_lab::pages::coalesce;

use crate::churn::Churn;
use crate::hotset::Layout;
use crate::pagemap;
use crate::workload::Workload;

/// Does what the line asks for. A line that makes no sense gets an `error`, never silence.
pub fn answer(workload: &mut Workload, churn: &mut Churn, line: &str) -> Value {
    execute(workload, churn, line).unwrap_or_else(|error| json!({ "error": format!("{error:#}") }))
}

fn execute(workload: &mut Workload, churn: &mut Churn, line: &str) -> Result<Value> {
    let mut words = line.split_whitespace();
    let command = words.next().unwrap_or_default();
    let argument = words.next();
    match command {
        "ping" => Ok(json!({ "pong": number(argument)? })),
        "truth" => truth(workload),
        "region" => region(workload),
        "move" => {
            workload.move_hot_set(number(argument)?, layout(words.next())?);
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
        "stats" => Ok(stats(workload, churn)),
        "verify" => Ok(verify(workload, churn)),
        other => bail!(
            "no command {other:?}; there are truth, region, move SEED [clustered], idle, run, churn N, verify, stats, ping N"
        ),
    }
}

/// The hot pages' guest frames. Read afresh: the guest's kernel may have moved them.
fn truth(workload: &Workload) -> Result<Value> {
    let frames = pagemap::frames(workload.address(), workload.pages())?;
    let hot = workload.hot_indices().map(|page| frames[page]).collect();
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

fn layout(word: Option<&str>) -> Result<Layout> {
    match word {
        None => Ok(Layout::Scattered),
        Some("clustered") => Ok(Layout::Clustered),
        Some(other) => bail!("no layout {other:?}; a hot set is scattered unless `clustered`"),
    }
}

fn number(argument: Option<&str>) -> Result<u64> {
    let text = argument.context("this command needs a number")?;
    text.parse()
        .with_context(|| format!("{text} is no whole number"))
}
