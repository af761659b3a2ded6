//! The daemon's thread: everything that happened comes in by one channel, goes through the engine,
//! and what the engine decided is handed to the threads of the VM that it is about.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_core::{Engine, RoundSummary};
use terrace_host::mover::{Mover, MoverConfig, Target};
use terrace_host::topology::Topology;
use terrace_host::{Finding, HostRoot};
use terrace_proto::log::Record;
use terrace_proto::{Action, Command, Event, PageSize, RamRange, Tick, TierMemory, VmId, VmSpec};
use terrace_sys::{MonotonicClock, Process};

use crate::config::{Config, VmConfig};
use crate::events::Events;
use crate::hands::{Context, Hands};
use crate::record::Recorder;
use crate::scout::{Found, Ready, State};

/// Longest sleep of the loop; how fast a VM that ended is noticed.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often the tiers' free memory is read.
const MEMORY_EVERY: Duration = Duration::from_secs(2);

/// Rounds of a VM that are remembered.
const ROUNDS_KEPT: usize = 64;

/// What reaches the daemon's thread.
pub enum Input {
    /// Something for the engine.
    Event(Event),
    /// The scout found a VM.
    Found(Box<Found>),
    /// The scout looked everywhere; what it has to say besides.
    Looked(Vec<Finding>),
    /// What there is to say about a VM's moves.
    MoveFindings(VmId, Vec<Finding>),
    /// A question of the API.
    Ask(Box<dyn FnOnce(&mut Daemon) + Send>),
    /// End.
    Stop,
}

/// A VM that the engine knows.
pub struct Managed {
    /// Its id in the engine.
    pub id: VmId,
    /// Its threads.
    hands: Hands,
    process: Arc<Process>,
    /// Last reason of the engine that was made an event.
    reasons_told: u64,
    /// The last rounds, oldest first.
    pub history: VecDeque<RoundSummary>,
}

impl Managed {
    fn keep_round(&mut self, last: Option<&RoundSummary>) {
        let Some(last) = last.filter(|l| self.history.back().is_none_or(|b| b.round < l.round))
        else {
            return;
        };
        if self.history.len() == ROUNDS_KEPT {
            self.history.pop_front();
        }
        self.history.push_back(last.clone());
    }
}

/// A VM, managed or not.
pub struct Entry {
    /// Its hypervisor's process.
    pub pid: u32,
    /// `QEMU with KVM`, `QEMU (TCG)`.
    pub hypervisor: String,
    /// Guest RAM, bytes.
    pub memory_bytes: u64,
    /// Why it is not managed, where it is not.
    pub reason: String,
    /// It is opted in, but something is in the way.
    pub unscannable: bool,
    /// For `doctor`.
    pub findings: Vec<Finding>,
    /// What managing it takes.
    pub managed: Option<Managed>,
}

/// All that the daemon's thread owns.
pub struct Daemon {
    /// Decides.
    pub engine: Engine,
    /// VMs by name.
    pub vms: BTreeMap<String, Entry>,
    /// What was found by the last look around.
    pub look_findings: Vec<Finding>,
    /// What is told to people.
    pub events: Events,
    /// Where files of the host are.
    pub root: HostRoot,
    /// The host's tiers.
    pub topology: Arc<Topology>,
    /// The tiers' memory as last read.
    pub memory: Vec<TierMemory>,
    /// What the daemon runs with.
    pub config: Arc<Config>,
    /// All VMs are paused.
    pub paused: bool,
    clock: MonotonicClock,
    recorder: Recorder,
    mover: Arc<Mover>,
    inbox: Sender<Input>,
    next_id: u32,
    memory_read_at: Option<Tick>,
}

impl Daemon {
    /// A daemon for this host; [`Daemon::run`] starts it.
    pub fn new(
        config: Arc<Config>,
        root: HostRoot,
        topology: Arc<Topology>,
        inbox: Sender<Input>,
    ) -> Result<Self> {
        let engine = Engine::new(config.engine.clone())?;
        let recorder = match &config.log {
            None => Recorder::off(),
            Some((path, limit)) => {
                Recorder::start(path, *limit, serde_json::to_string(&config.engine)?)?
            }
        };
        let budget = config.engine.move_budget_bytes_per_s;
        let mover = MoverConfig {
            threads: config.move_workers,
            batch_pages: 1024,
            bytes_per_s: (budget > 0).then_some(budget),
            attempts: config.move_retries,
        };
        Ok(Self {
            engine,
            vms: BTreeMap::new(),
            look_findings: Vec::new(),
            events: Events::default(),
            mover: Arc::new(Mover::new(root.clone(), Arc::clone(&topology), mover)),
            root,
            topology,
            memory: Vec::new(),
            config,
            paused: false,
            clock: MonotonicClock::start(),
            recorder,
            inbox,
            next_id: 1,
            memory_read_at: None,
        })
    }

    /// Time since the daemon started.
    pub fn now(&self) -> Tick {
        self.clock.now()
    }

    /// Works until told to stop.
    pub fn run(mut self, inbox: &Receiver<Input>) -> Result<()> {
        self.tell(None, "started".to_owned());
        loop {
            self.read_memory();
            match inbox.recv_timeout(self.sleep()) {
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(input) => self.take(input),
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.forget_ended();
            if self
                .engine
                .poll_timeout()
                .is_some_and(|at| at <= self.now())
            {
                self.handle(Event::Timer);
            }
        }
        self.recorder.finish().context("finishing the log")
    }

    fn sleep(&self) -> Duration {
        let timeout = self.engine.poll_timeout().map(|at| at.since(self.now()));
        timeout.unwrap_or(HEARTBEAT).min(HEARTBEAT)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.handle(event),
            Input::Found(found) => self.found(*found),
            Input::Looked(findings) => self.look_findings = findings,
            Input::MoveFindings(vm, findings) => self.keep_findings(vm, findings),
            Input::Ask(question) => question(self),
            // `run` sees it first.
            Input::Stop => {}
        }
    }

    /// Gives the engine an event, does what it decided, and tells why.
    pub fn handle(&mut self, event: Event) {
        let now = self.now();
        if self.recorder.is_on() {
            self.record(now, &Record::Event(event.clone()));
        }
        self.engine.handle(now, event);
        while let Some(action) = self.engine.poll_action() {
            if self.recorder.is_on() {
                self.record(now, &Record::Action(action.clone()));
            }
            self.act(action);
        }
        self.tell_reasons();
    }

    /// An operator's wish.
    pub fn command(&mut self, command: Command) {
        let halted = match &command {
            Command::Pause(vm) => Some((*vm, true)),
            Command::Resume(vm) => Some((*vm, false)),
            _ => None,
        };
        if let Some((vm, halt)) = halted {
            if vm.is_none() {
                self.paused = halt;
            }
            for managed in self.vms.values().filter_map(|e| e.managed.as_ref()) {
                if vm.is_none_or(|id| id == managed.id) {
                    if halt {
                        managed.hands.halt()
                    } else {
                        managed.hands.go_on()
                    }
                }
            }
        }
        self.handle(Event::Command(command));
    }

    fn record(&mut self, now: Tick, record: &Record) {
        if let Some(end) = self.recorder.append(now, record) {
            self.tell(None, end);
        }
    }

    fn act(&mut self, action: Action) {
        let vm = match &action {
            Action::Scan(request) => request.space.vm(),
            Action::QueryPlacement(query) => query.vm,
            Action::Move(plan) => plan.vm,
        };
        let managed = self
            .vms
            .values()
            .filter_map(|e| e.managed.as_ref())
            .find(|m| m.id == vm);
        let Some(hands) = managed.map(|m| &m.hands) else {
            return;
        };
        match action {
            Action::Scan(request) => hands.scan(request),
            Action::QueryPlacement(query) => hands.placement(query),
            Action::Move(plan) => hands.execute(plan),
        }
    }

    fn tell(&mut self, vm: Option<&str>, text: String) {
        let now = self.now();
        self.events.push(now, vm, text);
    }

    /// Makes the engine's new reasons events.
    fn tell_reasons(&mut self) {
        for (name, entry) in &mut self.vms {
            let Some(managed) = &mut entry.managed else {
                continue;
            };
            let mut told = managed.reasons_told;
            for reason in self.engine.vm_reasons(managed.id, told) {
                told = reason.sequence;
                self.events.push(reason.at, Some(name), reason.text.clone());
            }
            managed.reasons_told = told;
            managed.keep_round(self.engine.last_round(managed.id));
        }
    }

    /// Keeps what moves showed for `doctor`; the newest of each kind.
    fn keep_findings(&mut self, vm: VmId, findings: Vec<Finding>) {
        let entry = self
            .vms
            .values_mut()
            .find(|e| e.managed.as_ref().is_some_and(|m| m.id == vm));
        let Some(entry) = entry.filter(|_| !findings.is_empty()) else {
            return;
        };
        entry
            .findings
            .retain(|old| findings.iter().all(|new| new.name != old.name));
        entry.findings.extend(findings);
    }

    fn found(&mut self, found: Found) {
        let name = self.free_name(&found.name, found.pid);
        let mut entry = Entry {
            pid: found.pid,
            hypervisor: "QEMU".into(),
            memory_bytes: 0,
            reason: String::new(),
            unscannable: false,
            findings: found.findings,
            managed: None,
        };
        match found.state {
            State::Ignored => {
                entry.reason = "not opted in (scan = true under [vm.NAME])".into();
            }
            State::Unscannable(reason) => {
                entry.unscannable = true;
                entry.reason = reason;
            }
            State::Ready(ready) => return self.manage(&name, entry, *ready),
        }
        let said = self.vms.get(&name).map(|e| e.reason.clone());
        if said.as_deref() != Some(&entry.reason) {
            self.tell(Some(&name), format!("found: {}", entry.reason));
        }
        self.vms.insert(name, entry);
    }

    /// Two VMs may have one name; the second one's gets its process id.
    fn free_name(&self, name: &str, pid: u32) -> String {
        match self.vms.get(name) {
            Some(entry) if entry.pid != pid && entry.managed.is_some() => format!("{name}.{pid}"),
            _ => name.to_owned(),
        }
    }

    fn manage(&mut self, name: &str, mut entry: Entry, ready: Ready) {
        let id = VmId(self.next_id);
        let ram = ready.memory.ram();
        let target = Target {
            process: Arc::clone(ready.vm.process()),
            memory: Arc::clone(&ready.memory),
            unit: PageSize::Base,
        };
        entry.memory_bytes = ram.iter().map(|r| r.pages.saturating_mul(4096)).sum();
        entry.hypervisor = if ready.identity.kvm {
            "QEMU with KVM"
        } else {
            "QEMU (TCG)"
        }
        .into();
        let spec = spec(id, name, ram, target.unit, &ready.config);
        let context = Context {
            target,
            root: self.root.clone(),
            topology: Arc::clone(&self.topology),
            inbox: self.inbox.clone(),
        };
        let process = Arc::clone(ready.vm.process());
        match Hands::start(&context, ready.vm, ready.tables, Arc::clone(&self.mover)) {
            Ok(hands) => {
                self.next_id += 1;
                entry.managed = Some(Managed {
                    id,
                    hands,
                    process,
                    reasons_told: 0,
                    history: VecDeque::new(),
                });
                self.vms.insert(name.to_owned(), entry);
                self.tell(
                    Some(name),
                    format!("under management, pid {}", process_id(&self.vms[name])),
                );
                self.handle(Event::VmArrived(spec));
            }
            Err(error) => {
                entry.unscannable = true;
                entry.reason = format!("its threads could not be started: {error}");
                self.vms.insert(name.to_owned(), entry);
            }
        }
    }

    /// Drops VMs whose process has ended.
    fn forget_ended(&mut self) {
        let ended: Vec<String> = self
            .vms
            .iter()
            .filter(|(_, entry)| match &entry.managed {
                Some(managed) => !managed.process.is_alive(),
                None => !self.root.process(entry.pid, "stat").exists(),
            })
            .map(|(name, _)| name.clone())
            .collect();
        for name in ended {
            let entry = self.vms.remove(&name);
            self.tell(Some(&name), "the VM ended".into());
            if let Some(managed) = entry.and_then(|e| e.managed) {
                self.handle(Event::VmDeparted(managed.id));
            }
        }
    }

    fn read_memory(&mut self) {
        let now = self.now();
        if self
            .memory_read_at
            .is_some_and(|at| now.since(at) < MEMORY_EVERY)
        {
            return;
        }
        self.memory_read_at = Some(now);
        match self.topology.memory(&self.root) {
            Ok(memory) => {
                self.memory.clone_from(&memory);
                self.handle(Event::Memory(memory));
            }
            Err(error) => self.tell(
                None,
                format!("the tiers' memory could not be read: {error}"),
            ),
        }
    }
}

fn process_id(entry: &Entry) -> u32 {
    entry.pid
}

fn spec(vm: VmId, name: &str, ram: Vec<RamRange>, unit: PageSize, config: &VmConfig) -> VmSpec {
    VmSpec {
        vm,
        name: name.to_owned(),
        ram,
        unit,
        limits: config.limits.clone(),
        weight: config.weight,
        moves: config.moves,
    }
}
