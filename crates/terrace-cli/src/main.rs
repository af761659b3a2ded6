//! `terrace`: sees and steers the daemon, and measures the engine's fast paths.
//!
//! The binary is glue: arguments are parsed into plain structs (`args`), each command is one file.

// Printing panics where nothing can be written: `output` gives an error.
#![warn(clippy::print_stdout)]

mod allocated;
mod args;
mod commands;
mod output;
mod render;

use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::FromArgMatches;

use args::{Args, Command};

fn main() -> ExitCode {
    // A closed pipe (`terrace vms | head`) ends the program quietly, as it does any other tool.
    // SAFETY: no other thread runs yet, and SIGPIPE's default action touches no memory of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    match parse().and_then(|args| args.map_or(Ok(ExitCode::SUCCESS), run)) {
        Ok(code) => code,
        Err(error) => {
            output::tell(format_args!("terrace: {error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Parses the arguments; `None` if they asked for help or the version, which is printed. Wrong ones end the program.
fn parse() -> anyhow::Result<Option<Args>> {
    let parsed = Args::described().try_get_matches();
    match parsed.and_then(|matches| Args::from_arg_matches(&matches)) {
        Ok(args) => Ok(Some(args)),
        Err(error) if error.use_stderr() => error.exit(),
        Err(help) => {
            help.print()
                .and_then(|()| std::io::stdout().flush())
                .context("standard output cannot be written")?;
            Ok(None)
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Bench(bench) => commands::bench::run(&bench),
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut Args::described(), "terrace", &mut text);
            output::print(String::from_utf8_lossy(&text))?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { folder } => {
            commands::man::run(&folder)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Config(command) => commands::config::run(&command),
        Command::Demo(demo) => {
            commands::demo::run(&demo)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Sim(command) => commands::sim::run(&command),
        Command::Mrc(args) => commands::mrc::run(&args),
        Command::Trace(command) => commands::trace::run(&command),
        online => tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?
            .block_on(commands::online(&args.socket, online)),
    }
}
