//! The host's memory nodes and the tiers they form.
//!
//! Responsible for: nodes with their CPUs, sizes, distances and performance; the ordered tiers, derived
//! or as the operator defined them; total and free memory of each tier. It leaves to others: which
//! pages go where.

mod derive;
mod memory;
mod nodes;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use terrace_proto::{TierId, TierMemory};

use crate::{Finding, HostRoot, ReadError};

pub use memory::{NodeMemory, node_memory};
pub use nodes::{Node, NodeId, Performance, parse_list};

/// A tier as an operator defines it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierDefinition {
    /// The tier's name, for people.
    pub name: String,
    /// The tier's nodes; pages go to the first one with free memory.
    pub nodes: Vec<NodeId>,
}

/// The source of the order of tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TierSource {
    /// The configuration.
    Operator,
    /// The firmware's latencies and bandwidths (HMAT).
    Hmat,
    /// The kernel's memory tiers.
    KernelTiers,
    /// Nodes without CPUs are slow; further ones slower.
    Distance,
}

/// One tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Tier {
    /// The tier's place in the order.
    pub id: TierId,
    /// The tier's name, for people.
    pub name: String,
    /// The tier's nodes; pages go to the first one with free memory.
    pub nodes: Vec<NodeId>,
    /// Size of the tier's nodes, bytes.
    pub total_bytes: u64,
}

/// Nodes and tiers of a host.
#[derive(Clone, Debug, PartialEq)]
pub struct Topology {
    /// Every node that is online, ascending.
    pub nodes: Vec<Node>,
    /// Fastest first; one to four.
    pub tiers: Vec<Tier>,
    /// The source of the order of tiers.
    pub source: TierSource,
    /// Findings about the nodes and tiers.
    pub findings: Vec<Finding>,
}

/// The reason why there are no tiers.
#[derive(Debug, thiserror::Error)]
pub enum TopologyError {
    /// A file could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// No node has memory.
    #[error("no node under /sys/devices/system/node has memory: is this a NUMA kernel?")]
    NoMemory,
    /// The operator's list is wrong.
    #[error("tier definition: {0}")]
    Definition(String),
}

/// Free bytes of each node above its watermarks; empty if the kernel does not say.
#[must_use]
pub fn node_free_bytes(root: &HostRoot) -> BTreeMap<NodeId, u64> {
    memory::free_bytes(root).unwrap_or_default()
}

/// The name of the empty second tier of a host whose only one has this name.
#[must_use]
pub fn empty_second(only: &str) -> &'static str {
    if only == "slow" { "slower" } else { "slow" }
}

impl Topology {
    /// Reads the nodes and forms tiers: those of `definitions`, or derived ones if it is empty.
    ///
    /// # Errors
    /// If nodes cannot be read or the definitions do not fit them.
    pub fn read(root: &HostRoot, definitions: &[TierDefinition]) -> Result<Self, TopologyError> {
        let nodes = nodes::read(root)?;
        let kernel_tiers = nodes::read_kernel_tiers(root)?;
        if definitions.is_empty() {
            derive::derived(nodes, &kernel_tiers)
        } else {
            derive::defined(nodes, &kernel_tiers, definitions)
        }
    }

    /// The topology with a second tier if it has only one. No node is part of that tier: the VMs of such a host can
    /// be observed, but there is nowhere to move a page.
    #[must_use]
    pub fn or_observed(mut self) -> Self {
        if let [only] = self.tiers.as_slice() {
            self.tiers.push(Tier {
                id: TierId::SLOW,
                name: empty_second(&only.name).to_owned(),
                nodes: Vec::new(),
                total_bytes: 0,
            });
        }
        self
    }

    /// The topology without a node that serves something else than a tier; tiers that it leaves without any vanish. If it is the only
    /// one, it stays.
    #[must_use]
    pub fn without(mut self, node: NodeId) -> Self {
        let bytes = |id| {
            let found = self.nodes.iter().find(|node| node.id == id);
            found.map_or(0, |node| node.total_bytes)
        };
        let others = self.tiers.iter().flat_map(|tier| &tier.nodes);
        if others.filter(|other| **other != node).count() == 0 {
            return self;
        }
        let less = bytes(node);
        for tier in &mut self.tiers {
            if tier.nodes.contains(&node) {
                tier.nodes.retain(|other| *other != node);
                tier.total_bytes = tier.total_bytes.saturating_sub(less);
            }
        }
        self.tiers.retain(|tier| !tier.nodes.is_empty());
        for (id, tier) in (0..).zip(&mut self.tiers) {
            tier.id = TierId(id);
        }
        self
    }

    /// The tier that a node is part of.
    #[must_use]
    pub fn tier_of(&self, node: NodeId) -> Option<TierId> {
        self.tiers
            .iter()
            .find(|tier| tier.nodes.contains(&node))
            .map(|tier| tier.id)
    }

    /// The nodes of a tier; empty if there is no such tier.
    #[must_use]
    pub fn nodes_of(&self, tier: TierId) -> &[NodeId] {
        self.tiers
            .get(tier.index())
            .map_or(&[], |tier| tier.nodes.as_slice())
    }

    /// Sizes and free memory now, one entry per tier; what the kernel's high watermarks keep is not free.
    ///
    /// # Errors
    /// If `/proc/zoneinfo` cannot be read.
    pub fn memory(&self, root: &HostRoot) -> Result<Vec<TierMemory>, TopologyError> {
        let free = memory::free_bytes(root)?;
        let sum = |nodes: &[NodeId]| nodes.iter().filter_map(|n| free.get(n)).sum();
        Ok(self
            .tiers
            .iter()
            .map(|tier| TierMemory {
                tier: tier.id,
                total_bytes: tier.total_bytes,
                free_bytes: sum(&tier.nodes),
            })
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn put(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// A host with one DRAM and one CXL node, as QEMU's HMAT options make it.
    fn two_tier_host() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let node = |id: u32, cpus: &str, latency: &str| {
            let base = format!("sys/devices/system/node/node{id}");
            put(dir.path(), &format!("{base}/cpulist"), cpus);
            put(dir.path(), &format!("{base}/distance"), "10 30\n");
            let meminfo = format!("Node {id} MemTotal:        2048 kB\nNode {id} MemFree: 1 kB\n");
            put(dir.path(), &format!("{base}/meminfo"), &meminfo);
            let access = format!("{base}/access0/initiators");
            put(dir.path(), &format!("{access}/read_latency"), latency);
            put(dir.path(), &format!("{access}/read_bandwidth"), "100000\n");
        };
        put(dir.path(), "sys/devices/system/node/online", "0-1\n");
        node(0, "0-1\n", "80\n");
        node(1, "\n", "250\n");
        let tiering = "sys/devices/virtual/memory_tiering";
        put(
            dir.path(),
            &format!("{tiering}/memory_tier4/nodelist"),
            "0\n",
        );
        put(
            dir.path(),
            &format!("{tiering}/memory_tier22/nodelist"),
            "1\n",
        );
        let zones = "Node 0, zone Normal\n  pages free 300\n  high 44\nNode 1, zone Normal\n  pages free 10\n  high 20\n";
        put(dir.path(), "proc/zoneinfo", zones);
        dir
    }

    #[test]
    fn a_two_tier_host_is_read_from_its_files() {
        let dir = two_tier_host();
        let root = HostRoot::new(dir.path());
        let topology = Topology::read(&root, &[]).unwrap();
        assert_eq!(topology.source, TierSource::Hmat);
        assert_eq!(topology.nodes_of(TierId::SLOW), [NodeId(1)]);
        assert_eq!(topology.nodes[0].cpus, [0, 1]);
        let memory = topology.memory(&root).unwrap();
        assert_eq!(
            (memory[0].total_bytes, memory[0].free_bytes),
            (2 << 20, 1 << 20)
        );
        assert_eq!(memory[1].free_bytes, 0);
    }

    #[test]
    fn a_node_that_serves_something_else_is_no_tier() {
        let dir = two_tier_host();
        let all = Topology::read(&HostRoot::new(dir.path()), &[]).unwrap();
        let without = all.clone().without(NodeId(0));
        assert_eq!(without.tiers.len(), 1);
        assert_eq!(without.nodes_of(TierId::FAST), [NodeId(1)]);
        assert_eq!(all.clone().without(NodeId(7)), all);
        assert_eq!(
            without.clone().without(NodeId(1)),
            without,
            "the only one stays"
        );
    }

    #[test]
    fn a_host_of_one_tier_gets_an_empty_second_one() {
        let dir = two_tier_host();
        put(dir.path(), "sys/devices/system/node/online", "0\n");
        let root = HostRoot::new(dir.path());
        let topology = Topology::read(&root, &[]).unwrap();
        assert_eq!(topology.tiers.len(), 1);
        assert!(!topology.findings.is_empty(), "and it is said");
        let topology = topology.or_observed();
        assert!(topology.nodes_of(TierId::SLOW).is_empty());
        let memory = topology.memory(&root).unwrap();
        assert_eq!((memory[1].total_bytes, memory[1].free_bytes), (0, 0));
    }

    #[test]
    fn a_missing_file_is_named() {
        let dir = two_tier_host();
        fs::remove_file(dir.path().join("sys/devices/system/node/node1/meminfo")).unwrap();
        let error = Topology::read(&HostRoot::new(dir.path()), &[]).unwrap_err();
        assert!(error.to_string().contains("node1/meminfo"));
    }

    #[test]
    fn this_host_is_read() {
        let topology = Topology::read(&HostRoot::default(), &[]).unwrap();
        assert!(topology.memory(&HostRoot::default()).unwrap()[0].total_bytes > 0);
    }
}
