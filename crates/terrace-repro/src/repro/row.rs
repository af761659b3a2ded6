//! Rows: a figure of a paper beside the simulator's.

use serde::{Deserialize, Serialize};

use super::{Experiment, ExperimentKind, Paper, Why};

/// Largest relative difference from a figure of a paper with which a row is near. Bounds have no such margin.
pub const FAR: f64 = 0.25;

/// A paper's statement about a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "says", content = "value")]
pub enum Claim {
    /// No figure in the text at hand.
    #[default]
    Nothing,
    /// A figure.
    Is(f64),
    /// No more than this.
    AtMost(f64),
    /// No less than this.
    AtLeast(f64),
    /// A figure that was given to the simulator, so that it means nothing if the two are the same.
    Input(f64),
}

impl Claim {
    /// The figure, if there is one.
    #[must_use]
    pub fn value(self) -> Option<f64> {
        match self {
            Self::Nothing => None,
            Self::Is(x) | Self::AtMost(x) | Self::AtLeast(x) | Self::Input(x) => Some(x),
        }
    }
}

/// A figure of a paper beside the simulator's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The quantity.
    pub what: String,
    /// The quantity's unit.
    pub unit: String,
    /// The paper's claim.
    pub paper: Claim,
    /// The simulator's figure: the mean over the seeds.
    pub simulated: Option<f64>,
    /// Least and most over the seeds, if there are several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<(f64, f64)>,
    /// The simulator's figure over the paper's.
    pub ratio: Option<f64>,
    /// Whether the simulator could not have had another figure, because of how it is built.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_construction: bool,
    /// The reason why the simulator has no figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
    /// The reason why the figure is far off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

/// How a row compares with the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Within 25 % of the paper's figure, or within the paper's bound.
    Near,
    /// Farther off.
    Far,
    /// Nothing to compare: a prediction, an input, no run, or a figure that holds by construction.
    Open,
}

impl Row {
    /// A row. `simulated` is the figure, or why there is none.
    #[must_use]
    pub fn new(
        what: impl Into<String>,
        unit: &str,
        paper: Claim,
        simulated: Result<f64, String>,
    ) -> Self {
        let (simulated, missing) = match simulated {
            Ok(x) if x.is_finite() => (Some(x), None),
            Ok(_) => (None, Some("no figure came out of the runs".into())),
            Err(why) => (None, Some(why)),
        };
        let mut row = Self {
            what: what.into(),
            unit: unit.into(),
            paper,
            simulated,
            spread: None,
            ratio: None,
            by_construction: false,
            missing,
            why: None,
        };
        row.compare();
        row
    }

    /// The same row, marked as one that could not have come out otherwise.
    #[must_use]
    pub fn by_construction(self) -> Self {
        Self {
            by_construction: true,
            ..self
        }
    }

    fn compare(&mut self) {
        let both = self.paper.value().zip(self.simulated);
        self.ratio = both.filter(|(p, _)| *p != 0.0).map(|(p, s)| s / p);
    }

    /// How the row compares with the paper.
    #[must_use]
    pub fn standing(&self) -> Standing {
        let (Some(paper), Some(simulated)) = (self.paper.value(), self.simulated) else {
            return Standing::Open;
        };
        if self.by_construction {
            return Standing::Open;
        }
        let near = match self.paper {
            Claim::Input(_) | Claim::Nothing => return Standing::Open,
            Claim::AtMost(_) => simulated <= paper,
            Claim::AtLeast(_) => simulated >= paper,
            // Relative to the paper's size, so that figures below 0 are compared too.
            Claim::Is(_) => ((simulated - paper) / paper.abs()).abs() <= FAR,
        };
        if near { Standing::Near } else { Standing::Far }
    }

    /// The same row of several seeds as one. `None` if there are no rows.
    #[must_use]
    pub fn over_seeds(rows: &[Self]) -> Option<Self> {
        let mut row = rows.first()?.clone();
        if let Some(missing) = rows.iter().find(|row| row.simulated.is_none()) {
            return Some(missing.clone());
        }
        let all: Vec<f64> = rows.iter().filter_map(|row| row.simulated).collect();
        let count = all.iter().fold(0.0, |n, _| n + 1.0);
        row.simulated = Some(all.iter().sum::<f64>() / count);
        if all.len() > 1 {
            let least = all.iter().copied().fold(f64::INFINITY, f64::min);
            let most = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            row.spread = Some((least, most));
        }
        row.compare();
        Some(row)
    }
}

/// An input of an experiment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Input {
    /// The settings.
    pub what: &'static str,
    /// The section or table that says so; or that it is our choice.
    pub from: &'static str,
}

/// An [`Input`] as it is written to a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenInput {
    /// The settings.
    pub what: String,
    /// The section or table that says so; or that it is our choice.
    pub from: String,
}

/// The result of an experiment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// The paper that the experiment is from.
    pub paper: Paper,
    /// The experiment's short name.
    pub name: String,
    /// The question that the experiment answers.
    pub title: String,
    /// Whether the rows are predictions.
    pub prediction: bool,
    /// The reason why the experiment cannot be run yet, if it cannot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waits_for: Option<String>,
    /// Name of the scenario's file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scenario: Option<String>,
    /// The scale that the experiment ran at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scale: Option<u64>,
    /// The settings taken from the paper, or chosen.
    pub inputs: Vec<GivenInput>,
    /// The experiment's rows.
    pub rows: Vec<Row>,
}

/// The results of all experiments that were asked for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReproReport {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, one after another.
    pub seeds: u64,
    /// The experiments' results, in order.
    pub experiments: Vec<Outcome>,
}

impl ReproReport {
    /// Number of rows near the paper's figure, and number of rows with a figure to compare with.
    #[must_use]
    pub fn near(&self) -> (usize, usize) {
        let rows = || self.experiments.iter().flat_map(|e| &e.rows);
        let near = rows().filter(|row| row.standing() == Standing::Near);
        let far = rows().filter(|row| row.standing() == Standing::Far);
        let near = near.count();
        (near, near + far.count())
    }

    /// Number of rows that have a figure of the paper to compare with and hold by construction.
    #[must_use]
    pub fn by_construction(&self) -> usize {
        let rows = self.experiments.iter().flat_map(|e| &e.rows);
        let compared = |row: &&Row| row.by_construction && row.simulated.is_some();
        rows.filter(compared).count()
    }
}

impl Outcome {
    /// An experiment's outcome with rows of one seed after another.
    #[must_use]
    pub fn new(experiment: &Experiment, scale: Option<u64>, seeds: &[Vec<Row>]) -> Self {
        let first = seeds.first().map_or(0, Vec::len);
        let rows = (0..first).filter_map(|at| {
            let same: Vec<Row> = seeds
                .iter()
                .filter_map(|rows| rows.get(at).cloned())
                .collect();
            let mut row = Row::over_seeds(&same)?;
            if row.standing() == Standing::Far {
                let why = experiment
                    .why
                    .iter()
                    .find(|why| row.what.contains(why.rows));
                row.why = why.map(Why::filled);
            }
            Some(row)
        });
        let given = experiment.inputs.iter().map(|input| GivenInput {
            what: input.what.into(),
            from: input.from.into(),
        });
        Self {
            paper: experiment.paper,
            name: experiment.short_name().into(),
            title: experiment.title.into(),
            prediction: experiment.kind == ExperimentKind::Prediction,
            waits_for: match experiment.kind {
                ExperimentKind::Waiting(what) => Some(what.into()),
                ExperimentKind::Figures | ExperimentKind::Prediction => None,
            },
            scenario: experiment.file.map(|file| file.name.into()),
            scale,
            inputs: given.collect(),
            rows: rows.collect(),
        }
    }
}
