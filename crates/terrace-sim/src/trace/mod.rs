//! Recorded accesses of real programs: reading, analysing, loading and converting them.
//!
//! Responsible for: the formats that are read ([`Reader`], one record at a time in bounded memory), the processor's
//! cache in front ([`Cache`]), the statistics of a trace ([`Tally`]), its miss-ratio curves ([`TraceDemand`]), its compact
//! form in a run ([`TraceSpec`], [`Loaded`]) and the formats that are written ([`Writer`]). It leaves to others: the cost
//! of an access, how a curve is made, and the command line.
//!
//! Traces are untrusted: a record that cannot be read is an error that names its location, or is skipped and counted
//! if that is asked for ([`OnBroken`]).

mod cache;
mod copies;
mod demand;
mod error;
mod footprint;
mod input;
mod lackey;
mod load;
mod observations;
mod oracle_general;
mod perf;
mod play;
mod reader;
mod tally;
#[cfg(test)]
mod tests;
mod unzstd;
mod write;

use serde::{Deserialize, Serialize};

pub use cache::{Cache, CacheSizeError};
pub use demand::{TraceDemand, Wanted};
pub use error::TraceError;
pub use footprint::MAX_REGIONS;
pub use load::{Loaded, MAX_ACCESSES, TraceSpec, load};
pub use reader::Reader;
pub use tally::{Share, Summary, Tally, Tenths};
pub use write::{Target, Writer};

use crate::base::access::LINE;

/// The operation of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// A read.
    Load,
    /// A write.
    Store,
    /// A read, then a write of the same bytes (lackey's `M`).
    Modify,
}

/// One record of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Address of the first byte; the address of the last byte is valid, too.
    pub addr: u64,
    /// Length of the access, bytes, 1 or more.
    pub bytes: u32,
    /// The operation.
    pub op: Op,
    /// Time of the access, if the trace has times: ns since the trace's own zero.
    pub time_ns: Option<u64>,
}

impl Record {
    /// Whether the record writes. A modification is one access that writes: a write fetches the line first.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.op != Op::Load
    }

    /// Address of the last byte.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.addr
            .saturating_add(u64::from(self.bytes).saturating_sub(1))
    }

    /// The 64-byte lines that the record touches, by number.
    #[must_use]
    pub fn lines(&self) -> std::ops::RangeInclusive<u64> {
        self.addr / LINE..=self.last() / LINE
    }
}

/// The file format of a trace.
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
    /// All formats.
    pub const ALL: [Self; 4] = [
        Self::Lackey,
        Self::PerfScript,
        Self::OracleGeneral,
        Self::TerraceLog,
    ];

    /// Whether a file has all accesses of its program, hits of the processor's caches among them. perf samples some
    /// of them, and Terrace's log has one record for a page that was touched.
    #[must_use]
    pub fn records_all(self) -> bool {
        match self {
            Self::Lackey | Self::OracleGeneral => true,
            Self::PerfScript | Self::TerraceLog => false,
        }
    }

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

/// The treatment of records that cannot be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnBroken {
    /// Reading ends with an error that names the record.
    #[default]
    Stop,
    /// The record is left out and counted.
    Skip,
}
