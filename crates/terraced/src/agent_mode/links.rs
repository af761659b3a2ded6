//! The thread that talks to the agents in guests.
//!
//! It serves all links, because none of them ever waits, and has no capability. It leaves to the daemon's thread: what a
//! verdict means for a VM.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use terrace_config::AgentConfig;
use terrace_host::agent::{AgentLink, AgentView, Orders, WatchConfig};
use terrace_proto::Tick;
use terrace_sys::MonotonicClock;

use crate::confine::{self, Role};
use crate::messages::Input;
use crate::registry::{Agent, VmKey};

/// Between two looks at all links.
const STEP: Duration = Duration::from_millis(100);
/// How often at most a link's news is passed on where nothing but the figures changed.
const NEWS_EVERY: Duration = Duration::from_secs(1);

/// What the thread is asked to do, about a VM.
enum Wish {
    Watch(PathBuf, WatchConfig, Orders),
    Order(Orders),
    Forgive,
    Forget,
}

/// The thread, and what it is told of all agents; it ends with this.
pub struct Agents {
    wishes: Sender<(VmKey, Wish)>,
    config: AgentConfig,
}

impl Agents {
    /// Starts the thread.
    pub fn start(config: AgentConfig, inbox: Sender<Input>) -> std::io::Result<Self> {
        let (wishes, asked) = channel();
        let body = move || Links::new(inbox).run(&asked);
        confine::spawn(Role::Agents, body)?;
        Ok(Self { wishes, config })
    }

    /// Connects to a VM's agent; one that is watched already stays so, and what is known of it.
    pub fn watch(&self, vm: VmKey, agent: &Agent) {
        let watch = WatchConfig {
            silence: self.config.silence,
            ram_bytes: agent.ram_bytes,
            ..WatchConfig::default()
        };
        let socket = agent.socket.clone();
        self.wish(vm, Wish::Watch(socket, watch, self.orders(agent)));
    }

    /// Tells a VM's agent what to do.
    pub fn order(&self, vm: VmKey, agent: &Agent) {
        self.wish(vm, Wish::Order(self.orders(agent)));
    }

    /// What a VM's agent is to do.
    pub fn orders(&self, agent: &Agent) -> Orders {
        Orders {
            mode: agent.orders_mode(),
            paused: agent.paused,
            budgets: self.config.budgets,
        }
    }

    /// Believes a VM's agent again.
    pub fn forgive(&self, vm: VmKey) {
        self.wish(vm, Wish::Forgive);
    }

    /// The VM is gone.
    pub fn forget(&self, vm: VmKey) {
        self.wish(vm, Wish::Forget);
    }

    fn wish(&self, vm: VmKey, wish: Wish) {
        // The thread lives as long as this does.
        let _ = self.wishes.send((vm, wish));
    }
}

struct Linked {
    link: AgentLink,
    told: Option<(Tick, AgentView)>,
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

    fn run(mut self, wishes: &Receiver<(VmKey, Wish)>) {
        loop {
            let asked = if self.links.is_empty() {
                wishes.recv().map_err(|_| RecvTimeoutError::Disconnected)
            } else {
                wishes.recv_timeout(STEP)
            };
            match asked {
                Ok((vm, wish)) => self.take(vm, wish),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            if !self.step() {
                return;
            }
        }
    }

    fn take(&mut self, vm: VmKey, wish: Wish) {
        let now = self.clock.now();
        match (wish, self.links.get_mut(&vm)) {
            (Wish::Watch(_, config, orders), Some(linked)) => {
                linked.link.know_ram(config.ram_bytes);
                linked.link.order(orders);
            }
            (Wish::Watch(socket, config, orders), None) => {
                let link = AgentLink::new(socket, config, orders, now);
                self.links.insert(vm, Linked { link, told: None });
            }
            (Wish::Order(orders), Some(linked)) => linked.link.order(orders),
            (Wish::Forgive, Some(linked)) => linked.link.forgive(now),
            (Wish::Forget, _) => drop(self.links.remove(&vm)),
            (Wish::Order(_) | Wish::Forgive, None) => {}
        }
    }

    /// `false` where nobody listens any more.
    fn step(&mut self) -> bool {
        let mut defects = Vec::new();
        for (vm, linked) in &mut self.links {
            let now = self.clock.now();
            // What one guest says must not end the links of the others.
            let stepped = catch_unwind(AssertUnwindSafe(|| {
                linked.link.step(now);
                linked.link.view()
            }));
            let Ok(view) = stepped else {
                defects.push(*vm);
                continue;
            };
            if linked.is_news(now, &view) {
                linked.told = Some((now, view.clone()));
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
        self.told.as_ref().is_none_or(|(at, told)| {
            let matters = told.state != view.state || told.verdict != view.verdict;
            matters || (now.since(*at) >= NEWS_EVERY && told != view)
        })
    }
}
