//! `terrace`: sees and steers the daemon, and measures the engine's fast paths.
//!
//! The binary is glue: arguments are parsed into plain structs (`args`), each command is one file.

mod allocated;
mod args;
mod commands;
mod render;

use std::process::ExitCode;

use clap::FromArgMatches;

use args::{Args, Command};

fn main() -> ExitCode {
    // A closed pipe (`terrace vms | head`) ends the program quietly, as it does any other tool.
    // SAFETY: no other thread runs yet, and SIGPIPE's default action touches no memory of ours.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let matches = Args::described().get_matches();
    let args = Args::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    match run(args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("terrace: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Bench(bench) => commands::bench::run(&bench),
        Command::Completions { shell } => {
            clap_complete::generate(
                shell,
                &mut Args::described(),
                "terrace",
                &mut std::io::stdout(),
            );
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
