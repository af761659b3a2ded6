//! `terraced`: tiered memory for the VMs of this host.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use terrace_config::{Config, Sources};
use terrace_proto::printable::printable;
use terraced::{Inbox, Simulated, Speed};

#[global_allocator]
static ALLOCATOR: terrace_sys::HugePages = terrace_sys::HugePages;

/// Tiered memory for the virtual machines of this host: hot pages in fast memory, cold ones in slow.
#[derive(Debug, Parser)]
#[command(name = "terraced", version, max_term_width = 100)]
struct Args {
    /// The configuration file; drop-ins are read from FILE.d/*.toml. Without it
    /// /etc/terrace/terrace.toml, or the built-in defaults if that does not exist.
    /// `terrace config check` checks it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve a simulated host instead of this one: the scenario of this file (docs/operating.md).
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    simulate: Option<PathBuf>,
    /// With --simulate: seconds of the simulated machine in a second, or `max`; 1 without it.
    #[arg(long, value_name = "N", requires = "simulate")]
    speed: Option<Speed>,
    /// With --simulate: the socket of the API. Without it the daemon's socket for root, and
    /// $XDG_RUNTIME_DIR/terraced.sock for others.
    #[arg(long, value_name = "FILE", requires = "simulate")]
    socket: Option<PathBuf>,
    /// With --simulate: write a log for `terrace sim replay`, with every page re-armed in every window.
    #[arg(long, value_name = "FILE", requires = "simulate")]
    record: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Internal>,
}

#[derive(Debug, Subcommand)]
enum Internal {
    /// Walks one VM's page tables; started by the daemon itself.
    #[command(hide = true)]
    Worker,
}

fn main() -> ExitCode {
    terrace_sys::one_heap();
    // First of all: nothing that is started from here on gains rights that its starter lacks.
    if let Err(error) = terrace_sys::no_new_privileges() {
        eprintln!("terraced: {error}");
        return ExitCode::FAILURE;
    }
    let args = Args::parse();
    let done = match args.command {
        Some(Internal::Worker) => terrace_host::worker::run().map_err(anyhow::Error::from),
        None => match &args.simulate {
            Some(file) => simulate(file, &args),
            None => serve(&args),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terraced: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &Args) -> Result<()> {
    let sources = Sources::read(args.config.as_deref())?;
    let config = Config::new(&sources)?;
    start_logging();
    tracing::info!("configuration: {}", sources.text());
    let mut warnings = config.engine.renamed_policies();
    warnings.extend(sources.renamed().map(str::to_owned));
    warnings.extend(config.warnings());
    for warning in &warnings {
        tracing::warn!("{}", printable(warning));
    }
    terraced::confine_process(&config)?;
    terraced::serve(config, &sources, stopped_by_signals)
}

fn simulate(file: &Path, args: &Args) -> Result<()> {
    start_logging();
    let speed = args.speed.unwrap_or(Speed::Times(1.0));
    let simulated = Simulated::load(file, speed, args.record.as_deref())?;
    simulated.serve(args.socket.clone(), stopped_by_signals()?)
}

/// An inbox in which a signal is an end.
fn stopped_by_signals() -> Result<Inbox> {
    let inbox = Inbox::default();
    let stop = inbox.stop();
    ctrlc::set_handler(move || stop.stop())?;
    Ok(inbox)
}

fn start_logging() {
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
                .unwrap_or_else(|_| "info".into()),
        )
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}
