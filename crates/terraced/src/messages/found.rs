//! What the scout found.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use terrace_config::VmConfig;
use terrace_host::Finding;
use terrace_host::memory_map::GuestMemory;
use terrace_host::qemu::who::Refusal;
use terrace_host::tracker::Tracker;
use terrace_host::unit::Unit;
use terrace_host::vm::{Vm, VmIdentity};
use terrace_sys::ProcessId;

/// A VM that was found.
pub struct Found {
    /// Its name; its process id where it has none.
    pub name: String,
    /// Its hypervisor's process, where it is known.
    pub process: Option<ProcessId>,
    /// Its monitor.
    pub socket: PathBuf,
    /// What can be done with it.
    pub state: State,
    /// For `doctor`.
    pub findings: Vec<Finding>,
}

/// What can be done with a VM.
pub enum State {
    /// It is not opted in.
    Ignored,
    /// It is opted in, but cannot be scanned, for this reason.
    Unscannable(String),
    /// It is opted in, and its monitor is not there yet, or does not answer.
    NotReady(String),
    /// It is not taken for a VM, or not for this one.
    Refused(Refusal),
    /// Its agent is to manage it.
    Agent(Box<AgentVm>),
    /// It can be managed.
    Ready(Box<Ready>),
}

/// A VM that an agent in it is to manage. Nothing of it is held: no monitor, no memory.
pub struct AgentVm {
    /// What the configuration says.
    pub config: VmConfig,
    /// Its RAM, where its monitor told it.
    pub ram_bytes: Option<u64>,
}

/// All that managing a VM takes.
pub struct Ready {
    /// Who it is.
    pub identity: VmIdentity,
    /// What the configuration says.
    pub config: VmConfig,
    /// Its monitor.
    pub vm: Vm,
    /// Where its RAM is.
    pub memory: Arc<GuestMemory>,
    /// What says which of its pages are accessed.
    pub tracker: Tracker,
    /// Why it is DAMON, where it is.
    pub damon: Option<String>,
    /// What is ranked and moved as one.
    pub unit: Unit,
    /// The most RAM that one VM is believed to have, bytes.
    pub most_ram: u64,
}

/// A look at all places.
pub struct Looked {
    /// What there is to say about the places.
    pub findings: Vec<Finding>,
    /// Every socket that may be a monitor.
    pub sockets: BTreeSet<PathBuf>,
}
