//! Huge pages behind a VM's memory: the request to make them of single pages, and what came of it.
//!
//! Blocks are 2 MiB of guest physical memory, by number: guest page number / 512.

use serde::{Deserialize, Serialize};

use crate::ProviderId;

/// A request to collapse blocks of a VM's memory: single pages that fill a block become one huge page of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollapseRequest {
    /// The VM's provider.
    pub provider: ProviderId,
    /// Echoed in the report.
    pub number: u64,
    /// The block from which the VM's memory is searched.
    pub from: u64,
    /// The most blocks that are tried.
    pub blocks: u32,
    /// Blocks that are left as they are, ascending.
    pub leave: Vec<u64>,
    /// Nothing is tried while less of the host's memory is available, percent.
    pub host_reserve_percent: u8,
    /// Whether a pass begins: the share of huge pages is measured before, which reads all of the process's page tables.
    pub is_first: bool,
}

/// The outcome of a [`CollapseRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollapseReport {
    /// The VM's provider.
    pub provider: ProviderId,
    /// The [`CollapseRequest`]'s number.
    pub number: u64,
    /// The blocks that were tried, or the reason why none was.
    pub result: Result<Collapsed, NotCollapsed>,
    /// Time that it took, ns.
    pub elapsed_ns: u64,
}

/// The blocks that were tried, and the memory behind the VM around that.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collapsed {
    /// The memory before; `None`: not measured, within a pass.
    pub before: Option<HugeBacking>,
    /// The memory after; `None`: not measured, as the pass goes on.
    pub after: Option<HugeBacking>,
    /// The blocks that were tried, ascending.
    pub blocks: Vec<BlockOutcome>,
    /// The block from which the search continues; `None`: the end was reached.
    pub next: Option<u64>,
}

/// Host memory behind the part of a VM's RAM that may have huge pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HugeBacking {
    /// All of it that is there, bytes.
    pub present_bytes: u64,
    /// The part that is huge pages, bytes.
    pub huge_bytes: u64,
}

impl HugeBacking {
    /// The share of huge pages in percent, for people; `None` if nothing is there.
    #[must_use]
    pub fn percent(&self) -> Option<f64> {
        let huge = self.huge_bytes.min(self.present_bytes);
        // Far below 2^52.
        (self.present_bytes > 0).then(|| huge as f64 * 100.0 / self.present_bytes as f64)
    }

    /// The same in whole percent, rounded down.
    #[must_use]
    pub fn whole_percent(&self) -> Option<u64> {
        let huge = u128::from(self.huge_bytes.min(self.present_bytes));
        let percent = (huge * 100).checked_div(u128::from(self.present_bytes))?;
        u64::try_from(percent).ok()
    }
}

/// The outcome of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockOutcome {
    /// The block.
    pub block: u64,
    /// The block's outcome.
    pub status: BlockStatus,
}

/// The outcome of a block. New kinds are added at the end: their position is their number in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockStatus {
    /// The block is one huge page now.
    Collapsed,
    /// Some of its pages were in use.
    Busy,
    /// The kernel returned another error (an errno).
    Failed(i32),
    /// No huge page was free on its node: this says nothing about the block.
    NoHugePage,
}

/// The reason why no block was tried. New kinds are added at the end: their position is their number in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum NotCollapsed {
    /// For now: it may be possible later.
    NotNow(String),
    /// For good: it is not possible on this host, or with this VM.
    Never(String),
}
