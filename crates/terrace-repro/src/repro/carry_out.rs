//! Carrying experiments out: every run once, on all threads, whoever needs it.

use std::collections::BTreeMap;

use terrace_sim::{RunError, Scenario};

use super::row::{Outcome, ReproReport, Row};
use super::runs::{Load, Measured, Results, Run};
use super::{Experiment, ExperimentKind};
use crate::compare::{Control, each};

/// The seeds and the scale of the runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The first seed.
    pub seed: u64,
    /// Number of seeds, one after another: 1 or more.
    pub seeds: u64,
    /// The scale to run at instead of the scenarios' own.
    pub scale: Option<u64>,
}

/// The result of carrying experiments out.
#[derive(Debug)]
pub struct Done {
    /// The experiments all of whose runs are finished.
    pub report: ReproReport,
    /// Number of experiments that were asked for.
    pub wanted: usize,
    /// Different runs that were finished.
    pub runs: usize,
}

/// One seed of an experiment: its runs by name, as places in the pool.
pub(super) type Needs = Vec<(String, Result<usize, String>)>;

/// Different runs, each of which is done once.
#[derive(Default)]
pub(super) struct Pool {
    runs: Vec<Run>,
}

/// The result of each run of a pool. `None` if it is not finished.
pub(super) type Finished = Vec<Option<Result<Measured, String>>>;

impl Pool {
    /// The positions of some runs in the pool, by their names.
    pub(super) fn need(&mut self, runs: Vec<Run>) -> Needs {
        let position = |run: Run| (run.key.clone(), self.add(run));
        runs.into_iter().map(position).collect()
    }

    /// Does all runs. One that fails leaves the others alone.
    pub(super) fn measure(&self, control: &Control) -> Result<Finished, RunError> {
        let work = |run: &Run| run.scenario.as_ref().map_or(0.0, Scenario::work);
        each(&self.runs, control, work, |run, report| {
            match run.measure(report) {
                Ok(measured) => Ok(measured.map(Ok)),
                Err(error) => Ok(Some(Err(error.to_string()))),
            }
        })
    }

    /// The position of a run in the pool, to which it is added unless it is there.
    fn add(&mut self, run: Run) -> Result<usize, String> {
        if let Err(why) = &run.scenario {
            return Err(why.clone());
        }
        if let Some(at) = self.runs.iter().position(|other| other.same(&run)) {
            return Ok(at);
        }
        self.runs.push(run);
        Ok(self.runs.len() - 1)
    }
}

/// Carries the experiments out.
///
/// # Errors
/// If a scenario is not valid at the scale asked for. The error of a run that fails is told in its rows.
pub fn carry_out(
    experiments: &[&'static Experiment],
    choice: Choice,
    control: &Control,
) -> Result<Done, RunError> {
    let mut pool = Pool::default();
    let mut needs: Vec<(Option<u64>, Vec<Needs>)> = Vec::new();
    for experiment in experiments {
        needs.push(plan(experiment, choice, &mut pool)?);
    }
    let measured = pool.measure(control)?;
    let mut outcomes = Vec::new();
    for (experiment, (scale, seeds)) in experiments.iter().zip(needs) {
        let rows: Option<Vec<Vec<Row>>> = seeds
            .into_iter()
            .map(|needs| results(needs, &measured).map(|results| (experiment.rows)(&results)))
            .collect();
        if let Some(rows) = rows {
            outcomes.push(Outcome::new(experiment, scale, &rows));
        }
    }
    Ok(Done {
        report: ReproReport {
            seed: choice.seed,
            seeds: choice.seeds,
            experiments: outcomes,
        },
        wanted: experiments.len(),
        runs: measured.iter().flatten().count(),
    })
}

/// Number of different runs that the experiments need.
///
/// # Errors
/// As [`carry_out`].
pub fn different_runs(
    experiments: &[&'static Experiment],
    choice: Choice,
) -> Result<usize, RunError> {
    let mut pool = Pool::default();
    for experiment in experiments {
        plan(experiment, choice, &mut pool)?;
    }
    Ok(pool.runs.len())
}

/// An experiment's scale, and for each seed its runs.
fn plan(
    experiment: &Experiment,
    choice: Choice,
    pool: &mut Pool,
) -> Result<(Option<u64>, Vec<Needs>), RunError> {
    let mut scale = None;
    let mut seeds = Vec::new();
    for nth in 0..choice.seeds {
        let mut needs = Needs::new();
        if let (Some(file), false) = (
            &experiment.file,
            matches!(experiment.kind, ExperimentKind::Waiting(_)),
        ) {
            let load = Load::new(file, choice.seed + nth, choice.scale)?;
            scale = Some(load.base().machine.scale);
            needs = pool.need((experiment.runs)(&load));
        }
        seeds.push(needs);
    }
    Ok((scale, seeds))
}

/// The results of one seed's runs. `None` if one of them is not finished.
pub(super) fn results(needs: Needs, measured: &Finished) -> Option<Results> {
    let mut by_key = BTreeMap::new();
    for (key, position) in needs {
        let result = match position {
            Ok(at) => measured.get(at)?.clone()?,
            Err(why) => Err(why),
        };
        by_key.insert(key, result);
    }
    Some(Results::new(by_key))
}
