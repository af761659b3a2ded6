//! The daemon's thread: everything that happened comes in by one channel, goes through the engine,
//! and what the engine decided is handed to the threads of the VM that it is about.

mod agents;
mod found;
mod remapped;
mod resizes;
mod served;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_config::Config;
use terrace_core::{Engine, EngineConfig, Log as _, Session};
use terrace_host::mover::{Mover, MoverConfig};
use terrace_host::topology::Topology;
use terrace_host::{Finding, HostRoot};
use terrace_proto::{Action, Command, Event, Tick, TierMemory};
use terrace_sys::MonotonicClock;

use crate::agent_mode::Agents;
use crate::discovery::Claims;
use crate::events::Events;
use crate::executor::Executors;
use crate::messages::Input;
use crate::provisioning::Provisioning;
use crate::record::Recorder;
use crate::registry::{Registry, VmKey};
use crate::served::Served as _;

/// Longest sleep of the loop; how fast a VM that ended is noticed.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often the tiers' free memory is read.
const MEMORY_EVERY: Duration = Duration::from_secs(2);

/// All that the daemon's thread owns.
pub struct Daemon {
    /// The engine, which decides, and its log.
    pub session: Session<Recorder>,
    /// The VMs that are known.
    pub vms: Registry,
    /// Does what the engine decided about pages.
    pub executors: Executors,
    /// What was found by the last look around.
    pub look_findings: Vec<Finding>,
    /// What was refused, by its monitor.
    pub refused: BTreeMap<PathBuf, Finding>,
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
    /// Moves pages of all VMs.
    pub mover: Arc<Mover>,
    /// Where threads send what happened.
    pub inbox: Sender<Input>,
    /// Talks to the agents in guests.
    pub agents: Agents,
    /// What the scout is to know of VMs that have one.
    pub claims: Claims,
    /// VMs that change size.
    pub provisioning: Provisioning,
    /// The next VM's id in the engine.
    pub next_id: u32,
    memory_read_at: Option<Tick>,
}

impl Daemon {
    /// A daemon for this host; [`Daemon::run`] starts it.
    pub fn new(
        config: Arc<Config>,
        root: HostRoot,
        topology: Arc<Topology>,
        inbox: Sender<Input>,
        claims: Claims,
        provisioning: Provisioning,
    ) -> Result<Self> {
        let engine = EngineConfig {
            provision: provisioning.config(),
            ..config.engine.clone()
        };
        let recorder = match &config.log {
            None => Recorder::off(),
            Some((path, limit)) => Recorder::start(path, *limit, serde_json::to_string(&engine)?)?,
        };
        let budget = config.engine.move_budget_bytes_per_s;
        let mover = MoverConfig {
            threads: config.move_workers,
            batch_pages: 1024,
            bytes_per_s: (budget > 0).then_some(budget),
            attempts: config.move_attempts,
        };
        Ok(Self {
            session: Session::new(Engine::new(engine)?, recorder),
            vms: Registry::default(),
            executors: Executors::default(),
            look_findings: Vec::new(),
            refused: BTreeMap::new(),
            events: Events::default(),
            mover: Arc::new(Mover::new(root.clone(), Arc::clone(&topology), mover)),
            root,
            topology,
            memory: Vec::new(),
            config,
            paused: false,
            clock: MonotonicClock::start(),
            agents: Agents::start(inbox.clone())
                .context("starting the thread of guests' agents")?,
            claims,
            provisioning,
            inbox,
            next_id: 1,
            memory_read_at: None,
        })
    }

    /// Works until told to stop.
    pub fn run(mut self, inbox: &Receiver<Input>) -> Result<()> {
        self.tell(None, "started".to_owned());
        loop {
            self.read_memory();
            match inbox.recv_timeout(self.sleep()) {
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(input) => {
                    // First, so that a VM that was restarted gets its name back.
                    self.forget_ended();
                    self.take(input);
                }
                Err(RecvTimeoutError::Timeout) => self.forget_ended(),
            }
            let timeout = self.engine().poll_timeout();
            if timeout.is_some_and(|at| at <= self.now()) {
                self.handle(Event::Timer);
            }
        }
        self.session.log_mut().finish().context("finishing the log")
    }

    fn sleep(&self) -> Duration {
        let timeout = self.engine().poll_timeout().map(|at| at.since(self.now()));
        timeout.unwrap_or(HEARTBEAT).min(HEARTBEAT)
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.handle(event),
            Input::Found(found) => self.found(*found),
            Input::Looked(looked) => self.looked(looked),
            Input::Tracking(vm, news) => self.keep_tracking(vm, news),
            Input::Agent(vm, view) => self.agent_news(vm, view.map(|view| *view)),
            Input::MapChanged(vm, words) => self.map_changed(vm, &words),
            Input::MoveFindings(vm, findings) => self.keep_findings(vm, findings),
            Input::Provider(news) => self.provider_news(news),
            Input::Ask(question) => question(self),
            // `run` sees it first.
            Input::Stop => {}
        }
    }

    /// Gives the engine an event, does what it decided, and tells why.
    pub fn handle(&mut self, event: Event) {
        let now = self.now();
        let recorded = self.session.log().is_on();
        let actions = self.session.hear(now, event);
        if recorded && let Some(end) = self.log_ended() {
            self.tell(None, end);
        }
        for action in actions {
            self.act(action);
        }
        let engine = self.session.engine();
        self.vms.tell_reasons(engine, &mut self.events);
        self.provisioning
            .tell_reasons(engine, &self.vms, &mut self.events);
    }

    /// The same for each of these.
    pub fn handle_all(&mut self, events: Vec<Event>) {
        for event in events {
            self.handle(event);
        }
    }

    /// An operator's wish.
    pub fn command(&mut self, command: Command) {
        let halted = match &command {
            Command::Pause(vm) => Some((*vm, true)),
            Command::Resume(vm) => Some((*vm, false)),
            Command::Moves(vm, on) => Some((Some(*vm), !on)),
            _ => None,
        };
        if let Some((vm, halt)) = halted {
            if vm.is_none() {
                self.paused = halt;
                self.halt_agents(None, halt);
            }
            self.executors.halt(vm, halt);
        }
        self.handle(Event::Command(command));
    }

    fn act(&mut self, action: Action) {
        match action.vm() {
            Some(vm) => self.executors.act(vm, action),
            None => self.provisioning.act(action, &self.inbox),
        }
    }

    /// Makes something an event.
    pub fn tell(&mut self, vm: Option<&str>, text: String) {
        let now = self.now();
        self.events.push(now, vm, text);
    }

    /// Makes something about a VM an event.
    pub fn tell_of(&mut self, vm: VmKey, text: String) {
        let now = self.now();
        let name = self.vms.get(vm).map(|entry| entry.name.as_str());
        self.events.push(now, name, text);
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
