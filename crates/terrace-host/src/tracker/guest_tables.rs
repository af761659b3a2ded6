//! The guest's page tables from outside: registers by the monitor, the walk by the worker.

use std::sync::Arc;
use std::time::Duration;

use terrace_proto::worker::Withheld;
use terrace_proto::{
    PAGE_SIZE, Pass, Passed, Readings, RequestId, ScanAnswer, ScanFailure, ScanRequest, TableFrame,
    Tick, VmId,
};

use terrace_sys::monotonic_now;

use crate::memory_map::GuestMemory;
use crate::vm::Vm;
use crate::worker::{ChargedTo, WorkerCommand, WorkerError, WorkerHandle, WorkerStop};

/// The time limit of a search for top-level tables in all of a VM's RAM: 10 s, and 1 s more for each 8 GiB. One core
/// reads far more in that time, unless the host is busy.
fn search_timeout(pages: u64) -> Duration {
    const PAGES_PER_SECOND: u64 = (8 << 30) / PAGE_SIZE;
    Duration::from_secs(10 + pages.div_ceil(PAGES_PER_SECOND))
}

/// Time for which registers are believed: 2 s, and 1 s more for each 64 GiB, of which a walk takes 42 ms on one core.
fn lease(pages: u64) -> Duration {
    const PAGES_PER_SECOND: u64 = (64 << 30) / PAGE_SIZE;
    Duration::from_secs(2 + pages / PAGES_PER_SECOND)
}

/// The way in which passes are made.
#[derive(Clone, Copy, Debug)]
struct Options {
    /// The time limit of a pass.
    timeout: Duration,
    /// Writes are told from D, which is moved aside.
    writes: bool,
    /// Threads of a pass over all, at most.
    threads: u8,
    /// The next pass names page tables.
    tables: bool,
}

/// Time for which passes over parts start from the same registers. Short: as far as it goes back, what a reset or a new kernel
/// put in place of tables may be there already. A pass over all reads and writes as long after its registers.
const SHARED: Duration = Duration::from_millis(100);

/// Registers, and for how long they count.
#[derive(Clone, Debug)]
struct Dated {
    readings: Readings,
    /// Another pass may start from them before.
    shared_until: Tick,
    /// They are too old to write by.
    until: Tick,
    /// QEMU's events before them ([`Vm::run_events`]).
    run_events: Option<u64>,
}

/// A VM's page tables.
#[derive(Debug)]
pub struct GuestTables {
    command: WorkerCommand,
    memory: Arc<GuestMemory>,
    worker: Option<WorkerHandle>,
    sandbox_gaps: Vec<String>,
    charged_to: Option<ChargedTo>,
    uncharged: Option<String>,
    stop: WorkerStop,
    options: Options,
    withheld: Option<Withheld>,
    /// The last readings.
    readings: Option<Dated>,
    /// CPU time of workers that were replaced.
    cpu_before: Duration,
    /// The page tables that the last pass named.
    named: Vec<TableFrame>,
}

impl GuestTables {
    /// Starts a worker and hands it the VM's RAM. `timeout` holds for this and for each pass; one that
    /// searches for top-level tables gets at least 10 s and 1 s more for each 8 GiB of RAM. A worker that
    /// fails later is replaced by the next pass.
    ///
    /// # Errors
    /// If the worker cannot serve this VM.
    pub fn attach(
        command: WorkerCommand,
        memory: Arc<GuestMemory>,
        timeout: Duration,
    ) -> Result<Self, WorkerError> {
        Self::attach_charged(command, memory, timeout, None)
    }

    /// The same, with workers whose memory is charged to the VM's hypervisor.
    ///
    /// # Errors
    /// As [`GuestTables::attach`].
    pub fn attach_charged(
        command: WorkerCommand,
        memory: Arc<GuestMemory>,
        timeout: Duration,
        charged_to: Option<ChargedTo>,
    ) -> Result<Self, WorkerError> {
        let mut tables = Self {
            command,
            memory,
            worker: None,
            sandbox_gaps: Vec::new(),
            charged_to,
            uncharged: None,
            stop: WorkerStop::default(),
            options: Options {
                timeout,
                writes: false,
                threads: 1,
                tables: false,
            },
            named: Vec::new(),
            withheld: None,
            readings: None,
            cpu_before: Duration::ZERO,
        };
        tables.worker = Some(tables.start()?);
        Ok(tables)
    }

    /// Whether passes report writes, of a guest of which the configuration states that it runs Linux 6.6 or later:
    /// D of its leaves moves to a software bit that no other kernel knows.
    pub fn tell_writes(&mut self, on: bool) {
        self.options.writes = on;
    }

    /// Lets a pass over all of the VM's tables use so many threads, at most.
    pub fn use_threads(&mut self, threads: u8) {
        self.options.threads = threads.max(1);
    }

    /// Makes passes name the page tables that are in use, or stops that.
    pub fn name_tables(&mut self, on: bool) {
        self.options.tables = on;
    }

    /// The page tables that the last pass named.
    pub fn take_tables(&mut self) -> Vec<TableFrame> {
        std::mem::take(&mut self.named)
    }

    fn start(&mut self) -> Result<WorkerHandle, WorkerError> {
        let mut worker = WorkerHandle::spawn(&self.command)?;
        worker.end_with(&self.stop)?;
        let charge = |to: &ChargedTo| worker.charge(to).err();
        self.uncharged = self.charged_to.as_ref().and_then(charge);
        self.sandbox_gaps = worker.attach(&self.memory, self.options.timeout)?;
        Ok(worker)
    }

    /// The parts of the worker's sandbox that this kernel lacks.
    #[must_use]
    pub fn sandbox_gaps(&self) -> &[String] {
        &self.sandbox_gaps
    }

    /// The reason why the memory that the worker faults in is charged to the daemon's cgroup and not to the VM's, if
    /// it is.
    #[must_use]
    pub fn uncharged(&self) -> Option<&str> {
        self.uncharged.as_deref()
    }

    /// A handle that ends the worker for good, whatever it is at, when its VM is left alone.
    #[must_use]
    pub fn worker_stop(&self) -> WorkerStop {
        self.stop.clone()
    }

    /// The worker's process, while there is one.
    #[must_use]
    pub fn worker_pid(&self) -> Option<u32> {
        self.worker.as_ref().map(WorkerHandle::pid)
    }

    /// CPU time that all workers of this VM have used, by the kernel's word.
    pub fn cpu_time(&mut self) -> Duration {
        let now = self.worker.as_mut().map(WorkerHandle::cpu_time);
        self.cpu_before + now.unwrap_or_default()
    }

    /// One pass, starting from the virtual CPUs' registers as they are now; with a search before it if the request asks
    /// for it. A search takes seconds, so the registers are read anew after it.
    ///
    /// # Errors
    /// If it could not be done; fatal if it never can: the VM has ended, or a worker refuses it.
    pub fn scan(&mut self, vm: &mut Vm, request: ScanRequest) -> Result<ScanAnswer, ScanFailure> {
        let about = (request.id, request.space.vm());
        self.make(vm, Pass::All(request))
            .and_then(|passed| of_all(about, passed))
    }

    /// The same of any pass. Passes over parts that follow each other closely start from the same registers.
    ///
    /// # Errors
    /// As [`GuestTables::scan`].
    pub fn make(&mut self, vm: &mut Vm, pass: Pass) -> Result<Passed, ScanFailure> {
        let (id, owner) = (pass.id(), pass.space().vm());
        let no_readings = |vm: &Vm, reason: String| ScanFailure {
            id,
            vm: owner,
            reason,
            fatal: !vm.process().is_alive(),
        };
        if pass.discovers() {
            self.readings = None;
            let readings = before_search(vm).map_err(|reason| no_readings(vm, reason))?;
            let searched = self.search(readings);
            searched.map_err(|error| self.failed((id, owner), error))?;
        }
        if let Some(dated) = self.fresh_readings(vm, &pass) {
            match self.pass_from(pass.clone(), dated) {
                // The processes that ran then may all have ended since.
                Err(_) if self.worker.is_some() => {}
                passed => return passed,
            }
        }
        let (until, shared_until) = (self.lease(), monotonic_now().after(SHARED));
        let run_events = vm.run_events();
        let readings = vm.readings();
        let dated = Dated {
            run_events,
            readings: readings.map_err(|error| no_readings(vm, error.to_string()))?,
            shared_until,
            until,
        };
        self.pass_from(pass, dated)
    }

    /// One pass from these registers, which count for the next one if it is done.
    fn pass_from(&mut self, pass: Pass, dated: Dated) -> Result<Passed, ScanFailure> {
        let passed = self.pass(pass, dated.readings.clone(), dated.until)?;
        self.readings = Some(dated);
        Ok(passed)
    }

    /// The last readings, if the pass is over a part, they were made a moment ago, and the VM was neither reset nor stopped since. A monitor takes as
    /// long to tell registers as a small part takes to scan; what a walk may do by them ends with the same `until`.
    fn fresh_readings(&mut self, vm: &Vm, pass: &Pass) -> Option<Dated> {
        let dated = self.readings.take()?;
        let is_fresh = matches!(pass, Pass::Part(_))
            && monotonic_now() < dated.shared_until
            && vm
                .run_events()
                .is_some_and(|now| Some(now) == dated.run_events);
        is_fresh.then_some(dated)
    }

    /// The same, starting from readings that the caller has.
    ///
    /// # Errors
    /// As [`GuestTables::scan`].
    pub fn scan_from(
        &mut self,
        request: ScanRequest,
        readings: Readings,
    ) -> Result<ScanAnswer, ScanFailure> {
        if request.discover {
            let searched = self.search(readings.clone());
            searched.map_err(|error| self.failed((request.id, request.space.vm()), error))?;
        }
        let until = self.lease();
        let about = (request.id, request.space.vm());
        self.pass(Pass::All(request), readings, until)
            .and_then(|passed| of_all(about, passed))
    }

    /// The time when registers that are asked for now are too old to write by: long before a guest that starts anew
    /// has data in place of tables, if the host is not overloaded, and long after a walk of this guest.
    fn lease(&self) -> Tick {
        monotonic_now().after(lease(self.pages()))
    }

    fn pages(&self) -> u64 {
        self.memory.ram().iter().map(|range| range.pages).sum()
    }

    fn pass(&mut self, pass: Pass, readings: Readings, until: Tick) -> Result<Passed, ScanFailure> {
        let about = (pass.id(), pass.space().vm());
        let options = self.options;
        self.named.clear();
        let worker = self.worker();
        let answer = worker.and_then(|worker| {
            worker.scan(
                pass,
                readings,
                until,
                (options.writes, options.threads, options.tables),
                options.timeout,
            )
        });
        let (passed, named) = answer.map_err(|error| self.failed(about, error))?;
        self.named = named;
        Ok(passed)
    }

    /// The reason why the last search did not search for top-level tables, if it did not.
    #[must_use]
    pub fn withheld(&self) -> Option<Withheld> {
        self.withheld
    }

    fn search(&mut self, readings: Readings) -> Result<(), WorkerError> {
        let timeout = self.options.timeout.max(search_timeout(self.pages()));
        self.withheld = self.worker()?.search(readings, timeout)?;
        Ok(())
    }

    /// The worker, or another one if the last one failed.
    fn worker(&mut self) -> Result<&mut WorkerHandle, WorkerError> {
        let worker = match self.worker.take() {
            Some(worker) => worker,
            None => self.start()?,
        };
        Ok(self.worker.insert(worker))
    }

    /// Turns a worker's failure into the failure of a request. A worker that only could not do this now remains in use.
    fn failed(&mut self, (id, vm): (RequestId, VmId), error: WorkerError) -> ScanFailure {
        let failure = ScanFailure {
            id,
            vm,
            reason: error.to_string(),
            fatal: matches!(error, WorkerError::Refused(_)),
        };
        match error {
            WorkerError::Scan(failure) => return failure,
            WorkerError::Search(_) => {}
            // The next pass starts another one.
            _ => {
                self.readings = None;
                self.cpu_before = self.cpu_time();
                self.worker = None;
            }
        }
        failure
    }
}

/// The answer of a pass over all; a worker that gave another one was taken for broken before.
fn of_all((id, vm): (RequestId, VmId), passed: Passed) -> Result<ScanAnswer, ScanFailure> {
    match passed {
        Passed::All(answer) => Ok(*answer),
        Passed::Part(_) => Err(ScanFailure {
            id,
            vm,
            reason: "an answer about a part of memory".into(),
            fatal: false,
        }),
    }
}

/// The monitor's readings, unless a search of all RAM is not possible now: while a migration brings the RAM, a page
/// that is read before it came is made of zeros or waited for.
fn before_search(vm: &mut Vm) -> Result<Readings, String> {
    if let Some(status) = vm.migration().map_err(|error| error.to_string())? {
        return Err(format!(
            "the VM is being migrated ({status}): its RAM is not searched until the migration is over"
        ));
    }
    vm.readings().map_err(|error| error.to_string())
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
