//! The figures in the reasons, measured again: `terrace sim repro --check`.

use terrace_sim::RunError;

use super::carry_out::{Needs, Pool, results};
use super::runs::Load;
use super::{Experiment, Figure};
use crate::compare::Control;

/// The seed with which the figures in the reasons were measured.
pub const SEED: u64 = 1;

/// Largest relative difference from the text with which a figure still holds.
const MARGIN: f64 = 0.01;

/// A figure of a reason beside what its runs give now.
#[derive(Clone, Debug, PartialEq)]
pub struct Checked {
    /// The experiment's name, with the paper's.
    pub experiment: &'static str,
    /// The quantity and its unit.
    pub what: &'static str,
    /// The figure as the text prints it.
    pub text: &'static str,
    /// The figure that the runs give now, or the reason why they give none.
    pub now: Result<f64, String>,
}

/// The result of checking figures.
#[derive(Debug)]
pub struct CheckReport {
    /// The figures whose runs are finished.
    pub checked: Vec<Checked>,
    /// Number of figures that were to be checked.
    pub wanted: usize,
}

impl Checked {
    /// Whether the figure still holds: it differs by at most 1 %, or not in the digits that the text prints.
    #[must_use]
    pub fn holds(&self) -> bool {
        let (Ok(now), Ok(text)) = (&self.now, self.text.parse::<f64>()) else {
            return false;
        };
        let is_close = (now - text).abs() <= MARGIN * text.abs();
        is_close || format!("{now:.0$}", self.digits()) == self.text
    }

    /// The figure that the runs give now, with one digit more than the text, or the reason why they give none.
    #[must_use]
    pub fn printed(&self) -> String {
        match &self.now {
            Ok(now) => format!("{now:.0$}", self.digits() + 1),
            Err(why) => why.clone(),
        }
    }

    /// Digits after the point in the text.
    fn digits(&self) -> usize {
        self.text.split_once('.').map_or(0, |(_, part)| part.len())
    }
}

impl CheckReport {
    /// Number of figures that do not hold any more.
    #[must_use]
    pub fn differing(&self) -> usize {
        self.checked.iter().filter(|one| !one.holds()).count()
    }
}

/// The figures in the reasons of an experiment.
pub fn figures(experiment: &Experiment) -> impl Iterator<Item = &'static Figure> {
    experiment.why.iter().flat_map(|why| why.figures)
}

/// Measures the figures in the experiments' reasons again.
///
/// # Errors
/// If a scenario is not valid. The error of a run that fails is that of its figure.
pub fn check(
    experiments: &[&'static Experiment],
    control: &Control,
) -> Result<CheckReport, RunError> {
    let mut pool = Pool::default();
    let mut all: Vec<(&'static str, &'static Figure, Needs)> = Vec::new();
    for experiment in experiments {
        let Some(file) = &experiment.file else {
            continue;
        };
        let load = Load::new(file, SEED, None)?;
        for figure in figures(experiment) {
            let needs = pool.need((figure.runs)(&load));
            all.push((experiment.name, figure, needs));
        }
    }
    let wanted = all.len();
    let measured = pool.measure(control)?;
    let checked = all.into_iter().filter_map(|(experiment, figure, needs)| {
        let results = results(needs, &measured)?;
        Some(Checked {
            experiment,
            what: figure.what,
            text: figure.value,
            now: (figure.of)(&results),
        })
    });
    Ok(CheckReport {
        checked: checked.collect(),
        wanted,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(text: &'static str, now: f64) -> bool {
        let checked = Checked {
            experiment: "vtmm/table-99",
            what: "slowdown, %",
            text,
            now: Ok(now),
        };
        checked.holds()
    }

    #[test]
    fn a_figure_holds_within_one_percent_or_its_last_digit() {
        assert!(holds("579", 579.4) && holds("579", 584.7) && !holds("579", 585.0));
        assert!(holds("1.8", 1.849) && holds("1.8", 1.751) && !holds("1.8", 1.86));
        assert!(!holds("5.6", f64::NAN));
    }

    #[test]
    fn a_run_that_failed_does_not_hold_and_says_why() {
        let checked = Checked {
            experiment: "vtmm/table-99",
            what: "slowdown, %",
            text: "1",
            now: Err("it failed".into()),
        };
        assert!(!checked.holds());
        assert_eq!(checked.printed(), "it failed");
        let report = CheckReport {
            checked: vec![checked],
            wanted: 2,
        };
        assert_eq!(report.differing(), 1);
    }
}
