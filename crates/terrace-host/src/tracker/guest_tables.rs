//! The guest's page tables from outside: registers by the monitor, the walk by the worker.

use std::sync::Arc;
use std::time::Duration;

use terrace_proto::{PAGE_SIZE, PagingRegisters, ScanAnswer, ScanFailure, ScanRequest};

use crate::memory_map::GuestMemory;
use crate::qemu::Vm;
use crate::worker::{WorkerCommand, WorkerError, WorkerHandle};

/// What looking for top-level tables in all of a VM's RAM may take: 10 s, and 1 s more for each 8 GiB. One
/// core reads far more in that time, unless the host is busy.
fn search_timeout(pages: u64) -> Duration {
    const PAGES_PER_SECOND: u64 = (8 << 30) / PAGE_SIZE;
    Duration::from_secs(10 + pages.div_ceil(PAGES_PER_SECOND))
}

/// A VM's page tables.
#[derive(Debug)]
pub struct GuestTables {
    command: WorkerCommand,
    memory: Arc<GuestMemory>,
    timeout: Duration,
    worker: Option<WorkerHandle>,
    sandbox_gaps: Vec<String>,
    writes: bool,
}

impl GuestTables {
    /// Starts a worker and hands it the VM's RAM. `timeout` holds for this and for each pass; one that
    /// looks for top-level tables gets at least 10 s and 1 s more for each 8 GiB of RAM. A worker that
    /// fails later is replaced by the next pass.
    ///
    /// # Errors
    /// Where the worker cannot serve this VM.
    pub fn attach(
        command: WorkerCommand,
        memory: Arc<GuestMemory>,
        timeout: Duration,
    ) -> Result<Self, WorkerError> {
        let mut tables = Self {
            command,
            memory,
            timeout,
            worker: None,
            sandbox_gaps: Vec::new(),
            writes: false,
        };
        tables.worker = Some(tables.start()?);
        Ok(tables)
    }

    /// Whether passes tell writes, of a guest of which the operator says that it runs Linux 6.6 or later:
    /// D of its leaves moves to a software bit that no other kernel knows.
    pub fn tell_writes(&mut self, on: bool) {
        self.writes = on;
    }

    fn start(&mut self) -> Result<WorkerHandle, WorkerError> {
        let mut worker = WorkerHandle::spawn(&self.command)?;
        self.sandbox_gaps = worker.attach(&self.memory, self.timeout)?;
        Ok(worker)
    }

    /// What the worker's sandbox could not do on this kernel.
    #[must_use]
    pub fn sandbox_gaps(&self) -> &[String] {
        &self.sandbox_gaps
    }

    /// The worker's process, while there is one.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        self.worker.as_ref().map(WorkerHandle::pid)
    }

    /// One pass, starting from what the virtual CPUs' registers say now.
    ///
    /// # Errors
    /// Where it could not be done; fatal where it never can: the VM has ended, or a worker refuses it.
    pub fn scan(&mut self, vm: &mut Vm, request: ScanRequest) -> Result<ScanAnswer, ScanFailure> {
        let (id, owner) = (request.id, request.space.vm());
        let vcpus = prepare(vm, request.discover).map_err(|reason| ScanFailure {
            id,
            vm: owner,
            reason,
            fatal: !vm.process().is_alive(),
        })?;
        self.scan_from(request, vcpus)
    }

    /// One pass, starting from registers that the caller has.
    ///
    /// # Errors
    /// As [`GuestTables::scan`].
    pub fn scan_from(
        &mut self,
        request: ScanRequest,
        vcpus: Vec<PagingRegisters>,
    ) -> Result<ScanAnswer, ScanFailure> {
        let (id, vm) = (request.id, request.space.vm());
        let error = match self.try_scan(request, vcpus) {
            Ok(answer) => return Ok(answer),
            Err(WorkerError::Scan(failure)) => return Err(failure),
            Err(error) => error,
        };
        // The next pass starts another one.
        self.worker = None;
        Err(ScanFailure {
            id,
            vm,
            reason: error.to_string(),
            fatal: matches!(error, WorkerError::Refused(_)),
        })
    }

    fn try_scan(
        &mut self,
        request: ScanRequest,
        vcpus: Vec<PagingRegisters>,
    ) -> Result<ScanAnswer, WorkerError> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.start()?,
        };
        let timeout = if request.discover {
            let pages = self.memory.ram().iter().map(|range| range.pages).sum();
            self.timeout.max(search_timeout(pages))
        } else {
            self.timeout
        };
        let worker = self.worker.insert(worker);
        worker.scan(request, vcpus, self.writes, timeout)
    }
}

/// The registers, unless a search of all RAM must not be now: while a migration brings the RAM, a page
/// that is looked at before it came is made of zeros or waited for.
fn prepare(vm: &mut Vm, discover: bool) -> Result<Vec<PagingRegisters>, String> {
    if discover && let Some(status) = vm.migration().map_err(|error| error.to_string())? {
        return Err(format!(
            "a migration of the VM goes on ({status}): its RAM is not searched before it is over"
        ));
    }
    vm.registers().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_gets_a_second_more_for_each_8_gib() {
        let seconds = |gib: u64| search_timeout((gib << 30) / PAGE_SIZE).as_secs();
        assert_eq!(
            [0, 4, 8, 9, 64, 4096].map(seconds),
            [10, 11, 11, 12, 18, 522]
        );
    }
}
