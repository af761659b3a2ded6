//! The runs that an experiment needs, and their results.

use std::collections::BTreeMap;
use std::path::Path;

use terrace_proto::snapshot::Round;
use terrace_proto::{Command, VmId};
use terrace_sim::{
    Options, Pace, RunError, RunResult, Scenario, Simulation, Stop, Vm, VmResult, number::float,
};

use super::File;
use super::last_third::{LastThird, PerAccess};
use super::pace;
use crate::compare::simulate;

/// The first VM, as the engine knows it.
const FIRST: VmId = VmId(1);

/// An experiment's scenario as it is before variations.
pub struct Load {
    scenario: Scenario,
}

/// A run that an experiment needs.
#[derive(Clone, Debug)]
pub struct Run {
    /// The run's name within the experiment.
    pub key: String,
    /// The scenario to run, or the reason why it cannot be run.
    pub scenario: Result<Scenario, String>,
    /// Whether the first VM's rounds follow at once on each other until all of its pages are in the first tier; then
    /// it is left alone.
    pub migrate_all: bool,
    /// Slowdown of `all-slow` against `all-fast` from which the first VM's compute time is solved. `None` if it is
    /// not solved (docs of [`pace`]).
    pub all_slow: Option<f64>,
}

/// The result of a run, with what experiments measure beyond it.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The simulator's result.
    pub result: RunResult,
    /// Every round that the first VM's policy ended.
    pub rounds: Vec<Round>,
    /// Exits of the first VM without those by which the host flushes translations.
    pub exits: u64,
    /// Share of the first VM's accesses after its last round that the first tier served.
    pub late_hits: f64,
    /// Accesses a second of each VM in the last third of its operations; in all of them if it ends by the clock.
    pub late_ops_per_s: Vec<f64>,
    /// Cost of an access of the first VM in the last third of its operations; in all of them if it ends by the
    /// clock.
    pub last_third: PerAccess,
    /// Compute time of the first VM's load, ns an access.
    pub compute_ns: f64,
}

impl Load {
    /// Reads an experiment's scenario.
    ///
    /// # Errors
    /// If it is no valid scenario, or not at that scale.
    pub fn new(file: &File, seed: u64, scale: Option<u64>) -> Result<Self, RunError> {
        let wrong = |what: String| RunError(format!("scenarios/{}.toml: {what}", file.name));
        let scenario = Scenario::parse(file.text, file.name, Path::new("scenarios"));
        let mut scenario = scenario.map_err(|error| RunError(error.to_string()))?;
        scenario.seed = seed;
        if let Some(scale) = scale {
            scenario.machine.scale = scale;
            scenario.check().map_err(|fault| wrong(fault.to_string()))?;
        }
        Ok(Self { scenario })
    }

    /// The scenario as it is in the file, but for seed and scale.
    #[must_use]
    pub fn base(&self) -> &Scenario {
        &self.scenario
    }

    /// The scenario with another load of its first VM: a table as `workload` in a scenario has it.
    ///
    /// # Errors
    /// If it is no valid scenario.
    pub fn workload(&self, table: &str) -> Result<Scenario, String> {
        let text = format!(
            "[machine]\ntiers = [\"dram\", \"pmem\"]\n[[vm]]\nname = \"vm1\"\nfast = \"1TiB\"\nslow = \"1TiB\"\nworkload = {table}\n"
        );
        let other = Scenario::parse(&text, &self.scenario.name, Path::new("scenarios"));
        let other = other.map_err(|error| error.to_string())?;
        let mut scenario = self.scenario.clone();
        scenario.vms[0].workload = other.vms[0].workload.clone();
        scenario.vms[0].stop = other.vms[0].stop;
        Ok(scenario)
    }
}

/// The scenario with so much computing per access in every VM, ns.
#[must_use]
pub fn computing(scenario: &Scenario, compute_ns: f64) -> Scenario {
    let mut scenario = scenario.clone();
    for vm in &mut scenario.vms {
        let pace = vm.workload.pace();
        vm.workload = vm.workload.with_pace(Pace { compute_ns, ..pace });
    }
    scenario
}

impl Run {
    /// A run of a scenario under a name.
    #[must_use]
    pub fn new(key: impl Into<String>, scenario: Result<Scenario, String>) -> Self {
        Self {
            key: key.into(),
            scenario,
            migrate_all: false,
            all_slow: None,
        }
    }

    /// The same run, but all pages of the first VM migrate to the first tier, and nothing else is done.
    #[must_use]
    pub fn migrating(self) -> Self {
        Self {
            migrate_all: true,
            ..self
        }
    }

    /// The same run with the first VM's compute time solved from the slowdown of `all-slow`.
    #[must_use]
    pub fn solved(self, all_slow: f64) -> Self {
        Self {
            all_slow: Some(all_slow),
            ..self
        }
    }

    /// Whether two runs are the same but for their names.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        let (Ok(one), Ok(two)) = (&self.scenario, &other.scenario) else {
            return false;
        };
        let mut named = two.clone();
        named.name.clone_from(&one.name);
        *one == named && self.migrate_all == other.migrate_all && self.all_slow == other.all_slow
    }

    /// Does the run. `None` if it was told to end.
    ///
    /// # Errors
    /// If the scenario cannot be run.
    pub fn measure(&self, report: &dyn Fn(f64) -> bool) -> Result<Option<Measured>, RunError> {
        let mut scenario = self.scenario.clone().map_err(RunError)?;
        if let Some(all_slow) = self.all_slow {
            let Some(solved) = pace::solve(&scenario, all_slow, report)? else {
                return Ok(None);
            };
            scenario = solved;
        }
        let mut rounds: Vec<Round> = Vec::new();
        let (mut exits, mut now, mut then) = (0, (0, 0), (0, 0));
        let mut late = Late::new(&scenario);
        let mut third = LastThird::new(&scenario);
        let mut watch = |simulation: &mut Simulation| {
            late.update(simulation);
            third.update(simulation);
            exits = simulation.exits_without_flushes(FIRST);
            now = simulation.memory_accesses(FIRST);
            let last = simulation.engine().last_round(FIRST);
            let new =
                last.filter(|last| rounds.last().is_none_or(|seen| seen.number < last.number));
            let Some(round) = new.cloned() else { return };
            if self.migrate_all {
                simulation.command(if round.promoted_pages > 0 {
                    Command::RoundNow(FIRST)
                } else {
                    Command::Pause(Some(FIRST))
                });
            }
            then = now;
            rounds.push(round);
        };
        let output = simulate(&scenario, Options::default(), report, &mut watch)?;
        Ok(output.map(|output| Measured {
            late_ops_per_s: late.ops_per_s(&output.result),
            last_third: third.per_access(output.result.vms[0].runtime_s, output.result.scale),
            result: output.result,
            rounds,
            exits,
            late_hits: float(now.1 - then.1) / float((now.0 - then.0).max(1)),
            compute_ns: scenario.vms[0].workload.pace().compute_ns,
        }))
    }
}

/// Progress of each VM when it had two thirds of its operations behind it.
struct Late {
    /// Accesses of a third, as simulated. `None` for a VM that ends by the clock.
    thirds: Vec<Option<u64>>,
    /// Accesses as simulated, and s of the full-size machine, at that moment.
    seen: Vec<Option<(u64, f64)>>,
    all: Vec<u64>,
}

impl Late {
    fn new(scenario: &Scenario) -> Self {
        let third = |vm: &Vm| match vm.stop {
            Stop::Ops(ops) => Some(ops / scenario.machine.scale / 3),
            Stop::Duration(_) | Stop::Trace => None,
        };
        let vms = scenario.vms.len();
        Self {
            thirds: scenario.vms.iter().map(third).collect(),
            seen: vec![None; vms],
            all: vec![0; vms],
        }
    }

    fn update(&mut self, simulation: &Simulation) {
        let vms = (1..).map(VmId).zip(&self.thirds);
        for ((vm, third), (seen, all)) in vms.zip(self.seen.iter_mut().zip(&mut self.all)) {
            *all = simulation.accesses(vm);
            let late = third.is_some_and(|third| *all >= 2 * third);
            if late && seen.is_none() {
                *seen = Some((*all, float(simulation.now().0) / 1e9));
            }
        }
    }

    fn ops_per_s(&self, result: &RunResult) -> Vec<f64> {
        let mut rates = Vec::new();
        for (i, vm) in result.vms.iter().enumerate() {
            rates.push(match self.seen[i] {
                Some((then, at)) if vm.runtime_s > at => {
                    float((self.all[i] - then) * result.scale) / (vm.runtime_s - at)
                }
                _ => vm.ops_per_s,
            });
        }
        rates
    }
}

impl Measured {
    /// The first VM's result.
    ///
    /// # Errors
    /// If no VM ran.
    pub fn vm(&self) -> Result<&VmResult, String> {
        self.result.vms.first().ok_or_else(|| "no VM ran".into())
    }
}

/// The results of an experiment's runs for one seed.
#[derive(Debug, Default)]
pub struct Results {
    by_key: BTreeMap<String, Result<Measured, String>>,
}

impl Results {
    /// The results by name.
    #[must_use]
    pub fn new(by_key: BTreeMap<String, Result<Measured, String>>) -> Self {
        Self { by_key }
    }

    /// The result of the run of that name.
    ///
    /// # Errors
    /// The reason why there is no result.
    pub fn get(&self, key: &str) -> Result<&Measured, String> {
        match self.by_key.get(key) {
            Some(Ok(measured)) => Ok(measured),
            Some(Err(why)) => Err(why.clone()),
            None => Err(format!("no run is called \"{key}\"")),
        }
    }

    /// How much longer one run's first VM takes for the same work than another's: 1 is equal.
    ///
    /// # Errors
    /// If the result of one of them is missing.
    pub fn slowdown(&self, key: &str, reference: &str) -> Result<f64, String> {
        let (one, two) = (self.get(key)?.vm()?, self.get(reference)?.vm()?);
        Ok(two.ops_per_s / one.ops_per_s)
    }

    /// [`Results::slowdown`] as the additional time, %: 0 is equal.
    ///
    /// # Errors
    /// As [`Results::slowdown`].
    pub fn slower_percent(&self, key: &str, reference: &str) -> Result<f64, String> {
        Ok((self.slowdown(key, reference)? - 1.0) * 100.0)
    }

    /// How much faster one run's first VM is than another's, %.
    ///
    /// # Errors
    /// As [`Results::slowdown`].
    pub fn faster_percent(&self, key: &str, than: &str) -> Result<f64, String> {
        Ok((self.slowdown(than, key)? - 1.0) * 100.0)
    }
}
