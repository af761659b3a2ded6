//! Sources of observations.
//!
//! Responsible for: joining what is needed for one kind of observation into answers that the engine
//! takes. It leaves to others: when to observe, and what it means.

mod damon;
mod guest_tables;
mod soft_dirty;

use terrace_proto::{ScanAnswer, ScanFailure, ScanRequest};

use crate::qemu::Vm;

pub use damon::DamonRegions;
pub use guest_tables::GuestTables;
pub use soft_dirty::SoftDirty;

/// What says which pages of one VM are accessed.
#[derive(Debug)]
pub enum Tracker {
    /// Its page tables, page by page.
    GuestTables(GuestTables),
    /// DAMON, by regions of its hypervisor's memory.
    Damon(DamonRegions),
}

impl Tracker {
    /// One pass.
    ///
    /// # Errors
    /// Where it could not be done; fatal where it never can.
    pub fn scan(&mut self, vm: &mut Vm, request: ScanRequest) -> Result<ScanAnswer, ScanFailure> {
        match self {
            Self::GuestTables(tables) => tables.scan(vm, request),
            Self::Damon(regions) => regions.scan(&request),
        }
    }
}
