//! `terrace sim repro`.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use terrace_repro::compare::Control;
use terrace_repro::repro::carry_out::{Choice, carry_out};
use terrace_repro::repro::check::{CheckReport, Checked, check};
use terrace_repro::repro::row::{Outcome, ReproReport};
use terrace_repro::repro::{experiments, named, render as page};

use super::progress::Bar;
use super::{can_be_written, list, on_interrupt, predict, put};
use crate::args::sim::Repro;
use crate::{output, render};

/// Seeds of each experiment, unless they are given.
const SEEDS: u64 = 3;

pub fn run(args: &Repro) -> Result<ExitCode> {
    if args.list {
        output::print(list::experiments_text())?;
        return Ok(ExitCode::SUCCESS);
    }
    can_be_written(&[], &[&args.json, &args.markdown])?;
    if let Some(name) = &args.predict {
        return predict::run(args, name);
    }
    let asked = match &args.name {
        Some(name) => named(name).map_err(anyhow::Error::msg)?,
        None => experiments(),
    };
    let choice = Choice {
        seed: args.seed,
        seeds: args.seeds.map_or(SEEDS, |seeds| seeds.get().into()),
        scale: args.scale,
    };
    let cancelled = on_interrupt()?;
    let bar = Bar::new(args.quiet);
    let control = Control {
        threads: threads(args),
        on_progress: &|progress| bar.show(progress),
        cancelled: &cancelled,
    };
    if args.check {
        let report = check(&asked, &control);
        bar.clear();
        return end_check(&report?, args.quiet);
    }
    let start = Instant::now();
    let done = carry_out(&asked, choice, &control);
    bar.clear();
    let done = done?;
    let finished = done.report.experiments.len();
    if finished > 0 {
        write(args, &done.report, done.runs, start.elapsed().as_secs_f64())?;
    }
    if finished == done.wanted {
        return Ok(ExitCode::SUCCESS);
    }
    output::tell(format_args!(
        "terrace: interrupted: {finished} of {} experiments were finished",
        done.wanted
    ));
    Ok(ExitCode::from(130))
}

/// Runs at the same time.
pub(super) fn threads(args: &Repro) -> NonZeroUsize {
    let processors = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    args.jobs.unwrap_or_else(processors)
}

/// Prints what became of the figures in the reasons; the exit code says whether all of them hold.
fn end_check(report: &CheckReport, quiet: bool) -> Result<ExitCode> {
    if report.wanted == 0 {
        output::print_line("the reasons have no figures to check")?;
    } else if !quiet && !report.checked.is_empty() {
        output::print(check_text(report))?;
    }
    let (finished, wanted) = (report.checked.len(), report.wanted);
    if finished < wanted {
        output::tell(format_args!(
            "terrace: interrupted: {finished} of {wanted} figures were measured again"
        ));
        return Ok(ExitCode::from(130));
    }
    let differing = report.differing();
    if differing > 0 {
        anyhow::bail!(
            "{differing} of {wanted} figures in the reasons differ from what their runs give now: see above, and change \
             the experiments in crates/terrace-repro"
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// The table of checked figures.
fn check_text(report: &CheckReport) -> String {
    let row = |checked: &Checked| {
        vec![
            checked.experiment.to_owned(),
            checked.what.to_owned(),
            checked.text.to_owned(),
            checked.printed(),
            if checked.holds() { "" } else { "differs" }.to_owned(),
        ]
    };
    let rows: Vec<Vec<String>> = report.checked.iter().map(row).collect();
    render::table(&["EXPERIMENT", "FIGURE", "TEXT", "NOW", ""], &[2, 3], &rows)
}

fn write(args: &Repro, report: &ReproReport, runs: usize, wall_s: f64) -> Result<()> {
    let to_terminal = args
        .json
        .as_deref()
        .is_none_or(|out| !output::is_standard(out));
    if let Some(out) = &args.json {
        put(out, &(serde_json::to_string_pretty(report)? + "\n"))?;
    }
    if let Some(out) = &args.markdown {
        put(out, &page::markdown(report))?;
    }
    if to_terminal && !args.quiet {
        output::print(text(report))?;
        output::print_line(format_args!("{runs} runs in {wall_s:.0} s"))?;
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

    fn report_of(now: f64) -> CheckReport {
        CheckReport {
            checked: vec![Checked {
                experiment: "vtmm/table-99",
                what: "slowdown, %",
                text: "5.6",
                now: Ok(now),
            }],
            wanted: 1,
        }
    }

    #[test]
    fn a_figure_that_differs_is_marked_and_an_error() {
        let text = check_text(&report_of(6.1));
        assert!(text.contains("5.6") && text.contains("6.10"), "{text}");
        assert!(text.contains("differs"), "{text}");
        let error = end_check(&report_of(6.1), true).unwrap_err().to_string();
        assert!(error.contains("1 of 1 figures"), "{error}");
    }

    #[test]
    fn figures_that_hold_are_no_error() {
        assert!(!check_text(&report_of(5.62)).contains("differs"));
        assert!(end_check(&report_of(5.62), true).is_ok());
    }

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
