//! Sizes and free memory of the guest's tiers.

use terrace_proto::ranges::NodeFree;
use terrace_proto::{PAGE_SIZE, TierId};
use terrace_sys::topology::{NodeId, Topology, TopologyError, node_free_bytes};
use terrace_sys::{HostRoot, topology};

/// The guest's tiers, and their free memory above the kernel's high watermarks.
#[derive(Debug)]
pub struct Room {
    root: HostRoot,
    topology: Topology,
}

impl Room {
    /// Reads the guest's nodes, but for the one on which hot pages are gathered.
    ///
    /// # Errors
    /// If they cannot be read or `definitions` do not fit them.
    pub fn read(
        root: HostRoot,
        definitions: &[topology::TierDefinition],
        gathers: Option<u32>,
    ) -> Result<Self, TopologyError> {
        let all = Topology::read(&root, definitions)?;
        Ok(Self {
            topology: match gathers {
                Some(node) => all.without(NodeId(node)),
                None => all,
            },
            root,
        })
    }

    /// The tiers.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The nodes of each tier, the fastest tier first.
    #[must_use]
    pub fn tiers(&self) -> Vec<Vec<u32>> {
        let tiers = self.topology.tiers.iter();
        let nodes = tiers.map(|tier| tier.nodes.iter().map(|node| node.0).collect());
        nodes.collect()
    }

    /// Every node that is part of a tier, each with its tier, size and free bytes.
    #[must_use]
    pub fn nodes(&self) -> Vec<(NodeId, TierId, u64, u64)> {
        let free = node_free_bytes(&self.root);
        let nodes = self.topology.nodes.iter();
        nodes
            .filter_map(|node| {
                let tier = self.topology.tier_of(node.id)?;
                let free = free.get(&node.id).copied().unwrap_or(0);
                Some((node.id, tier, node.total_bytes, free))
            })
            .collect()
    }

    /// Reads the free memory of the nodes of all tiers.
    #[must_use]
    pub fn free(&self) -> Vec<NodeFree> {
        let nodes = node_free_bytes(&self.root);
        let of = |node: &NodeId| NodeFree {
            node: node.0,
            pages: nodes.get(node).copied().unwrap_or(0) / PAGE_SIZE,
        };
        let tiers = self.topology.tiers.iter();
        tiers.flat_map(|tier| tier.nodes.iter().map(of)).collect()
    }
}
