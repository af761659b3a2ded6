//! `terrace sim judge`.

use std::num::NonZeroUsize;
use std::process::ExitCode;

use anyhow::{Result, ensure};
use serde::Serialize;
use terrace_repro::compare::{Control, Progress};
use terrace_repro::judge::{self, Sum, Verdict};
use terrace_sim::{Scenario, quantity};

use super::progress::Bar;
use super::{can_be_written, on_interrupt, put};
use crate::args::sim::Judge;
use crate::output::{self, is_standard, print};
use crate::render;

const HEADER: [&str; 9] = [
    "SCENARIO", "FAST", "SEED", "POLICY", "SLOWDOWN", "WAY", "PROMOTED", "TRACK", "STATE",
];

/// The result.
#[derive(Serialize)]
struct Judged {
    verdicts: Vec<Verdict>,
    sums: Vec<Sum>,
}

pub fn run(args: &Judge) -> Result<ExitCode> {
    let scenarios = scenarios(args)?;
    can_be_written(&args.files, &[&args.json])?;
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let cancelled = on_interrupt()?;
    let bar = Bar::new(args.quiet);
    let all = scenarios.len();
    let mut verdicts = Vec::new();
    let mut judged = 0;
    for (done, scenario) in scenarios.iter().enumerate() {
        let control = Control {
            threads: args.jobs.unwrap_or(processors),
            on_progress: &|progress| bar.show(overall(progress, done, all)),
            cancelled: &cancelled,
        };
        let of_one = judge::judge(scenario, &args.policies, &control);
        bar.clear();
        let Some(of_one) = of_one? else {
            break;
        };
        verdicts.extend(of_one);
        judged += 1;
    }
    let sums = judge::sums(&verdicts);
    write(args, &Judged { verdicts, sums })?;
    if judged == all {
        return Ok(ExitCode::SUCCESS);
    }
    output::tell(format_args!(
        "terrace: interrupted: {judged} of {all} scenarios were finished"
    ));
    Ok(ExitCode::from(130))
}

/// The scenarios in each size and with each seed.
fn scenarios(args: &Judge) -> Result<Vec<Scenario>> {
    let mut all = Vec::new();
    for file in &args.files {
        let scenario = Scenario::load_with_files_in(file, args.traces.as_deref())?;
        for times in &args.times {
            let sized = judge::sized(&scenario, *times)?;
            for more in 0..args.seeds {
                let seed = args.seed.checked_add(more);
                ensure!(seed.is_some(), "--seed is too large for so many --seeds");
                all.push(Scenario {
                    seed: seed.unwrap_or_default(),
                    ..sized.clone()
                });
            }
        }
    }
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

fn write(args: &Judge, judged: &Judged) -> Result<()> {
    if let Some(out) = &args.json {
        put(out, &(serde_json::to_string_pretty(judged)? + "\n"))?;
    }
    if args.quiet || args.json.as_ref().is_some_and(|out| is_standard(out)) {
        return Ok(());
    }
    print(text(judged))
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
            render::bytes(verdict.promoted_bytes),
            format!("{:.2} %", verdict.track_percent),
            format!("{:.1} B", verdict.state_bytes_per_page),
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
            render::bytes(sum.promoted_bytes),
            none(),
            none(),
        ]
    });
    let rows: Vec<Vec<String>> = cells.chain(sums).collect();
    render::table(&HEADER, &[1, 2, 4, 5, 6, 7, 8], &rows)
}
