//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// Tiered memory for virtual machines: see and steer the daemon `terraced`.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, max_term_width = 100)]
pub struct Args {
    /// The daemon's socket.
    #[arg(long, global = true, env = "TERRACE_SOCKET", default_value = terrace_api::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Say what works on this host and for each VM, what does not, why, and what to change.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// List the VMs and where their memory is.
    Vms {
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Show one VM: tiers, limits, the mechanism of each stage, the last rounds and decisions.
    Show {
        /// The VM's name.
        vm: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// Also draw where its memory is and how hot (colour: tier; brightness: heat).
        #[arg(long)]
        map: bool,
        /// Write that map as a picture (SVG) to this file.
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Say why a VM's memory, or one page of it, is where it is.
    Explain {
        /// The VM's name.
        vm: String,
        /// Guest physical address of the page, hexadecimal with 0x or decimal bytes.
        #[arg(long, value_name = "GPA", value_parser = address)]
        page: Option<u64>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what the daemon decided and did.
    Events {
        /// Go on printing as things happen, until interrupted.
        #[arg(long, short)]
        follow: bool,
        /// Print JSON, one object a line.
        #[arg(long)]
        json: bool,
    },
    /// Change a setting of a VM until the daemon restarts: moves=on|off, weight=N, fast=SIZE (nominal
    /// size of fast memory, 0 for none), floor=SIZE and ceiling=SIZE of fast memory, TIER.floor=SIZE,
    /// TIER.ceiling=SIZE (SIZE as 512MiB or 2GiB; TIER is `fast`, `slow` or a tier's name).
    Set {
        /// The VM's name.
        vm: String,
        /// One or more KEY=VALUE.
        #[arg(required = true, value_parser = key_value)]
        settings: Vec<(String, String)>,
    },
    /// Stop scanning and moving, of one VM or of all; nothing is moved back.
    Pause {
        /// The VM's name; all without it.
        vm: Option<String>,
    },
    /// Go on after `pause`.
    Resume {
        /// The VM's name; all without it.
        vm: Option<String>,
    },
    /// Start a round of a VM now instead of at its next period.
    Round {
        /// The VM's name.
        vm: String,
    },
    /// Measure the fast paths; each figure stands beside a baseline measured in the same run.
    Bench(Bench),
    /// Print a shell completion script.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

/// Arguments of `terrace bench`.
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Only the row of this name.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
}

fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "not an address: give 0x… or decimal bytes".to_owned())
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("not KEY=VALUE (as moves=on)".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }

    #[test]
    fn addresses_are_hexadecimal_or_decimal() {
        assert_eq!(address("0x1000"), Ok(4096));
        assert_eq!(address("4096"), Ok(4096));
        assert!(address("1000h").is_err());
        assert!(key_value("moves").is_err() && key_value("moves=on").is_ok());
    }
}
