//! Runs side by side: one scenario under several policies and sizes of the first tier.
//!
//! Responsible for: which runs there are, running them on several threads (each run on one), and each
//! VM's slowdown against the run in which every VM is `all-fast`. Results come in the order of the
//! plan, whatever the order in which runs end. It leaves to others: a run itself ([`terrace_sim::Simulation`]).

pub mod sensitivity;
pub mod way;

use std::num::NonZeroUsize;
use std::str::FromStr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use terrace_sim::{
    Fault, HostPolicy, Options, Output, RunError, RunResult, Scenario, Simulation, Sweep,
    number::float, quantity,
};

/// Most values of a sweep.
const MAX_POINTS: usize = 1000;

/// Time between a run's looks at whether it should end: ns of the full-size machine.
const STEP_NS: u64 = 50_000_000;

/// Sizes of the first tier: `fast=A..B`, doubling, or `fast=A..B:STEP`. `B` is one of them if the steps meet it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastSweep {
    values: Vec<u64>,
}

impl FromStr for FastSweep {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.strip_prefix("fast=");
        let (from, to) = range
            .and_then(|range| range.split_once(".."))
            .ok_or_else(|| {
                format!(
                    "\"{text}\" is no sweep: write fast=A..B or fast=A..B:STEP, as fast=2GiB..16GiB"
                )
            })?;
        let (to, step) = match to.split_once(':') {
            Some((to, step)) => (to, Some(quantity::size(step)?)),
            None => (to, None),
        };
        let (from, to) = (quantity::size(from)?, quantity::size(to)?);
        if from == 0 || from > to || step == Some(0) {
            return Err(format!(
                "\"{text}\" has no values: A is above 0 and at most B, STEP above 0"
            ));
        }
        let mut values = Vec::new();
        let mut next = Some(from);
        while let Some(value) = next.filter(|value| *value <= to) {
            if values.len() == MAX_POINTS {
                return Err(format!(
                    "\"{text}\" has more than {MAX_POINTS} values: choose a larger step"
                ));
            }
            values.push(value);
            next = value.checked_add(step.unwrap_or(value));
        }
        Ok(Self { values })
    }
}

/// The place of a run among others.
#[derive(Clone, Debug, Default)]
struct Place {
    sweep: Option<Sweep>,
    /// The rule by which the host shares memory.
    share: Option<String>,
    /// The change of the machine's model.
    model: Option<String>,
}

/// One run of a plan.
#[derive(Debug)]
struct Job {
    scenario: Scenario,
    /// The policy as it was asked for, if it replaces the scenario's.
    policy: Option<String>,
    place: Place,
    /// Whether it was asked for; else it is a reference alone.
    wanted: bool,
    /// The job of the same scenario with every VM `all-fast`.
    reference: usize,
}

/// The runs that are to be done.
#[derive(Debug)]
pub struct Plan {
    jobs: Vec<Job>,
}

/// The progress of a plan.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Runs that are finished, references included.
    pub finished: usize,
    /// All runs.
    pub runs: usize,
    /// Part of the work that is done, 0 to 1.
    pub done: f64,
}

/// The way in which a plan is carried out.
pub struct Control<'a> {
    /// Runs at the same time.
    pub threads: NonZeroUsize,
    /// Called often, from any thread.
    pub on_progress: &'a (dyn Fn(Progress) + Sync),
    /// Flag that ends the plan early: finished runs are kept.
    pub cancelled: &'a AtomicBool,
}

/// The result of a plan.
#[derive(Clone, Debug)]
pub struct Finished {
    /// The finished runs in the plan's order, without those that are references alone.
    pub runs: Vec<Output>,
    /// Number of runs that were asked for.
    pub wanted: usize,
}

impl Plan {
    /// The scenario as it is, or under another policy.
    ///
    /// # Errors
    /// If the policy is unknown, or does not suit the scenario.
    pub fn single(scenario: &Scenario, policy: Option<&str>) -> Result<Self, RunError> {
        let variant = match policy {
            Some(name) => named(scenario, name)?,
            None => (None, scenario.clone()),
        };
        let mut plan = Self { jobs: Vec::new() };
        plan.add(scenario, vec![variant], Place::default());
        Ok(plan)
    }

    /// The scenario under each policy, for each size of the first tier. A policy replaces those of all VMs; a size
    /// replaces those of all VMs, and their last tier makes up for the difference, so that their memory stays what it
    /// is. The machine's memory beyond the VMs stays too. With `first-touch`, `static-best` is run too.
    ///
    /// # Errors
    /// If a policy is unknown, or a size does not suit the scenario.
    pub fn compare(
        scenario: &Scenario,
        policies: &[String],
        sweep: Option<&FastSweep>,
    ) -> Result<Self, RunError> {
        let mut plan = Self { jobs: Vec::new() };
        plan.add_sizes(scenario, policies, sweep, None)?;
        Ok(plan)
    }

    /// The scenario under each policy and each rule by which the host shares memory, for each size of the first tier.
    ///
    /// # Errors
    /// If a policy or a rule is unknown, or one of them or a size does not suit the scenario.
    pub fn over_shares(
        scenario: &Scenario,
        policies: &[String],
        shares: &[String],
        sweep: Option<&FastSweep>,
    ) -> Result<Self, RunError> {
        let mut plan = Self { jobs: Vec::new() };
        for share in shares {
            let scenario = scenario.with_share(share);
            let scenario = scenario.map_err(|fault| RunError(fault.to_string()))?;
            plan.add_sizes(&scenario, policies, sweep, Some(share))?;
        }
        Ok(plan)
    }

    /// Adds the runs of a scenario under each policy, for each size of the first tier. `share`: the rule by which it shares
    /// memory, if rules are compared.
    fn add_sizes(
        &mut self,
        scenario: &Scenario,
        policies: &[String],
        sweep: Option<&FastSweep>,
        share: Option<&String>,
    ) -> Result<(), RunError> {
        let place = Place {
            share: share.cloned(),
            ..Place::default()
        };
        let Some(sweep) = sweep else {
            self.add(scenario, variants(scenario, policies)?, place);
            return Ok(());
        };
        for bytes in sweep.values.iter().copied() {
            let wrong = |fault: Fault| {
                let size = quantity::size_text(bytes);
                RunError(format!("sweep, fast={size}: {fault}"))
            };
            let scenario = scenario.with_fast(bytes).map_err(wrong)?;
            let place = Place {
                sweep: Some(Sweep {
                    key: "fast".into(),
                    bytes,
                }),
                ..place.clone()
            };
            self.add(&scenario, variants(&scenario, policies)?, place);
        }
        Ok(())
    }

    /// The scenario under each policy, as written and on every other model of the machine ([`Scenario::models`]). A model on
    /// which a policy cannot run is left out.
    ///
    /// # Errors
    /// If a policy is unknown, or does not suit the scenario as written.
    pub fn over_models(scenario: &Scenario, policies: &[String]) -> Result<Self, RunError> {
        let mut plan = Self::compare(scenario, policies, None)?;
        for (name, scenario) in scenario.models() {
            if let Ok(variants) = variants(&scenario, policies) {
                let place = Place {
                    model: Some(name),
                    ..Place::default()
                };
                plan.add(&scenario, variants, place);
            }
        }
        Ok(plan)
    }

    /// Number of runs that were asked for.
    #[must_use]
    pub fn wanted(&self) -> usize {
        self.jobs.iter().filter(|job| job.wanted).count()
    }

    /// Runs of one scenario under several policies, with the reference before them unless one of them
    /// is it.
    fn add(
        &mut self,
        scenario: &Scenario,
        variants: Vec<(Option<String>, Scenario)>,
        place: Place,
    ) {
        let job = |(policy, scenario)| Job {
            scenario,
            policy,
            place: place.clone(),
            wanted: true,
            reference: 0,
        };
        let mut jobs: Vec<Job> = variants.into_iter().map(job).collect();
        let all_fast = |job: &Job| {
            let vms = &job.scenario.vms;
            vms.iter().all(|vm| vm.policy == HostPolicy::AllFast)
        };
        let reference = jobs.iter().position(all_fast);
        if reference.is_none() {
            let job = Job {
                scenario: scenario.all_fast(),
                policy: None,
                place: Place::default(),
                wanted: false,
                reference: 0,
            };
            jobs.insert(0, job);
        }
        let reference = self.jobs.len() + reference.unwrap_or(0);
        self.jobs
            .extend(jobs.into_iter().map(|job| Job { reference, ..job }));
    }

    /// Runs everything. `options` are for the runs that were asked for.
    ///
    /// # Errors
    /// The error of a run that cannot be done, the first in the plan's order if there are several; then nothing is told of
    /// the others.
    pub fn run(&self, options: Options, control: &Control) -> Result<Finished, RunError> {
        self.run_by(control, |job, report| {
            let options = if job.wanted {
                options
            } else {
                Options::default()
            };
            simulate(&job.scenario, options, report, &mut |_| {})
        })
    }

    /// [`Plan::run`] with any function that runs one job. The function gets a callback that takes its progress and
    /// says whether to go on; it returns `None` if it was told to end.
    fn run_by<F>(&self, control: &Control, simulate: F) -> Result<Finished, RunError>
    where
        F: Fn(&Job, &dyn Fn(f64) -> bool) -> Result<Option<Output>, RunError> + Sync,
    {
        let outputs = each(&self.jobs, control, |job| job.scenario.work(), simulate)?;
        Ok(self.finished(outputs))
    }

    fn finished(&self, outputs: Vec<Option<Output>>) -> Finished {
        let references: Vec<Option<RunResult>> = self
            .jobs
            .iter()
            .map(|job| {
                outputs[job.reference]
                    .as_ref()
                    .map(|output| output.result.clone())
            })
            .collect();
        let mut runs: Vec<(usize, Output)> = Vec::new();
        for ((job, output), reference) in self.jobs.iter().zip(outputs).zip(references) {
            let Some(mut output) = output.filter(|_| job.wanted) else {
                continue;
            };
            let result = &mut output.result;
            if let Some(policy) = &job.policy {
                result.policy.clone_from(policy);
            }
            result.sweep.clone_from(&job.place.sweep);
            result.share.clone_from(&job.place.share);
            result.model.clone_from(&job.place.model);
            if let Some(reference) = reference {
                compare_vms(&job.scenario, result, &reference);
            }
            runs.push((job.reference, output));
        }
        for same in runs.chunk_by_mut(|(a, _), (b, _)| a == b) {
            let results = same.iter_mut().map(|(_, output)| &mut output.result);
            way::fill_in(&mut results.collect::<Vec<_>>());
        }
        Finished {
            runs: runs.into_iter().map(|(_, output)| output).collect(),
            wanted: self.wanted(),
        }
    }
}

/// A scenario under each policy, and under `static-best` if `first-touch` is among them and `static-best` suits the
/// scenario: nobody asked for it.
fn variants(
    scenario: &Scenario,
    policies: &[String],
) -> Result<Vec<(Option<String>, Scenario)>, RunError> {
    let [first_touch, best] = way::ENDS;
    let has = |name: &str| policies.iter().any(|policy| policy == name);
    let mut all = policies
        .iter()
        .map(|policy| named(scenario, policy))
        .collect::<Result<Vec<_>, _>>()?;
    if has(first_touch) && !has(best) {
        all.extend(named(scenario, best));
    }
    Ok(all)
}

/// A scenario under a policy, with the policy's name.
fn named(scenario: &Scenario, policy: &str) -> Result<(Option<String>, Scenario), RunError> {
    let variant = scenario.with_policy(policy);
    let variant = variant.map_err(|fault| RunError(fault.to_string()))?;
    Ok((Some(policy.into()), variant))
}

/// Does every job, each on one thread, those with the most `work` first: a long one that begins last would leave the
/// other threads idle. A job that was not finished before the end was asked for is `None`.
///
/// # Errors
/// That of the first job in order that failed.
pub(crate) fn each<J, T, F>(
    jobs: &[J],
    control: &Control,
    work: impl Fn(&J) -> f64,
    one: F,
) -> Result<Vec<Option<T>>, RunError>
where
    J: Sync,
    T: Send,
    F: Fn(&J, &dyn Fn(f64) -> bool) -> Result<Option<T>, RunError> + Sync,
{
    let board = Board::new(jobs.len(), control);
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by(|a, b| work(&jobs[*b]).total_cmp(&work(&jobs[*a])));
    let next = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<T, RunError>>>> =
        jobs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..control.threads.get().min(jobs.len()) {
            scope.spawn(|| {
                while !board.ended() {
                    let turn = next.fetch_add(1, Ordering::Relaxed);
                    let Some(&i) = order.get(turn) else { return };
                    let result = one(&jobs[i], &|done| board.report(i, done));
                    if result.is_err() {
                        board.failed.store(true, Ordering::Relaxed);
                    }
                    if let (Some(result), Ok(mut slot)) = (result.transpose(), results[i].lock()) {
                        *slot = Some(result);
                        board.finish(i);
                    }
                }
            });
        }
    });
    let results = results
        .into_iter()
        .map(|slot| slot.into_inner().ok().flatten());
    results.map(Option::transpose).collect()
}

/// The progress of all jobs, for those who wait.
struct Board<'a> {
    control: &'a Control<'a>,
    finished: AtomicUsize,
    failed: AtomicBool,
    /// Part that is done of each job: an `f64`'s bits.
    done: Vec<AtomicU64>,
}

impl<'a> Board<'a> {
    fn new(jobs: usize, control: &'a Control<'a>) -> Self {
        Self {
            control,
            finished: AtomicUsize::new(0),
            failed: AtomicBool::new(false),
            done: (0..jobs).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    fn ended(&self) -> bool {
        self.failed.load(Ordering::Relaxed) || self.control.cancelled.load(Ordering::Relaxed)
    }

    fn finish(&self, job: usize) {
        self.finished.fetch_add(1, Ordering::Relaxed);
        self.report(job, 1.0);
    }

    /// Notes how far a job is; returns whether it should go on.
    fn report(&self, job: usize, done: f64) -> bool {
        self.done[job].store(done.to_bits(), Ordering::Relaxed);
        let parts = self
            .done
            .iter()
            .map(|d| f64::from_bits(d.load(Ordering::Relaxed)));
        let (mut sum, mut number) = (0.0, 0.0);
        for part in parts {
            sum += part;
            number += 1.0;
        }
        (self.control.on_progress)(Progress {
            finished: self.finished.load(Ordering::Relaxed),
            runs: self.done.len(),
            done: sum / number,
        });
        !self.ended()
    }
}

/// One run, to its end unless told otherwise. `watch` sees the simulation every 50 ms and at its end.
pub(crate) fn simulate(
    scenario: &Scenario,
    options: Options,
    report: &dyn Fn(f64) -> bool,
    watch: &mut dyn FnMut(&mut Simulation),
) -> Result<Option<Output>, RunError> {
    let profiles = if scenario.needs_profiles() {
        let profiled = Options {
            profile: true,
            quantum_divisor: options.quantum_divisor,
            ..Options::default()
        };
        let mut all_fast = Simulation::new(&scenario.all_fast(), profiled)?;
        // The bar stands still: the run itself is still to come.
        if !to_the_end(&mut all_fast, &|_| report(0.0), &mut |_| {}) {
            return Ok(None);
        }
        all_fast.profiles()
    } else {
        None
    };
    let start = Instant::now();
    let mut simulation = match &profiles {
        Some(profiles) => Simulation::with_profiles(scenario, options, profiles)?,
        None => Simulation::new(scenario, options)?,
    };
    if !to_the_end(&mut simulation, report, watch) {
        return Ok(None);
    }
    let mut result = simulation.result();
    result.wall_s = start.elapsed().as_secs_f64();
    result.accesses_per_wall_s = float(result.accesses) / result.wall_s;
    Ok(Some(Output {
        result,
        timeline: simulation.timeline().clone(),
    }))
}

/// Runs a simulation to its end; returns whether it was not told to stop before.
fn to_the_end(
    simulation: &mut Simulation,
    report: &dyn Fn(f64) -> bool,
    watch: &mut dyn FnMut(&mut Simulation),
) -> bool {
    let mut until = STEP_NS;
    while simulation.advance(until) {
        watch(simulation);
        if !report(simulation.progress()) {
            return false;
        }
        until += STEP_NS;
    }
    watch(simulation);
    true
}

/// Fills in how each VM compares with the reference: its slowdown (of run times, or of operations per second if the
/// time was given) and its performance per cost.
fn compare_vms(scenario: &Scenario, result: &mut RunResult, reference: &RunResult) {
    let vms = result.vms.iter_mut().zip(&reference.vms);
    for ((vm, reference), description) in vms.zip(&scenario.vms) {
        let slowdown = if description.is_timed() {
            reference.ops_per_s / vm.ops_per_s
        } else {
            vm.runtime_s / reference.runtime_s
        };
        vm.slowdown_vs_all_fast = Some(slowdown).filter(|s| s.is_finite());
        let per_cost = vm
            .cost
            .zip(reference.cost)
            .map(|(cost, all)| all / cost / slowdown);
        vm.performance_per_cost = per_cost.filter(|p| p.is_finite());
    }
}

#[cfg(test)]
mod tests;
