//! The search for VMs; those that are opted in are made ready to be managed.
//!
//! Runs on a thread of its own, because a monitor may hang. The management of the VMs is left to the daemon's thread.

mod claims;
mod handled;
mod queue;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use terrace_config::{Config, TrackerChoice, VmConfig, VmMode, WriteSource};
use terrace_host::doctor::{self, VmFacts};
use terrace_host::memory_map::{GuestMemory, MemoryMapError};
use terrace_host::qemu::who::{self, Refusal, Rules};
use terrace_host::qemu::{self, Candidate, DiscoveryConfig, Hypervisor, QemuError};
use terrace_host::topology::Topology;
use terrace_host::tracker::{DamonRegions, GuestTables, Tracker};
use terrace_host::unit::Unit;
use terrace_host::vm::{self, Vm, VmIdentity};
use terrace_host::worker::{ChargedTo, WorkerCommand};
use terrace_host::{Finding, HostRoot};
use terrace_proto::printable::{MAX_NAME, MAX_TEXT_CHARS, excerpt, is_vm_name};
use terrace_proto::{GuestNode, Readings};
use terrace_sys::{Damon, ProcessId};

pub use claims::Claims;

use crate::confine::{self, Role};
use crate::messages::{AgentVm, Discovered, DiscoveryScan, Input, Ready, State};
use handled::{Ended, Handled, SOON};
use queue::Queue;

/// Longest time that a monitor or a worker may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);
/// Threads that inspect VMs: that many monitors may hang before others wait for them.
const INSPECTORS: usize = 8;
/// Most of them that inspect a VM again, not for the first time.
const MAX_REPEATED: usize = 4;
/// Most sockets that are remembered; far above the number that a discovery scan finds.
const MAX_HANDLED: usize = 4096;

/// A tracker at work, with the memory that it watches.
struct Watched {
    tracker: Tracker,
    memory: Arc<GuestMemory>,
    damon: Option<String>,
}

/// The discoverer, which searches for VMs until its receiver is gone.
pub struct Discoverer {
    root: HostRoot,
    topology: Arc<Topology>,
    config: Arc<Config>,
    worker: WorkerCommand,
    damon: Arc<Damon>,
    inbox: Sender<Input>,
    claims: Claims,
    /// Processors of the host that this process may use. Counted at the start: the threads of the search may not open what
    /// says it.
    processors: usize,
    handled: Mutex<BTreeMap<PathBuf, Handled>>,
}

/// The rules and processes for the inspection of one monitor.
struct HostView {
    rules: Rules,
    /// Processes that may be VMs, oldest first.
    hypervisors: Vec<Hypervisor>,
}

/// A monitor to inspect.
type Job = (Candidate, Arc<HostView>);

/// The queue of the threads that inspect monitors; they end when this is dropped.
struct Inspectors(Arc<Queue<Job>>);

impl Drop for Inspectors {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Discoverer {
    /// A discoverer; [`Discoverer::run`] starts it.
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
            processors: std::thread::available_parallelism().map_or(1, |n| n.get()),
            handled: Mutex::default(),
        }
    }

    /// Looks, reports, sleeps, until the daemon ends.
    pub fn run(self) {
        let discoverer = Arc::new(self);
        let discovery = DiscoveryConfig {
            sockets: Vec::new(),
            folders: discoverer.config.discover.qmp_folders.clone(),
            processes: discoverer.config.discover.processes,
        };
        let jobs = discoverer.start_inspectors(INSPECTORS);
        loop {
            let (rules, mut findings) =
                Rules::read(&discoverer.root, &discoverer.config.hypervisors);
            let found = qemu::discover(&discoverer.root, &discovery, &rules);
            findings.extend(found.findings);
            let view = Arc::new(HostView {
                rules,
                hypervisors: found.hypervisors,
            });
            discoverer.forget_all_but(&found.candidates);
            for candidate in &found.candidates {
                discoverer.hand_out(candidate, &view, &jobs, Instant::now());
            }
            let discovery_scan = DiscoveryScan {
                findings,
                sockets: found.candidates.iter().map(|c| c.socket.clone()).collect(),
            };
            if discoverer
                .inbox
                .send(Input::DiscoveryScan(discovery_scan))
                .is_err()
            {
                return;
            }
            let next = Instant::now() + discoverer.config.discover.every;
            while let Some(left) = next.checked_duration_since(Instant::now()) {
                std::thread::sleep(left.min(SOON));
                let now = Instant::now();
                for candidate in found
                    .candidates
                    .iter()
                    .filter(|c| discoverer.is_due(c, now))
                {
                    discoverer.hand_out(candidate, &view, &jobs, now);
                }
            }
        }
    }

    /// Starts a fixed number of threads, because a monitor that hangs must not hide others, and any number of
    /// monitors must not become as many threads.
    fn start_inspectors(self: &Arc<Self>, count: usize) -> Inspectors {
        let inspectors = Inspectors(Arc::new(Queue::new(MAX_REPEATED.min(count))));
        for _ in 0..count {
            let (discoverer, queue) = (Arc::clone(self), Arc::clone(&inspectors.0));
            let body = move || {
                while let Some(turn) = queue.next() {
                    let (candidate, view) = &turn.job;
                    discoverer.inspect_and_report(candidate, view);
                }
            };
            if let Err(error) = confine::spawn(Role::Monitor, body) {
                tracing::warn!(
                    "fewer VMs are inspected at once: a thread could not be started: {error}"
                );
            }
        }
        inspectors
    }

    /// Queues the inspection of a candidate if one is due.
    fn hand_out(
        &self,
        candidate: &Candidate,
        view: &Arc<HostView>,
        jobs: &Inspectors,
        now: Instant,
    ) {
        if !self.take_new(candidate, now) {
            return;
        }
        let mut handled = self.handled();
        let before = handled.get(&candidate.socket);
        let pending = Handled::pending_again(candidate, before, now);
        let is_repeated = before.is_some_and(|before| before.claimed == pending.claimed);
        handled.insert(candidate.socket.clone(), pending);
        drop(handled);
        jobs.0
            .push((candidate.clone(), Arc::clone(view)), is_repeated);
    }

    fn inspect_and_report(&self, candidate: &Candidate, view: &HostView) {
        let begun = Instant::now();
        let found = self.inspect(candidate, view);
        let config = self.config.vm(&found.name);
        let agent = config.is_ok_and(|c| c.management.is_by_guest());
        let by_host = !matches!(found.state, State::Agent(_));
        let mut handled = self.handled();
        // The entry was made when the inspection was queued.
        if let Some(handled) = handled.get_mut(&candidate.socket) {
            handled.process = found.process;
            handled.agent = agent.then(|| (found.name.clone(), by_host));
            handled.inspected(self.ended(&found, view), begun.elapsed(), Instant::now());
        }
        drop(handled);
        // Nobody listens while the daemon ends.
        let _ = self.inbox.send(Input::Discovered(Box::new(found)));
    }

    fn ended(&self, found: &Discovered, view: &HostView) -> Ended {
        match &found.state {
            State::Ready(_) | State::Agent(_) => Ended::Done,
            State::NotReady(_) => Ended::NotReady,
            State::Ignored | State::Unscannable(_) => Ended::Refused,
            State::Refused(_) => {
                let older = found
                    .process
                    .and_then(|process| self.older_of_name(view, &found.name, process));
                older.map_or(Ended::Refused, Ended::NameTaken)
            }
        }
    }

    fn handled(&self) -> MutexGuard<'_, BTreeMap<PathBuf, Handled>> {
        self.handled.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets sockets that are gone once their processes have ended, or at once if too many are remembered.
    fn forget_all_but(&self, candidates: &[Candidate]) {
        let there: BTreeSet<&PathBuf> = candidates.iter().map(|c| &c.socket).collect();
        let mut handled = self.handled();
        let is_full = handled.len() > MAX_HANDLED;
        handled.retain(|socket, handled| {
            let is_used = handled.is_pending || there.contains(socket);
            is_used || !is_full && handled.process.is_some_and(|process| self.lives(process))
        });
    }

    fn lives(&self, process: ProcessId) -> bool {
        process.exists(&self.root.proc())
    }

    /// Whether the time to try the candidate again has come. Costs little for those whose time has not.
    fn is_due(&self, candidate: &Candidate, now: Instant) -> bool {
        let handled = self.handled();
        let handled = handled.get(&candidate.socket);
        handled.is_some_and(|handled| handled.is_due(now, |process| self.lives(process)))
    }

    /// Whether the candidate is to be inspected: it was not handled yet, or the time to try it again has come, or its
    /// process is gone, or another process names it, or its manager or its memory map changed.
    fn take_new(&self, candidate: &Candidate, now: Instant) -> bool {
        let handled = self.handled();
        handled.get(&candidate.socket).is_none_or(|handled| {
            let passed = |(name, by_host): &(String, bool)| {
                self.claims.take_reinspect(name) || self.claims.is_by_host(name) != *by_host
            };
            // An inspection under way may have read the map before the change.
            let remapped = |process| !handled.is_pending && self.claims.take_reattach(process);
            let is_due = handled.process.is_some_and(|process| !self.lives(process))
                || handled.process.is_some_and(remapped)
                || handled.is_due(now, |process| self.lives(process))
                || handled.is_claimed_anew(candidate)
                || handled.agent.as_ref().is_some_and(passed);
            is_due && !handled.is_pending
        })
    }

    fn inspect(&self, candidate: &Candidate, view: &HostView) -> Discovered {
        let mut found = self.inspect_monitor(candidate, view);
        let refusal = if is_vm_name(&found.name) {
            let process = found.process;
            process
                .and_then(|process| self.older_of_name(view, &found.name, process))
                .map(|older| second_of_name(&found.name, older.pid))
        } else {
            Some(who::bad_name(&found.name))
        };
        if let Some(refusal) = refusal {
            found.state = State::Refused(refusal);
        }
        found.name = excerpt(&found.name, MAX_NAME);
        if let State::Unscannable(reason) | State::NotReady(reason) = &mut found.state {
            *reason = excerpt(reason, MAX_TEXT_CHARS);
        }
        found
            .findings
            .extend(view.other_claims(candidate, found.process));
        found
    }

    fn inspect_monitor(&self, candidate: &Candidate, view: &HostView) -> Discovered {
        let found = |name: &str, process, state| Discovered {
            name: name.to_owned(),
            process,
            socket: candidate.socket.clone(),
            state,
            findings: Vec::new(),
        };
        // VMs that are known not to be opted in are left alone: their monitor may be another program's.
        let is_out = |claim: &Hypervisor| {
            let config = claim.name.as_ref().map(|name| self.config.vm(name));
            config.is_some_and(|vm| !vm.is_ok_and(|vm| vm.is_opted_in()))
        };
        if let Some(first) = candidate.claims.first()
            && candidate.claims.iter().all(is_out)
        {
            let name = first.name.as_deref().unwrap_or_default();
            return found(name, Some(first.process()), State::Ignored);
        }
        let sole = candidate.sole_claim();
        let said = sole.and_then(|claim| claim.name.as_deref());
        let claimed = sole.map(Hypervisor::process);
        let opened = Vm::open(&self.root, &view.rules, candidate, ANSWER_TIMEOUT);
        let mut vm = match opened {
            Ok(vm) => vm,
            Err(QemuError::NotAVm { refusal, .. }) => {
                let socket = candidate.socket.display().to_string();
                return found(&socket, claimed, State::Refused(refusal));
            }
            Err(error) => {
                // The VM's agent needs no monitor.
                if let Some(name) = said
                    && let Some(config) = self.agent_config(name)
                {
                    let vm = AgentVm {
                        config,
                        ram_bytes: None,
                    };
                    return found(name, claimed, State::Agent(Box::new(vm)));
                }
                let socket = candidate.socket.display().to_string();
                let state = match not_a_vm(&error).filter(|_| said.is_none()) {
                    Some(refusal) => State::Refused(refusal),
                    None => State::NotReady(error.to_string()),
                };
                return found(said.unwrap_or(&socket), claimed, state);
            }
        };
        let identity = vm.identity().clone();
        let (name, process) = (identity.name.clone(), Some(identity.process()));
        if let Some(config) = self.agent_config(&name) {
            let ram_bytes = vm.ram_bytes().ok();
            let agent_vm = State::Agent(Box::new(AgentVm { config, ram_bytes }));
            return found(&name, process, agent_vm);
        }
        match self.config.vm(&name).map(Self::in_place_of_agent) {
            Ok(config) if config.scan => self.attach(vm, identity, config, &view.rules),
            Ok(_) => found(&name, process, State::Ignored),
            Err(error) => found(&name, process, State::Unscannable(format!("{error:#}"))),
        }
    }

    /// The older process that has this VM's name and still lives. Which of two VMs of one name is refused must not
    /// depend on which is found first: it is the younger one, as long as the older one lives.
    fn older_of_name(&self, view: &HostView, name: &str, than: ProcessId) -> Option<ProcessId> {
        let older = view.hypervisors.iter().map(|h| (h, h.process()));
        let mut older = older.take_while(|(_, process)| *process < than);
        older.find_map(|(h, process)| {
            let has_it = h.name.as_deref() == Some(name) && self.lives(process);
            has_it.then_some(process)
        })
    }

    /// The configuration of a VM that its agent is to manage now; `None` if the host is to.
    fn agent_config(&self, name: &str) -> Option<VmConfig> {
        let config = self.config.vm(name).ok()?;
        (config.management.is_by_guest() && !self.claims.is_by_host(name)).then_some(config)
    }

    /// The configuration by which the host manages a VM whose agent is silent or lies.
    fn in_place_of_agent(config: VmConfig) -> VmConfig {
        VmConfig {
            moves: config.moves && !config.management.only_observes(),
            ..config
        }
    }

    /// Finds the VM's RAM and starts the tracker of its pages.
    fn attach(
        &self,
        mut vm: Vm,
        identity: VmIdentity,
        config: VmConfig,
        rules: &Rules,
    ) -> Discovered {
        let memory = vm.memory().map(Arc::new);
        let readings = vm.readings();
        let vcpus = readings.as_ref().map_or(0, |readings| readings.vcpus.len());
        let vcpus = u32::try_from(vcpus).unwrap_or(u32::MAX);
        let by_damon = by_damon(config.tracker, &memory, &readings);
        let watched = match (by_damon, &memory, &readings) {
            (Some(why), _, _) => self.watch_by_damon(&mut vm, why, rules),
            (None, Err(error), _) => Err(error.to_string()),
            (None, _, Err(error)) => Err(error.to_string()),
            (None, Ok(memory), Ok(_)) => self
                .believable(memory, rules)
                .and_then(|()| self.watch_tables(&vm, memory, &config)),
        };
        let (sandbox_gaps, uncharged) = match &watched {
            Ok(Watched {
                tracker: Tracker::GuestTables(tables),
                ..
            }) => (tables.sandbox_gaps(), tables.uncharged()),
            _ => (&[][..], None),
        };
        let facts = VmFacts {
            identity: &identity,
            memory: memory.as_deref(),
            readings: readings.as_ref(),
            sandbox_gaps,
            uncharged,
            damon: watched.as_ref().is_ok_and(|w| w.damon.is_some()),
        };
        let mut findings = doctor::vm(&self.root, &self.topology, &facts);
        let guest_nodes = self.guest_nodes(&mut vm, &config, &watched);
        if matches!(guest_nodes, Some(Ok(_))) {
            findings
                .iter_mut()
                .filter(|f| f.name == "memory-policy")
                .for_each(|f| *f = doctor::bound_on_purpose());
        }
        let (name, process) = (identity.name.clone(), Some(identity.process()));
        let socket = identity.socket.clone();
        let state = match watched {
            Ok(watched) => State::Ready(Box::new(Ready {
                guest_nodes,
                unit: Unit::choose(&self.root, identity.pid, &watched.memory, config.unit),
                vcpus,
                identity,
                config,
                vm,
                memory: watched.memory,
                tracker: watched.tracker,
                damon: watched.damon,
                most_ram: rules.most_ram(vm::host_bytes(&self.root).unwrap_or(0)),
            })),
            Err(reason) => State::Unscannable(reason),
        };
        Discovered {
            name,
            process,
            socket,
            state,
            findings,
        }
    }

    /// The tiers of the nodes of a guest that is to move its own pages; `None` for others.
    fn guest_nodes(
        &self,
        vm: &mut Vm,
        config: &VmConfig,
        watched: &Result<Watched, String>,
    ) -> Option<Result<Vec<GuestNode>, String>> {
        let watched = watched.as_ref().ok()?;
        let is_coordinated = config.management.mode == VmMode::Coordinated;
        is_coordinated.then(|| vm.guest_nodes(&watched.memory, &self.topology))
    }

    fn watch_tables(
        &self,
        vm: &Vm,
        memory: &Arc<GuestMemory>,
        config: &VmConfig,
    ) -> Result<Watched, String> {
        let (worker, memory) = (self.worker.clone(), Arc::clone(memory));
        let charged_to = ChargedTo {
            root: self.root.clone(),
            hypervisor: Arc::clone(vm.process()),
        };
        let ram = Arc::clone(&memory);
        let tables = GuestTables::attach_charged(worker, ram, ANSWER_TIMEOUT, Some(charged_to));
        let mut tables = tables.map_err(|error| error.to_string())?;
        tables.tell_writes(config.writes.source == WriteSource::SoftBit);
        let pages = memory.ram().iter().map(|range| range.pages).sum();
        tables.use_threads(config.scan_threads_for(pages, self.processors));
        Ok(Watched {
            tracker: Tracker::GuestTables(Box::new(tables)),
            memory,
            damon: None,
        })
    }

    /// Checks the size of a VM's RAM before any state is stored of it, because that state grows with the RAM.
    fn believable(&self, memory: &GuestMemory, rules: &Rules) -> Result<(), String> {
        let allowed = vm::may_have_ram(memory, vm::host_bytes(&self.root), rules);
        allowed.map_err(|refusal| format!("{refusal}; {}", refusal.change))
    }

    fn watch_by_damon(&self, vm: &mut Vm, why: String, rules: &Rules) -> Result<Watched, String> {
        let failed = |error: &dyn std::fmt::Display| {
            format!("its page tables are not read ({why}), and DAMON cannot watch it: {error}")
        };
        let memory = vm.addresses().map_err(|error| failed(&error))?;
        self.believable(&memory, rules)?;
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

impl HostView {
    /// Findings about other processes that name the monitor. A command line may name any socket: the process that
    /// listens there is the VM.
    fn other_claims(&self, candidate: &Candidate, process: Option<ProcessId>) -> Vec<Finding> {
        let Some(ProcessId { pid, .. }) = process else {
            return Vec::new();
        };
        let others = candidate.claims.iter().filter(|claim| claim.pid != pid);
        let finding = |claim: &Hypervisor| {
            Finding::missing(
                "monitor",
                format!(
                    "process {} names the monitor {} on its command line, but process {pid} listens there",
                    claim.pid,
                    candidate.socket.display()
                ),
                "give each VM a monitor socket of its own",
            )
        };
        others.take(4).map(finding).collect()
    }
}

/// The reason why a socket that no process names is no VM's monitor; `None` if it may be one.
fn not_a_vm(error: &QemuError) -> Option<Refusal> {
    let change = match error {
        QemuError::Connect { .. } => {
            "start the VM, or remove the socket that one that ended left behind"
        }
        QemuError::NoProcess { .. } => {
            "`terrace doctor` gives the reason for each QEMU that is no VM (finding hypervisor)"
        }
        _ => return None,
    };
    Some(Refusal {
        why: error.to_string(),
        change: change.into(),
    })
}

/// The refusal of the second VM of a name.
pub fn second_of_name(name: &str, first: u32) -> Refusal {
    Refusal {
        why: format!(
            "the older process {first} already is the VM {}, and a name belongs to one VM of a host",
            excerpt(name, MAX_NAME)
        ),
        change: "give one of them another name (-name), and start it again".into(),
    }
}

/// The reason why DAMON is to watch a VM; `None` if its page tables are to be read.
fn by_damon(
    choice: TrackerChoice,
    memory: &Result<Arc<GuestMemory>, MemoryMapError>,
    readings: &Result<Readings, QemuError>,
) -> Option<String> {
    match (choice, memory, readings) {
        (TrackerChoice::Damon, ..) => Some("tracker = \"damon\" is configured".into()),
        (TrackerChoice::Auto, Err(MemoryMapError::Unscannable(why)), _) if why.has_addresses() => {
            Some(why.to_string())
        }
        (TrackerChoice::Auto, Ok(_), Err(QemuError::Uncounted { source, .. }))
            if source.is_lasting() =>
        {
            Some(source.to_string())
        }
        _ => None,
    }
}
