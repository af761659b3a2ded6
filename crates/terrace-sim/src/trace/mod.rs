//! Recorded accesses of real programs: reading, judging, loading and converting them.
//!
//! Responsible for: the formats that are read ([`Reader`], one record at a time in bounded memory), the
//! processor's cache in front ([`Cache`]), what a trace says about a program ([`Tally`]), the compact form
//! that a run takes ([`TraceSpec`], [`Loaded`]) and the formats that are written ([`Writer`]). It leaves to
//! others: what an access costs, miss-ratio curves, and the command line.
//!
//! Traces are untrusted: a record that cannot be read is an error that names its place, or is skipped and
//! counted where that is asked for ([`OnBroken`]).

mod cache;
mod error;
mod footprint;
mod input;
mod lackey;
mod load;
mod observations;
mod oracle_general;
mod perf;
mod reader;
mod tally;
#[cfg(test)]
mod tests;
mod unzstd;
mod write;

use serde::{Deserialize, Serialize};

pub use cache::{Cache, CacheSizeError};
pub use error::TraceError;
pub use footprint::MAX_REGIONS;
pub use load::{Loaded, MAX_ACCESSES, TraceSpec, load};
pub use reader::Reader;
pub use tally::{Share, Summary, Tally, Tenths};
pub use write::{Target, Writer};

use crate::words::access::LINE;

/// What a record does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// It reads.
    Load,
    /// It writes.
    Store,
    /// It reads and then writes the same bytes (lackey's `M`).
    Modify,
}

/// One record of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Address of its first byte; the last one's is one too.
    pub addr: u64,
    /// Its length, 1 or more.
    pub bytes: u32,
    /// What it does.
    pub op: Op,
    /// When, where the trace tells it: ns since the trace's own zero.
    pub time_ns: Option<u64>,
}

impl Record {
    /// Whether it writes. A modification is one access that writes: a write fetches the line first.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.op != Op::Load
    }

    /// Address of its last byte.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.addr
            .saturating_add(u64::from(self.bytes).saturating_sub(1))
    }

    /// The 64-byte lines that it touches, by number.
    #[must_use]
    pub fn lines(&self) -> std::ops::RangeInclusive<u64> {
        self.addr / LINE..=self.last() / LINE
    }
}

/// How a trace is written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Format {
    /// Text of valgrind's lackey (`--trace-mem=yes`).
    #[serde(rename = "lackey")]
    Lackey,
    /// Memory samples as `perf script` prints them.
    #[serde(rename = "perf-script")]
    PerfScript,
    /// libCacheSim's binary oracleGeneral.
    #[serde(rename = "oraclegeneral")]
    OracleGeneral,
    /// Terrace's own observation log.
    #[serde(rename = "terrace-log")]
    TerraceLog,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::Lackey,
        Self::PerfScript,
        Self::OracleGeneral,
        Self::TerraceLog,
    ];

    /// The name in scenarios and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Lackey => "lackey",
            Self::PerfScript => "perf-script",
            Self::OracleGeneral => "oraclegeneral",
            Self::TerraceLog => "terrace-log",
        }
    }
}

impl std::str::FromStr for Format {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == name)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name).join(", ");
                format!("no such format; the formats are {names}")
            })
    }
}

/// What is done about a record that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBroken {
    /// Reading ends with an error that names it.
    #[default]
    Stop,
    /// It is left out and counted.
    Skip,
}
