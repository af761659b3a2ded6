//! A page of predictions, docs/predictions-NAME.md, and the figures that it is made from.

use std::collections::BTreeSet;
use std::fmt::Write;

use serde::{Deserialize, Serialize};

use super::{PredictionSet, set};
use crate::repro::File;
use crate::repro::render::{cells, seeds, title};
use crate::repro::row::{Outcome, ReproReport};

/// The results of a set of predictions.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PredictionReport {
    /// The set's name.
    pub set: String,
    /// The day on which the runs were made, as 2026-01-31.
    pub date: String,
    /// The program's version.
    pub version: String,
    /// The machine of each experiment's scenario, as the file has it.
    pub machines: Vec<String>,
    /// The results.
    #[serde(flatten)]
    pub report: ReproReport,
}

impl PredictionReport {
    /// The results of a set, made on a day.
    #[must_use]
    pub fn new(set: &PredictionSet, date: &str, report: ReproReport) -> Self {
        let of_name = |outcome: &Outcome| {
            let mut all = set.experiments.iter();
            all.find(|e| e.short_name() == outcome.name)
                .and_then(|e| e.file.as_ref())
                .map(machine)
        };
        Self {
            set: set.name.into(),
            date: date.into(),
            version: env!("CARGO_PKG_VERSION").into(),
            machines: report
                .experiments
                .iter()
                .map(|outcome| of_name(outcome).unwrap_or_default())
                .collect(),
            report,
        }
    }
}

/// The keys of a scenario file before its first VM, without comments.
fn machine(file: &File) -> String {
    let all = file.text.split("[[vm]]").next().unwrap_or_default();
    let lines = all.lines().map(str::trim);
    let keys: Vec<&str> = lines
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .collect();
    keys.join("\n")
}

/// The page of a report.
#[must_use]
pub fn markdown(report: &PredictionReport) -> String {
    let name = &report.set;
    let about = set(name).map_or(name.as_str(), |set| set.title);
    let mut out = format!(
        "# Predictions: {about}\n\n\
         Written by `terrace sim repro --predict {name} --out docs`, and committed before anything was compared: no figure of a \
         paper was read for these rows. Its figures are not to be changed afterwards, whatever a comparison says.\n\n\
         - Model: terrace {}, with the machine of [machine.md](machine.md) and the loads of [workloads.md](workloads.md) as they \
         were on {}. Keys that a scenario does not have are the defaults of that day.\n\
         - {}\n\
         - *slower than all-fast*: how much longer the same work takes than with all of the memory in DRAM.\n\
         - Inputs are what the papers say of their set-up, and what was chosen where they say nothing.\n",
        report.version,
        report.date,
        seeds(&report.report),
    );
    for (at, outcome) in report.report.experiments.iter().enumerate() {
        let machine = report.machines.get(at).map_or("", String::as_str);
        out += &section(outcome, machine);
    }
    out
}

/// The section of one experiment.
fn section(outcome: &Outcome, machine: &str) -> String {
    let mut out = format!(
        "\n## {} {}\n\n{}.",
        outcome.paper.title(),
        title(&outcome.name),
        outcome.title
    );
    if let Some(file) = &outcome.scenario {
        let _ = write!(out, " [{file}.toml](../scenarios/{file}.toml).");
    }
    out += " Its machine:\n\n";
    for line in machine.lines() {
        let _ = writeln!(out, "    {line}");
    }
    if let Some(scale) = outcome.scale {
        let _ = write!(out, "\nRun at scale {scale}. Inputs:\n\n");
    }
    for input in &outcome.inputs {
        let _ = writeln!(out, "- {} ({})", input.what, input.from);
    }
    out += "\n| what | unit | simulator |\n|---|---|--:|\n";
    for row in &outcome.rows {
        let [what, unit, _, simulated, _] = cells(row);
        let _ = writeln!(out, "| {what} | {unit} | {simulated} |");
    }
    let reasons = outcome.rows.iter().filter_map(|row| row.missing.as_deref());
    for why in reasons.collect::<BTreeSet<&str>>() {
        let _ = write!(out, "\n**No figure**: {why}\n");
    }
    out
}
