//! `terrace sim run`, `compare` and `list`; `judge`, `replay` and `repro` have files of their own.

mod demand;
mod judge;
mod list;
mod predict;
mod progress;
mod repro;
mod sensitivity;
mod size_line;
mod sizes;
pub mod table;

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail, ensure};
use serde::Serialize;
use terrace_repro::choice::{self, Choice};
use terrace_repro::compare::sensitivity::Sensitivity;
use terrace_repro::compare::{Control, Finished, Plan};
use terrace_sim::{Options, RunResult, Scenario, Stop};

use crate::args::sim::{Output, Sim};
use crate::output::{self, files, is_standard, print};
use progress::Bar;

/// Samples of a run's timeline if its length is known beforehand.
const SAMPLES: u64 = 240;

/// Time between samples if it is not, ns.
const SAMPLE_NS: u64 = 1_000_000_000;

/// Cells of memory in a picture of heat.
const HEAT_CELLS: usize = 128;

/// The output of `compare`.
#[derive(Serialize)]
struct Runs<'a> {
    /// The cheapest size within the VMs' bounds for each policy of a sweep, if a VM states its bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    choices: Vec<Choice>,
    /// The orders of policies over models of the machine, if they were run.
    #[serde(skip_serializing_if = "Option::is_none")]
    sensitivity: Option<Sensitivity>,
    runs: Vec<&'a RunResult>,
}

pub fn run(command: &Sim) -> Result<ExitCode> {
    match command {
        Sim::Run {
            file,
            policy,
            output,
        } => {
            let scenario = load(file, output)?;
            let plan = Plan::single(&scenario, policy.as_deref())?;
            carry_out(&scenario, &plan, None, output, |runs| {
                serde_json::to_string_pretty(&runs.first())
            })
        }
        Sim::Compare {
            file,
            policies,
            shares,
            sweep,
            sensitivity,
            jobs,
            output,
        } => {
            let scenario = load(file, output)?;
            let plan = if *sensitivity {
                Plan::over_models(&scenario, policies)?
            } else if !shares.is_empty() {
                Plan::over_shares(&scenario, policies, shares, sweep.as_ref())?
            } else {
                Plan::compare(&scenario, policies, sweep.as_ref())?
            };
            carry_out(&scenario, &plan, *jobs, output, |runs| {
                serde_json::to_string_pretty(&Runs {
                    choices: choice::choices(&runs),
                    sensitivity: Sensitivity::of(&runs),
                    runs,
                })
            })
        }
        Sim::Judge(args) => judge::run(args),
        Sim::Replay(replay) => super::replay::run(replay),
        Sim::Repro(args) => repro::run(args),
        Sim::List { json } => {
            list::run(*json)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Reads the scenario.
fn load(file: &Path, output: &Output) -> Result<Scenario> {
    let mut scenario = Scenario::load(file)?;
    if let Some(seed) = output.seed {
        scenario.seed = seed;
    }
    let outputs = [&output.json, &output.html, &output.svg];
    can_be_written(&inputs(&scenario, file), &outputs)?;
    Ok(scenario)
}

/// The files that a scenario is read from.
fn inputs(scenario: &Scenario, file: &Path) -> Vec<PathBuf> {
    let loads = scenario.vms.iter().filter_map(|vm| vm.workload.file());
    let loads = loads.map(|load| scenario.folder.join(load));
    loads.chain([file.to_owned()]).collect()
}

/// Checks that the outputs can be written, and not over inputs or each other. The result of a long run must not be lost
/// for want of a folder.
fn can_be_written(inputs: &[PathBuf], outputs: &[&Option<PathBuf>]) -> Result<()> {
    let outputs = outputs.iter().copied().flatten();
    files::check_apart(
        inputs.iter().map(PathBuf::as_path),
        outputs.clone().map(PathBuf::as_path),
    )?;
    for out in outputs.filter(|out| !is_standard(out)) {
        let folder = out.parent().filter(|f| !f.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        ensure!(
            folder.is_dir() && !out.is_dir(),
            "{}: cannot be written: its folder must be there, and it must be no folder",
            out.display()
        );
    }
    Ok(())
}

fn carry_out(
    scenario: &Scenario,
    plan: &Plan,
    jobs: Option<NonZeroUsize>,
    output: &Output,
    json: impl Fn(Vec<&RunResult>) -> serde_json::Result<String>,
) -> Result<ExitCode> {
    let processors = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let cancelled = on_interrupt()?;
    let bar = Bar::new(output.quiet);
    let finished = plan.run(
        options(scenario, output),
        &Control {
            threads: jobs.unwrap_or(processors),
            on_progress: &|progress| bar.show(progress),
            cancelled: &cancelled,
        },
    );
    bar.clear();
    let finished = finished?;
    let interrupted = finished.runs.len() < finished.wanted;
    if !finished.runs.is_empty() {
        write(scenario, &finished, output, json)?;
    }
    if !interrupted {
        return Ok(ExitCode::SUCCESS);
    }
    let (done, wanted) = (finished.runs.len(), finished.wanted);
    output::tell(format_args!(
        "terrace: interrupted: {done} of {wanted} runs were finished"
    ));
    Ok(ExitCode::from(130))
}

fn write(
    scenario: &Scenario,
    finished: &Finished,
    output: &Output,
    json: impl Fn(Vec<&RunResult>) -> serde_json::Result<String>,
) -> Result<()> {
    let results: Vec<&RunResult> = finished.runs.iter().map(|run| &run.result).collect();
    let mut outputs = [&output.json, &output.svg].into_iter().flatten();
    let to_terminal = !outputs.any(|out| is_standard(out));
    let as_written = results.iter().copied().filter(|run| run.model.is_none());
    let text = table::text(&as_written.collect::<Vec<_>>()) + &sensitivity::text(&results);
    if let Some(out) = &output.json {
        put(out, &(json(results.clone())? + "\n"))?;
    }
    if let Some(out) = &output.html {
        put(
            out,
            &terrace_repro::report::html(&scenario.name, &finished.runs),
        )?;
    }
    if let Some(out) = &output.svg {
        put(out, &sizes::svg(&results)?)?;
    }
    // The files first: a long run must not be lost for want of a terminal.
    if to_terminal && !output.quiet {
        print(text)?;
    }
    Ok(())
}

fn put(out: &Path, text: &str) -> Result<()> {
    if is_standard(out) {
        return print(text);
    }
    files::put(out, text)
}

/// The options of a run: a timeline is recorded if a report is drawn from it.
fn options(scenario: &Scenario, output: &Output) -> Options {
    if output.html.is_none() {
        return Options::default();
    }
    let longest = scenario.vms.iter().map(|vm| match vm.stop {
        Stop::Duration(ns) => Some(ns),
        Stop::Ops(_) | Stop::Trace => None,
    });
    let longest = longest.collect::<Option<Vec<u64>>>();
    let longest = longest.and_then(|all| all.into_iter().max());
    Options {
        sample_every_ns: longest.map_or(SAMPLE_NS, |ns| (ns / SAMPLES).max(1)),
        heat_cells: HEAT_CELLS,
        ..Options::default()
    }
}

/// The flag that the first interruption sets; the second ends the program at once.
fn on_interrupt() -> Result<Arc<AtomicBool>> {
    let cancelled = Arc::new(AtomicBool::new(false));
    let set = Arc::clone(&cancelled);
    let handler = ctrlc::set_handler(move || {
        if set.swap(true, Ordering::Relaxed) {
            std::process::exit(130);
        }
    });
    match handler {
        Ok(()) => Ok(cancelled),
        Err(error) => bail!("interruptions cannot be handled: {error}"),
    }
}
