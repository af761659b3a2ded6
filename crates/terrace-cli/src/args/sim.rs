//! Arguments of `terrace sim`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use clap::Subcommand;
use clap::builder::PossibleValuesParser;
use terrace_repro::compare::FastSweep;
use terrace_repro::repro::{self, predicted};
use terrace_sim::{HostShare, policy};

use super::a_file;

/// A command of the simulator.
#[derive(Debug, Subcommand)]
pub enum Sim {
    /// Simulate a scenario.
    Run {
        /// The scenario (docs/simulator.md says how to write one).
        file: PathBuf,
        /// The policy of every VM, instead of the scenario's; `terrace sim list` prints them. NAME@guest and
        /// NAME@host say where a mechanism runs that can run in both.
        #[arg(long, value_name = "POLICY", value_parser = known_policy)]
        policy: Option<String>,
        /// Outputs.
        #[command(flatten)]
        output: Output,
    },
    /// Simulate a scenario under several policies and print them side by side, with what memory costs
    /// (GiB times each tier's price_per_gib) and, in a sweep, the cheapest size within max_slowdown. With
    /// first-touch, static-best is run too, and WAY is the part of the way between the two that each goes.
    Compare {
        /// The scenario.
        file: PathBuf,
        /// The policies, each for every VM; `terrace sim list` prints them. NAME@guest and NAME@host say
        /// where a mechanism runs that can run in both; beside NAME+gpac the guest gathers its hot pages.
        #[arg(long, required = true, value_name = "A,B,…", value_delimiter = ',', value_parser = known_policy)]
        policies: Vec<String>,
        /// Also for several rules by which the host shares memory, instead of the scenario's: island, pool, dp,
        /// trade, fair.
        #[arg(long, value_name = "A,B,…", value_delimiter = ',', conflicts_with = "sensitivity", value_parser = PossibleValuesParser::new(HostShare::ALL.map(HostShare::name)))]
        shares: Vec<String>,
        /// Also for several sizes of every VM's first tier: fast=A..B doubles from A to B,
        /// fast=A..B:STEP goes by steps (as fast=2GiB..16GiB:2GiB); sizes in B, KiB, MiB, GiB or TiB.
        /// The VM's last tier makes up for it. With --shares each rule is run at each size.
        #[arg(long, value_name = "fast=A..B[:STEP]")]
        sweep: Option<FastSweep>,
        /// Run the comparison also with two other seeds, at another scale and with each part of the machine's model changed
        /// that is known only roughly, and say which order of two policies holds on every model. Takes some ten
        /// times as long.
        #[arg(long, conflicts_with_all = ["sweep", "html"])]
        sensitivity: bool,
        /// Runs at the same time; as many as there are processors by default.
        #[arg(long, value_name = "N")]
        jobs: Option<NonZeroUsize>,
        /// Outputs.
        #[command(flatten)]
        output: Output,
    },
    /// Simulate several scenarios under several policies, and print how far each policy goes from first-touch to static-best:
    /// in each scenario and in all together, weighed by what there is to gain. TRACK is the time of tracking, percent of the vCPUs';
    /// docs/simulator.md explains the rest.
    Judge(Judge),
    /// Replay a recorded log: with the policy that recorded it, which must decide the same again, or with
    /// another one (docs/replay.md).
    Replay(Replay),
    /// Run the papers' experiments and put their figures beside the simulator's (docs/repro.md).
    Repro(Repro),
    /// List the policies, tiers, loads, scenarios and papers' experiments.
    List {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `terrace sim judge`.
#[derive(Debug, clap::Args)]
pub struct Judge {
    /// The scenarios.
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// The policies, each for every VM; first-touch and static-best are run too.
    #[arg(long, required = true, value_name = "A,B,…", value_delimiter = ',', value_parser = known_policy)]
    pub policies: Vec<String>,
    /// Run each scenario with its first tier so many times as large; the VM's last tier makes up for it.
    #[arg(long, value_name = "N,M,…", value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub times: Vec<u32>,
    /// Run each with so many seeds, one after another from the first one.
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1000))]
    pub seeds: u64,
    /// The first seed of all random streams, instead of the scenario's.
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Read the scenarios' traces from this folder, by their files' names: whole ones instead of cuts.
    #[arg(long, value_name = "FOLDER")]
    pub traces: Option<PathBuf>,
    /// Runs at the same time; as many as there are processors by default.
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Write the result as JSON to this file; `-` is standard output, instead of the table.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Print neither table nor progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// The outputs of runs.
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
    /// Draw the sizes over time of the VMs that a device sizes to this file; `-` is standard output.
    #[arg(long, value_name = "OUT")]
    pub svg: Option<PathBuf>,
    /// Print neither table nor progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Arguments of `terrace sim replay`.
#[derive(Debug, clap::Args)]
pub struct Replay {
    /// The log, as `terraced` writes it (`[log]` in its configuration, or --simulate with --record), or the agent
    /// of a guest (`terrace-agent run --record`).
    #[arg(value_name = "LOG")]
    pub log: PathBuf,
    /// Print what this policy would have done with the accesses in the log: a name, or stages as
    /// '{ base = "vtmm", estimate = "fixed-threshold" }'.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// With --policy: join windows of the log to this length, as 1200ms or 2s.
    #[arg(long, value_name = "TIME", requires = "policy", value_parser = window)]
    pub window: Option<u64>,
    /// Write the result as JSON to this file; - for standard output.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// Arguments of `terrace sim repro`.
#[derive(Debug, clap::Args)]
pub struct Repro {
    /// A paper, as vtmm, one experiment, as vtmm/table-4, or predictions, those that are to be compared
    /// later; all of them by default.
    #[arg(value_name = "PAPER[/EXPERIMENT]", value_parser = PossibleValuesParser::new(repro::names()), hide_possible_values = true)]
    pub name: Option<String>,
    /// List the experiments and the sets of predictions, and run none.
    #[arg(long)]
    pub list: bool,
    /// Seed of all random streams.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Run each experiment with so many seeds, one after another from --seed, and print mean, least and most. Three by
    /// default; with --predict as many as the set's page has.
    #[arg(long, value_name = "N")]
    pub seeds: Option<NonZeroU32>,
    /// Measure the figures in the experiments' reasons again, instead of the experiments, and compare; exit with 1 if
    /// one of them differs by more than 1 % and in the digits printed.
    #[arg(long, conflicts_with_all = ["list", "seed", "seeds", "scale", "json", "markdown"])]
    pub check: bool,
    /// Make the page of a set of predictions: predictions-NAME.md and predictions-NAME.json, in the folder --out.
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(predicted::set_names()), conflicts_with_all = ["name", "list", "check", "json", "markdown"])]
    pub predict: Option<String>,
    /// The folder of the page of predictions; the current one by default.
    #[arg(long, value_name = "FOLDER", requires = "predict")]
    pub out: Option<PathBuf>,
    /// Divide the machine by this instead of the scenarios' own scale, 1 (full size) to 1024: larger is
    /// faster and coarser.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1024))]
    pub scale: Option<u64>,
    /// Runs at the same time; as many as there are processors by default.
    #[arg(long, value_name = "N")]
    pub jobs: Option<NonZeroUsize>,
    /// Write the figures as JSON to this file; `-` is standard output, instead of the tables.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
    /// Write the figures as a page to this file, as docs/repro.md.
    #[arg(long, value_name = "OUT", value_parser = a_file)]
    pub markdown: Option<PathBuf>,
    /// Print neither tables nor progress.
    #[arg(long, short)]
    pub quiet: bool,
}

/// Parses a time in whole ms.
fn window(text: &str) -> Result<u64, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: write it as 600ms or 2s"))?;
    match u64::try_from(time.as_millis()) {
        Ok(ms) if ms > 0 && time == Duration::from_millis(ms) => Ok(ms),
        _ => Err("not whole milliseconds: write it as 600ms or 2s".to_owned()),
    }
}

fn known_policy(name: &str) -> Result<String, String> {
    let beginning = name.trim_start();
    if beginning.starts_with('{') || beginning.contains('=') {
        return Err(
            "a policy with parameters goes into the scenario, as policy = { base = \"numab2\", … }: here are names alone".into(),
        );
    }
    policy::check(name).map(|()| name.to_owned())
}
