//! The agent in a guest, as the daemon sees it, and who manages the VM.

use std::path::PathBuf;
use std::sync::Weak;

use terrace_config::{Fallback, VmConfig, VmMode};
use terrace_host::agent::{AgentState, AgentView};
use terrace_proto::agent::Mode;

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
    pub fn orders_mode(&self) -> Mode {
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
