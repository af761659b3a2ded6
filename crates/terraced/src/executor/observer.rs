//! The observer of one VM's pages: its tracker, and the source of writes that goes by the tracker's passes.

use std::sync::Arc;
use std::time::Duration;

use terrace_config::WriteSource;
use terrace_host::tracker::{SoftDirty, Tracker};
use terrace_host::vm::Vm;
use terrace_host::worker::WorkerStop;
use terrace_proto::{Pass, Passed, ScanFailure, TableFrame};

use super::context::{Context, given_up};
use super::map_guard::MapGuard;
use crate::registry::TrackingNews;

/// The configuration of the search for written pages.
#[derive(Clone, Copy, Debug)]
pub struct WriteConfig {
    /// The source of writes.
    pub source: WriteSource,
    /// Time for which the search may pause the VM, once a round.
    pub pause_budget: Duration,
    /// Windows of a round.
    pub windows: u8,
}

/// A VM's tracker, its monitor, and its source of writes.
pub struct Observer {
    vm: Vm,
    tracker: Tracker,
    soft_dirty: Option<SoftDirty>,
    writes: WriteSource,
}

impl Observer {
    /// An observer that has observed nothing yet.
    pub fn new(context: &Context, vm: Vm, tracker: Tracker, writes: WriteConfig) -> Self {
        let soft_dirty = (writes.source == WriteSource::SoftDirty).then(|| {
            SoftDirty::new(
                context.root.clone(),
                Arc::clone(&context.target.process),
                Arc::clone(&context.target.memory),
                writes.pause_budget,
                writes.windows,
            )
        });
        Self {
            vm,
            tracker,
            soft_dirty,
            writes: writes.source,
        }
    }

    /// The source of writes in words; `None` if none is configured.
    pub fn writes_description(&self) -> Option<String> {
        match (&self.soft_dirty, self.writes, &self.tracker) {
            (Some(source), ..) => Some(source.text().to_owned()),
            (_, WriteSource::SoftBit, Tracker::GuestTables(_)) => {
                Some("dirty bits, moved to bit 58 (Linux 6.6 or later, as configured)".into())
            }
            (_, WriteSource::SoftBit, Tracker::Damon(_)) => {
                Some("reads only (DAMON sees no dirty bits)".into())
            }
            _ => None,
        }
    }

    /// A handle that ends a pass in its middle; `None` if the tracker has no worker.
    pub fn worker_stop(&self) -> Option<WorkerStop> {
        self.tracker.worker_stop()
    }

    /// CPU time that the tracker has used; `None` if that is a part of its answers.
    pub fn cpu_time(&mut self) -> Option<Duration> {
        self.tracker.cpu_time()
    }

    /// Makes passes name the guest's page tables, or stops that.
    pub fn name_tables(&mut self, on: bool) {
        self.tracker.name_tables(on);
    }

    /// The page tables that the last pass named.
    pub fn take_tables(&mut self) -> Vec<TableFrame> {
        self.tracker.take_tables()
    }

    /// Makes one pass by the guarded map, and finds the writes that go with it. Both are guarded apart: after a pass
    /// by a map that does not hold, no soft-dirty bit is cleared.
    pub fn scan(
        &mut self,
        guard: &MapGuard,
        pass: Pass,
        mut tell: impl FnMut(TrackingNews),
    ) -> Result<Passed, ScanFailure> {
        let (id, vm, clearing) = (pass.id(), pass.space().vm(), pass.discovers());
        // The round began with a check of the whole map, when the nodes of its pages were queried.
        let scanned = guard.around(false, || self.tracker.scan(&mut self.vm, pass));
        let scanned = scanned.unwrap_or_else(|reason| Err(given_up(id, vm, reason)));
        if clearing {
            let text = self.tracker.shortfall().map(str::to_owned);
            tell(TrackingNews::Shortfall(text));
        }
        let mut passed = scanned?;
        // It finds the writes of whole rounds; the configuration allows it with no parts.
        if let (Some(source), Passed::All(answer)) = (&mut self.soft_dirty, &mut passed) {
            let followed = guard.around(false, || source.follow(clearing, answer));
            followed.map_err(|reason| given_up(id, vm, reason))?;
            tell(TrackingNews::Writes(source.text().to_owned()));
        }
        Ok(passed)
    }
}
