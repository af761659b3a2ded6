//! The papers' figures beside the simulator's: `terrace sim repro`.
//!
//! Responsible for: which experiments there are ([`experiments`]), the runs that they need (each once, whoever needs
//! it), the rows that come of them ([`row`], [`order`]), whether the figures in their reasons still hold ([`check`]), and
//! how they are written ([`render`]). It leaves to others: running ([`terrace_sim::Simulation`]), doing many runs at a
//! time ([`crate::compare`]), the command line and the terminal.
//!
//! **No figure of a paper is used to set anything**, apart from the inputs that an experiment names. A
//! program's compute time may come from one column, "all on slow memory", which is then an input
//! ([`pace`]).

pub mod carry_out;
pub mod check;
pub mod last_third;
pub mod order;
pub mod pace;
pub mod predicted;
pub mod render;
pub mod row;
pub mod runs;

mod balloons;
mod changes;
mod gpac;
mod hmvisor;
mod hpmbs;
mod hypertier;
mod predictions;
mod vtmm;

use serde::{Deserialize, Serialize};

use row::{Input, Row};
use runs::{Load, Results, Run};

/// The paper whose figures they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Paper {
    /// vTMM: Tiered Memory Management for Virtual Machines.
    Vtmm,
    /// HyperTier.
    Hypertier,
    /// HMvisor.
    Hmvisor,
    /// HPMBS.
    Hpmbs,
    /// GPAC: Efficient Memory Tiering in a Virtual Machine.
    Gpac,
    /// No paper: a question of our own.
    Ours,
}

impl Paper {
    /// The papers.
    pub const ALL: [Self; 5] = [
        Self::Vtmm,
        Self::Hypertier,
        Self::Hmvisor,
        Self::Hpmbs,
        Self::Gpac,
    ];

    /// The paper's name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Vtmm => "vtmm",
            Self::Hypertier => "hypertier",
            Self::Hmvisor => "hmvisor",
            Self::Hpmbs => "hpmbs",
            Self::Gpac => "gpac",
            Self::Ours => "ours",
        }
    }

    /// The paper's name in text.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            Self::Vtmm => "vTMM",
            Self::Hypertier => "HyperTier",
            Self::Hmvisor => "HMvisor",
            Self::Hpmbs => "HPMBS",
            Self::Gpac => "GPAC",
            Self::Ours => "Ours:",
        }
    }
}

/// The kind of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExperimentKind {
    /// The paper's text has figures to stand beside.
    Figures,
    /// The paper's results are not in the text that is at hand: the rows are predictions.
    Prediction,
    /// An experiment that cannot be run yet: the reason.
    Waiting(&'static str),
}

/// The reason why rows are more than 25 % off, or beyond a bound.
#[derive(Clone, Copy, Debug)]
pub struct Why {
    /// Text in the `what` of the rows that the reason is about.
    pub rows: &'static str,
    /// The reason, as found out by trying. `{NAME}` stands for the figure of that name.
    pub text: &'static str,
    /// The measured figures that the reason rests on.
    pub figures: &'static [Figure],
}

/// A measured figure of a reason, with the runs that give it again.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The figure's name in the reason's text.
    pub name: &'static str,
    /// The quantity and its unit.
    pub what: &'static str,
    /// The figure as the text prints it.
    pub value: &'static str,
    /// Makes the figure's runs from the experiment's scenario.
    pub runs: fn(&Load) -> Vec<Run>,
    /// Calculates the figure from the runs' results.
    pub of: fn(&Results) -> Result<f64, String>,
}

impl Why {
    /// A reason without figures.
    #[must_use]
    pub const fn new(rows: &'static str, text: &'static str) -> Self {
        Self {
            rows,
            text,
            figures: &[],
        }
    }

    /// The text with its figures in place.
    #[must_use]
    pub fn filled(&self) -> String {
        let mut text = self.text.to_owned();
        for figure in self.figures {
            text = text.replace(&format!("{{{}}}", figure.name), figure.value);
        }
        text
    }
}

/// A scenario file that is part of the program.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// The file's name without folder and ending.
    pub name: &'static str,
    /// The file's content.
    pub text: &'static str,
}

/// An experiment of a paper.
pub struct Experiment {
    /// The paper that the experiment is from.
    pub paper: Paper,
    /// The experiment's name, with the paper's: `vtmm/table-4`.
    pub name: &'static str,
    /// The question that the experiment answers.
    pub title: &'static str,
    /// The experiment's kind.
    pub kind: ExperimentKind,
    /// The scenario that its runs are made from. `None` while it waits for something.
    pub file: Option<File>,
    /// The settings taken from the paper, and those chosen because it says nothing.
    pub inputs: &'static [Input],
    /// Makes the experiment's runs from the scenario.
    pub runs: fn(&Load) -> Vec<Run>,
    /// Makes the experiment's rows for one seed from its runs' results.
    pub rows: fn(&Results) -> Vec<Row>,
    /// The reasons why rows are far off.
    pub why: &'static [Why],
}

impl Experiment {
    /// The experiment's name without the paper's: `table-4`.
    #[must_use]
    pub fn short_name(&self) -> &'static str {
        self.name
            .split_once('/')
            .map_or(self.name, |(_, name)| name)
    }
}

/// All experiments in the order of the papers.
#[must_use]
pub fn experiments() -> Vec<&'static Experiment> {
    let mut all = Vec::new();
    all.extend(vtmm::EXPERIMENTS);
    all.extend(predictions::EXPERIMENTS);
    all.extend(hypertier::EXPERIMENTS);
    all.extend(hmvisor::EXPERIMENTS);
    all.extend(hpmbs::EXPERIMENTS);
    all.extend(balloons::EXPERIMENTS);
    all.extend(gpac::EXPERIMENTS);
    all
}

/// The name by which [`named`] gives the predictions of all papers.
pub const PREDICTIONS: &str = "predictions";

/// The experiments of a name: a paper's, one, or all predictions.
///
/// # Errors
/// Names the experiments that there are.
pub fn named(name: &str) -> Result<Vec<&'static Experiment>, String> {
    let of_name = |e: &&Experiment| {
        let predicted = name == PREDICTIONS && e.kind == ExperimentKind::Prediction;
        e.paper.name() == name || e.name == name || predicted
    };
    let found: Vec<_> = experiments().into_iter().filter(of_name).collect();
    if found.is_empty() {
        return Err(format!(
            "there is no experiment \"{name}\": there are {}",
            names().join(", ")
        ));
    }
    Ok(found)
}

/// Every name that [`named`] knows: papers that have experiments, the predictions, then the experiments.
#[must_use]
pub fn names() -> Vec<&'static str> {
    let all = experiments();
    let has = |paper: &Paper| all.iter().any(|e| e.paper == *paper);
    let papers = Paper::ALL.into_iter().filter(has);
    let papers = papers.map(Paper::name);
    let groups = papers.chain([PREDICTIONS]);
    groups.chain(all.iter().map(|e| e.name)).collect()
}

#[cfg(test)]
mod tests;
