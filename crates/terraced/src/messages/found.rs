//! The discoverer's reports.

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
use terrace_proto::GuestNode;
use terrace_sys::ProcessId;

/// A report about a VM that was found.
pub struct Discovered {
    /// The VM's name; its process id if it has none.
    pub name: String,
    /// The hypervisor's process; `None` if it is not known.
    pub process: Option<ProcessId>,
    /// The socket of the monitor.
    pub socket: PathBuf,
    /// The way in which the VM can be managed.
    pub state: State,
    /// Findings about the VM, for `doctor`.
    pub findings: Vec<Finding>,
}

/// The way in which a VM can be managed, if at all.
pub enum State {
    /// The VM is not opted in.
    Ignored,
    /// The VM is opted in, but cannot be scanned, for this reason.
    Unscannable(String),
    /// The VM is opted in, and its monitor is not there yet, or does not answer.
    NotReady(String),
    /// The process is not taken for a VM, or not for the one of this name.
    Refused(Refusal),
    /// The VM's agent is to manage it.
    Agent(Box<AgentVm>),
    /// The host can manage the VM.
    Ready(Box<Ready>),
}

/// A VM that an agent in it is to manage. Nothing of the VM is held: no monitor, no memory.
pub struct AgentVm {
    /// The VM's configuration.
    pub config: VmConfig,
    /// The VM's RAM, bytes; `None` if its monitor did not report it.
    pub ram_bytes: Option<u64>,
}

/// All that is needed to manage a VM.
pub struct Ready {
    /// The VM's identity.
    pub identity: VmIdentity,
    /// The VM's configuration.
    pub config: VmConfig,
    /// The connection to the VM's monitor.
    pub vm: Vm,
    /// Number of its virtual CPUs; 0: not known.
    pub vcpus: u32,
    /// The layout of the VM's RAM.
    pub memory: Arc<GuestMemory>,
    /// The tracker of accessed pages.
    pub tracker: Tracker,
    /// The reason why the tracker is DAMON; `None` if it is not.
    pub damon: Option<String>,
    /// The tiers of its guest's nodes, or why they are none; none if the mode is not coordinated.
    pub guest_nodes: Option<Result<Vec<GuestNode>, String>>,
    /// The unit of ranking and moving.
    pub unit: Unit,
    /// The most RAM that one VM is believed to have, bytes.
    pub most_ram: u64,
}

/// The report of a discovery scan.
pub struct DiscoveryScan {
    /// Findings about the places.
    pub findings: Vec<Finding>,
    /// Every socket that may be a monitor.
    pub sockets: BTreeSet<PathBuf>,
}
