//! The thread that talks to the agents in guests.
//!
//! The thread serves all links, because none of them ever waits, and has no capability. The meaning of a verdict for
//! a VM is left to the daemon's thread.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use terrace_config::AgentConfig;
use terrace_host::agent::{AgentLink, AgentView, Orders, WatchConfig};
use terrace_proto::Tick;
use terrace_proto::agent::{Frames, Gather};
use terrace_sys::MonotonicClock;

use crate::confine::{self, Role};
use crate::messages::Input;
use crate::registry::{Agent, VmKey};

/// Time between two polls of all links.
const STEP: Duration = Duration::from_millis(100);
/// Least time between two pieces of news of one link if nothing but the figures changed.
const NEWS_EVERY: Duration = Duration::from_secs(1);

/// A request to the thread, about one VM.
enum Instruction {
    Watch(PathBuf, WatchConfig, Orders),
    Order(Orders),
    Name(Frames),
    Gather(Vec<Gather>),
    Forgive,
    Forget,
}

/// The handle of the thread, with the configuration of all agents; the thread ends when this is dropped.
pub struct Agents {
    instructions: Sender<(VmKey, Instruction)>,
    config: AgentConfig,
}

impl Agents {
    /// Starts the thread.
    pub fn start(config: AgentConfig, inbox: Sender<Input>) -> std::io::Result<Self> {
        let (instructions, asked) = channel();
        let body = move || Links::new(inbox).run(&asked);
        confine::spawn(Role::Agents, body)?;
        Ok(Self {
            instructions,
            config,
        })
    }

    /// Connects to a VM's agent. The link of an agent that is watched already stays, with all that is known of it.
    pub fn watch(&self, vm: VmKey, agent: &Agent) {
        let watch = WatchConfig {
            silence: self.config.silence,
            ram_bytes: agent.ram_bytes,
            ..WatchConfig::default()
        };
        let socket = agent.socket.clone();
        self.send(vm, Instruction::Watch(socket, watch, self.orders(agent)));
    }

    /// Sends a VM's agent its orders.
    pub fn order(&self, vm: VmKey, agent: &Agent) {
        self.send(vm, Instruction::Order(self.orders(agent)));
    }

    /// The orders for a VM's agent.
    pub fn orders(&self, agent: &Agent) -> Orders {
        Orders {
            mode: agent.orders_mode(),
            paused: agent.paused,
            budgets: self.config.budgets,
        }
    }

    /// Names frames to a VM's agent; one that is not there does not answer.
    pub fn name(&self, vm: VmKey, frames: Frames) {
        self.send(vm, Instruction::Name(frames));
    }

    /// Names hot pages to a VM's agent, for gathering.
    pub fn gather(&self, vm: VmKey, set: Vec<Gather>) {
        self.send(vm, Instruction::Gather(set));
    }

    /// Believes a VM's agent again.
    pub fn forgive(&self, vm: VmKey) {
        self.send(vm, Instruction::Forgive);
    }

    /// Ends the link of a VM that is gone.
    pub fn forget(&self, vm: VmKey) {
        self.send(vm, Instruction::Forget);
    }

    fn send(&self, vm: VmKey, instruction: Instruction) {
        // The thread lives as long as this does.
        let _ = self.instructions.send((vm, instruction));
    }
}

struct Linked {
    link: AgentLink,
    last_sent: Option<(Tick, AgentView)>,
}

struct Links {
    inbox: Sender<Input>,
    clock: MonotonicClock,
    links: BTreeMap<VmKey, Linked>,
}

impl Links {
    fn new(inbox: Sender<Input>) -> Self {
        Self {
            inbox,
            clock: MonotonicClock::start(),
            links: BTreeMap::new(),
        }
    }

    fn run(mut self, instructions: &Receiver<(VmKey, Instruction)>) {
        loop {
            let asked = if self.links.is_empty() {
                instructions
                    .recv()
                    .map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                instructions.recv_timeout(STEP)
            };
            match asked {
                Ok((vm, instruction)) => self.take(vm, instruction),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.step() {
                return;
            }
        }
    }

    fn take(&mut self, vm: VmKey, instruction: Instruction) {
        let now = self.clock.now();
        match (instruction, self.links.get_mut(&vm)) {
            (Instruction::Watch(_, config, orders), Some(linked)) => {
                linked.link.know_ram(config.ram_bytes);
                linked.link.order(orders);
            }
            (Instruction::Watch(socket, config, orders), None) => {
                let link = AgentLink::new(socket, config, orders, now);
                self.links.insert(
                    vm,
                    Linked {
                        link,
                        last_sent: None,
                    },
                );
            }
            (Instruction::Order(orders), Some(linked)) => linked.link.order(orders),
            (Instruction::Name(frames), Some(linked)) => {
                // An agent that is not there answers nothing, and its plan ends by that.
                let _ = linked.link.send_frames(frames);
            }
            (Instruction::Gather(set), Some(linked)) => {
                // A set that does not arrive whole is not used.
                let _ = set.into_iter().all(|part| linked.link.send_hot(part));
            }
            (Instruction::Forgive, Some(linked)) => linked.link.forgive(now),
            (Instruction::Forget, _) => drop(self.links.remove(&vm)),
            (
                Instruction::Order(_)
                | Instruction::Name(_)
                | Instruction::Gather(_)
                | Instruction::Forgive,
                None,
            ) => {}
        }
    }

    /// Polls all links once and passes their news on; `false` if the receiver is gone.
    fn step(&mut self) -> bool {
        let mut defects = Vec::new();
        for (vm, linked) in &mut self.links {
            let now = self.clock.now();
            // Words of one guest must not end the links of the others.
            let stepped = catch_unwind(AssertUnwindSafe(|| {
                linked.link.step(now);
                linked.link.view()
            }));
            let Ok(view) = stepped else {
                defects.push(*vm);
                continue;
            };
            if linked.is_news(now, &view) {
                linked.last_sent = Some((now, view.clone()));
                let news = Input::Agent(*vm, Some(Box::new(view)));
                if self.inbox.send(news).is_err() {
                    return false;
                }
            }
        }
        for vm in defects {
            self.links.remove(&vm);
            if self.inbox.send(Input::Agent(vm, None)).is_err() {
                return false;
            }
        }
        true
    }
}

impl Linked {
    fn is_news(&self, now: Tick, view: &AgentView) -> bool {
        self.last_sent.as_ref().is_none_or(|(at, last_sent)| {
            let matters = last_sent.state != view.state || last_sent.verdict != view.verdict;
            matters || (now.since(*at) >= NEWS_EVERY && last_sent != view)
        })
    }
}
