//! Arguments of `terrace sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use terrace_sim::compare::FastSweep;
use terrace_sim::scenario::policy;

/// What to simulate.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Simulate a scenario.
    Run {
        /// The scenario (docs/simulator.md says how to write one).
        file: PathBuf,
        /// The host's policy of every VM, instead of the scenario's.
        #[arg(long, value_name = "POLICY", value_parser = known_policy)]
        policy: Option<String>,
        /// What to write, and where.
        #[command(flatten)]
        output: Output,
    },
    /// Simulate a scenario under several policies and print them side by side.
    Compare {
        /// The scenario.
        file: PathBuf,
        /// The policies, each for every VM; `terrace sim list` prints them.
        #[arg(long, required = true, value_name = "A,B,…", value_delimiter = ',', value_parser = known_policy)]
        policies: Vec<String>,
        /// Also for several sizes of every VM's first tier: fast=A..B doubles from A to B,
        /// fast=A..B:STEP goes by steps (as fast=2GiB..16GiB:2GiB). The VM's last tier makes up for it.
        #[arg(long, value_name = "fast=A..B[:STEP]")]
        sweep: Option<FastSweep>,
        /// Runs at the same time; as many as there are processors by default.
        #[arg(long, value_name = "N")]
        jobs: Option<NonZeroUsize>,
        /// What to write, and where.
        #[command(flatten)]
        output: Output,
    },
    /// Replay a recorded log: with the policy that recorded it, which must decide the same again, or with
    /// another one (docs/replay.md).
    Replay(Replay),
    /// Print the policies, the tiers, the loads and the scenarios there are.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// What is written about runs.
#[derive(Debug, clap::Args)]
pub struct Output {
    /// Seed of all random streams, instead of the scenario's.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Write the result as JSON to this file; `-` is standard output, instead of the table.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write a report with pictures to this file, for a browser.
    #[arg(long, value_name = "OUT", value_parser = a_file)]
    pub html: Option<PathBuf>,
    /// Print neither table nor progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `terrace sim replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The log, as `terraced` writes it (`[log]` in its configuration).
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// Say what this policy would have done with the accesses that the log has: a name, or stages as
    /// '{ base = "vtmm", estimate = "fixed-threshold" }'.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// With --policy: take windows of the log together, as 1200ms or 2s.
    #[arg(long, value_name = "TIME", requires = "policy", value_parser = window)]
    pub window: Option<u64>,
    /// Write the result as JSON to this file; - for standard output.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// A time in whole ms.
fn window(text: &str) -> Result<u64, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write it as 600ms or 2s"))?;
    match u64::try_from(time.as_millis()) {
        Ok(ms) if ms > 0 && time == Duration::from_millis(ms) => Ok(ms),
        _ => Err("not whole milliseconds: write it as 600ms or 2s".to_owned()),
    }
}

/// Standard output has the table or the JSON already.
fn a_file(name: &str) -> Result<PathBuf, String> {
    if name == "-" {
        return Err("a report goes to a file: name one, as report.html".to_owned());
    }
    Ok(name.into())
}

fn known_policy(name: &str) -> Result<String, String> {
    policy::check(name).map(|()| name.to_owned())
}
