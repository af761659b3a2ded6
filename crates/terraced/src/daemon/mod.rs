//! The daemon's thread: all inputs come in by one channel and go through the engine; its decisions are handed to the
//! threads of the VM that they are about.
//!
//! The thread's state is in parts with their own methods: [`session`], [`this_host`] and [`discoverer`] here, the
//! others in the folders below. Work on several of them is the daemon's.

mod agents;
mod discoverer;
mod found;
mod gathers;
mod remapped;
mod resizes;
mod served;
mod session;
#[cfg(test)]
mod tests;
mod this_host;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::Duration;

use anyhow::{Context as _, Result};
use terrace_config::Config;
use terrace_core::arbiter::Rule;
use terrace_host::HostRoot;
use terrace_host::topology::Topology;
use terrace_proto::{Action, Command, Event};

use crate::agent_mode::{Agents, NamedPlans};
use crate::discovery::Claims;
use crate::executor::Executors;
use crate::messages::Input;
use crate::provisioning::Provisioning;
use crate::registry::{Registry, VmKey};
use discoverer::DiscovererState;
use session::LiveSession;
use this_host::ThisHost;

/// Longest sleep of the loop, and so the longest time until a VM that ended is noticed.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Longest time for which a daemon that ends waits for VMs' monitors.
const PUT_BACK: Duration = Duration::from_secs(5);

/// The state of the daemon's thread.
pub struct Daemon {
    /// The daemon's configuration.
    config: Arc<Config>,
    /// The host that the daemon runs on.
    host: ThisHost,
    /// The engine with its log and clock, and the events for people.
    session: LiveSession,
    /// The VMs that are known.
    vms: Registry,
    /// The loop's end of the discoverer.
    discoverer: DiscovererState,
    /// The executors of the engine's decisions about pages.
    executors: Executors,
    /// The handle of the thread that talks to the agents in guests.
    agents: Agents,
    /// Plans that guests carry out.
    named: NamedPlans,
    /// Generation of the last set of hot pages that was named.
    hot_sets: u64,
    /// VMs that change size.
    provisioning: Provisioning,
    /// Whether all VMs are paused.
    paused: bool,
    /// The sending end of the loop's inbox, for its threads.
    inbox: Sender<Input>,
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
        Ok(Self {
            session: LiveSession::start(&config, provisioning.config())?,
            vms: Registry::default(),
            executors: Executors::new(&config, &root, &topology, inbox.clone()),
            host: ThisHost::new(root, topology),
            discoverer: DiscovererState::new(claims),
            agents: Agents::start(config.agent.clone(), inbox.clone())
                .context("cannot start the thread that serves guests' agents")?,
            named: NamedPlans::default(),
            hot_sets: 0,
            provisioning,
            config,
            paused: false,
            inbox,
        })
    }

    /// Works until a stop is requested.
    pub fn run(mut self, inbox: &Receiver<Input>) -> Result<()> {
        self.session.tell(None, "started".to_owned());
        loop {
            self.read_memory();
            let sleep = self.session.sleep().unwrap_or(HEARTBEAT);
            match inbox.recv_timeout(sleep.min(HEARTBEAT)) {
                Ok(Input::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Ok(input) => {
                    // First, so that a VM that was restarted gets its name back.
                    self.forget_ended();
                    self.take(input);
                }
                Err(RecvTimeoutError::Timeout) => self.forget_ended(),
            }
            if self.session.is_due() {
                self.handle(Event::Timer);
            }
        }
        self.put_back();
        self.session.finish()
    }

    /// Puts back what was changed of VMs that are resized: how often QEMU asks their guests for statistics.
    fn put_back(&mut self) {
        let late = self.provisioning.shut_down(PUT_BACK);
        if late > 0 {
            tracing::warn!(
                "{late} VMs did not answer within {} s: QEMU may go on asking their guests for statistics",
                PUT_BACK.as_secs()
            );
        }
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.handle(event),
            Input::Discovered(found) => self.found(*found),
            Input::DiscoveryScan(discovery_scan) => self.discovery_scan(discovery_scan),
            Input::Tracking(vm, news) => self.vms.keep_tracking(vm, news),
            Input::Agent(vm, view) => self.agent_news(vm, view.map(|view| *view)),
            Input::MapChanged(vm, message) => self.map_changed(vm, &message),
            Input::MoveFindings(vm, findings) => self.vms.keep_move_findings(vm, findings),
            Input::Provider(news) => self.provider_news(news),
            Input::GuestSetup(provider, setup) => self.provisioning.set_up(provider, setup),
            Input::Ask(question) => question(self),
            // `run` sees it first.
            Input::Stop => {}
        }
    }

    /// Gives the engine an event, carries out its decisions, and logs the reasons for people.
    pub fn handle(&mut self, event: Event) {
        let scanned = match &event {
            Event::Scanned(answer) => Some(answer.space.vm()),
            Event::ScannedPart(answer) => Some(answer.space.vm()),
            _ => None,
        };
        let actions = self.session.hear(event);
        if let Some(vm) = scanned {
            // First: what is moved has another frame afterwards.
            self.name_hot(vm);
        }
        for action in actions {
            self.act(action);
        }
        self.session
            .tell_reasons(&mut self.vms, &mut self.provisioning);
    }

    /// Handles events, one after the other.
    pub fn handle_all(&mut self, events: Vec<Event>) {
        for event in events {
            self.handle(event);
        }
    }

    /// Carries out an operator's command.
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
        if let Action::Move(plan) = &action
            && self.session.engine().is_for_guest(plan.vm, plan.id)
        {
            self.name_pages(plan.clone());
            return;
        }
        match action.vm() {
            Some(vm) => self.executors.act(vm, action),
            None => self.provisioning.act(action, &self.inbox),
        }
    }

    /// Tells people an event about a VM.
    pub fn tell_of(&mut self, vm: VmKey, text: String) {
        let name = self.vms.get(vm).map(|entry| entry.name.as_str());
        self.session.tell(name, text);
    }

    /// Reads how much memory the host has for itself, if VMs share memory.
    fn read_host_memory(&mut self) {
        if self.config.engine.arbiter.rule == Rule::Off {
            return;
        }
        if let Some(memory) = terrace_host::host_memory::host_memory(self.host.root()) {
            self.handle(Event::HostMemory(memory));
        }
    }

    fn read_memory(&mut self) {
        match self.host.read_memory(self.session.now()) {
            Some(Ok(memory)) => {
                self.handle(Event::Memory(memory));
                self.read_host_memory();
            }
            Some(Err(error)) => self.session.tell(
                None,
                format!("the tiers' memory could not be read: {error}"),
            ),
            None => {}
        }
    }
}
