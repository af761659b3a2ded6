//! The guest's page tables from outside: registers by the monitor, the walk by the worker.

use std::sync::Arc;
use std::time::Duration;

use terrace_proto::{PagingRegisters, ScanAnswer, ScanFailure, ScanRequest};

use crate::memory_map::GuestMemory;
use crate::qemu::Vm;
use crate::worker::{WorkerCommand, WorkerError, WorkerHandle};

/// Workers that may fail one after the other before a VM is given up.
const MAX_FAILURES: u32 = 3;

/// A VM's page tables.
#[derive(Debug)]
pub struct GuestTables {
    command: WorkerCommand,
    memory: Arc<GuestMemory>,
    timeout: Duration,
    worker: Option<WorkerHandle>,
    sandbox_gaps: Vec<String>,
    /// Workers that ended since the last answer.
    failures: u32,
}

impl GuestTables {
    /// Starts a worker and hands it the VM's RAM. `timeout` holds for this and for each pass. A worker
    /// that fails later is replaced by the next pass.
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
            failures: 0,
        };
        tables.worker = Some(tables.start()?);
        Ok(tables)
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
    /// Where it could not be done; fatal where the VM has ended or several workers failed in a row.
    pub fn scan(&mut self, vm: &mut Vm, request: ScanRequest) -> Result<ScanAnswer, ScanFailure> {
        let (id, owner) = (request.id, request.space.vm());
        let vcpus = vm.registers().map_err(|error| ScanFailure {
            id,
            vm: owner,
            reason: error.to_string(),
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
            Ok(answer) => {
                self.failures = 0;
                return Ok(answer);
            }
            Err(WorkerError::Scan(failure)) => {
                self.failures = 0;
                return Err(failure);
            }
            Err(error) => error,
        };
        self.worker = None;
        self.failures += 1;
        Err(ScanFailure {
            id,
            vm,
            reason: error.to_string(),
            fatal: self.failures >= MAX_FAILURES,
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
        self.worker
            .insert(worker)
            .scan(request, vcpus, self.timeout)
    }
}
