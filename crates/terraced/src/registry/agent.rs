//! The agent in a guest, as the daemon sees it, and the VM's manager in force.

use std::path::PathBuf;
use std::sync::Weak;

use super::gathers::Gathers;
use terrace_config::{Fallback, VmConfig, VmMode};
use terrace_host::agent::{AgentState, AgentView};
use terrace_proto::agent::Mode;

/// A VM's agent, as the daemon sees it.
#[derive(Clone)]
pub struct Agent {
    /// The mode that is configured.
    pub mode: VmMode,
    /// The host's behaviour while the agent is not in force.
    pub fallback: Fallback,
    /// Whether the host may scan the VM.
    pub scan: bool,
    /// QEMU's end of the agent's port.
    pub socket: PathBuf,
    /// The link's view of the agent; `None` before the first.
    pub view: Option<AgentView>,
    /// The manager in force.
    pub in_force: InForce,
    /// Whether the guest moves what the host names (coordinated mode); or why not.
    pub moves: Result<(), String>,
    /// Bytes of the guest's nodes in each tier, as QEMU has them; or why they are not tiers.
    pub tiers: Result<Vec<u64>, String>,
    /// The hot pages that were named to it for gathering; `None` if none are.
    pub gathers: Option<Gathers>,
    /// Whether an operator paused the agent.
    pub paused: bool,
    /// The VM's RAM, bytes; `None` if QEMU did not report it.
    pub ram_bytes: Option<u64>,
}

/// The manager in force of a VM that has an agent.
#[derive(Clone, Debug)]
pub enum InForce {
    /// No manager yet: the agent was not heard.
    Waiting,
    /// The agent.
    Guest,
    /// The host, or neither side, for this reason.
    Fallback(String),
    /// The agent again, as soon as the host's threads have ended.
    Returning(Weak<()>),
    /// The host: in coordinated mode it counts accesses and names pages, and moves them by itself if the agent does not; else the
    /// agent reports its state only.
    Host,
}

impl Agent {
    /// An agent of which nothing was heard yet.
    pub fn new(config: &VmConfig, socket: PathBuf, ram_bytes: Option<u64>, paused: bool) -> Self {
        Self {
            mode: config.management.mode,
            fallback: config.management.fallback,
            scan: config.scan,
            socket,
            view: None,
            in_force: match config.management.mode {
                VmMode::Guest => InForce::Waiting,
                VmMode::Host | VmMode::Coordinated => InForce::Host,
            },
            moves: Err("its agent was not heard yet".to_owned()),
            tiers: Err("its memory map is not known yet".to_owned()),
            gathers: config.management.gather.then(Gathers::default),
            paused,
            ram_bytes,
        }
    }

    /// Whether the host does something for the VM, or is about to.
    pub fn is_by_host(&self) -> bool {
        match self.in_force {
            InForce::Fallback(_) => self.scan,
            InForce::Returning(_) | InForce::Host => true,
            InForce::Waiting | InForce::Guest => false,
        }
    }

    /// The reason why the agent is not in force although it should be; `None` if it is.
    pub fn fallback(&self) -> Option<&str> {
        match &self.in_force {
            InForce::Fallback(why) => Some(why),
            _ => None,
        }
    }

    /// The mode that the agent is ordered to take: it never does anything that the host does.
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

    /// The host's behaviour while the agent is not in force, in words.
    pub fn fallback_text(&self) -> &'static str {
        match (self.scan, self.fallback) {
            (true, Fallback::Host) => "the host manages it",
            (true, Fallback::Observe) => "the host watches it and moves nothing",
            (false, _) => "the host leaves it alone (scan = false)",
        }
    }
}
