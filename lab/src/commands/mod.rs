//! `cargo xtask lab …`.

pub mod demo;
mod shell;

use std::time::Instant;

use anyhow::{Result, bail};
use clap::{Subcommand, ValueEnum};
use terrace_lab_programs::vm::VmSpec;

use crate::control::lab::Lab;
use crate::machine::blueprint::Blueprint;
use crate::machine::process::{Lifetime, Process};
use crate::measure::{compare, cost, leases, proof, resize, sharing};
use crate::programs;
use crate::progress::say;
use crate::tests::runner::{self, TestArguments};

/// The folder of the machine that `lab up` leaves running.
const NAME: &str = "up";

/// A two-tier KVM host with a real guest in it, in an emulator on this machine
#[derive(Subcommand)]
pub enum Task {
    /// Start the lab and leave it running; the first time this boots it and takes a snapshot
    Up {
        /// Look for a newer kernel in the archive
        #[arg(long)]
        refresh: bool,
    },
    /// End the lab that `up` left running
    Down,
    /// A shell in L1; from a pipe, run the script on standard input
    Shell,
    /// Start a fresh lab and show Terrace at work in it
    Demo,
    /// Compare the kernel's own tiering with Terrace on the same guest; about ten minutes
    Compare(compare::Arguments),
    /// Count what a guest's work misses in slow memory, by who places its pages; about fifteen minutes
    Proof(proof::Arguments),
    /// Measure in a guest of its own what a test must not depend on
    Bench {
        /// What is measured
        what: Bench,
    },
    /// Run the tests that need a real host and guest, each in a freshly restored lab
    Test(TestArguments),
    /// Measure what an idle VM of 1 GiB at default periods costs the host in CPU time and memory
    Cost {
        /// How long to measure, s; a period is 60 s
        #[arg(long, default_value_t = 120)]
        seconds: u64,
    },
}

#[derive(Clone, Copy, ValueEnum)]
pub enum Bench {
    /// A resize of 256 MiB by HyperFlex and by the stock balloon; about two minutes
    Hyperflex,
    /// A shrink of 256 MiB by HyperFlex, with looks at other processes and without; about two minutes
    Leases,
    /// Two guests that share memory, beside fixed sizes, free page reporting alone, and steps of 100 MiB by host use; about
    /// fifteen minutes
    Sharing,
}

/// Runs one of the lab's tasks.
pub fn run(task: Task) -> Result<()> {
    if matches!(
        task,
        Task::Compare(_) | Task::Bench { .. } | Task::Cost { .. }
    ) {
        programs::for_figures();
    }
    match task {
        Task::Up { refresh } => up(refresh),
        Task::Down => down(),
        Task::Shell => shell(),
        Task::Demo => demo::run(),
        Task::Compare(arguments) => compare::run(&arguments),
        Task::Proof(arguments) => proof::run(&arguments),
        Task::Bench { what } => match what {
            Bench::Hyperflex => resize::run(),
            Bench::Leases => leases::run(),
            Bench::Sharing => sharing::run(),
        },
        Task::Test(arguments) => runner::run(&arguments),
        Task::Cost { seconds } => cost::run(seconds),
    }
}

fn up(refresh: bool) -> Result<()> {
    let blueprint = Blueprint::prepare(&VmSpec::default(), refresh)?;
    if let Some(old) = Process::find(NAME)? {
        say("ending the lab that was running …");
        old.end()?;
    }
    // Before the lab starts: its CPUs and the compiler's are the same.
    let product = programs::build_product();
    let begin = Instant::now();
    let mut lab = Lab::start(&blueprint, NAME, Lifetime::Background)?;
    say(&format!(
        "lab ready after {:.1} s",
        begin.elapsed().as_secs_f64()
    ));
    if let Err(error) = product.and_then(|_| lab.install_product()) {
        say(&format!("WARNING: L1 goes without the product: {error:#}"));
    }
    lab.leave_running();
    say("`cargo xtask lab shell` opens a shell in L1, `cargo xtask lab down` ends it");
    Ok(())
}

fn down() -> Result<()> {
    match Process::find(NAME)? {
        Some(process) => process.end(),
        None => {
            say("no lab is running");
            Ok(())
        }
    }
}

fn shell() -> Result<()> {
    if shell::is_interactive() {
        let Some(process) = Process::find(NAME)? else {
            bail!("the lab is not running; start it with `cargo xtask lab up`");
        };
        return shell::interactive(&process);
    }
    shell::script(&mut Lab::attach(NAME, &VmSpec::default())?)
}
