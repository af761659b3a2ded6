//! A simulation: one scenario on one machine, step by step or to its end.

use terrace_core::Engine;
use terrace_proto::{Command, Tick};

use crate::result::RunResult;
use crate::scenario::Scenario;
use crate::timeline::Timeline;

/// How a scenario is run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Time between samples of the timeline: ns of the full-size machine; 0: no timeline is kept.
    pub sample_every_ns: u64,
    /// Cells of memory per sample's heat; 0: none.
    pub heat_cells: usize,
}

/// A scenario that cannot be run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(pub String);

/// A finished run.
#[derive(Clone, Debug)]
pub struct Output {
    /// What it says.
    pub result: RunResult,
    /// How it went.
    pub timeline: Timeline,
}

/// A simulation under way.
pub struct Simulation;

impl Simulation {
    /// Sets the machine up; no time passes.
    ///
    /// # Errors
    /// Where something does not fit, or a file cannot be read.
    pub fn new(_scenario: &Scenario, _options: Options) -> Result<Self, RunError> {
        Err(RunError("not yet".into()))
    }

    /// Goes on until that time (ns of the full-size machine since the start) or the end of all loads;
    /// says whether some load still runs.
    pub fn advance(&mut self, _until_ns: u64) -> bool {
        false
    }

    /// Time of the full-size machine since the start, as the engine sees it.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(0)
    }

    /// How much of the longest load is done, 0 to 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        0.0
    }

    /// The engine: the VMs that it manages have the numbers of the scenario's order, from 1.
    #[must_use]
    pub fn engine(&self) -> &Engine {
        unreachable!()
    }

    /// Passes an operator's wish to the engine.
    pub fn command(&mut self, _command: Command) {}

    /// How it went so far.
    #[must_use]
    pub fn timeline(&self) -> &Timeline {
        unreachable!()
    }

    /// The result so far; `slowdown_vs_all_fast`, `wall_s` and `accesses_per_wall_s` are the caller's.
    #[must_use]
    pub fn result(&self) -> RunResult {
        unreachable!()
    }
}
