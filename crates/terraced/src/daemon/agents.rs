//! VMs whose memory an agent in the guest manages: the daemon's work when the manager in force changes.

use terrace_config::{Fallback, VmConfig, VmMode};
use terrace_core::engine::Stand;
use terrace_host::agent::{AgentState, AgentView, Verdict};
use terrace_proto::{
    AgentMemory, Command, Event, GuestMoves, GuestNode, GuestNodes, MovePlan, VmId,
};

use super::Daemon;
use crate::agent_mode::{self, Counted, Step};
use crate::executor::Executor;
use crate::messages::AgentVm;
use crate::registry::{Agent, InForce, VmKey};

impl Daemon {
    fn send_orders(&self, vm: VmKey) {
        if let Some(agent) = self.vms.agent(vm) {
            self.agents.order(vm, agent);
        }
    }

    pub(super) fn set_in_force(&mut self, vm: VmKey, in_force: InForce) {
        if let Some(agent) = self.vms.agent_mut(vm) {
            agent.in_force = in_force;
        }
    }

    /// Takes in a VM that its agent is to manage, as the discoverer found it.
    pub fn found_agent_vm(&mut self, vm: VmKey, found: AgentVm) {
        let AgentVm { config, ram_bytes } = found;
        self.watch_agent(vm, &config, ram_bytes);
        let Some(entry) = self.vms.get_mut(vm) else {
            return;
        };
        entry.memory_bytes = ram_bytes.unwrap_or(entry.memory_bytes);
        entry.unscannable = false;
    }

    /// Begins to listen to a VM's agent, if it has one and is not listened to already.
    pub fn watch_agent(&mut self, vm: VmKey, config: &VmConfig, ram_bytes: Option<u64>) {
        let Some(socket) = config.management.agent_socket.clone() else {
            return;
        };
        let paused = self.paused;
        let Some(entry) = self.vms.get_mut(vm) else {
            return;
        };
        if let Some(agent) = &mut entry.agent
            && (ram_bytes.is_none() || agent.ram_bytes == ram_bytes)
        {
            return;
        }
        let agent = entry.agent.take();
        let agent = match agent {
            // The claim that was taken for a lie may have been true: memory was plugged in.
            Some(agent) => Agent { ram_bytes, ..agent },
            None => Agent::new(config, socket, ram_bytes, paused),
        };
        self.agents.watch(vm, &agent);
        entry.agent = Some(agent);
    }

    /// Takes in news of a VM's agent; `None` if its link ended by a defect.
    pub fn agent_news(&mut self, vm: VmKey, view: Option<AgentView>) {
        let Some(agent) = self.vms.agent_mut(vm) else {
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
        let said = agent.view.as_ref().and_then(agent_mode::memory);
        let provider = self.provisioning.provider(vm);
        if let Some((provider, said)) = provider.zip(said) {
            self.handle(Event::AgentMemory(AgentMemory { provider, ..said }));
        }
        let Some(agent) = self.vms.agent(vm) else {
            return;
        };
        match agent.mode {
            VmMode::Guest => self.decide(vm, verdict),
            VmMode::Host => {
                let text = agent_mode::news_of_gathering(before, verdict);
                self.tell_verdict(vm, text);
            }
            VmMode::Coordinated => {
                let text = agent_mode::news_beside_host(before, verdict, agent.fallback);
                self.tell_verdict(vm, text);
                self.coordinate(vm);
            }
        }
        if lies_now {
            self.send_orders(vm);
        }
    }

    /// Tells people of a verdict on an agent beside a host that manages the VM anyway.
    fn tell_verdict(&mut self, vm: VmKey, text: Option<String>) {
        if let Some(text) = text {
            self.tell_of(vm, text);
            self.send_orders(vm);
        }
    }

    /// Has the guest move what the host names, as long as its agent can; else the host moves pages by itself.
    fn coordinate(&mut self, vm: VmKey) {
        let Some(entry) = self.vms.get(vm) else {
            return;
        };
        let (Some(managed), Some(agent)) = (&entry.managed, &entry.agent) else {
            return;
        };
        let id = managed.id;
        let view = agent.view.as_ref();
        let free = agent_mode::guest_free(view, &agent.tiers);
        let counted = view.map(agent_mode::counted).unwrap_or_default();
        if let Some(report) = self.named.heard(id, self.session.now(), counted) {
            self.handle(Event::Moved(report));
        }
        self.guest_moves(id, free.as_ref().ok().cloned());
        let stand = self.session.engine().stand(id).cloned();
        let moves = match stand.unwrap_or_default() {
            Stand::Guest { .. } => Ok(()),
            Stand::Refused(why) => Err(why),
            Stand::Checking(_) => {
                Err("it puts pages back into the tiers of the guest's nodes first".to_owned())
            }
            Stand::Host => Err(free.err().unwrap_or_default()),
        };
        if moves.is_ok() {
            self.name_next(vm, id, counted);
        } else {
            self.end_named(id);
        }
        if let Some(agent) = self.vms.agent_mut(vm) {
            agent.moves = moves;
        }
    }

    /// Ends the plans of a guest that does not move pages any more.
    pub(super) fn end_named(&mut self, vm: VmId) {
        for report in self.named.end(vm, self.session.now()) {
            self.handle(Event::Moved(report));
        }
    }

    /// Takes in which tiers the nodes of a VM's guest lie in, for coordinated mode.
    pub(super) fn found_nodes(
        &mut self,
        vm: VmKey,
        id: VmId,
        found: Result<Vec<GuestNode>, String>,
    ) {
        let nodes = found.as_ref().cloned().unwrap_or_default();
        let tiers = self.config.engine.tiers.len();
        let Some(agent) = self.vms.agent_mut(vm) else {
            return;
        };
        if let Err(why) = &found {
            agent.moves = Err(why.clone());
        }
        agent.tiers = found.map(|nodes| agent_mode::bytes_by_tier(&nodes, tiers));
        let only_guest = agent.fallback == Fallback::Observe;
        self.handle(Event::GuestNodes(GuestNodes {
            vm: id,
            nodes,
            only_guest,
        }));
    }

    fn guest_moves(&mut self, vm: VmId, free_bytes: Option<Vec<u64>>) {
        self.handle(Event::GuestMoves(GuestMoves { vm, free_bytes }));
    }

    fn name_next(&mut self, vm: VmKey, id: VmId, counted: Counted) {
        if let Some(frames) = self.named.next(id, self.session.now(), counted) {
            self.agents.name(vm, frames);
        }
    }

    /// Names the pages of a plan to the VM's guest.
    pub(super) fn name_pages(&mut self, plan: MovePlan) {
        let id = plan.vm;
        self.named.push(self.session.now(), plan);
        let Some(vm) = self.vms.of_id(id) else {
            return;
        };
        let view = self.vms.agent(vm).and_then(|agent| agent.view.as_ref());
        let counted = view.map(agent_mode::counted).unwrap_or_default();
        self.name_next(vm, id, counted);
    }

    fn decide(&mut self, vm: VmKey, verdict: Verdict) {
        let agent = self.vms.agent(vm);
        let Some(step) = agent.and_then(|agent| agent_mode::next(&agent.in_force, verdict)) else {
            return;
        };
        match step {
            Step::FallBack(why) => self.fall_back(vm, why),
            Step::Reword(why) => self.set_in_force(vm, InForce::Fallback(why)),
            Step::Begin => {
                self.set_in_force(vm, InForce::Guest);
                let text = "its agent answers and manages its memory; the host does not scan it";
                self.tell_of(vm, text.to_owned());
            }
            Step::GiveBack => self.give_back(vm),
            Step::GoOn => {
                self.set_in_force(vm, InForce::Guest);
                self.send_orders(vm);
                let text =
                    "its agent answers again and manages its memory; the host stops scanning it";
                self.tell_of(vm, text.to_owned());
            }
        }
    }

    fn fall_back(&mut self, vm: VmKey, why: String) {
        let Some(entry) = self.vms.get(vm) else {
            return;
        };
        let Some(agent) = &entry.agent else {
            return;
        };
        let message = agent.fallback_text();
        // The discoverer knows VMs by their names.
        self.discoverer.claims().set(&entry.name, agent.scan);
        self.set_in_force(vm, InForce::Fallback(why.clone()));
        self.send_orders(vm);
        self.tell_of(vm, format!("falls back: {why}; {message}"));
    }

    /// Ends all that the host does for a VM; its agent is ordered to continue when that is done.
    fn give_back(&mut self, vm: VmKey) {
        let Some(entry) = self.vms.get_mut(vm) else {
            return;
        };
        self.discoverer.claims().set(&entry.name, false);
        let id = entry.managed.take().map(|managed| managed.id);
        let executor = id.and_then(|id| self.executors.take(id));
        let threads = executor.as_ref().map(Executor::threads);
        // Now, so that its threads and its worker end.
        drop(executor);
        if let Some(id) = id {
            self.handle(Event::VmDeparted(id));
            let _ = self.named.end(id, self.session.now());
        }
        self.set_in_force(vm, InForce::Returning(threads.unwrap_or_default()));
        self.decide(vm, Verdict::Trusted);
    }

    /// Passes an operator's pause on to a VM's agent, or to all; an agent that lied is believed again when it is
    /// resumed alone. `false` if there is none.
    pub fn halt_agents(&mut self, vm: Option<VmKey>, halt: bool) -> bool {
        let vms: Vec<VmKey> = match vm {
            Some(vm) => vec![vm],
            None => self.vms.iter().map(|(vm, _)| vm).collect(),
        };
        let forgives = vm.is_some() && !halt;
        let mut any = false;
        for vm in vms {
            let Some(agent) = self.vms.agent_mut(vm) else {
                continue;
            };
            any = true;
            agent.paused = halt;
            let view = agent.view.as_ref();
            let lies = view.is_some_and(|v| matches!(v.state, AgentState::Lying(_)));
            if lies && forgives {
                self.believe_again(vm);
            }
            self.send_orders(vm);
        }
        any
    }

    fn believe_again(&mut self, vm: VmKey) {
        self.agents.forgive(vm);
        if let Some(entry) = self.vms.get(vm) {
            // Memory may have been plugged in since the last query of QEMU.
            self.discoverer.claims().reinspect(&entry.name);
        }
        self.tell_of(vm, "an operator has its agent believed again".into());
    }

    /// Applies the pause of a VM's agent to a VM that came under the host's management.
    pub fn carry_pause(&mut self, vm: VmKey) {
        let Some(entry) = self.vms.get(vm) else {
            return;
        };
        let paused = entry.agent.as_ref().is_some_and(|a| a.paused);
        if let Some(managed) = entry.managed.as_ref().filter(|_| paused) {
            let id = managed.id;
            self.command(Command::Pause(Some(id)));
        }
    }

    /// Ends the link to the agent of a VM that is gone.
    pub fn forget_agent(&self, vm: VmKey, name: &str) {
        self.agents.forget(vm);
        self.discoverer.claims().set(name, false);
    }
}
