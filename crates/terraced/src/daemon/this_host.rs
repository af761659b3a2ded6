//! This host: its root folder, its tiers, and how much of their memory was free when it was last read.

use std::sync::Arc;
use std::time::Duration;

use terrace_api::types;
use terrace_core::Engine;
use terrace_host::topology::{Topology, TopologyError};
use terrace_host::{Finding, HostRoot, doctor};
use terrace_proto::provision::NodeMemory;
use terrace_proto::{Tick, TierMemory};
use terrace_sys::ProcessId;

use crate::confine::{self, Role};
use crate::provisioning;

/// Time between two reads of the tiers' free memory.
const MEMORY_EVERY: Duration = Duration::from_secs(2);

/// The host that the daemon runs on.
pub struct ThisHost {
    root: HostRoot,
    topology: Arc<Topology>,
    /// The tiers' memory as last read.
    memory: Vec<TierMemory>,
    read_at: Option<Tick>,
}

impl ThisHost {
    /// A host whose memory was not read yet.
    pub fn new(root: HostRoot, topology: Arc<Topology>) -> Self {
        Self {
            root,
            topology,
            memory: Vec::new(),
            read_at: None,
        }
    }

    /// The root folder of the host's files.
    pub fn root(&self) -> &HostRoot {
        &self.root
    }

    /// Whether a process is alive.
    pub fn runs(&self, process: ProcessId) -> bool {
        process.exists(&self.root.proc())
    }

    /// Reads the tiers' memory, if it is time to.
    pub fn read_memory(&mut self, now: Tick) -> Option<Result<Vec<TierMemory>, TopologyError>> {
        let is_new = |at| now.since(at) < MEMORY_EVERY;
        if self.read_at.is_some_and(is_new) {
            return None;
        }
        self.read_at = Some(now);
        let read = self.topology.memory(&self.root);
        if let Ok(memory) = &read {
            self.memory.clone_from(memory);
        }
        Some(read)
    }

    /// The tiers, with their memory as last read.
    pub fn tiers(&self) -> Vec<types::Tier> {
        let tier = |tier: &terrace_host::topology::Tier| types::Tier {
            name: tier.name.clone(),
            nodes: tier.nodes.iter().map(|n| n.0).collect(),
            total_bytes: tier.total_bytes,
            free_bytes: self.memory.get(tier.id.index()).map_or(0, |m| m.free_bytes),
        };
        self.topology.tiers.iter().map(tier).collect()
    }

    /// The memory of each node that VMs that change size may take now.
    pub fn node_memory(&self, engine: &Engine) -> Vec<NodeMemory> {
        provisioning::host_memory(&self.root, &self.topology, engine)
    }

    /// The inspection of the host for `doctor`, which can run on any thread.
    pub fn doctor(&self) -> impl FnOnce() -> Vec<Finding> + Send + use<> {
        let (root, topology) = (self.root.clone(), Arc::clone(&self.topology));
        move || {
            let host = confine::run(Role::Doctor, move || doctor::host(&root, &topology));
            host.unwrap_or_else(|error| vec![confine::host_not_inspected(&error)])
        }
    }
}
