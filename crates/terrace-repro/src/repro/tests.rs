//! Tests of [`super`].

use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use super::carry_out::{Choice, carry_out, different_runs};
use super::render::{cells, markdown};
use super::row::{Claim, GivenInput, Outcome, ReproReport, Row, Standing};
use super::*;
use crate::compare::Control;

const CHOICE: Choice = Choice {
    seed: 1,
    seeds: 1,
    scale: None,
};

fn row(paper: Claim, simulated: f64) -> Row {
    Row::new("a", "%", paper, Ok(simulated))
}

fn docs(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(name)
}

fn committed(name: &str) -> String {
    std::fs::read_to_string(docs(name)).unwrap()
}

#[test]
fn a_row_is_far_when_it_is_more_than_a_quarter_off() {
    for (simulated, standing) in [
        (7.5, Standing::Near),
        (12.5, Standing::Near),
        (7.4, Standing::Far),
        (12.6, Standing::Far),
        (-10.0, Standing::Far),
    ] {
        assert_eq!(
            row(Claim::Is(10.0), simulated).standing(),
            standing,
            "{simulated}"
        );
    }
    assert_eq!(row(Claim::Is(10.0), 12.6).ratio, Some(1.26));
}

#[test]
fn a_bound_is_kept_on_its_side_and_an_input_is_not_counted() {
    for (claim, simulated, standing) in [
        (Claim::AtMost(2.0), 0.0, Standing::Near),
        (Claim::AtMost(2.0), 2.0, Standing::Near),
        (Claim::AtMost(2.0), 2.01, Standing::Far),
        (Claim::AtLeast(2.0), 9.0, Standing::Near),
        (Claim::AtLeast(2.0), 2.0, Standing::Near),
        (Claim::AtLeast(2.0), 1.99, Standing::Far),
        (Claim::AtMost(-2.0), -1.9, Standing::Far),
    ] {
        assert_eq!(row(claim, simulated).standing(), standing, "{claim:?}");
    }
    assert_eq!(row(Claim::Input(2.0), 2.0).standing(), Standing::Open);
    assert_eq!(row(Claim::Nothing, 2.0).standing(), Standing::Open);
}

#[test]
fn what_holds_by_construction_is_marked_and_not_counted() {
    let row = row(Claim::Is(64.0), 64.0).by_construction();
    assert_eq!(row.standing(), Standing::Open);
    let cells = cells(&row);
    assert_eq!(cells[2], "64.0 (by construction)");
    let mut report = report();
    report.experiments[0].rows.push(row);
    assert_eq!((report.near(), report.by_construction()), ((1, 2), 1));
    let text = serde_json::to_string(&report).unwrap();
    assert_eq!(text.matches("by_construction").count(), 1, "{text}");
}

#[test]
fn reasons_take_every_figure_and_have_no_other_placeholder() {
    let mut count = 0;
    for experiment in experiments() {
        for why in experiment.why {
            let name = experiment.name;
            for figure in why.figures {
                let place = format!("{{{}}}", figure.name);
                assert!(why.text.contains(&place), "{name}: {place} is nowhere");
                assert!(figure.value.parse::<f64>().is_ok(), "{name}: {place}");
                count += 1;
            }
            let filled = why.filled();
            assert!(!filled.contains(['{', '}']), "{name}: {filled}");
        }
        let with_figures = experiment.why.iter().any(|why| !why.figures.is_empty());
        assert!(!with_figures || experiment.file.is_some());
    }
    assert!(count >= 8, "{count} figures");
}

#[test]
fn the_runs_of_every_figure_in_a_reason_can_be_made() {
    for experiment in experiments() {
        let Some(file) = &experiment.file else {
            continue;
        };
        let load = Load::new(file, check::SEED, None).unwrap();
        for figure in check::figures(experiment) {
            for run in (figure.runs)(&load) {
                run.scenario.expect(figure.what).check().unwrap();
            }
        }
    }
}

#[test]
fn rows_of_several_seeds_are_means_and_gaps_stay_gaps() {
    let rows = [row(Claim::Is(10.0), 8.0), row(Claim::Is(10.0), 10.0)];
    let both = Row::over_seeds(&rows).unwrap();
    assert_eq!(both.simulated, Some(9.0));
    assert_eq!(both.spread, Some((8.0, 10.0)));
    assert_eq!(both.ratio, Some(0.9));
    let missing = Row::new("a", "%", Claim::Is(10.0), Err("no policy".into()));
    let both = Row::over_seeds(&[rows[0].clone(), missing]).unwrap();
    assert_eq!(both.simulated, None);
    assert_eq!(both.missing.as_deref(), Some("no policy"));
    let one = Row::over_seeds(&rows[..1]).unwrap();
    assert_eq!(one.spread, None);
}

#[test]
fn what_is_not_finite_is_missing() {
    let row = row(Claim::Is(10.0), f64::NAN);
    assert_eq!((row.simulated, row.standing()), (None, Standing::Open));
}

fn report() -> ReproReport {
    let mut far = Row::new("2 GB", "%", Claim::Is(8.0), Ok(4.0));
    far.why = Some("half of it is not modelled.".into());
    let mut spread = Row::new("4 GB", "thousand", Claim::AtMost(1000.0), Ok(990.4));
    spread.spread = Some((980.0, 1000.0));
    let outcome = |name: &str, rows, waits_for| Outcome {
        paper: Paper::Vtmm,
        name: name.into(),
        title: "What it asks".into(),
        prediction: false,
        waits_for,
        scenario: Some("a-file".into()),
        scale: Some(64),
        inputs: vec![GivenInput {
            what: "a VM".into(),
            from: "§1".into(),
        }],
        rows,
    };
    ReproReport {
        seed: 1,
        seeds: 2,
        experiments: vec![
            outcome("table-9", vec![far, spread], None),
            outcome("figure-9", Vec::new(), Some("a policy".into())),
        ],
    }
}

#[test]
fn a_report_is_this_page() {
    let page = markdown(&report());
    let (_, tables) = page.split_once("in brackets.\n").unwrap();
    let (summary, tables) = tables.split_once("\n\n").unwrap();
    assert_eq!(
        summary,
        "1 of 2 figures are within 25 % of the paper's, or within its bound; 0 more hold by construction and are \
         not counted; 0 were not made (a run failed, or they wait for a policy); 1 experiments wait as a whole."
    );
    let (_, tables) = tables.split_once("has not passed.\n").unwrap();
    assert_eq!(
        tables,
        "
## vTMM Table 9

What it asks. [a-file.toml](../scenarios/a-file.toml), scale 64.

Inputs:

- a VM (§1)

| what | unit | paper | simulator | ratio |
|---|---|--:|--:|--:|
| 2 GB | % | 8.00 | 4.00 | 0.50 (!) |
| 4 GB | thousand | ≤ 1000 | 990 [980, 1000] | 0.99 |

**Why**, for 2 GB: half of it is not modelled.

## vTMM Figure 9

What it asks. [a-file.toml](../scenarios/a-file.toml), scale 64.

**Not run yet**: it waits for a policy.
"
    );
}

/// The report with the texts that its experiments have now, and with its own figures.
fn with_texts_of_now(report: &ReproReport) -> ReproReport {
    let renewed = |outcome: &Outcome| {
        let name = format!("{}/{}", outcome.paper.name(), outcome.name);
        let experiment = named(&name).unwrap()[0];
        let mut now = Outcome::new(
            experiment,
            outcome.scale,
            std::slice::from_ref(&outcome.rows),
        );
        for (row, there) in now.rows.iter_mut().zip(&outcome.rows) {
            let why = row.why.take();
            let is_far = row.standing() == Standing::Far;
            *row = Row {
                why: why.filter(|_| is_far),
                ..there.clone()
            };
        }
        now
    };
    ReproReport {
        experiments: report.experiments.iter().map(renewed).collect(),
        ..report.clone()
    }
}

/// With `TERRACE_WRITE_PAGES=1` the two files are written with the texts of now instead.
#[test]
fn the_committed_texts_are_those_of_the_experiments() {
    let report: ReproReport = serde_json::from_str(&committed("repro.json")).unwrap();
    let renewed = with_texts_of_now(&report);
    if std::env::var_os("TERRACE_WRITE_PAGES").is_some() {
        let json = serde_json::to_string_pretty(&renewed).unwrap() + "\n";
        std::fs::write(docs("repro.json"), json).unwrap();
        std::fs::write(docs("repro.md"), markdown(&renewed)).unwrap();
        return;
    }
    for (there, now) in report.experiments.iter().zip(&renewed.experiments) {
        assert_eq!(there, now, "write anew with TERRACE_WRITE_PAGES=1");
    }
}

#[test]
fn the_committed_page_is_what_the_committed_figures_render_to() {
    let report: ReproReport = serde_json::from_str(&committed("repro.json")).unwrap();
    assert_eq!(
        committed("repro.md"),
        markdown(&report),
        "see its first lines"
    );
}

#[test]
fn every_committed_row_that_is_far_off_has_a_reason() {
    let report: ReproReport = serde_json::from_str(&committed("repro.json")).unwrap();
    let rows = report.experiments.iter().flat_map(|e| {
        let far = |row: &&Row| row.standing() == Standing::Far && row.why.is_none();
        e.rows
            .iter()
            .filter(far)
            .map(|row| format!("{}: {}", e.name, row.what))
    });
    assert_eq!(rows.collect::<Vec<_>>(), Vec::<String>::new());
}

#[test]
fn the_committed_figures_are_those_of_all_experiments() {
    let report: ReproReport = serde_json::from_str(&committed("repro.json")).unwrap();
    let name = |e: &Outcome| format!("{}/{}", e.paper.name(), e.name);
    let there: Vec<String> = report.experiments.iter().map(name).collect();
    let all: Vec<&str> = experiments().iter().map(|e| e.name).collect();
    assert_eq!(there, all);
}

#[test]
fn names_are_those_of_papers_and_are_told_where_one_is_unknown() {
    let names = names();
    let different: BTreeSet<&str> = names.iter().copied().collect();
    assert_eq!(different.len(), names.len());
    for experiment in experiments() {
        let (paper, _) = experiment.name.split_once('/').unwrap();
        assert_eq!(paper, experiment.paper.name());
    }
    assert_eq!(named("vtmm/table-4").unwrap().len(), 1);
    assert!(named("vtmm").unwrap().len() > 3);
    let Err(error) = named("vtmm/table-99") else {
        panic!("there is no such table")
    };
    assert!(
        error.contains("vtmm/table-4") && error.contains("hypertier"),
        "{error}"
    );
}

#[test]
fn every_run_of_every_experiment_can_be_made_or_says_why_not() {
    for experiment in experiments() {
        let Some(file) = &experiment.file else {
            assert!(
                matches!(experiment.kind, ExperimentKind::Waiting(_)),
                "{}",
                experiment.name
            );
            continue;
        };
        let runs = (experiment.runs)(&Load::new(file, 1, None).unwrap());
        assert!(!runs.is_empty(), "{}", experiment.name);
        for run in runs {
            match run.scenario {
                Ok(scenario) => scenario.check().unwrap(),
                Err(why) => assert!(why.contains("there is no policy"), "{why}"),
            }
        }
    }
}

#[test]
fn a_run_that_two_experiments_need_is_run_once() {
    let count = |names: &[&str]| {
        let asked: Vec<_> = names.iter().flat_map(|n| named(n).unwrap()).collect();
        different_runs(&asked, CHOICE).unwrap()
    };
    let (four, five) = (count(&["vtmm/table-4"]), count(&["vtmm/table-5"]));
    assert_eq!((four, five), (20, 20));
    let all = ["vtmm/table-4", "vtmm/table-5", "vtmm/table-6"];
    assert_eq!(count(&all), 40);
    // As the page's head says.
    assert_eq!(different_runs(&experiments(), CHOICE).unwrap(), 277);
}

#[test]
fn what_is_finished_is_kept_and_what_waits_needs_no_run() {
    let asked = experiments();
    let waiting = asked
        .iter()
        .filter(|e| matches!(e.kind, ExperimentKind::Waiting(_)));
    let done = carry_out(
        &asked,
        CHOICE,
        &Control {
            threads: NonZeroUsize::MIN,
            on_progress: &|_| {},
            cancelled: &AtomicBool::new(true),
        },
    )
    .unwrap();
    assert_eq!(done.report.experiments.len(), waiting.count());
    assert_eq!((done.wanted, done.runs), (asked.len(), 0));
}

#[test]
fn a_policy_that_is_not_there_is_told_in_the_rows() {
    let run = Run::new("x", Err("there is no policy \"y\"".into()));
    let mut by_key = std::collections::BTreeMap::new();
    by_key.insert("x".to_owned(), Err(run.scenario.unwrap_err()));
    let results = Results::new(by_key);
    let row = Row::new("a", "%", Claim::Is(1.0), results.slower_percent("x", "x"));
    assert_eq!(row.missing.as_deref(), Some("there is no policy \"y\""));
}
