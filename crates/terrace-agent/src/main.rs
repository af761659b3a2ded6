//! `terrace-agent`: keeps the hot memory of a guest's programs in its fast tier.
//!
//! The binary is glue: arguments, the loop's clock, and the shutdown.

use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
use terrace_agent::agent::Agent;
use terrace_agent::channel::{HostLink, LinkConfig, guest_memory_end};
use terrace_agent::config::{Config, DEFAULT_SOCKET};
use terrace_agent::gather::Background;
use terrace_agent::gather::commands::{self, GatherArgs, SkewArgs};
use terrace_agent::gathering::HeatChoice;
use terrace_agent::module::{GuestPages, ModuleParts};
use terrace_agent::opener::{OpenerProcess, Without};
use terrace_agent::room::Room;
use terrace_agent::sampler::Samplers;
use terrace_agent::status::{self, Board};
use terrace_agent::{doctor, opener, output, top};
use terrace_sys::{Capability, Damon, HostRoot, keep_only, no_new_privileges};

/// Longest pause between two heartbeats. The host takes an agent that sends nothing for five seconds for gone.
const BEAT: Duration = Duration::from_secs(1);

/// Capabilities that the agent keeps: for moving pages that several processes map, for the PMU's samples of all
/// processes, and for inspecting processes of other users. DAMON's files are root's own.
const CAPABILITIES: [Capability; 3] = [
    Capability::CAP_SYS_NICE,
    Capability::CAP_PERFMON,
    Capability::CAP_SYS_PTRACE,
];

/// Keeps the hot memory of this machine's programs in its fast tier.
#[derive(Debug, Parser)]
#[command(name = "terrace-agent", version, max_term_width = 100)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find hot ranges and exchange pages, until a signal ends it (SIGINT, SIGTERM).
    Run {
        /// The configuration; /etc/terrace/agent.toml by default, or the built-in values if that does not exist.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Record all events and decisions in a new file, for `terrace sim replay`; at most 1 GiB.
        #[arg(long, value_name = "FILE")]
        record: Option<PathBuf>,
    },
    /// Print what a running agent does.
    Status {
        /// The agent's socket.
        #[arg(long, value_name = "FILE", default_value = DEFAULT_SOCKET)]
        socket: PathBuf,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Check this machine: what works, what does not, why, and what to change.
    Doctor {
        /// The configuration; as for `run`.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Watch a running agent: its processes and their hottest ranges (Ctrl-C ends it).
    Top {
        /// The agent's socket.
        #[arg(long, value_name = "FILE", default_value = DEFAULT_SOCKET)]
        socket: PathBuf,
        /// Seconds between updates.
        #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u64).range(1..=60))]
        interval: u64,
        /// Print one frame and end.
        #[arg(long)]
        once: bool,
    },
    /// Show how hot base pages are spread over this machine's memory, and what gathering them would save a host that
    /// moves pages of 2 MiB.
    Skew {
        #[command(flatten)]
        skew: SkewArgs,
    },
    /// Gather scattered hot base pages into few blocks of 2 MiB: on the node that `gather.node` names, or by the guest
    /// module.
    Gather {
        #[command(flatten)]
        gather: GatherArgs,
    },
    /// Open files for the other commands, on standard input.
    #[command(name = opener::COMMAND, hide = true)]
    Opener,
    /// Print a shell completion script.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

fn main() -> ExitCode {
    // A closed pipe (`terrace-agent status | head`) ends the program quietly.
    // SAFETY: no other thread runs yet, and SIGPIPE's default action touches no memory of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    match carry_out(Args::parse().command) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("terrace-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn carry_out(command: Command) -> Result<ExitCode> {
    match command {
        Command::Run { config, record } => {
            run(config.as_deref(), record.as_deref())?;
        }
        Command::Status { socket, json } => {
            let status = status::ask(&socket)?;
            if json {
                output::print_line(serde_json::to_string_pretty(&status)?)?;
            } else {
                output::print(top::frame(&status))?;
            }
        }
        Command::Doctor { config, json } => {
            let findings = doctor::inspect(&HostRoot::default(), &Config::read(config.as_deref())?);
            return doctor::print(&findings, json);
        }
        Command::Top {
            socket,
            interval,
            once,
        } => top::watch(&socket, Duration::from_secs(interval), once)?,
        Command::Skew { skew } => commands::skew(&for_gathering()?, &skew)?,
        Command::Opener => opener::serve()?,
        Command::Gather { gather } => commands::gather(&for_gathering()?, &gather)?,
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "terrace-agent", &mut text);
            output::print(String::from_utf8_lossy(&text))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Capabilities to move pages, a process that opens what takes more of them, and the machine to look at.
fn for_gathering() -> Result<HostRoot> {
    OpenerProcess::start(Without::Fail)?;
    keep_only(&CAPABILITIES).context("cannot drop capabilities")?;
    Ok(HostRoot::default())
}

/// Has the agent's log go to standard error.
fn log_to_stderr() {
    // A reader of the log that goes away must not end the agent.
    // SAFETY: no other thread runs yet, and ignoring SIGPIPE touches no memory of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    tracing_subscriber::fmt()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_env("TERRACE_LOG")
                .unwrap_or_else(|_| "info".into()),
        )
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
}

fn run(file: Option<&Path>, record: Option<&Path>) -> Result<()> {
    let config = Config::read(file)?;
    log_to_stderr();
    no_new_privileges()?;
    let root = HostRoot::default();
    // Opening its device takes a capability that is dropped now; using it takes none.
    let module = ModuleParts::open(&root, config.module);
    // Its process takes what is dropped now.
    let gathering = match config.gather.rounds {
        true => Some(Background::start(file)?),
        false => None,
    };
    if config.port.is_some() {
        // A host may name frames.
        OpenerProcess::start(Without::OpenItself)?;
    }
    keep_only(&CAPABILITIES).context("cannot drop capabilities")?;
    let room = Room::read(root.clone(), &config.tiers, config.gather.node)
        .context("reading this machine's memory tiers")?;
    if room.topology().tiers.len() == 1 {
        tracing::warn!(
            "this machine has one memory tier: ranges are watched and nothing moves. A guest needs a NUMA \
             node per tier; if its nodes differ, say so by [[tier]] sections in the configuration"
        );
    }
    let board = Board::serve(&config.socket)?;
    // No other agent listens there, so these are a crashed one's.
    if let Err(error) = Damon::of_agent(&root.join("")).stop_leftovers() {
        tracing::warn!(
            "DAMON is still running from the last run and could not be stopped: {error}"
        );
    }
    let (stop, stopped) = channel();
    // The loop may have ended already; then there is nothing left to stop.
    ctrlc::set_handler(move || {
        let _ = stop.send(());
    })?;
    let samplers = Samplers::new(
        &root,
        config.sampling.source,
        config.sampling.epoch,
        &module,
    );
    let socket = config.socket.clone();
    let mut link = match &config.port {
        Some(port) => Some(HostLink::open(&root, link_config(&root, port, &config))?),
        None => None,
    };
    let pages = Box::new(GuestPages::new(&module));
    let mut agent = Agent::new(config, root, room, pages, samplers);
    if let Some(gathering) = gathering {
        agent.show_gathering(gathering);
    }
    if let Some(file) = record {
        agent.record(file)?;
    }
    let mut next = Instant::now();
    loop {
        agent.step();
        // An epoch that took too long is not made up for.
        next = (next + agent.epoch_length()).max(Instant::now());
        if !speak_until(next, &mut agent, &mut link, &board, &stopped) {
            break;
        }
    }
    // A socket that no process serves any more only misleads.
    let _ = std::fs::remove_file(socket);
    agent.finish()
}

/// Publishes the agent's status and speaks with the host, at once and then each second, until a time has come.
/// `false` if the agent is to end.
fn speak_until(
    until: Instant,
    agent: &mut Agent,
    link: &mut Option<HostLink>,
    board: &Board,
    stopped: &Receiver<()>,
) -> bool {
    loop {
        if let Some(link) = link {
            agent.speak(link);
        }
        board.show(&agent.status());
        let left = until.saturating_duration_since(Instant::now());
        match stopped.recv_timeout(left.min(BEAT)) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) | Err(RecvTimeoutError::Disconnected) => return false,
        }
        if Instant::now() >= until {
            return true;
        }
    }
}

fn link_config(root: &HostRoot, port: &str, config: &Config) -> LinkConfig {
    LinkConfig {
        port: port.to_owned(),
        budgets: config.budgets,
        memory_end: guest_memory_end(root),
        gathers: config.gather.heat == HeatChoice::Host,
        ..LinkConfig::default()
    }
}
