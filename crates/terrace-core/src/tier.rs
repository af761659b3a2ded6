//! Tiers as an operator describes them.

use serde::{Deserialize, Serialize};

/// The kind of memory of a tier; sets the weights of reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierKind {
    /// Local DRAM.
    Dram,
    /// Persistent memory: reads to writes 1:3 (vTMM §3.3.1, measured).
    Pmem,
    /// CXL memory: 2:3 (vTMM §3.3.1, measured on remote DRAM).
    Cxl,
    /// Anything else: 1:1, as nothing is known about it.
    #[default]
    Generic,
}

impl TierKind {
    /// Weights of one read and one write in a page's degree.
    #[must_use]
    pub fn weights(self) -> (u8, u8) {
        match self {
            Self::Pmem => (1, 3),
            Self::Cxl => (2, 3),
            Self::Dram | Self::Generic => (1, 1),
        }
    }
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TierConfig {
    /// The tier's name, for people.
    pub name: String,
    /// The kind of memory.
    pub kind: TierKind,
    /// Weight of a read in a page's degree, instead of the kind's (a live host measures it).
    pub read_weight: Option<u8>,
    /// Weight of a write, likewise.
    pub write_weight: Option<u8>,
    /// Bytes that all VMs together may hold of it; none: what the machine reports as free counts alone.
    pub capacity_bytes: Option<u64>,
    /// Free bytes that the engine's moves leave alone.
    pub reserve_bytes: u64,
}
