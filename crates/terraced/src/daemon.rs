//! The daemon's thread: everything that happened comes in by one channel, goes through the engine,
//! and what the engine decided is handed to the threads of the VM that it is about.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_api::elastic::{Elastic, Resize};
use terrace_api::types;
use terrace_core::{Engine, EngineConfig, Log as _, PolicyChoice, Session};
use terrace_host::agent::AgentView;
use terrace_host::mover::{Mover, MoverConfig};
use terrace_host::topology::Topology;
use terrace_host::{Finding, HostRoot, doctor};
use terrace_proto::provision::Origin;
use terrace_proto::{Action, Command, Event, Tick, TierMemory, VmId};
use terrace_sys::MonotonicClock;
use tokio::sync::oneshot;

use crate::agents::{Agents, Claims};
use crate::api::{Failure, FindHost, Question, Served};
use crate::confine::{self, Role};
use crate::elastic;
use crate::elastic::drive::{Elastics, Resized};
use crate::elastic::keeper::News;
use crate::events::Events;
use crate::record::Recorder;
use crate::roster::{Entry, tell_reasons};
use crate::scout::{Found, Looked};
use terrace_config::Config;

/// Longest sleep of the loop; how fast a VM that ended is noticed.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// How often the tiers' free memory is read.
const MEMORY_EVERY: Duration = Duration::from_secs(2);

/// What reaches the daemon's thread.
pub enum Input {
    /// Something for the engine.
    Event(Event),
    /// The scout found a VM.
    Found(Box<Found>),
    /// The scout looked everywhere.
    Looked(Looked),
    /// What a VM's source of writes does.
    WriteWords(VmId, String),
    /// Why a VM's tracker sees less of it than it could, if so.
    Shortfall(VmId, Option<String>),
    /// News of a VM's agent; none where its link ended by a defect.
    Agent(String, Option<Box<AgentView>>),
    /// A VM's memory map is another one, with what changed; once for each map.
    MapChanged(VmId, String),
    /// What there is to say about a VM's moves.
    MoveFindings(VmId, Vec<Finding>),
    /// News of a VM's elastic memory.
    Elastic(News),
    /// A question of the API.
    Ask(Question),
    /// End.
    Stop,
}

/// All that the daemon's thread owns.
pub struct Daemon {
    /// The engine, which decides, and its log.
    pub session: Session<Recorder>,
    /// VMs by name.
    pub vms: BTreeMap<String, Entry>,
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
    pub elastics: Elastics,
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
        elastics: Elastics,
    ) -> Result<Self> {
        let engine = EngineConfig {
            provision: elastics.config,
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
            vms: BTreeMap::new(),
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
            elastics,
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
            Input::WriteWords(vm, words) => self.keep_write_words(vm, words),
            Input::Shortfall(vm, words) => self.keep_shortfall(vm, words),
            Input::Agent(vm, view) => self.agent_news(&vm, view.map(|view| *view)),
            Input::MapChanged(vm, words) => self.map_changed(vm, &words),
            Input::MoveFindings(vm, findings) => self.keep_findings(vm, findings),
            Input::Elastic(news) => self.elastic_news(news),
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
        tell_reasons(self.session.engine(), &mut self.vms, &mut self.events);
        self.tell_elastic();
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
            for managed in self.vms.values().filter_map(|e| e.managed.as_ref()) {
                if vm.is_none_or(|id| id == managed.id)
                    && let Some(body) = &managed.body
                {
                    body.hands.halt(halt);
                }
            }
        }
        self.handle(Event::Command(command));
    }

    fn act(&mut self, action: Action) {
        let Some(vm) = action.vm() else {
            return self.act_elastic(action);
        };
        let managed = self
            .vms
            .values()
            .filter_map(|e| e.managed.as_ref())
            .find(|m| m.id == vm);
        let Some(hands) = managed.and_then(|m| m.body.as_ref()).map(|b| &b.hands) else {
            return;
        };
        match action {
            Action::Scan(request) => hands.scan(request),
            Action::QueryPlacement(query) => hands.placement(query),
            Action::Move(plan) => hands.execute(plan),
            _ => {}
        }
    }

    /// Makes something an event.
    pub fn tell(&mut self, vm: Option<&str>, text: String) {
        let now = self.now();
        self.events.push(now, vm, text);
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

impl Served for Daemon {
    fn engine(&self) -> &Engine {
        self.session.engine()
    }

    fn now(&self) -> Tick {
        self.clock.now()
    }

    fn vms(&self) -> &BTreeMap<String, Entry> {
        &self.vms
    }

    fn tiers(&self) -> Vec<types::Tier> {
        let tier = |tier: &terrace_host::topology::Tier| types::Tier {
            name: tier.name.clone(),
            nodes: tier.nodes.iter().map(|n| n.0).collect(),
            total_bytes: tier.total_bytes,
            free_bytes: self.memory.get(tier.id.index()).map_or(0, |m| m.free_bytes),
        };
        self.topology.tiers.iter().map(tier).collect()
    }

    fn events(&self) -> &Events {
        &self.events
    }

    fn policy(&self) -> String {
        policy_name(&self.config.engine.policy)
    }

    fn moves(&self) -> bool {
        let mut names = self.vms.keys();
        names.any(|name| self.config.vm(name).is_ok_and(|vm| vm.moves))
    }

    fn paused(&self) -> bool {
        self.paused
    }

    fn log_ended(&self) -> Option<String> {
        self.session.log().ended().map(str::to_owned)
    }

    fn find_host(&self) -> FindHost {
        let (root, topology) = (self.root.clone(), Arc::clone(&self.topology));
        let looked = self.look_findings.iter().chain(self.refused.values());
        let looked: Vec<Finding> = looked.cloned().collect();
        let elastic = self.elastic_host_findings();
        let log = self.session.log().ended().map(|why| {
            let advice = "give the log another disk or limit ([log]), and start terraced again";
            Finding::degraded("log", why, advice)
        });
        Box::new(move || {
            let host = confine::run(Role::Doctor, move || doctor::host(&root, &topology));
            let mut findings = host.unwrap_or_else(|error| vec![confine::not_looked(&error)]);
            findings.extend(confine::findings());
            findings.extend(looked);
            findings.extend(elastic);
            findings.extend(log);
            findings
        })
    }

    fn wish(&mut self, command: Command) -> Result<(), Failure> {
        self.command(command);
        Ok(())
    }

    fn elastic(&self, name: &str) -> Option<Elastic> {
        self.elastic_view(name)
    }

    fn elastic_findings(&self, name: &str) -> Vec<Finding> {
        let view = self.elastic_view(name);
        view.map_or_else(Vec::new, |view| elastic::findings::findings(&view))
    }

    fn resize(
        &mut self,
        name: &str,
        origin: Origin,
        sizes: &Resize,
    ) -> Result<oneshot::Receiver<Resized>, Failure> {
        self.want_sizes(name, origin, sizes)
    }

    fn halt_agent(&mut self, name: &str, halt: bool) -> bool {
        self.halt_agents(Some(name), halt)
    }
}

fn policy_name(choice: &PolicyChoice) -> String {
    match choice {
        PolicyChoice::Named(name) => name.clone(),
        PolicyChoice::Composed(stages) => format!("{} with other stages", stages.base),
    }
}

#[cfg(test)]
mod tests;
