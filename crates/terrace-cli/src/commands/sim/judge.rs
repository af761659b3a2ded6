//! `terrace sim judge`.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow};
use serde::Serialize;
use terrace_repro::compare::sensitivity::MIN_ROUNDS;
use terrace_repro::compare::{Control, Progress};
use terrace_repro::judge::{self, Sum, Verdict};
use terrace_sim::{Scenario, policy, quantity};

use super::progress::Bar;
use super::{can_be_written, inputs, on_interrupt, put, table};
use crate::args::sim::Judge;
use crate::output::{self, is_standard, print};
use crate::render;

const HEADER: [&str; 10] = [
    "SCENARIO", "FAST", "SEED", "POLICY", "SLOWDOWN", "WAY", "ROUNDS", "PROMOTED", "TRACK", "STATE",
];

/// The line below a table in which a scenario has no way.
const NO_WAY: &str = "\nWAY is -: static-best is slower than first-touch there, or gains less than 1 %. Such a scenario is not counted in `all`.\n";

/// The result.
#[derive(Serialize)]
struct Judged<'a> {
    verdicts: Vec<&'a Verdict>,
    sums: Vec<Sum>,
}

pub fn run(args: &Judge) -> Result<ExitCode> {
    let scenarios = scenarios(args)?;
    // All of them first: what does not suit the last one must not end an hour's work.
    let plan = |scenario| judge::plan(scenario, &args.policies);
    let plans = scenarios.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let cancelled = on_interrupt()?;
    let bar = Bar::new(args.quiet);
    let all = scenarios.len();
    let mut judged = Vec::new();
    let mut error = None;
    for (scenario, plan) in scenarios.iter().zip(&plans) {
        let done = judged.len();
        let control = Control {
            threads: args.jobs.unwrap_or(processors),
            on_progress: &|progress| bar.show(overall(progress, done, all)),
            cancelled: &cancelled,
        };
        let of_one = judge::judge(scenario, plan, &control);
        bar.clear();
        match of_one {
            Ok(Some(verdicts)) => judged.push(verdicts),
            Ok(None) => break,
            Err(wrong) => {
                error = Some(wrong);
                break;
            }
        }
    }
    if !judged.is_empty() {
        write(args, &judged)?;
    }
    let done = judged.len();
    match error {
        Some(error) => Err(error).context(format!("{done} of {all} scenarios were finished")),
        None if done == all => Ok(ExitCode::SUCCESS),
        None => {
            output::tell(format_args!(
                "terrace: interrupted: {done} of {all} scenarios were finished"
            ));
            Ok(ExitCode::from(130))
        }
    }
}

/// The scenarios in each size and with each seed.
fn scenarios(args: &Judge) -> Result<Vec<Scenario>> {
    let mut all = Vec::new();
    let mut read = Vec::new();
    // As the shell names it, not from each scenario's folder.
    let traces = args.traces.as_ref().map(std::path::absolute).transpose()?;
    for file in &args.files {
        let scenario = Scenario::load_with_files_in(file, traces.as_deref())?;
        read.extend(inputs(&scenario, file));
        for times in &args.times {
            let sized = scenario.with_fast_times(*times);
            let wrong = || format!("{}, --times {times}", file.display());
            let sized = sized
                .map_err(|fault| anyhow!("{fault}"))
                .with_context(wrong)?;
            for more in 0..args.seeds {
                let seed = args.seed.unwrap_or(scenario.seed).checked_add(more);
                let seed = seed.context("the seed is too large for so many --seeds")?;
                all.push(Scenario {
                    seed,
                    ..sized.clone()
                });
            }
        }
    }
    can_be_written(&read, &[&args.json])?;
    Ok(all)
}

/// The progress of all scenarios, in one of them.
fn overall(progress: Progress, done: usize, all: usize) -> Progress {
    let part = |n: usize| u32::try_from(n).map_or(1.0, f64::from);
    Progress {
        finished: done * progress.runs + progress.finished,
        runs: all * progress.runs,
        done: (part(done) + progress.done) / part(all).max(1.0),
    }
}

fn write(args: &Judge, judged: &[Vec<Verdict>]) -> Result<()> {
    let all = Judged {
        verdicts: judged.iter().flatten().collect(),
        sums: judge::sums(judged),
    };
    if let Some(out) = &args.json {
        put(out, &(serde_json::to_string_pretty(&all)? + "\n"))?;
    }
    if args.quiet || args.json.as_ref().is_some_and(|out| is_standard(out)) {
        return Ok(());
    }
    print(text(&all))
}

fn text(judged: &Judged) -> String {
    let way = |way: Option<f64>| way.map_or("-".into(), |way| format!("{way:.3}"));
    let cells = judged.verdicts.iter().map(|verdict| {
        vec![
            verdict.scenario.clone(),
            quantity::size_text(verdict.fast_bytes),
            verdict.seed.to_string(),
            verdict.policy.clone(),
            format!("{:.3}", verdict.slowdown),
            way(verdict.way),
            verdict.rounds.to_string(),
            render::bytes(verdict.promoted_bytes),
            format!("{:.2} %", verdict.track_percent),
            format!("{:.1} B/page", verdict.state_bytes_per_page),
        ]
    });
    let sums = judged.sums.iter().map(|sum| {
        let none = || "-".to_owned();
        vec![
            "all".into(),
            none(),
            sum.seed.to_string(),
            sum.policy.clone(),
            none(),
            way(Some(sum.way)),
            none(),
            render::bytes(sum.promoted_bytes),
            none(),
            none(),
        ]
    });
    let rows: Vec<Vec<String>> = cells.chain(sums).collect();
    let mut out = render::table(&HEADER, &[1, 2, 4, 5, 6, 7, 8, 9], &rows);
    if judged.verdicts.iter().any(|verdict| verdict.way.is_none()) {
        out += NO_WAY;
    }
    if judged.verdicts.iter().any(|verdict| is_early(verdict)) {
        out += &table::few_rounds();
    }
    out
}

/// Whether a policy that has rounds had too few.
fn is_early(verdict: &Verdict) -> bool {
    !policy::is_unmanaged(&verdict.policy) && verdict.rounds < MIN_ROUNDS
}
