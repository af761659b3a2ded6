//! The page sizes of a VM's memory.

use terrace_proto::PageSize;

/// The page sizes of a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pages {
    /// Page size of the guest's page tables.
    pub guest: PageSize,
    /// Page size of the second stage, which is also the unit of ranking and moving.
    pub host: PageSize,
}

impl Pages {
    /// Whether guest and host both have this page size.
    pub(crate) fn all(self, size: PageSize) -> bool {
        self.guest == size && self.host == size
    }

    /// Whether guest and host have the same page size.
    pub(super) fn agree(self) -> bool {
        self.guest == self.host
    }

    pub(super) fn largest(self) -> PageSize {
        self.host.max(self.guest)
    }
}
