//! `terraced`: tiered memory for the VMs of this host.

mod agents;
mod api;
mod confine;
mod daemon;
mod elastic;
mod events;
mod guest_managed;
mod hands;
mod map_guard;
mod record;
mod remapped;
mod roster;
mod scout;
#[cfg(test)]
mod served;
mod simulate;

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};
use terrace_host::HostRoot;
use terrace_host::topology::Topology;
use terrace_host::worker::WorkerCommand;
use terrace_sys::{Damon, SocketFile};

use terraced::config::{self, Config, Sources};

use agents::Claims;
use confine::Role;
use daemon::{Daemon, Input};
use elastic::drive::Elastics;
use scout::Scout;
use simulate::Speed;

/// Tiered memory for the virtual machines of this host: hot pages in fast memory, cold ones in slow.
#[derive(Debug, Parser)]
#[command(name = "terraced", version, max_term_width = 100)]
struct Args {
    /// The configuration file; drop-ins are read from FILE.d/*.toml. Without it
    /// /etc/terrace/terrace.toml, or the built-in defaults where that is not there.
    /// `terrace config check` checks it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Serve a simulated host instead of this one: the scenario of this file (docs/operating.md).
    #[arg(long, value_name = "FILE", conflicts_with = "config")]
    simulate: Option<PathBuf>,
    /// With --simulate: seconds of the simulated machine in a second, or `max`; 1 without it.
    #[arg(long, value_name = "N", requires = "simulate")]
    speed: Option<Speed>,
    /// With --simulate: where the API listens. Without it the daemon's socket for root, and
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
    // First of all: nothing that is started from here on gains what its starter lacks.
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
    let mut config = Config::new(&sources)?;
    start_logging();
    tracing::info!("configuration: {}", sources.words());
    for renamed in config.engine.renamed_policies() {
        tracing::warn!("{renamed}");
    }
    confine::start(config.security.seccomp)?;
    let root = HostRoot::default();
    let topology = Arc::new(read_topology(&root, &mut config)?);
    let config = Arc::new(config);
    let damon = Damon::new(&root.join(""));
    let (inbox, inputs) = channel();
    let stop = inbox.clone();
    // The daemon's thread may have ended already; then there is nothing left to stop.
    ctrlc::set_handler(move || drop(stop.send(Input::Stop)))?;
    // A socket that nobody serves any more only misleads: it is removed with this.
    let _socket = take_over(&config.socket, inbox.clone(), &damon)?;
    let claims = Claims::default();
    let worker = WorkerCommand {
        program: "/proc/self/exe".into(),
        args: vec!["worker".into()],
    };
    let scout = Scout::new(
        root.clone(),
        Arc::clone(&topology),
        Arc::clone(&config),
        worker,
        Arc::clone(&damon),
        inbox.clone(),
        claims.clone(),
    );
    confine::spawn(Role::Scout, move || scout.run())?;
    let finder = elastic::finder(config.hypervisors.clone());
    let elastics = Elastics::new(finder, config.engine.provision);
    let daemon = Daemon::new(config, root, topology, inbox, claims, elastics);
    let ended = daemon.and_then(|daemon| daemon.run(&inputs));
    // The threads that hold kdamonds may outlive this one's last line.
    if let Err(error) = damon.shut_down() {
        tracing::warn!("DAMON could not be stopped: {error}");
    }
    ended
}

fn simulate(file: &Path, args: &Args) -> Result<()> {
    start_logging();
    let speed = args.speed.unwrap_or(Speed::Times(1.0));
    simulate::serve(file, speed, args.socket.clone(), args.record.as_deref())
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

/// Becomes the one daemon of the socket, and only then stops the kdamonds that a predecessor left: while
/// another one listens, they are that one's.
fn take_over(socket: &Path, inbox: Sender<Input>, damon: &Damon) -> Result<SocketFile> {
    let file = api::start(socket, inbox)?;
    if let Err(error) = damon.stop_leftovers() {
        tracing::warn!("what the last run left of DAMON could not be stopped: {error}");
    }
    Ok(file)
}

/// The host's tiers; the engine's follow them where the file defines none.
fn read_topology(root: &HostRoot, config: &mut Config) -> Result<Topology> {
    let defined = config.tier_definitions();
    let topology = Topology::read(root, &defined).context("reading the host's memory tiers")?;
    if topology.tiers.len() == 1 {
        tracing::warn!(
            "this host has one memory tier: VMs are observed and nothing moves. If its nodes differ, say \
             so by [[tier]] sections in the configuration (many hosts report all nodes in one tier)"
        );
    }
    let topology = topology.or_observed();
    if defined.is_empty() {
        config.follow(&topology)?;
    }
    config.check_host(&topology)?;
    Ok(topology)
}
