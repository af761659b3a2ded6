//! `terrace sim repro`.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use terrace_repro::compare::Control;
use terrace_repro::repro::carry_out::{Choice, carry_out};
use terrace_repro::repro::row::{Outcome, ReproReport};
use terrace_repro::repro::{experiments, named, render as page};

use super::progress::Bar;
use super::{can_be_written, is_standard_output, list, on_interrupt, put};
use crate::args::sim::Repro;
use crate::render;

pub fn run(args: &Repro) -> Result<ExitCode> {
    if args.list {
        print!("{}", list::experiments_text());
        return Ok(ExitCode::SUCCESS);
    }
    can_be_written([&args.json, &args.markdown])?;
    let asked = match &args.name {
        Some(name) => named(name).map_err(anyhow::Error::msg)?,
        None => experiments(),
    };
    let choice = Choice {
        seed: args.seed,
        seeds: args.seeds.get().into(),
        scale: args.scale,
    };
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let cancelled = on_interrupt()?;
    let bar = Bar::new(args.quiet);
    let start = Instant::now();
    let done = carry_out(
        &asked,
        choice,
        &Control {
            threads: args.jobs.unwrap_or(processors),
            on_progress: &|progress| bar.show(progress),
            cancelled: &cancelled,
        },
    );
    bar.clear();
    let done = done?;
    let finished = done.report.experiments.len();
    if finished > 0 {
        write(args, &done.report, done.runs, start.elapsed().as_secs_f64())?;
    }
    if finished == done.wanted {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "terrace: interrupted: {finished} of {} experiments were finished",
        done.wanted
    );
    Ok(ExitCode::from(130))
}

fn write(args: &Repro, report: &ReproReport, runs: usize, wall_s: f64) -> Result<()> {
    let to_terminal = args
        .json
        .as_deref()
        .is_none_or(|out| !is_standard_output(out));
    if to_terminal && !args.quiet {
        print!("{}", text(report));
        println!("{runs} runs in {wall_s:.0} s");
    }
    if let Some(out) = &args.json {
        put(out, &(serde_json::to_string_pretty(report)? + "\n"))?;
    }
    if let Some(out) = &args.markdown {
        put(out, &page::markdown(report))?;
    }
    Ok(())
}

fn text(report: &ReproReport) -> String {
    let mut out: String = report.experiments.iter().map(experiment).collect();
    out += &page::last_line(report);
    out.push('\n');
    out
}

/// An experiment in words: a heading, a table, and notes about it.
fn experiment(outcome: &Outcome) -> String {
    let mut out = format!(
        "{}/{}: {}",
        outcome.paper.name(),
        outcome.name,
        outcome.title
    );
    if let Some(what) = &outcome.waits_for {
        return out + &format!("\n  not run yet: it waits for {what}\n\n");
    }
    if outcome.prediction {
        out += " (a prediction)";
    }
    out.push('\n');
    let rows: Vec<Vec<String>> = outcome
        .rows
        .iter()
        .map(|row| page::cells(row).into())
        .collect();
    let header = ["WHAT", "UNIT", "PAPER", "SIMULATOR", "RATIO"];
    out += &render::table(&header, &[2, 3, 4], &rows);
    out + &page::notes(outcome) + "\n"
}

#[cfg(test)]
mod tests {
    use terrace_repro::repro::Paper;

    use super::*;

    #[test]
    fn a_place_kept_free_says_what_it_waits_for() {
        let report = ReproReport {
            seed: 1,
            seeds: 1,
            experiments: vec![Outcome {
                paper: Paper::Hypertier,
                name: "figure-99".into(),
                title: "What it asks".into(),
                prediction: false,
                waits_for: Some("a device".into()),
                scenario: None,
                scale: None,
                inputs: Vec::new(),
                rows: Vec::new(),
            }],
        };
        let output = text(&report);
        assert!(
            output.contains("hypertier/figure-99: What it asks"),
            "{output}"
        );
        assert!(
            output.contains("not run yet: it waits for a device"),
            "{output}"
        );
        assert!(output.contains("0 of 0 figures"), "{output}");
    }
}
