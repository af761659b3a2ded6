//! Looks for VMs and makes those that are opted in ready to be managed.
//!
//! Runs on a thread of its own, because a monitor may hang. It leaves to the daemon's thread: what
//! is done with what it found.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use terrace_host::doctor::{self, VmFacts};
use terrace_host::memory_map::GuestMemory;
use terrace_host::qemu::{self, Candidate, DiscoveryConfig, Vm, VmIdentity};
use terrace_host::topology::Topology;
use terrace_host::tracker::GuestTables;
use terrace_host::worker::WorkerCommand;
use terrace_host::{Finding, HostRoot};

use crate::config::{Config, VmConfig};
use crate::daemon::Input;

/// How long a monitor or a worker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// After how long a VM that could not be managed is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// A VM that was found.
pub struct Found {
    /// Its name; its process id where it has none.
    pub name: String,
    /// Its hypervisor's process.
    pub pid: u32,
    /// What can be done with it.
    pub state: State,
    /// For `doctor`.
    pub findings: Vec<Finding>,
}

/// What can be done with a VM.
pub enum State {
    /// It is not opted in.
    Ignored,
    /// It is opted in, but cannot be scanned, for this reason.
    Unscannable(String),
    /// It can be managed.
    Ready(Box<Ready>),
}

/// All that managing a VM takes.
pub struct Ready {
    /// Who it is.
    pub identity: VmIdentity,
    /// What the configuration says.
    pub config: VmConfig,
    /// Its monitor.
    pub vm: Vm,
    /// Where its RAM is.
    pub memory: Arc<GuestMemory>,
    /// Its page tables.
    pub tables: GuestTables,
}

/// Looks for VMs until nobody listens any more.
pub struct Scout {
    root: HostRoot,
    topology: Arc<Topology>,
    config: Arc<Config>,
    worker: WorkerCommand,
    inbox: Sender<Input>,
    handled: BTreeMap<PathBuf, Handled>,
}

/// What became of a socket.
struct Handled {
    pid: u32,
    /// When to look at it again; never while the VM is managed.
    again: Option<Instant>,
}

impl Scout {
    /// A scout; [`Scout::run`] starts it.
    pub fn new(
        root: HostRoot,
        topology: Arc<Topology>,
        config: Arc<Config>,
        worker: WorkerCommand,
        inbox: Sender<Input>,
    ) -> Self {
        Self {
            root,
            topology,
            config,
            worker,
            inbox,
            handled: BTreeMap::new(),
        }
    }

    /// Looks, reports, sleeps, until the daemon ends.
    pub fn run(mut self) {
        let look = DiscoveryConfig {
            sockets: Vec::new(),
            folders: self.config.qmp_folders.clone(),
            processes: self.config.processes,
        };
        loop {
            let found = qemu::discover(&self.root, &look);
            for candidate in &found.candidates {
                if self.is_new(candidate) && !self.report(candidate) {
                    return;
                }
            }
            if self.inbox.send(Input::Looked(found.findings)).is_err() {
                return;
            }
            std::thread::sleep(self.config.discover_every);
        }
    }

    /// Not handled yet, or its time to be tried again has come, or another process took its socket.
    fn is_new(&mut self, candidate: &Candidate) -> bool {
        let Some(handled) = self.handled.get(&candidate.socket) else {
            return true;
        };
        let gone = !self.root.process(handled.pid, "stat").exists();
        gone || handled.again.is_some_and(|at| Instant::now() >= at)
    }

    /// Handles one candidate; false where nobody listens any more.
    fn report(&mut self, candidate: &Candidate) -> bool {
        let found = self.look_at(candidate);
        let managed = matches!(found.state, State::Ready(_));
        let again = (!managed).then(|| Instant::now() + RETRY);
        let handled = Handled {
            pid: found.pid,
            again,
        };
        self.handled.insert(candidate.socket.clone(), handled);
        self.inbox.send(Input::Found(Box::new(found))).is_ok()
    }

    fn look_at(&self, candidate: &Candidate) -> Found {
        // A VM that is known not to be opted in is left alone: its monitor may be somebody else's.
        if let (Some(name), Some(pid)) = (&candidate.name, candidate.pid)
            && !self.config.vm(name).is_ok_and(|vm| vm.scan)
        {
            return Found::new(name.clone(), pid, State::Ignored);
        }
        let name_of_socket = || candidate.socket.display().to_string();
        let vm = match Vm::open(&self.root, candidate, ANSWER_TIMEOUT) {
            Ok(vm) => vm,
            Err(error) => {
                let name = candidate.name.clone().unwrap_or_else(name_of_socket);
                let pid = candidate.pid.unwrap_or(0);
                return Found::new(name, pid, State::Unscannable(error.to_string()));
            }
        };
        let identity = vm.identity().clone();
        let (name, pid) = (identity.name.clone(), identity.pid);
        match self.config.vm(&name) {
            Ok(config) if config.scan => self.attach(vm, identity, config),
            Ok(_) => Found::new(name, pid, State::Ignored),
            Err(error) => Found::new(name, pid, State::Unscannable(format!("{error:#}"))),
        }
    }

    /// Finds the VM's RAM and starts its worker.
    fn attach(&self, mut vm: Vm, identity: VmIdentity, config: VmConfig) -> Found {
        let memory = vm.memory().map(Arc::new);
        let registers = vm.registers();
        let tables = match (&memory, &registers) {
            (Err(error), _) => Err(error.to_string()),
            (_, Err(error)) => Err(error.to_string()),
            (Ok(memory), Ok(_)) => {
                let worker = self.worker.clone();
                GuestTables::attach(worker, Arc::clone(memory), ANSWER_TIMEOUT)
                    .map_err(|e| e.to_string())
            }
        };
        let facts = VmFacts {
            identity: &identity,
            memory: memory.as_deref(),
            registers: registers.as_deref(),
            sandbox_gaps: tables.as_ref().map_or(&[], GuestTables::sandbox_gaps),
        };
        let findings = doctor::vm(&self.root, &self.topology, &facts);
        let (name, pid) = (identity.name.clone(), identity.pid);
        let state = match (tables, memory) {
            (Ok(tables), Ok(memory)) => State::Ready(Box::new(Ready {
                identity,
                config,
                vm,
                memory,
                tables,
            })),
            (Err(reason), _) => State::Unscannable(reason),
            (_, Err(error)) => State::Unscannable(error.to_string()),
        };
        Found {
            name,
            pid,
            state,
            findings,
        }
    }
}

impl Found {
    fn new(name: String, pid: u32, state: State) -> Self {
        Self {
            name,
            pid,
            state,
            findings: Vec::new(),
        }
    }
}
