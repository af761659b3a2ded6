//! Arguments of `terrace trace`.

use std::path::PathBuf;

use bytesize::ByteSize;
use terrace_sim::trace::{Format, Target};

/// A command about a trace.
#[derive(Debug, clap::Subcommand)]
pub enum Trace {
    /// Print what a trace holds: format, records, footprint, popularity of pages.
    Info(Info),
    /// Write a trace, or a part of it, in another format.
    Convert(Convert),
}

/// The source of records.
#[derive(Debug, clap::Args)]
pub struct Input {
    /// The trace, compressed by zstd or not.
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// The trace's format (lackey, perf-script, oraclegeneral, terrace-log), if it is not recognised.
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Format>)]
    pub format: Option<Format>,
    /// Leave records out that cannot be read, and count them, instead of stopping at the first.
    #[arg(long)]
    pub skip_broken: bool,
}

/// Arguments of `terrace trace info`.
#[derive(Debug, clap::Args)]
pub struct Info {
    #[command(flatten)]
    pub input: Input,
    /// Also write JSON to this file; `-` for standard output, instead of the text.
    #[arg(long, value_name = "OUT")]
    pub json: Option<PathBuf>,
}

/// Arguments of `terrace trace convert`.
#[derive(Debug, clap::Args)]
pub struct Convert {
    #[command(flatten)]
    pub input: Input,
    /// The file to write. It appears when it is whole; until then it is OUT.partial.
    #[arg(value_name = "OUT")]
    pub out: PathBuf,
    /// Format to write: lackey, lackey-zst (the same, compressed), oraclegeneral (pages as objects).
    #[arg(long, value_name = "FORMAT", value_parser = str::parse::<Target>)]
    pub to: Target,
    /// Put a processor cache of this size in front (16 ways of 64-byte lines) and write what misses it,
    /// line by line. Parts are taken of what is left then.
    #[arg(long, value_name = "SIZE")]
    pub cache: Option<ByteSize>,
    /// Write only the first of each N records.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub every: Option<u64>,
    /// Write only the first N records.
    #[arg(long, value_name = "N", conflicts_with = "every",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub first: Option<u64>,
}
