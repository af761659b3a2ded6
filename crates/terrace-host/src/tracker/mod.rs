//! Sources of observations.
//!
//! Responsible for: joining what is needed for one kind of observation into answers that the engine
//! takes. It leaves to others: when to observe, and what it means.

mod damon;
mod guest_tables;
mod soft_dirty;

use std::time::Duration;

use terrace_proto::worker::Withheld;
use terrace_proto::{PartAnswer, Pass, Passed, Rearm, ScanFailure, ScanRequest, TableFrame};

use crate::vm::Vm;
use crate::worker::WorkerStop;

pub use damon::DamonRegions;
pub use guest_tables::GuestTables;
pub use soft_dirty::SoftDirty;

/// The source of a VM's accessed pages.
#[derive(Debug)]
pub enum Tracker {
    /// The guest's page tables, page by page.
    GuestTables(Box<GuestTables>),
    /// DAMON, by regions of its hypervisor's memory.
    Damon(DamonRegions),
}

impl Tracker {
    /// A handle that ends the tracker when its VM is left alone, also in the middle of a pass; `None` for DAMON,
    /// which no pass waits for.
    #[must_use]
    pub fn worker_stop(&self) -> Option<WorkerStop> {
        match self {
            Self::GuestTables(tables) => Some(tables.worker_stop()),
            Self::Damon(_) => None,
        }
    }

    /// CPU time that scans of the VM have used, by the kernel's count; `None` if it is a part of an answer.
    pub fn cpu_time(&mut self) -> Option<Duration> {
        match self {
            Self::GuestTables(tables) => Some(tables.cpu_time()),
            Self::Damon(_) => None,
        }
    }

    /// Makes passes name the page tables that are in use, or stops that. DAMON knows none.
    pub fn name_tables(&mut self, on: bool) {
        if let Self::GuestTables(tables) = self {
            tables.name_tables(on);
        }
    }

    /// The page tables that the last pass named.
    pub fn take_tables(&mut self) -> Vec<TableFrame> {
        match self {
            Self::GuestTables(tables) => tables.take_tables(),
            Self::Damon(_) => Vec::new(),
        }
    }

    /// One pass.
    ///
    /// # Errors
    /// If it could not be done; fatal if it never can.
    pub fn scan(&mut self, vm: &mut Vm, pass: Pass) -> Result<Passed, ScanFailure> {
        match (self, pass) {
            (Self::GuestTables(tables), pass) => tables.make(vm, pass),
            (Self::Damon(regions), Pass::All(request)) => {
                let answer = regions.scan(&request)?;
                Ok(Passed::All(Box::new(answer)))
            }
            // A VM that falls back to DAMON has rounds by parts, too, if all have: each window of another part of its blocks.
            (Self::Damon(regions), Pass::Part(request)) => {
                let answer = regions.scan(&ScanRequest {
                    id: request.id,
                    space: request.space,
                    rearm: Rearm::None,
                    prune: request.prune,
                    discover: request.discover,
                })?;
                let answer = PartAnswer::of_blocks(&answer, request.part);
                Ok(Passed::Part(Box::new(answer)))
            }
        }
    }

    /// The reason why the tracker sees less of the VM than it could, if it does, for people.
    #[must_use]
    pub fn shortfall(&self) -> Option<&'static str> {
        match self {
            Self::GuestTables(tables) => tables.withheld().map(|why| match why {
                Withheld::DefaultBase => {
                    "top-level tables in registers only, so processes that sleep are not seen: the guest's kernel runs \
                     without KASLR (nokaslr), where any process can forge such a table"
                }
                Withheld::SeenBeforeReset => {
                    "top-level tables in registers only, so processes that sleep are not seen: the guest's kernel has \
                     the tables of before its reset, so stale ones look like live ones"
                }
            }),
            Self::Damon(_) => None,
        }
    }
}
