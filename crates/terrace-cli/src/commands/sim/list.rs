//! `terrace sim list`.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;
use terrace_core::TierKind;
use terrace_repro::repro::predicted::{self, PredictionSet};
use terrace_repro::repro::{self, Experiment, ExperimentKind};
use terrace_sim::{
    Tier, kinds,
    policy::{self, Description},
    presets,
};

use crate::output::{self, print_json};
use crate::render;

/// The folder in which scenarios are searched for.
const FOLDER: &str = "scenarios";

/// The output of `--json`.
#[derive(Serialize)]
struct Report {
    policies: Vec<Description>,
    tiers: Vec<TierReport>,
    workloads: Vec<String>,
    scenarios: Vec<Named>,
    experiments: Vec<Named>,
}

#[derive(Serialize)]
struct TierReport {
    name: String,
    kind: TierKind,
    read_ns: f64,
    write_ns: f64,
    read_gb_s: f64,
    write_gb_s: f64,
    line: u64,
    price_per_gib: Option<f64>,
}

/// A name and a line about it.
#[derive(Serialize)]
struct Named {
    name: String,
    what: String,
}

pub fn run(json: bool) -> Result<()> {
    let report = Report {
        policies: policy::descriptions(),
        tiers: presets().into_iter().map(TierReport::from).collect(),
        workloads: kinds().map(str::to_owned).collect(),
        scenarios: scenarios(Path::new(FOLDER)),
        experiments: experiments(),
    };
    if json {
        return print_json(&report);
    }
    output::print(text(&report))
}

/// The papers' experiments, each with the question that it asks.
fn experiments() -> Vec<Named> {
    let named = |experiment: &Experiment| Named {
        name: experiment.name.into(),
        what: match experiment.kind {
            ExperimentKind::Figures => experiment.title.into(),
            ExperimentKind::Prediction => format!("{} (a prediction)", experiment.title),
            ExperimentKind::Waiting(what) => format!("{} (waits for {what})", experiment.title),
        },
    };
    repro::experiments().into_iter().map(named).collect()
}

/// The table of [`experiments`], and that of the sets of predictions.
pub fn experiments_text() -> String {
    let rows: Vec<Vec<String>> = experiments().iter().map(row).collect();
    let experiments = render::table(&["EXPERIMENT", "WHAT IT ASKS"], &[], &rows);
    let set = |set: &PredictionSet| vec![set.name.to_owned(), set.title.to_owned()];
    let sets: Vec<Vec<String>> = predicted::SETS.iter().map(set).collect();
    experiments + "\n" + &render::table(&["PREDICTIONS", "WHAT THEY ARE ABOUT"], &[], &sets)
}

fn row(named: &Named) -> Vec<String> {
    vec![named.name.clone(), named.what.clone()]
}

impl From<Tier> for TierReport {
    fn from(tier: Tier) -> Self {
        Self {
            name: tier.name,
            kind: tier.kind,
            read_ns: tier.read_ns,
            write_ns: tier.write_ns,
            read_gb_s: tier.read_gb_s,
            write_gb_s: tier.write_gb_s,
            line: tier.line,
            price_per_gib: tier.price_per_gib,
        }
    }
}

/// The scenarios of a folder by name, each with the sentence that it begins with; empty if there is no such folder.
fn scenarios(folder: &Path) -> Vec<Named> {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return Vec::new();
    };
    let files = entries.filter_map(|entry| Some(entry.ok()?.path()));
    let mut files: Vec<_> = files
        .filter(|file| file.extension().is_some_and(|e| e == "toml"))
        .collect();
    files.sort();
    let named = files.iter().map(|file| {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        Named {
            name: file.display().to_string(),
            what: first_sentence(&text),
        }
    });
    named.collect()
}

/// The first sentence of the comment that a scenario begins with. It goes on in a line that begins with a small letter; a
/// title needs no full stop.
fn first_sentence(text: &str) -> String {
    let comment = text.lines().map_while(|line| line.strip_prefix('#'));
    let mut sentence = String::new();
    for line in comment.map(str::trim) {
        let goes_on = line.starts_with(char::is_lowercase);
        if !sentence.is_empty() {
            if !goes_on {
                break;
            }
            sentence.push(' ');
        }
        match line.find(". ").into_iter().chain(line.find("? ")).min() {
            Some(end) => return sentence + &line[..=end],
            None => sentence += line,
        }
        if sentence.ends_with(['.', '?']) {
            break;
        }
    }
    sentence
}

fn text(report: &Report) -> String {
    let policies: Vec<Vec<String>> = report.policies.iter().map(policy_row).collect();
    let mut out = render::table(&["POLICY", "WHAT IT IS"], &[], &policies);
    out.push('\n');
    let tiers: Vec<Vec<String>> = report.tiers.iter().map(tier_row).collect();
    let header = [
        "TIER",
        "READ NS",
        "WRITE NS",
        "READ GB/S",
        "WRITE GB/S",
        "LINE",
        "PRICE/GIB",
    ];
    out += &render::table(&header, &[1, 2, 3, 4, 5, 6], &tiers);
    out.push('\n');
    out += &format!("LOADS\n{}\n\n", report.workloads.join(", "));
    let scenarios: Vec<Vec<String>> = report.scenarios.iter().map(row).collect();
    if scenarios.is_empty() {
        out += &format!("no scenarios here: there is no folder {FOLDER} with *.toml files\n");
    } else {
        out += &render::table(&["SCENARIO", "WHAT IT IS"], &[], &scenarios);
    }
    out + "\n" + &experiments_text()
}

fn policy_row(policy: &Description) -> Vec<String> {
    let stages: Vec<String> = policy
        .stages
        .iter()
        .map(|(stage, name)| format!("{stage} {name}"))
        .collect();
    let stages = (!stages.is_empty()).then(|| stages.join(", "));
    let parts: Vec<String> = stages.into_iter().chain(policy.what.clone()).collect();
    vec![policy.name.clone(), parts.join("; ")]
}

fn tier_row(tier: &TierReport) -> Vec<String> {
    vec![
        tier.name.clone(),
        tier.read_ns.to_string(),
        tier.write_ns.to_string(),
        tier.read_gb_s.to_string(),
        tier.write_gb_s.to_string(),
        tier.line.to_string(),
        tier.price_per_gib
            .map_or("-".into(), |price| price.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_is_listed_by_its_whole_first_sentence() {
        for (text, sentence) in [
            ("# A title, 1.7 GB\n# Another line.\n", "A title, 1.7 GB"),
            (
                "# What is it worth\n# that pages move? More.\n",
                "What is it worth that pages move?",
            ),
            ("# It is small. As small as\n# can be.\n", "It is small."),
            ("# It ends.\n# so does this.\n", "It ends."),
            ("[machine]\n# no comment of the scenario\n", ""),
        ] {
            assert_eq!(first_sentence(text), sentence);
        }
    }

    #[test]
    fn no_scenario_of_the_repository_is_listed_by_half_a_sentence() {
        let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios"));
        let all = scenarios(folder);
        assert!(!all.is_empty());
        for named in all {
            let text = std::fs::read_to_string(&named.name).expect("a file");
            // A title ends with its line, a sentence with its mark.
            let mut lines = text.lines().map(|line| line.trim_start_matches('#').trim());
            let is_title = lines.next() == Some(&named.what);
            let goes_on = lines
                .next()
                .unwrap_or_default()
                .starts_with(char::is_lowercase);
            let is_whole = named.what.ends_with(['.', '?']) || is_title && !goes_on;
            assert!(
                is_whole && !named.what.is_empty(),
                "{}: {}",
                named.name,
                named.what
            );
        }
    }

    #[test]
    fn gathering_by_the_guest_is_listed() {
        let gpac = policy::descriptions()
            .into_iter()
            .find(|p| p.name == "gpac");
        let what = gpac.and_then(|p| p.what).unwrap_or_default();
        assert!(
            what.contains("guest_policy") && what.contains("NAME+gpac"),
            "{what}"
        );
    }
}
