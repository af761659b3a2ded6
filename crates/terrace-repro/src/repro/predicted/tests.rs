//! Tests of [`super`].

use std::collections::BTreeSet;
use std::path::Path;

use super::page::{PredictionReport, markdown};
use super::*;
use crate::repro::row::{Outcome, ReproReport};
use crate::repro::{ExperimentKind, experiments};

#[test]
fn sets_have_their_own_names_and_experiments() {
    let names: BTreeSet<&str> = set_names().collect();
    assert_eq!(names.len(), SETS.len());
    let known: BTreeSet<&str> = experiments().iter().map(|e| e.name).collect();
    for set in SETS {
        for experiment in set.experiments {
            assert!(!known.contains(experiment.name), "{}", experiment.name);
            let (paper, _) = experiment.name.split_once('/').unwrap();
            assert_eq!(paper, experiment.paper.name());
            assert_eq!(experiment.kind, ExperimentKind::Prediction);
        }
    }
    let Err(error) = set("dram") else {
        panic!("there is no such set")
    };
    assert!(error.contains("dram-sizes"), "{error}");
}

#[test]
fn every_run_of_every_prediction_can_be_made_and_is_another() {
    for experiment in SETS.iter().flat_map(|set| set.experiments) {
        let load = Load::new(&experiment.file.unwrap(), 1, None).unwrap();
        let runs = (experiment.runs)(&load);
        for (i, run) in runs.iter().enumerate() {
            let what = format!("{}: {}", experiment.name, run.key);
            run.scenario.clone().expect(&what).check().expect(&what);
            let same = runs[..i].iter().find(|other| other.same(run));
            assert!(same.is_none(), "{what} is {}", same.unwrap().key);
        }
    }
}

#[test]
fn a_prediction_names_what_was_chosen_and_has_no_claim() {
    for experiment in SETS.iter().flat_map(|set| set.experiments) {
        let chosen = |from: &str| from.contains("our choice");
        assert!(experiment.inputs.iter().any(|input| chosen(input.from)));
        let rows = (experiment.rows)(&Results::default());
        assert!(!rows.is_empty() && experiment.why.is_empty());
        assert!(rows.iter().all(|row| row.paper == Claim::Nothing));
    }
}

fn report() -> PredictionReport {
    let set = set("antagonists").unwrap();
    let rows = vec![predicted("gain".into(), "%", Ok(1.5))];
    let outcome = Outcome::new(set.experiments[0], Some(256), &[rows]);
    let report = ReproReport {
        seed: 1,
        seeds: 1,
        experiments: vec![outcome],
    };
    PredictionReport::new(set, "2026-01-31", report)
}

#[test]
fn a_page_has_its_day_seeds_and_machine_and_no_comparison() {
    let report = report();
    let page = markdown(&report);
    for part in [
        "# Predictions: updates beside programs that load DRAM\n",
        "2026-01-31",
        "Seed 1.",
        "    tiers = [\"dram\", \"cxl\"]\n",
        "| gain | % | 1.50 |\n",
    ] {
        assert!(page.contains(part), "{part} is not in:\n{page}");
    }
    assert!(!page.contains("ratio"), "{page}");
    let json = serde_json::to_string(&report).unwrap();
    let again: PredictionReport = serde_json::from_str(&json).unwrap();
    assert_eq!(again, report);
}

/// Pages that are not there yet are no fault.
#[test]
fn committed_pages_are_what_their_figures_render_to() {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    for set in SETS {
        let file = |ending: &str| docs.join(format!("predictions-{}.{ending}", set.name));
        let Ok(json) = std::fs::read_to_string(file("json")) else {
            continue;
        };
        let report: PredictionReport = serde_json::from_str(&json).unwrap();
        let page = std::fs::read_to_string(file("md")).unwrap();
        assert_eq!(page, markdown(&report), "{}", set.name);
        let there: Vec<&str> = report
            .report
            .experiments
            .iter()
            .map(|e| e.name.as_str())
            .collect();
        let all: Vec<&str> = set.experiments.iter().map(|e| e.short_name()).collect();
        assert_eq!(there, all);
    }
}
