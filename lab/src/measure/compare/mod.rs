//! `cargo xtask lab compare`: the kernel's own tiering and Terrace on the same guest, in numbers.
//!
//! Every method gets a fresh lab with the same guest and the same room on the fast node. The guest reports which pages
//! are hot, L1's kernel where they are.

mod cpu;
mod method;
mod pressure;
mod report;
mod table;
mod watch;

use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use terrace_lab_programs::vm::VmSpec;

use crate::control::daemon::{FAST, VM};
use crate::control::lab::Lab;
use crate::machine::blueprint::Blueprint;
use crate::machine::process::Lifetime;
use crate::progress::say;
use crate::{places, programs};
use report::{Comparison, HOT_SETS, MethodReport};
use watch::Measured;

pub use cpu::{CpuTime, read as cpu_time};
pub use method::Method;
pub use watch::Watch;

/// Time for which each hot set is watched.
const WINDOW: Duration = Duration::from_secs(40);

/// Time between two samples of the guest's pages' places.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(5);

/// L1's node of slow memory.
const SLOW: i32 = 1;

#[derive(Args)]
pub struct Arguments {
    /// Also write the figures to this file, as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Run only methods whose names contain this
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Put the table into docs/kernel-tiering.md
    #[arg(long, conflicts_with = "only")]
    write: bool,
}

/// Measures what the arguments ask for and prints the table.
pub fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |method: &Method| match &arguments.only {
        Some(part) => method.name().contains(part.as_str()),
        None => true,
    };
    let methods: Vec<Method> = Method::ALL.into_iter().filter(wanted).collect();
    if methods.is_empty() {
        let names = Method::ALL.map(Method::name).join("; ");
        bail!("no such method; there are: {names}");
    }
    programs::build_product()?;
    let mut report = Comparison {
        kernel: String::new(),
        window_s: WINDOW.as_secs(),
        methods: Vec::new(),
    };
    for method in methods {
        let (kernel, measured) = measure(method).with_context(|| method.name())?;
        report.kernel = kernel;
        report.methods.push(measured);
    }
    let table = table::markdown(&report);
    println!("{table}");
    if let Some(path) = &arguments.json {
        let json = serde_json::to_string_pretty(&report)? + "\n";
        fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))?;
    }
    if arguments.write {
        table::put_into(&places::repository().join("docs/kernel-tiering.md"), &table)?;
    }
    Ok(())
}

/// A lab with a guest whose fast memory will be as small for one method as for another.
///
/// # Errors
/// As [`Blueprint::prepare`].
pub fn blueprint(method: Method) -> Result<Blueprint> {
    let before_vm = format!("{}\n{}", method.knobs(), pressure::before_vm());
    let guest = VmSpec {
        policy: method.ram_policy(),
        ..VmSpec::default()
    };
    Blueprint::prepare(&guest, false)?.with_before_vm(&before_vm)
}

fn measure(method: Method) -> Result<(String, MethodReport)> {
    say(&format!("== {}", method.name()));
    let blueprint = blueprint(method)?;
    let mut lab = Lab::start(&blueprint, "compare", Lifetime::Task)?;
    lab.install_product()?;
    let kernel = lab.check("uname -r")?.trim().to_owned();
    let measured = measure_in(&mut lab, method).map_err(|error| error.context(lab.diagnosis()))?;
    Ok((kernel, measured))
}

fn measure_in(lab: &mut Lab, method: Method) -> Result<MethodReport> {
    lab.guest("idle")?;
    method.prepare(lab)?;
    let fast_at_start = start_on_the_slow_node(lab)?;
    let mut windows = Vec::new();
    for (hot_set, command) in HOT_SETS {
        if let Some(command) = command {
            lab.guest(command)?;
        }
        let watch = Watch::begin(lab, hot_set)?;
        if command.is_none() {
            method.begin(lab)?;
            lab.guest("run")?;
        }
        windows.push(finish(lab, watch, hot_set)?);
    }
    lab.expect_intact(VM)?;
    Ok(MethodReport {
        name: method.name(),
        fast_at_start,
        windows,
    })
}

/// Gives the fast node its room and moves the guest's pages on it to the slow one; returns how many pages of the
/// guest it still holds.
///
/// # Errors
/// If L1 does not answer, or many pages stay.
pub fn start_on_the_slow_node(lab: &mut Lab) -> Result<usize> {
    let there = lab.frames_on(VM, FAST)?;
    lab.move_pages(VM, &there, SLOW)?;
    pressure::leave_room(lab)?;
    let left: u64 = terrace_lab_programs::pages::total(&lab.frames_on(VM, FAST)?);
    ensure!(
        left < 500,
        "{left} pages of the guest are on the fast node before anything may move them"
    );
    Ok(usize::try_from(left)?)
}

fn finish(lab: &mut Lab, mut watch: Watch, hot_set: &str) -> Result<Measured> {
    let begin = Instant::now();
    let mut next = SAMPLE_INTERVAL;
    while next <= WINDOW {
        std::thread::sleep(next.saturating_sub(begin.elapsed()));
        let seen = watch.sample(lab)?;
        say(&format!("{hot_set}: {seen}"));
        next += SAMPLE_INTERVAL;
    }
    watch.end(lab)
}
