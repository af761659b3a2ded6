//! `terrace-hyperflex`: the HyperFlex device of one VM.

use std::io::IsTerminal as _;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser as _;
use terrace_hyperflex::{Args, Prepared, sandbox};
use tracing_subscriber::EnvFilter;

/// The log filter. Messages that a guest can provoke in the libraries are off: the device counts their causes instead.
const LOGGED: &str = "info,virtio_queue=off,vhost_user_backend=warn,vm_memory=off";

fn main() -> ExitCode {
    terrace_sys::one_heap();
    let args = Args::parse();
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("terrace-hyperflex: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<()> {
    // First of all; the rest follows when everything is open.
    terrace_sys::no_new_privileges()?;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(LOGGED));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(std::io::stderr().is_terminal())
        .with_writer(std::io::stderr)
        .init();
    let device = Prepared::new(args)?;
    for gap in sandbox::lock()? {
        tracing::warn!("sandbox: {gap}");
    }
    tracing::info!("waiting for the hypervisor on {}", args.socket.display());
    device.run()?;
    tracing::info!("the hypervisor is gone");
    Ok(())
}
