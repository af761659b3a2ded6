//! VMs whose memory an agent in the guest manages: who is in force, and what happens when that changes.
//!
//! While the agent is trusted, the VM is not known to the engine at all: it has no worker, no tracker and no
//! threads, so nothing here can look into its memory. When the agent is silent or lies, the scout is asked to
//! make the VM ready as if there were no agent; when it is trusted again, all of that is ended first.

use std::path::PathBuf;
use std::sync::Weak;

use terrace_host::agent::{AgentState, AgentView, Orders, Verdict, WatchConfig};
use terrace_proto::agent::Mode;
use terrace_proto::{Command, Event};

use crate::daemon::Daemon;
use crate::scout::AgentVm;
use terrace_config::{Fallback, VmConfig, VmMode};

/// A VM's agent, as the daemon sees it.
#[derive(Clone)]
pub struct Agent {
    /// What is configured.
    pub mode: VmMode,
    /// What the host does without the agent.
    pub fallback: Fallback,
    /// The host may look into the VM.
    pub scan: bool,
    /// QEMU's end of its port.
    pub socket: PathBuf,
    /// What the link says.
    pub view: Option<AgentView>,
    /// Who manages the VM.
    pub in_force: InForce,
    /// An operator paused it.
    pub paused: bool,
    /// The VM's RAM, where QEMU told it.
    pub ram_bytes: Option<u64>,
}

/// Who manages a VM that has an agent.
#[derive(Clone, Debug)]
pub enum InForce {
    /// Nobody yet: the agent was not heard.
    Waiting,
    /// The agent.
    Guest,
    /// The host, or nobody, for this reason.
    Fallback(String),
    /// The agent again, as soon as the host's threads have ended.
    Returning(Weak<()>),
    /// The host, as it would without an agent; the agent tells its state only.
    Host,
}

impl Agent {
    /// One of which nothing was heard yet.
    pub fn new(config: &VmConfig, socket: PathBuf, ram_bytes: Option<u64>, paused: bool) -> Self {
        Self {
            mode: config.mode,
            fallback: config.fallback,
            scan: config.scan,
            socket,
            view: None,
            in_force: match config.mode {
                VmMode::Guest => InForce::Waiting,
                VmMode::Host | VmMode::Coordinated => InForce::Host,
            },
            paused,
            ram_bytes,
        }
    }

    /// The host does something for the VM, or is about to.
    pub fn is_by_host(&self) -> bool {
        match self.in_force {
            InForce::Fallback(_) => self.scan,
            InForce::Returning(_) | InForce::Host => true,
            InForce::Waiting | InForce::Guest => false,
        }
    }

    /// Why the agent is not in force, where it should be.
    pub fn fallback(&self) -> Option<&str> {
        match &self.in_force {
            InForce::Fallback(why) => Some(why),
            _ => None,
        }
    }

    /// What the agent itself is to do: never anything that the host does.
    fn mode(&self) -> Mode {
        let lies = self
            .view
            .as_ref()
            .is_some_and(|v| matches!(v.state, AgentState::Lying(_)));
        match self.mode {
            VmMode::Coordinated if !lies => Mode::Coordinated,
            _ if self.is_by_host() => Mode::Off,
            _ => Mode::Guest,
        }
    }

    /// What the host does while the agent is not in force.
    pub fn fallback_words(&self) -> &'static str {
        match (self.scan, self.fallback) {
            (true, Fallback::Host) => "the host manages it",
            (true, Fallback::Observe) => "the host watches it and moves nothing",
            (false, _) => "the host leaves it alone (scan = false)",
        }
    }
}

impl Daemon {
    fn orders(&self, agent: &Agent) -> Orders {
        Orders {
            mode: agent.mode(),
            paused: agent.paused,
            budgets: self.config.agent.budgets,
        }
    }

    fn send_orders(&self, name: &str) {
        if let Some(agent) = self.agent(name) {
            self.agents.order(name, self.orders(agent));
        }
    }

    fn agent(&self, name: &str) -> Option<&Agent> {
        self.vms.get(name)?.agent.as_ref()
    }

    fn set_in_force(&mut self, name: &str, in_force: InForce) {
        if let Some(agent) = self.vms.get_mut(name).and_then(|e| e.agent.as_mut()) {
            agent.in_force = in_force;
        }
    }

    /// The scout found a VM that its agent is to manage.
    pub fn found_agent_vm(&mut self, name: &str, found: AgentVm) {
        let AgentVm { config, ram_bytes } = found;
        self.watch_agent(name, &config, ram_bytes);
        let Some(entry) = self.vms.get_mut(name) else {
            return;
        };
        entry.memory_bytes = ram_bytes.unwrap_or(entry.memory_bytes);
        entry.unscannable = false;
    }

    /// Begins to listen to a VM's agent, where it has one and is not listened to already.
    pub fn watch_agent(&mut self, name: &str, config: &VmConfig, ram_bytes: Option<u64>) {
        let Some(socket) = config.agent_socket.clone() else {
            return;
        };
        let paused = self.paused;
        let Some(entry) = self.vms.get_mut(name) else {
            return;
        };
        if let Some(agent) = &mut entry.agent
            && (ram_bytes.is_none() || agent.ram_bytes == ram_bytes)
        {
            return;
        }
        let agent = entry.agent.take();
        let agent = match agent {
            // What it lied about may have been true: memory was plugged in.
            Some(agent) => Agent { ram_bytes, ..agent },
            None => Agent::new(config, socket.clone(), ram_bytes, paused),
        };
        let watch = WatchConfig {
            silence: self.config.agent.silence,
            ram_bytes,
            ..WatchConfig::default()
        };
        let orders = self.orders(&agent);
        self.agents.watch(name, socket, watch, orders);
        if let Some(entry) = self.vms.get_mut(name) {
            entry.agent = Some(agent);
        }
    }

    /// News of a VM's agent; none where its link ended by a defect.
    pub fn agent_news(&mut self, name: &str, view: Option<AgentView>) {
        let Some(agent) = self.vms.get_mut(name).and_then(|e| e.agent.as_mut()) else {
            return;
        };
        let lied = |a: &Agent| {
            let state = a.view.as_ref().map(|v| &v.state);
            matches!(state, Some(AgentState::Lying(_)))
        };
        let lied_before = lied(agent);
        let verdict = match &view {
            Some(view) => view.verdict.clone(),
            None => Verdict::Fallback("a defect of terraced: its link panicked".to_owned()),
        };
        let before = agent.view.as_ref().map(|v| v.verdict.clone());
        agent.view = view;
        let lies_now = lied(agent) && !lied_before;
        match agent.mode {
            VmMode::Guest => self.decide(name, verdict),
            VmMode::Host | VmMode::Coordinated => self.tell_verdict(name, before, verdict),
        }
        if lies_now {
            self.send_orders(name);
        }
    }

    /// In coordinated mode the host manages the VM anyway.
    fn tell_verdict(&mut self, name: &str, before: Option<Verdict>, now: Verdict) {
        let text = match (before, now) {
            (Some(Verdict::Trusted), Verdict::Trusted) => return,
            (Some(Verdict::Fallback(_)), Verdict::Fallback(_)) | (_, Verdict::Waiting) => return,
            (_, Verdict::Trusted) => {
                "its agent speaks; the engine has no coordinated policy yet, so the host goes on by itself"
                    .to_owned()
            }
            (_, Verdict::Fallback(why)) => format!("{why}; the host goes on by itself"),
        };
        self.tell(Some(name), text);
        self.send_orders(name);
    }

    fn decide(&mut self, name: &str, verdict: Verdict) {
        let Some(agent) = self.agent(name) else {
            return;
        };
        match (&agent.in_force, verdict) {
            (InForce::Waiting | InForce::Guest | InForce::Returning(_), Verdict::Fallback(why)) => {
                self.fall_back(name, why);
            }
            // The reason may have changed, as from silence to a lie.
            (InForce::Fallback(before), Verdict::Fallback(why)) if *before != why => {
                self.set_in_force(name, InForce::Fallback(why));
            }
            (InForce::Waiting, Verdict::Trusted) => {
                self.set_in_force(name, InForce::Guest);
                let text =
                    "its agent speaks and manages its memory; the host does not look into it";
                self.tell(Some(name), text.to_owned());
            }
            (InForce::Fallback(_), Verdict::Trusted) => self.give_back(name),
            (InForce::Returning(threads), Verdict::Trusted) if threads.strong_count() == 0 => {
                self.set_in_force(name, InForce::Guest);
                self.send_orders(name);
                let text =
                    "its agent speaks again and manages its memory; the host looks no more into it";
                self.tell(Some(name), text.to_owned());
            }
            _ => {}
        }
    }

    fn fall_back(&mut self, name: &str, why: String) {
        let Some(agent) = self.agent(name) else {
            return;
        };
        let (scan, words) = (agent.scan, agent.fallback_words());
        self.set_in_force(name, InForce::Fallback(why.clone()));
        self.claims.set(name, scan);
        self.send_orders(name);
        self.tell(Some(name), format!("falls back: {why}; {words}"));
    }

    /// Ends all that the host does for a VM; its agent is told to go on when that is done.
    fn give_back(&mut self, name: &str) {
        self.claims.set(name, false);
        let managed = self.vms.get_mut(name).and_then(|e| e.managed.take());
        let threads = match &managed {
            Some(managed) => managed.body.as_ref().map(|body| body.hands.threads()),
            None => None,
        };
        // Now, so that its threads and its worker end.
        let id = managed.map(|managed| managed.id);
        if let Some(id) = id {
            self.handle(Event::VmDeparted(id));
        }
        self.set_in_force(name, InForce::Returning(threads.unwrap_or_default()));
        self.decide(name, Verdict::Trusted);
    }

    /// Passes an operator's pause on to a VM's agent, or to all; an agent that lied is believed again when it
    /// is resumed by its name. `false` where there is none.
    pub fn halt_agents(&mut self, name: Option<&str>, halt: bool) -> bool {
        let names: Vec<String> = match name {
            Some(name) => vec![name.to_owned()],
            None => self.vms.keys().cloned().collect(),
        };
        let forgives = name.is_some() && !halt;
        let mut any = false;
        for name in names {
            let Some(agent) = self.vms.get_mut(&name).and_then(|e| e.agent.as_mut()) else {
                continue;
            };
            any = true;
            agent.paused = halt;
            let view = agent.view.as_ref();
            let lies = view.is_some_and(|v| matches!(v.state, AgentState::Lying(_)));
            if lies && forgives {
                self.agents.forgive(&name);
                // Memory may have been plugged in since QEMU was asked.
                self.claims.look_again(&name);
                self.tell(
                    Some(&name),
                    "an operator has its agent believed again".into(),
                );
            }
            self.send_orders(&name);
        }
        any
    }

    /// A VM came under the host's management: what an operator wanted of its agent holds there too.
    pub fn carry_pause(&mut self, name: &str) {
        let Some(entry) = self.vms.get(name) else {
            return;
        };
        let paused = entry.agent.as_ref().is_some_and(|a| a.paused);
        if let Some(managed) = entry.managed.as_ref().filter(|_| paused) {
            let id = managed.id;
            self.command(Command::Pause(Some(id)));
        }
    }

    /// The VM is gone.
    pub fn forget_agent(&self, name: &str) {
        self.agents.forget(name);
        self.claims.set(name, false);
    }
}

#[cfg(test)]
mod tests;
