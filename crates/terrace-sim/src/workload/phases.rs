//! `phases`: loads one after another, in the same memory.

use std::path::Path;

use toml::{Table, Value};

use super::load::Draft;
use super::sequential::slice;
use super::values::from_usize;
use super::{Context, Workload, WorkloadError, WorkloadKind};
use crate::base::access::{Access, Pace, Source};
use crate::base::load::Stop;

/// The keys of `phases`: loads and the end of each, if it has one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Phases {
    of: Vec<(Workload, Option<Stop>)>,
    /// Whether the phases start again after the last.
    repeats: bool,
    /// Whether each phase is a program of its own, whose memory ends with it.
    fresh: bool,
}

impl Phases {
    pub(super) fn new(mut table: Table) -> Result<Self, String> {
        let of = table.remove("of");
        let fresh = match table.remove("fresh") {
            None => false,
            Some(Value::Boolean(fresh)) => fresh,
            Some(other) => return Err(format!("fresh = {other}: allowed is true or false")),
        };
        if let Some(key) = table.keys().next() {
            return Err(format!(
                "unknown field `{key}`, expected `of`, `fresh`, `duration` or `ops`: all else belongs to a phase"
            ));
        }
        let Some(Value::Array(loads)) = of else {
            return Err("it needs of = [ … ], a list of loads".into());
        };
        if loads.is_empty() {
            return Err("of is an empty list: allowed is one load or more".into());
        }
        let phase = |(number, load): (usize, Value)| {
            let named = |why: String| format!("phase {}: {why}", number + 1);
            let Value::Table(table) = load else {
                return Err(named(format!("{load} is no load")));
            };
            let draft = Draft::new(table).map_err(|why| named(why.0))?;
            if let WorkloadKind::Masim(_) | WorkloadKind::Trace(_) | WorkloadKind::Phases(_) =
                draft.workload.kind
            {
                let kind = draft.kind;
                return Err(named(format!(
                    "a load of kind {kind:?} cannot be a phase: it has its own course"
                )));
            }
            Ok((draft.workload, draft.own))
        };
        let of: Result<_, _> = loads.into_iter().enumerate().map(phase).collect();
        Ok(Self {
            of: of?,
            repeats: false,
            fresh,
        })
    }

    /// Whether each phase is a program of its own.
    pub(super) fn frees_memory(&self) -> bool {
        self.fresh
    }

    /// Whether a phase ends by the clock.
    pub(super) fn is_timed(&self) -> bool {
        let mut stops = self.of.iter().map(|(_, stop)| stop);
        stops.any(|stop| matches!(stop, Some(Stop::Duration(_))))
    }

    /// Pages of the first phase, if each phase is a program of its own.
    pub(super) fn first_program(
        &self,
        scale: u64,
        folder: &Path,
    ) -> Result<Option<u64>, WorkloadError> {
        match self.of.first().filter(|_| self.fresh) {
            Some((workload, _)) => workload.pages(scale, folder).map(Some),
            None => Ok(None),
        }
    }

    /// Sets the end of each phase and returns the end of all. If only the whole has an end, phases have equal parts
    /// of it; if both have, the phases start again until the whole ends.
    pub(super) fn settle(&mut self, whole: Option<Stop>) -> Result<Stop, WorkloadError> {
        let count = from_usize(self.of.len());
        let silent = self.of.iter().filter(|(_, stop)| stop.is_none()).count();
        let wrong = |why: String| WorkloadError(format!("workload of kind \"phases\": {why}"));
        if silent == 0 {
            self.repeats = whole.is_some();
            return Ok(whole.unwrap_or(Stop::Trace));
        }
        if silent < self.of.len() {
            return Err(wrong(
                "some phases say when they end and some don't: give all a duration or ops, or none \
                 and the whole one"
                    .into(),
            ));
        }
        let equal = match whole {
            Some(Stop::Duration(ns)) if ns >= count => Stop::Duration(ns.div_ceil(count)),
            Some(Stop::Ops(ops)) if ops >= count => Stop::Ops(ops.div_ceil(count)),
            Some(_) => return Err(wrong(format!("too short for {count} phases"))),
            None => {
                return Err(wrong(
                    "it does not say when phases end: give each, or the whole, duration = \"600s\" or \
                     ops = 1000000"
                        .into(),
                ));
            }
        };
        for (_, stop) in &mut self.of {
            *stop = Some(equal);
        }
        // Parts are rounded up, so that the last phase lasts until the end.
        Ok(whole.unwrap_or(equal))
    }

    /// The ends of the phases, once they are settled.
    pub(super) fn ends(&self) -> impl Iterator<Item = Stop> {
        self.of.iter().filter_map(|(_, stop)| *stop)
    }

    pub(super) fn pages(&self, scale: u64, folder: &Path) -> Result<u64, WorkloadError> {
        let mut most = 0;
        for (workload, _) in &self.of {
            most = most.max(workload.pages(scale, folder)?);
        }
        Ok(most)
    }

    pub(super) fn sources(&self, context: &Context) -> Result<Vec<Box<dyn Source>>, WorkloadError> {
        let mut phases: Vec<Vec<Phase>> = (0..context.vcpus).map(|_| Vec::new()).collect();
        for (number, (workload, stop)) in (0..).zip(&self.of) {
            let sources = workload.sources(context)?;
            for ((vcpu, phases), source) in (0..).zip(&mut phases).zip(sources) {
                let end = match stop {
                    Some(Stop::Duration(ns)) => End::After(*ns),
                    Some(Stop::Ops(ops)) => {
                        let (first, next) = slice(ops.div_ceil(context.scale), vcpu, context.vcpus);
                        End::Accesses(next - first)
                    }
                    Some(Stop::Trace) | None => End::Accesses(0),
                };
                if !matches!(end, End::Accesses(0)) {
                    phases.push(Phase {
                        source,
                        end,
                        number,
                    });
                }
            }
        }
        let programs = self.fresh.then_some(from_usize(self.of.len()));
        let run = |phases| Box::new(Run::new(phases, self.repeats, programs)) as Box<dyn Source>;
        Ok(phases.into_iter().map(run).collect())
    }
}

/// The end of a phase on a vCPU.
#[derive(Clone, Copy)]
enum End {
    /// A time after its start, ns.
    After(u64),
    /// A number of accesses, at least one.
    Accesses(u64),
}

struct Phase {
    /// The source in its state at the phase's start.
    source: Box<dyn Source>,
    end: End,
    /// The phase's place among all, from 0.
    number: u64,
}

impl Clone for Phase {
    fn clone(&self) -> Self {
        Self {
            source: self.source.fork(),
            ..*self
        }
    }
}

/// The phases of one vCPU under way.
struct Run {
    phases: Vec<Phase>,
    repeats: bool,
    /// Number of phases of all vCPUs, if each is a program of its own.
    programs: Option<u64>,
    /// Number of times that the phases started again.
    turns: u64,
    /// The index of the phase that comes or is under way.
    phase: usize,
    /// The phase's source, once it has given something.
    source: Option<Box<dyn Source>>,
    started: u64,
    /// Number of accesses that the source gave.
    given: u64,
    pace: Pace,
}

impl Clone for Run {
    fn clone(&self) -> Self {
        Self {
            phases: self.phases.clone(),
            source: self.source.as_ref().map(|source| source.fork()),
            ..*self
        }
    }
}

impl Run {
    fn new(phases: Vec<Phase>, repeats: bool, programs: Option<u64>) -> Self {
        let idle = Pace {
            compute_ns: 0.0,
            parallelism: 1.0,
            before_cache: false,
        };
        Self {
            pace: phases.first().map_or(idle, |phase| phase.source.pace()),
            phases,
            repeats,
            programs,
            turns: 0,
            phase: 0,
            source: None,
            started: 0,
            given: 0,
        }
    }
}

impl Source for Run {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) -> usize {
        loop {
            if self.phase == self.phases.len() && self.repeats {
                self.phase = 0;
                self.turns += 1;
            }
            let Some(phase) = self.phases.get(self.phase) else {
                return 0;
            };
            let passed = now_ns.saturating_sub(self.started);
            let (left, ended) = match phase.end {
                End::After(ns) if passed < ns => (u64::MAX, 0),
                End::After(ns) => (0, self.started + ns),
                End::Accesses(accesses) => (accesses - self.given, now_ns),
            };
            if left > 0 {
                let room = usize::try_from(left).map_or(batch.len(), |left| left.min(batch.len()));
                let source = self.source.get_or_insert_with(|| phase.source.fork());
                let given = source.fill(passed, &mut batch[..room]);
                self.given += from_usize(given);
                self.pace = source.pace();
                return given;
            }
            self.started = ended;
            self.given = 0;
            self.source = None;
            self.phase += 1;
        }
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn program(&self) -> u64 {
        let phase = self.phases.get(self.phase).map_or(0, |phase| phase.number);
        self.programs.map_or(0, |all| self.turns * all + phase)
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}
