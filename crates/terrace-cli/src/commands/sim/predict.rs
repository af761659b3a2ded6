//! `terrace sim repro --predict`.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Instant, SystemTime};

use anyhow::{Context, Result};
use terrace_repro::compare::Control;
use terrace_repro::repro::carry_out::{Choice, carry_out};
use terrace_repro::repro::predicted::page::{PredictionReport, markdown};
use terrace_repro::repro::predicted::set;

use super::progress::Bar;
use super::{on_interrupt, put, repro};
use crate::args::sim::Repro;
use crate::output;

/// Letters of a day, as 2026-01-31.
const DAY: usize = 10;

pub fn run(args: &Repro, name: &str) -> Result<ExitCode> {
    let set = set(name).map_err(anyhow::Error::msg)?;
    let folder = args.out.as_deref().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).with_context(|| {
        format!(
            "{}: the folder of the page cannot be made: name another with --out",
            folder.display()
        )
    })?;
    let choice = Choice {
        seed: args.seed,
        seeds: args.seeds.map_or(set.seeds, |seeds| seeds.get().into()),
        scale: args.scale,
    };
    let cancelled = on_interrupt()?;
    let bar = Bar::new(args.quiet);
    let control = Control {
        threads: repro::threads(args),
        on_progress: &|progress| bar.show(progress),
        cancelled: &cancelled,
    };
    let start = Instant::now();
    let done = carry_out(set.experiments, choice, &control);
    bar.clear();
    let done = done?;
    let (finished, wanted) = (done.report.experiments.len(), done.wanted);
    if finished < wanted {
        output::tell(format_args!(
            "terrace: interrupted: {finished} of {wanted} experiments were finished, and no page is written"
        ));
        return Ok(ExitCode::from(130));
    }
    let report = PredictionReport::new(set, &today(), done.report);
    let file = |ending: &str| folder.join(format!("predictions-{name}.{ending}"));
    put(
        &file("json"),
        &(serde_json::to_string_pretty(&report)? + "\n"),
    )?;
    put(&file("md"), &markdown(&report))?;
    if !args.quiet {
        let seconds = start.elapsed().as_secs_f64();
        output::print_line(format_args!(
            "{}: {} runs in {seconds:.0} s",
            file("md").display(),
            done.runs
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The day by the system's clock (UTC).
fn today() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().take(DAY).collect()
}
