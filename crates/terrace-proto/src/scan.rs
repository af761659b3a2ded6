//! Scans of a guest's page tables: the question and the answer.

use serde::{Deserialize, Serialize};

use crate::{PageBitmap, RequestId, Space};

/// The pages that get their accessed bit cleared by a scan, so that the next one sees new accesses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rearm {
    /// None: read only.
    None,
    /// Every page.
    All,
    /// These (guest page numbers); the rest keeps its bit.
    Only(PageBitmap),
}

/// One pass over the guest's page tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanRequest {
    /// Echoed in the answer.
    pub id: RequestId,
    /// The address space to scan.
    pub space: Space,
    /// Pages to clear.
    pub rearm: Rearm,
    /// Skip subtrees whose non-leaf accessed bit is clear. A full pass (`false`) reads all leaves.
    pub prune: bool,
    /// Look for top-level tables over all allocated memory first (slow; once a round).
    pub discover: bool,
}

/// The result of one pass. All bitmaps have one bit per guest page number of the VM, apart from `huge_leaf`, which
/// has one per 2 MiB.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanAnswer {
    /// The request's id.
    pub id: RequestId,
    /// The request's address space.
    pub space: Space,
    /// A user mapping of the page exists (in subtrees that were pruned: existed at the last full pass).
    pub known: PageBitmap,
    /// Some mapping's accessed bit was set.
    pub accessed: PageBitmap,
    /// Some mapping was written since the last answer that reported this (or the clearing pass); `None` if no source of
    /// writes exists, or it reports later.
    pub written: Option<PageBitmap>,
    /// The 2 MiB block is mapped by a huge leaf, whose bits do not distinguish its 512 parts; or it is part of a larger region.
    pub huge_leaf: PageBitmap,
    /// Cost and counts.
    pub stats: ScanStats,
}

/// Cost and counts of a pass. Faults are the guest's doing and never end a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ScanStats {
    /// Top-level tables walked.
    pub roots: u64,
    /// Table pages read.
    pub tables: u64,
    /// Present user leaves read.
    pub leaves: u64,
    /// Leaves with the accessed bit set.
    pub accessed: u64,
    /// Accessed bits cleared.
    pub cleared: u64,
    /// Compare-exchanges that lost to the guest, and tables left because the guest changed the way to
    /// them meanwhile.
    pub lost_races: u64,
    /// Subtrees skipped because their non-leaf accessed bit was clear.
    pub pruned: u64,
    /// Entries that point outside of the guest's RAM.
    pub out_of_ram: u64,
    /// Entries with reserved bits set, skipped.
    pub reserved: u64,
    /// Tables reached a second time (shared, or a cycle), skipped.
    pub revisited: u64,
    /// Wall time, ns.
    pub elapsed_ns: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
}

/// A virtual CPU's control registers, as the hypervisor reports them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub struct PagingRegisters {
    /// CR0; bit 31 (PG) is set if paging is on.
    pub cr0: u64,
    /// CR3: top-level table's address in bits 12–51, PCID or cache bits below.
    pub cr3: u64,
    /// CR4; bit 5 PAE, bit 12 LA57 (five levels).
    pub cr4: u64,
    /// EFER; bit 10 LMA (long mode active).
    pub efer: u64,
}

/// A VM's monitor readings at one moment, for a scan to start from.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Readings {
    /// Registers of each virtual CPU, in their order. `None` if they do not count: it ran a nested guest around them,
    /// or may have, and hypervisors then report that guest's.
    pub vcpus: Vec<Option<PagingRegisters>>,
    /// Number of the VM's resets since its monitor was first connected to, as far as that reported them. Tables that
    /// were found before a reset do not count after it.
    pub resets: u64,
}

impl From<Vec<PagingRegisters>> for Readings {
    /// Registers that all count, of a VM that was never reset.
    fn from(vcpus: Vec<PagingRegisters>) -> Self {
        Self {
            vcpus: vcpus.into_iter().map(Some).collect(),
            resets: 0,
        }
    }
}
