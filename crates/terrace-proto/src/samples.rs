//! Samples: single accesses that a processor's counters or a guest's agent named.
//!
//! Responsible for: the accesses of a stretch of time, page by page, and what one of them stands for. It leaves to
//! others: where they come from, and what they mean ([`crate::Event::Samples`] may be a guest's word).

use serde::{Deserialize, Serialize};

use crate::{Gfn, VmId};

/// Most pages that one report of samples names: what is beyond them is not read.
pub const MAX_SAMPLED_PAGES: usize = 1 << 16;

/// The samples of one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageSamples {
    /// The page.
    pub gfn: Gfn,
    /// Loads; all accesses, if the source does not tell stores from loads.
    pub reads: u32,
    /// Stores that missed the caches. A source that counts all stores says 0: they tell nothing of misses.
    pub writes: u32,
}

/// Samples of a VM's cache misses. A source that sees only a part of them (some vCPUs, some processes) says a period that is longer
/// by as much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Samples {
    /// The VM.
    pub vm: VmId,
    /// Misses that one sample stands for.
    pub period: u32,
    /// The time over which they were taken, ns.
    pub over_ns: u64,
    /// Page by page. A page may come several times.
    pub pages: Vec<PageSamples>,
}
