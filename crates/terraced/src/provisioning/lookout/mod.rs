//! Processes other than the hypervisors that have the RAM of VMs, as the reconcilers ask for them.
//!
//! Responsible for: one census for all VMs that ask at once, which of the processes are the VM's own or the daemon's,
//! and the result that a device is sent. It leaves to others: the census itself (`terrace_host::sharers`), and what
//! follows from it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use terrace_config::PinConfig;
use terrace_host::HostRoot;
use terrace_host::sharers::{Census, Holders, Known, process_id, programs, ram_files};
use terrace_host::worker;
use terrace_sys::{FileId, ProcessId};

use crate::confine::{self, Role};

/// The part of the time that pin checks take at most if no chain waits for them: one in so many.
const SELDOM: u32 = 20;
/// The same for pin checks that chains wait for.
const OFTEN: u32 = 3;

/// Greatest time to wait for a pin check. One can last for ever: a process's mappings are read under a lock of its own,
/// which it may hold while it waits for a server of files that another user runs (FUSE).
const MAX: Duration = Duration::from_secs(10);

/// The census that all reconcilers share: the last one, and the one that is under way. One at a time; while it hangs,
/// only its own thread waits for it.
#[derive(Clone, Debug)]
pub struct Lookout {
    board: Arc<Board>,
    most: Duration,
}

impl Default for Lookout {
    fn default() -> Self {
        Self {
            board: Arc::default(),
            most: MAX,
        }
    }
}

#[derive(Debug, Default)]
struct Board {
    shared: Mutex<Shared>,
    /// Signalled when a census ended.
    ended: Condvar,
}

#[derive(Debug, Default)]
struct Shared {
    /// The files to search for, by reconciler.
    files: BTreeMap<u64, BTreeSet<FileId>>,
    last: Option<Last>,
    running: Option<Running>,
}

#[derive(Clone, Debug)]
struct Last {
    census: Arc<Census>,
    files: BTreeSet<FileId>,
    began: Instant,
    took: Duration,
    /// Failed starts of workers before the census began.
    failed_starts: u64,
}

/// A census that is under way.
#[derive(Debug)]
struct Running {
    began: Instant,
    /// The process that is inspected.
    at: Arc<AtomicU32>,
}

/// Whatever becomes of a census, it is not under way after it.
struct Ends<'a>(&'a Board);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.lock().running = None;
        self.0.ended.notify_all();
    }
}

impl Board {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lookout {
    /// A census with these files that began at `since` or later.
    ///
    /// # Errors
    /// If a census that is under way does not end; in words.
    fn census(
        &self,
        root: &HostRoot,
        reconciler: u64,
        files: &BTreeSet<FileId>,
        since: Instant,
    ) -> Result<Last, String> {
        let mut shared = self.board.lock();
        shared.files.insert(reconciler, files.clone());
        loop {
            let fits = |last: &&Last| last.began >= since && files.is_subset(&last.files);
            if let Some(last) = shared.last.as_ref().filter(fits) {
                return Ok(last.clone());
            }
            let Some(running) = &shared.running else {
                break;
            };
            let left = self.most.saturating_sub(running.began.elapsed());
            if left.is_zero() {
                return Err(hangs(running));
            }
            let waited = self.board.ended.wait_timeout(shared, left);
            shared = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let all: BTreeSet<FileId> = shared.files.values().flatten().copied().collect();
        let (began, at) = (Instant::now(), Arc::new(AtomicU32::new(0)));
        shared.running = Some(Running {
            began,
            at: Arc::clone(&at),
        });
        let before = shared.last.as_ref().map(|last| Arc::clone(&last.census));
        drop(shared);
        let ends = Ends(&self.board);
        let failed_starts = worker::failed_starts();
        let census = Arc::new(Census::take(root, &all, &before.unwrap_or_default(), &at));
        let last = Last {
            census,
            files: all,
            began,
            took: began.elapsed(),
            failed_starts,
        };
        self.board.lock().last = Some(last.clone());
        drop(ends);
        Ok(last)
    }

    /// The reason why the census that is under way is waited for no longer.
    fn why_slow(&self) -> String {
        let shared = self.board.lock();
        let running = shared.running.as_ref();
        running.map_or_else(
            || "the check of other processes takes too long".into(),
            hangs,
        )
    }

    fn forget(&self, reconciler: u64) {
        self.board.lock().files.remove(&reconciler);
    }

    /// Duration of the last census.
    fn took(&self) -> Duration {
        self.board
            .lock()
            .last
            .as_ref()
            .map_or(Duration::ZERO, |last| last.took)
    }
}

fn hangs(running: &Running) -> String {
    let (pid, s) = (
        running.at.load(Ordering::Relaxed),
        running.began.elapsed().as_secs(),
    );
    format!(
        "the mappings of process {pid} could not be read for {s} s: find out what it waits for, or end it"
    )
}

/// Looks for one reconciler.
pub struct Sharers {
    reconciler: u64,
    lookout: Lookout,
    root: HostRoot,
    /// The operator's configuration of the programs that pin memory.
    pins: PinConfig,
    hypervisor: Option<ProcessId>,
    /// The VM's device, and the files that it would punch.
    device: Option<ProcessId>,
    device_files: BTreeSet<FileId>,
    /// A pin check that was not waited for any longer.
    late: Option<Receiver<Holders>>,
}

impl Sharers {
    /// The pin checks of one reconciler, none of them done yet.
    pub fn new(reconciler: u64, lookout: Lookout, root: HostRoot, pins: PinConfig) -> Self {
        Self {
            reconciler,
            lookout,
            root,
            pins,
            hypervisor: None,
            device: None,
            device_files: BTreeSet::new(),
            late: None,
        }
    }

    /// Takes in the VM's device's own report: its process and files.
    pub fn hear(&mut self, device: Option<u32>, files: BTreeSet<FileId>) {
        if self.device.map(|known| known.pid) != device {
            self.device = device.and_then(|pid| process(&self.root, pid));
        }
        self.device_files = files;
    }

    /// The other processes that have the RAM, by a pin check that began at `since` or later.
    pub fn check(&mut self, hypervisor: Option<u32>, since: Instant) -> Holders {
        if self.pins.nobody_pins {
            return Holders::Nobody;
        }
        let Some(pid) = hypervisor else {
            return Holders::Unknown("the hypervisor's process is not known".into());
        };
        if self.hypervisor.is_none_or(|known| known.pid != pid) {
            self.hypervisor = process(&self.root, pid);
        }
        let check = PinCheck {
            reconciler: self.reconciler,
            lookout: self.lookout.clone(),
            root: self.root.clone(),
            do_not_pin: self.pins.do_not_pin.clone(),
            pid,
            known: [self.hypervisor, self.device]
                .into_iter()
                .flatten()
                .collect(),
            device_files: self.device_files.clone(),
            since,
        };
        self.wait(check)
    }

    /// The result of a pin check, waited for up to a limit. While one before it still hangs no other is begun.
    fn wait(&mut self, check: PinCheck) -> Holders {
        let late = self.late.as_ref().map(Receiver::try_recv);
        if matches!(late, Some(Err(TryRecvError::Empty))) {
            return Holders::Unknown(self.lookout.why_slow());
        }
        self.late = None;
        let (done, found) = sync_channel(1);
        // Nobody may wait for it any more.
        let spawned = confine::spawn(Role::Census, move || drop(done.send(check.find())));
        if let Err(error) = spawned {
            return Holders::Unknown(format!("the check failed: {error}"));
        }
        match found.recv_timeout(self.lookout.most) {
            Ok(found) => found,
            Err(RecvTimeoutError::Timeout) => {
                self.late = Some(found);
                Holders::Unknown(self.lookout.why_slow())
            }
            Err(RecvTimeoutError::Disconnected) => {
                Holders::Unknown("a defect of terraced: the thread ended before its look".into())
            }
        }
    }

    /// Greatest age of a pin check that no chain waits for.
    pub fn may_be_old(&self, pace: Duration) -> Duration {
        pace.max(self.lookout.took().saturating_mul(SELDOM))
    }

    /// Pause between two pin checks that chains wait for.
    pub fn pause(&self, least: Duration) -> Duration {
        least.max(self.lookout.took().saturating_mul(OFTEN))
    }
}

/// A process's number and start time, found by a thread that may inspect others.
fn process(root: &HostRoot, pid: u32) -> Option<ProcessId> {
    let root = root.clone();
    let found = confine::run(Role::Census, move || process_id(&root, pid));
    found.ok().flatten()
}

/// One pin check for one reconciler, done by a thread that may inspect other processes and reads no peer.
struct PinCheck {
    reconciler: u64,
    lookout: Lookout,
    root: HostRoot,
    do_not_pin: Vec<PathBuf>,
    /// The hypervisor's process.
    pid: u32,
    /// The hypervisor and the VM's device.
    known: Vec<ProcessId>,
    device_files: BTreeSet<FileId>,
    since: Instant,
}

impl PinCheck {
    fn find(self) -> Holders {
        let mut files = match ram_files(&self.root, self.pid) {
            Ok(files) => files,
            Err(error) => return Holders::Unknown(error.to_string()),
        };
        files.extend(&self.device_files);
        if files.is_empty() {
            return Holders::Nobody;
        }
        let census = self
            .lookout
            .census(&self.root, self.reconciler, &files, self.since);
        let last = match census {
            Ok(last) => last,
            Err(why) => return Holders::Unknown(why),
        };
        // A worker that was being started had, for a moment, the daemon's open files: it is noted by now.
        let mut known: Vec<ProcessId> = worker::started().clone();
        known.extend(self.known);
        known.extend(process_id(&self.root, std::process::id()));
        let programs = programs(&self.do_not_pin);
        if worker::failed_starts() != last.failed_starts {
            return Holders::Unknown("a worker of terraced could not be started meanwhile".into());
        }
        last.census.who_else(
            &files,
            Known {
                processes: &known,
                programs: &programs,
            },
        )
    }
}

impl Drop for Sharers {
    fn drop(&mut self) {
        self.lookout.forget(self.reconciler);
    }
}

#[cfg(test)]
mod tests;
