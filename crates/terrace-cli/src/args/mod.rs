//! The command line.

mod examples;
pub mod mrc;
pub mod sim;
pub mod trace;

use std::path::PathBuf;
use std::time::Duration;

use bytesize::ByteSize;
use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// Tiered memory for virtual machines: see and steer the daemon `terraced`.
#[derive(Debug, Parser)]
#[command(name = "terrace", version, max_term_width = 100)]
pub struct Args {
    /// The daemon's socket.
    #[arg(long, global = true, env = "TERRACE_SOCKET", default_value = terrace_api::DEFAULT_SOCKET)]
    pub socket: PathBuf,
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// The command line's description, with an example of each command.
    pub fn described() -> clap::Command {
        examples::add(<Self as clap::CommandFactory>::command())
    }
}

/// The command.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Check the host and each VM: what works, what does not, why, and what to change. If the daemon does not answer,
    /// checks the host and the command line of each QEMU process, and connects to no monitor.
    Doctor {
        /// Print JSON.
        #[arg(long)]
        json: bool,
        /// The daemon's configuration, for a check without the daemon; /etc/terrace/terrace.toml if it exists.
        #[arg(long, value_name = "FILE")]
        config: Option<PathBuf>,
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
        /// Also draw its memory (colour: tier; brightness: heat).
        #[arg(long)]
        map: bool,
        /// Write that map as a picture (SVG) to this file.
        #[arg(long, value_name = "FILE", value_parser = a_file)]
        svg: Option<PathBuf>,
    },
    /// Watch the VMs live: their memory by tier, its heat, decisions (press ? for keys).
    Top(Top),
    /// Explain why a VM's memory, or one page of it, is in its tier, and why its size changed.
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
    /// Print the daemon's decisions and actions.
    Events {
        /// Print new events as they come, until interrupted.
        #[arg(long, short)]
        follow: bool,
        /// Print JSON, one object a line.
        #[arg(long)]
        json: bool,
    },
    /// Change a setting of a VM until the daemon restarts: moves=on|off, weight=N, fast=SIZE (nominal
    /// size of fast memory, 0 for none), floor=SIZE and ceiling=SIZE of fast memory, TIER.floor=SIZE,
    /// TIER.ceiling=SIZE (SIZE as 512MiB or 2GiB; TIER is `fast`, `slow` or a tier's name), balance=on|off
    /// (whether its memory is shared with other VMs), memory_floor=SIZE, memory_ceiling=SIZE.
    Set {
        /// The VM's name.
        vm: String,
        /// One or more KEY=VALUE.
        #[arg(required = true, value_parser = key_value)]
        settings: Vec<(String, String)>,
        /// Print JSON, one object a line.
        #[arg(long)]
        json: bool,
    },
    /// Resize a running VM's memory in each tier. Returns once the order is taken; `terrace show` prints its
    /// progress. A newer order replaces an older one.
    Resize(Resize),
    /// Stop scanning and moving the pages of one VM or of all, and balancing its memory; nothing is moved back.
    Pause {
        /// The VM's name; all VMs without it.
        vm: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Resume scanning, moving and balancing after `pause`.
    Resume {
        /// The VM's name; all VMs without it.
        vm: Option<String>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Start a round of a VM now, not at its next period.
    Round {
        /// The VM's name.
        vm: String,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Print what the next round of a VM would move and why, and move nothing. Takes as long as a round
    /// (windows x window_ms, about 5 s by default); its observations are kept. Without a VM: the sizes of VMs that balancing
    /// would order now, and why the others keep theirs; it answers at once.
    Plan {
        /// The VM's name; none: the sizes of all VMs.
        vm: Option<String>,
        /// Move and order nothing. Required: only the daemon itself moves pages and orders sizes.
        #[arg(long, required = true)]
        dry_run: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// Watch four simulated VMs live (press ? for keys); needs no daemon and no set-up.
    Demo(Demo),
    /// Check the configuration; needs no daemon.
    #[command(subcommand)]
    Config(Config),
    /// Simulate VMs on a host with tiers; needs no daemon.
    #[command(subcommand)]
    Sim(sim::Sim),
    /// Measure the fast paths, each beside a baseline of the same run.
    Bench(Bench),
    /// Inspect and convert recorded memory traces of programs; needs no daemon.
    #[command(subcommand)]
    Trace(trace::Trace),
    /// Print the miss-ratio curve of a trace: the misses of each size of memory; draw it with --svg; needs no daemon.
    Mrc(mrc::Mrc),
    /// Print a shell completion script.
    Completions {
        /// The shell.
        shell: Shell,
    },
    /// Write the manual pages, one for each command.
    Man {
        /// The folder; it is created if it does not exist.
        folder: PathBuf,
    },
}

/// Arguments of `terrace resize`.
#[derive(Debug, clap::Args)]
#[command(group = clap::ArgGroup::new("sizes").required(true).multiple(true))]
pub struct Resize {
    /// The VM's name.
    pub vm: String,
    /// New size of its fast memory, as 512MiB or 2GiB.
    #[arg(long, value_name = "SIZE", group = "sizes", value_parser = bytes)]
    pub fast: Option<ByteSize>,
    /// New size of its slow memory.
    #[arg(long, value_name = "SIZE", group = "sizes", value_parser = bytes)]
    pub slow: Option<ByteSize>,
    /// New size of all its memory, for a VM whose balloon knows no tiers; instead of --fast and --slow.
    #[arg(
        long,
        value_name = "SIZE",
        group = "sizes",
        conflicts_with_all = ["fast", "slow", "tiers"],
        value_parser = bytes
    )]
    pub total: Option<ByteSize>,
    /// New size of each tier, fastest first, as 2GiB,8GiB,- ("-" leaves a tier as it is); instead of --fast and --slow.
    #[arg(
        long,
        value_name = "SIZE,…",
        group = "sizes",
        conflicts_with_all = ["fast", "slow"],
        allow_hyphen_values = true,
        value_delimiter = ',',
        value_parser = tier_size
    )]
    pub tiers: Option<Vec<TierSize>>,
    /// Wait until the guest has reached the new sizes; exit code 1 with the reason if it cannot.
    #[arg(long)]
    pub wait: bool,
    /// With --wait: stop waiting after this time, as 30s or 5m. The order stays in force.
    #[arg(long, value_name = "TIME", requires = "wait", value_parser = interval)]
    pub timeout: Option<Duration>,
    /// Print JSON: the order, or with --wait the VM's memory at the end.
    #[arg(long)]
    pub json: bool,
}

/// The size of a tier; `None` for one that stays as it is.
#[derive(Clone, Copy, Debug)]
pub struct TierSize(pub Option<ByteSize>);

fn tier_size(text: &str) -> Result<TierSize, String> {
    match text {
        "-" => Ok(TierSize(None)),
        size => bytes(size).map(|size| TierSize(Some(size))),
    }
}

/// Parses a size that fits in 64 bits. A larger one is refused, not cut to what fits.
fn bytes(text: &str) -> Result<ByteSize, String> {
    match text.parse::<ByteSize>()? {
        ByteSize(u64::MAX) => Err("more than there can be (16 EiB)".into()),
        size => Ok(size),
    }
}

/// Arguments of `terrace top`.
#[derive(Debug, clap::Args)]
pub struct Top {
    /// Time between updates, as 500ms or 2s.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = interval)]
    pub interval: Duration,
    /// Print one frame as plain text and end.
    #[arg(long)]
    pub once: bool,
    /// With --once: write the frame as a picture (SVG) to this file instead.
    #[arg(long, value_name = "FILE", requires = "once", value_parser = a_file)]
    pub svg: Option<PathBuf>,
    /// With --once: size of the frame in characters, as 120x40.
    #[arg(long, value_name = "WxH", requires = "once", default_value = "120x40", value_parser = size)]
    pub size: (u16, u16),
    /// Show this VM first.
    #[arg(long, value_name = "NAME")]
    pub vm: Option<String>,
}

/// Arguments of `terrace demo`.
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Simulate to the end without the live view and print the result (the default if standard output is no terminal).
    #[arg(long)]
    pub once: bool,
    /// Seconds of the simulated machine per second.
    #[arg(long, value_name = "N", default_value = "10", value_parser = speed)]
    pub speed: f64,
    /// End after so many seconds of the simulated machine.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub seconds: Option<u64>,
    /// The policy of all VMs, as vtmm or first-touch.
    #[arg(long, value_name = "POLICY")]
    pub policy: Option<String>,
    /// Also write the last frame of the live view as a picture (SVG) to this file.
    #[arg(long, value_name = "FILE", value_parser = a_file)]
    pub svg: Option<PathBuf>,
    /// Simulate as --once does and write the result as JSON to this file, - for standard output.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// A command about the configuration.
#[derive(Debug, Subcommand)]
pub enum Config {
    /// Check a configuration and its drop-ins (FILE.d/*.toml); exit code 1 and one message if something is wrong.
    Check {
        /// The file; /etc/terrace/terrace.toml by default, or the built-in values if that does not exist.
        file: Option<PathBuf>,
        /// Also print every key with its value and the file and line that set it.
        #[arg(long)]
        effective: bool,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

/// Arguments of `terrace bench`.
#[derive(Debug, clap::Args)]
pub struct Bench {
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Only the row of this name, as scan_leaf_ns; all of them take some minutes.
    #[arg(long, value_name = "NAME")]
    pub only: Option<String>,
    /// Compare with an earlier run, of which this file has the JSON (--json): by the ratios of least times.
    #[arg(long, value_name = "FILE", conflicts_with = "json")]
    pub compare: Option<PathBuf>,
}

fn address(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| "not an address: give 0x… or decimal bytes".to_owned())
}

fn interval(text: &str) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(time) if time >= Duration::from_millis(100) => Ok(time),
        Ok(_) => Err("shorter than 100ms".to_owned()),
        Err(error) => Err(format!("{error}: write it as 500ms or 2s")),
    }
}

fn speed(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(speed) if (0.125..=1024.0).contains(&speed) => Ok(speed),
        _ => Err("not a speed: from 0.125 to 1024".to_owned()),
    }
}

fn size(text: &str) -> Result<(u16, u16), String> {
    let sides = text.split_once('x').map(|(w, h)| (w.parse(), h.parse()));
    match sides {
        Some((Ok(width @ 40..=400), Ok(height @ 10..=200))) => Ok((width, height)),
        _ => Err("not a size: from 40x10 to 400x200".to_owned()),
    }
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() && !value.is_empty() => {
            Ok((key.to_owned(), value.to_owned()))
        }
        _ => Err("not KEY=VALUE (as moves=on)".to_owned()),
    }
}

/// Parses the name of a file that is not standard output, which has the table or the JSON already.
fn a_file(name: &str) -> Result<PathBuf, String> {
    if name == "-" {
        return Err(
            "standard output has the text or the JSON: name a file, as report.html".to_owned(),
        );
    }
    Ok(name.into())
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
    fn sizes_of_a_list_name_each_tier_and_a_dash_leaves_one_alone() {
        use clap::Parser;
        let sizes = |list: &str| {
            let args = Args::try_parse_from(["terrace", "resize", "vm1", "--tiers", list]).ok()?;
            let Command::Resize(resize) = args.command else {
                return None;
            };
            let sizes = resize.tiers?.into_iter();
            let sizes = sizes.map(|tier| tier.0.map(|size| size.as_u64()));
            Some(sizes.collect::<Vec<_>>())
        };
        assert_eq!(
            sizes("2KiB,-,1MiB"),
            Some(vec![Some(2048), None, Some(1 << 20)])
        );
        assert_eq!(sizes("-,2KiB"), Some(vec![None, Some(2048)]));
        assert_eq!(sizes("2KiB,much"), None);
        assert_eq!(sizes("1GiB,99999999EiB"), None);
        let both = [
            "terrace", "resize", "vm1", "--tiers", "1GiB", "--fast", "1GiB",
        ];
        assert!(Args::try_parse_from(both).is_err());
    }

    #[test]
    fn addresses_are_hexadecimal_or_decimal() {
        assert_eq!(address("0x1000"), Ok(4096));
        assert_eq!(address("4096"), Ok(4096));
        assert!(address("1000h").is_err());
        assert!(key_value("moves").is_err() && key_value("moves=on").is_ok());
    }
}
