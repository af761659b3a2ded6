//! The configuration of how writes to a VM's pages are found out.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::raw::{RawVm, TrackerChoice, WriteSource};

/// The tracking of writes to a VM's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writes {
    /// The source that says which pages are written.
    pub source: WriteSource,
    /// Time for which finding out may pause the VM, once a round.
    pub pause_budget: Duration,
}

impl Writes {
    /// Checks that rounds may look at parts of the VM's memory in turn.
    ///
    /// # Errors
    /// If accesses or writes are found in all of it at once.
    pub(super) fn check_parts(&self, tracker: TrackerChoice) -> Result<()> {
        ensure!(
            tracker != TrackerChoice::Damon,
            "tracker = \"damon\" watches all of a VM's memory at once: use tracker = \"page-tables\", or \
             engine.scan_parts = 1"
        );
        ensure!(
            self.source != WriteSource::SoftDirty,
            "writes = \"soft-dirty\" finds the writes of a whole round: use writes = \"soft-bit\" (Linux 6.6 or later \
             in the guest) or \"none\", or engine.scan_parts = 1"
        );
        Ok(())
    }
}

/// The tracking of a VM's writes by its own section and the defaults, checked against its tracker of accesses.
pub(super) fn of_vm(own: &RawVm, all: &RawVm, tracker: TrackerChoice) -> Result<Writes> {
    let source = own.writes.or(all.writes).unwrap_or_default();
    ensure!(
        (tracker, source) != (TrackerChoice::Damon, WriteSource::SoftBit),
        "writes = \"soft-bit\" comes from page tables, which tracker = \"damon\" does not read: use \
         writes = \"soft-dirty\" or tracker = \"page-tables\""
    );
    let pause = own.write_pause_budget_ms.or(all.write_pause_budget_ms);
    Ok(Writes {
        source,
        pause_budget: Duration::from_millis(pause.unwrap_or(20)),
    })
}
