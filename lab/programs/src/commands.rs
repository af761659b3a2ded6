//! Questions that every workload of the lab answers: one word, perhaps a number; one JSON object back.

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::churn::Churn;
use crate::hotset::Layout;
use crate::workload::Workload;

/// All that [`answer`] knows, for error messages.
pub const COMMANDS: &str =
    "move SEED [clustered], hot N, elsewhere N, idle, run, churn N, verify, stats, gap, ping N";

/// Does what a command asks for. `None` if it is none of [`COMMANDS`].
///
/// # Errors
/// If it makes no sense or cannot be done.
pub fn answer<'a>(
    workload: &mut Workload,
    churn: &mut Churn,
    command: &str,
    mut args: impl Iterator<Item = &'a str>,
) -> Result<Option<Value>> {
    let argument = args.next();
    match command {
        "ping" => return Ok(Some(json!({ "pong": number(argument)? }))),
        "verify" => return Ok(Some(verify(workload, churn))),
        "stats" => {}
        "gap" => {
            let longest = workload.take_longest_gap();
            return Ok(Some(json!({ "longest_ms": longest.as_secs_f64() * 1e3 })));
        }
        "move" => {
            let layout = layout(args.next())?.unwrap_or(workload.layout());
            workload.move_hot_set(number(argument)?, layout);
        }
        "idle" | "run" => workload.running = command == "run",
        "churn" => churn.set(number(argument)?)?,
        "hot" => workload.set_hot_pages(usize::try_from(number(argument)?)?),
        "elsewhere" => workload.elsewhere = usize::try_from(number(argument)?)?,
        _ => return Ok(None),
    }
    Ok(Some(stats(workload, churn)))
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

/// The layout by its word. `None` without a word: the layout stays.
fn layout(word: Option<&str>) -> Result<Option<Layout>> {
    match word {
        None => Ok(None),
        Some("clustered") => Ok(Some(Layout::Clustered)),
        Some(other) => bail!("no layout {other:?}; there is `clustered`"),
    }
}

/// The number that a command needs.
///
/// # Errors
/// If there is none.
pub fn number(argument: Option<&str>) -> Result<u64> {
    let text = argument.context("this command needs a number")?;
    text.parse()
        .with_context(|| format!("{text} is no whole number"))
}
