//! Looks for VMs and makes those that are opted in ready to be managed.
//!
//! Runs on a thread of its own, because a monitor may hang. It leaves to the daemon's thread: what
//! is done with what it found.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrace_host::doctor::{self, VmFacts};
use terrace_host::memory_map::{GuestMemory, MemoryMapError};
use terrace_host::qemu::{self, Candidate, DiscoveryConfig, Vm, VmIdentity};
use terrace_host::topology::Topology;
use terrace_host::tracker::{DamonRegions, GuestTables, Tracker};
use terrace_host::unit::Unit;
use terrace_host::worker::WorkerCommand;
use terrace_host::{Finding, HostRoot};
use terrace_sys::Damon;

use crate::agents::Claims;
use crate::config::{Config, Fallback, TrackerChoice, VmConfig, VmMode, WriteSource};
use crate::daemon::Input;

/// How long a monitor or a worker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// After how long a VM that could not be managed is tried again.
const RETRY: Duration = Duration::from_secs(60);

/// A VM that was found.
pub struct Found {
    /// Its name; its process id where it has none.
    pub name: String,
    /// Its hypervisor's process, where it is known.
    pub pid: Option<u32>,
    /// Its monitor.
    pub socket: PathBuf,
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
    /// Its agent is to manage it.
    Agent(Box<AgentVm>),
    /// It can be managed.
    Ready(Box<Ready>),
}

/// A VM that an agent in it is to manage. Nothing of it is held: no monitor, no memory.
pub struct AgentVm {
    /// What the configuration says.
    pub config: VmConfig,
    /// Its RAM, where its monitor told it.
    pub ram_bytes: Option<u64>,
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
    /// What says which of its pages are accessed.
    pub tracker: Tracker,
    /// Why it is DAMON, where it is.
    pub damon: Option<String>,
    /// What is ranked and moved as one.
    pub unit: Unit,
}

/// A tracker at work.
struct Watched {
    tracker: Tracker,
    memory: Arc<GuestMemory>,
    damon: Option<String>,
}

/// A look at all places.
pub struct Looked {
    /// What there is to say about the places.
    pub findings: Vec<Finding>,
    /// Every socket that may be a monitor.
    pub sockets: BTreeSet<PathBuf>,
}

/// Looks for VMs until nobody listens any more.
pub struct Scout {
    root: HostRoot,
    topology: Arc<Topology>,
    config: Arc<Config>,
    worker: WorkerCommand,
    damon: Arc<Damon>,
    inbox: Sender<Input>,
    claims: Claims,
    handled: Mutex<BTreeMap<PathBuf, Handled>>,
}

/// What became of a socket.
struct Handled {
    pid: Option<u32>,
    /// When to look at it again; never while the VM is managed or being looked at.
    again: Option<Instant>,
    /// Of a VM that an agent is to manage: its name, and whether it was looked at for the host.
    agent: Option<(String, bool)>,
}

impl Scout {
    /// A scout; [`Scout::run`] starts it.
    pub fn new(
        root: HostRoot,
        topology: Arc<Topology>,
        config: Arc<Config>,
        worker: WorkerCommand,
        damon: Arc<Damon>,
        inbox: Sender<Input>,
        claims: Claims,
    ) -> Self {
        Self {
            root,
            topology,
            config,
            worker,
            damon,
            inbox,
            claims,
            handled: Mutex::default(),
        }
    }

    /// Looks, reports, sleeps, until the daemon ends.
    pub fn run(self) {
        let scout = Arc::new(self);
        let look = DiscoveryConfig {
            sockets: Vec::new(),
            folders: scout.config.qmp_folders.clone(),
            processes: scout.config.processes,
        };
        loop {
            let found = qemu::discover(&scout.root, &look);
            for candidate in &found.candidates {
                scout.handle(candidate);
            }
            let looked = Looked {
                findings: found.findings,
                sockets: found.candidates.into_iter().map(|c| c.socket).collect(),
            };
            if scout.inbox.send(Input::Looked(looked)).is_err() {
                return;
            }
            std::thread::sleep(scout.config.discover_every);
        }
    }

    /// Looks at a new candidate on a thread of its own: a monitor that hangs must not hide others.
    fn handle(self: &Arc<Self>, candidate: &Candidate) {
        if !self.is_new(candidate) {
            return;
        }
        self.note(candidate, candidate.pid, None, None);
        let (scout, candidate) = (Arc::clone(self), candidate.clone());
        let look = move || {
            let found = scout.look_at(&candidate);
            let done = matches!(found.state, State::Ready(_) | State::Agent(_));
            let again = (!done).then(|| Instant::now() + RETRY);
            let config = scout.config.vm(&found.name);
            let agent = config.is_ok_and(|c| c.mode == VmMode::Guest);
            let by_host = !matches!(found.state, State::Agent(_));
            let agent = agent.then(|| (found.name.clone(), by_host));
            scout.note(&candidate, found.pid, again, agent);
            // Nobody listens while the daemon ends.
            let _ = scout.inbox.send(Input::Found(Box::new(found)));
        };
        let started = std::thread::Builder::new().name("scout".into()).spawn(look);
        if let Err(error) = started {
            tracing::warn!("a VM could not be looked at: no thread: {error}");
        }
    }

    fn note(
        &self,
        candidate: &Candidate,
        pid: Option<u32>,
        again: Option<Instant>,
        agent: Option<(String, bool)>,
    ) {
        let mut handled = self.handled.lock().unwrap_or_else(PoisonError::into_inner);
        handled.insert(candidate.socket.clone(), Handled { pid, again, agent });
    }

    /// Not handled yet, or its time to be tried again has come, or its process is gone, or another one than
    /// before is to manage it.
    fn is_new(&self, candidate: &Candidate) -> bool {
        let handled = self.handled.lock().unwrap_or_else(PoisonError::into_inner);
        handled.get(&candidate.socket).is_none_or(|handled| {
            let gone = |pid| !self.root.process(pid, "stat").exists();
            let passed = |(name, by_host): &(String, bool)| {
                self.claims.take_look_again(name) || self.claims.is_by_host(name) != *by_host
            };
            handled.pid.is_some_and(gone)
                || handled.again.is_some_and(|at| Instant::now() >= at)
                || handled.agent.as_ref().is_some_and(passed)
        })
    }

    fn look_at(&self, candidate: &Candidate) -> Found {
        let found = |name: &str, pid, state| Found {
            name: name.to_owned(),
            pid,
            socket: candidate.socket.clone(),
            state,
            findings: Vec::new(),
        };
        // A VM that is known not to be opted in is left alone: its monitor may be somebody else's.
        if let (Some(name), Some(pid)) = (&candidate.name, candidate.pid)
            && !self
                .config
                .vm(name)
                .is_ok_and(|vm| vm.scan || vm.mode != VmMode::Host)
        {
            return found(name, Some(pid), State::Ignored);
        }
        let mut vm = match Vm::open(&self.root, candidate, ANSWER_TIMEOUT) {
            Ok(vm) => vm,
            Err(error) => {
                // Its agent needs no monitor.
                if let Some(name) = &candidate.name
                    && let Some(config) = self.agent_config(name)
                {
                    let vm = AgentVm {
                        config,
                        ram_bytes: None,
                    };
                    return found(name, candidate.pid, State::Agent(Box::new(vm)));
                }
                let socket = candidate.socket.display().to_string();
                let name = candidate.name.as_ref().unwrap_or(&socket);
                return found(name, candidate.pid, State::Unscannable(error.to_string()));
            }
        };
        let identity = vm.identity().clone();
        let (name, pid) = (identity.name.clone(), Some(identity.pid));
        if let Some(config) = self.agent_config(&name) {
            let ram_bytes = vm.ram_bytes().ok();
            let agent_vm = State::Agent(Box::new(AgentVm { config, ram_bytes }));
            return found(&name, pid, agent_vm);
        }
        match self.config.vm(&name).map(Self::in_place_of_agent) {
            Ok(config) if config.scan => self.attach(vm, identity, config),
            Ok(_) => found(&name, pid, State::Ignored),
            Err(error) => found(&name, pid, State::Unscannable(format!("{error:#}"))),
        }
    }

    /// What is configured for a VM that its agent is to manage now.
    fn agent_config(&self, name: &str) -> Option<VmConfig> {
        let config = self.config.vm(name).ok()?;
        (config.mode == VmMode::Guest && !self.claims.is_by_host(name)).then_some(config)
    }

    /// How the host manages a VM whose agent is silent or lies.
    fn in_place_of_agent(config: VmConfig) -> VmConfig {
        let observe = config.mode == VmMode::Guest && config.fallback == Fallback::Observe;
        VmConfig {
            moves: config.moves && !observe,
            ..config
        }
    }

    /// Finds the VM's RAM and starts what watches it.
    fn attach(&self, mut vm: Vm, identity: VmIdentity, config: VmConfig) -> Found {
        let memory = vm.memory().map(Arc::new);
        let registers = vm.registers();
        let watched = match (by_damon(config.tracker, &memory), &memory, &registers) {
            (Some(why), _, _) => self.watch_by_damon(&mut vm, why),
            (None, Err(error), _) => Err(error.to_string()),
            (None, _, Err(error)) => Err(error.to_string()),
            (None, Ok(memory), Ok(_)) => self.watch_tables(memory, config.writes),
        };
        let sandbox_gaps = match &watched {
            Ok(Watched {
                tracker: Tracker::GuestTables(tables),
                ..
            }) => tables.sandbox_gaps(),
            _ => &[],
        };
        let facts = VmFacts {
            identity: &identity,
            memory: memory.as_deref(),
            registers: registers.as_deref(),
            sandbox_gaps,
            damon: watched.as_ref().is_ok_and(|w| w.damon.is_some()),
        };
        let findings = doctor::vm(&self.root, &self.topology, &facts);
        let (name, pid) = (identity.name.clone(), Some(identity.pid));
        let socket = identity.socket.clone();
        let state = match watched {
            Ok(watched) => State::Ready(Box::new(Ready {
                unit: Unit::choose(&self.root, identity.pid, &watched.memory, config.unit),
                identity,
                config,
                vm,
                memory: watched.memory,
                tracker: watched.tracker,
                damon: watched.damon,
            })),
            Err(reason) => State::Unscannable(reason),
        };
        Found {
            name,
            pid,
            socket,
            state,
            findings,
        }
    }

    fn watch_tables(
        &self,
        memory: &Arc<GuestMemory>,
        writes: WriteSource,
    ) -> Result<Watched, String> {
        let (worker, memory) = (self.worker.clone(), Arc::clone(memory));
        let tables = GuestTables::attach(worker, Arc::clone(&memory), ANSWER_TIMEOUT);
        let mut tables = tables.map_err(|error| error.to_string())?;
        tables.tell_writes(writes == WriteSource::SoftBit);
        Ok(Watched {
            tracker: Tracker::GuestTables(tables),
            memory,
            damon: None,
        })
    }

    fn watch_by_damon(&self, vm: &mut Vm, why: String) -> Result<Watched, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("its page tables are not read ({why}), and DAMON cannot watch it: {error}")
        };
        let memory = vm.addresses().map_err(|error| failed(&error))?;
        let memory = Arc::new(memory);
        let (damon, process) = (Arc::clone(&self.damon), Arc::clone(vm.process()));
        let regions = DamonRegions::attach(damon, process, Arc::clone(&memory));
        Ok(Watched {
            tracker: Tracker::Damon(regions.map_err(|error| failed(&error))?),
            memory,
            damon: Some(why),
        })
    }
}

/// Why DAMON is to watch a VM, where it is.
fn by_damon(
    choice: TrackerChoice,
    memory: &Result<Arc<GuestMemory>, MemoryMapError>,
) -> Option<String> {
    match (choice, memory) {
        (TrackerChoice::Damon, _) => Some("tracker = \"damon\" is configured".into()),
        (TrackerChoice::Auto, Err(MemoryMapError::Unscannable(why))) if why.has_addresses() => {
            Some(why.to_string())
        }
        _ => None,
    }
}

#[cfg(test)]
#[path = "scout_tests.rs"]
mod looking;

#[cfg(test)]
mod tests {
    use terrace_host::memory_map::Unscannable;

    use super::*;

    #[test]
    fn damon_takes_over_only_where_ram_is_private_and_only_if_allowed() {
        let private = || Err(Unscannable::PrivateRam("pc.ram".into()).into());
        let pinned = || Err(Unscannable::Vfio("/dev/vfio/1".into()).into());
        let why = by_damon(TrackerChoice::Auto, &private()).unwrap();
        assert!(why.contains("share=on"), "{why}");
        assert_eq!(by_damon(TrackerChoice::Auto, &pinned()), None);
        assert_eq!(by_damon(TrackerChoice::PageTables, &private()), None);
        assert!(by_damon(TrackerChoice::Damon, &pinned()).is_some());
    }
}
