//! Sizes and free memory of the guest's tiers.

use terrace_proto::{PAGE_SIZE, TierId};
use terrace_sys::topology::{NodeId, Topology, TopologyError, node_free_bytes};
use terrace_sys::{HostRoot, topology};

/// The guest's tiers, and what is free in them above the kernel's high watermarks less what is kept.
#[derive(Debug)]
pub struct Room {
    root: HostRoot,
    topology: Topology,
    /// Pages of the first tier that stay free.
    headroom: u64,
}

/// What is free now, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Each tier's nodes with their free pages.
    tiers: Vec<Vec<(i32, u64)>>,
    /// Those of the first tier that stay free, but for the length of an exchange.
    headroom: u64,
}

impl Room {
    /// Reads the guest's nodes.
    ///
    /// # Errors
    /// Where they cannot be read or `definitions` do not fit them.
    pub fn read(
        root: HostRoot,
        definitions: &[topology::TierDefinition],
        headroom_bytes: u64,
    ) -> Result<Self, TopologyError> {
        Ok(Self {
            topology: Topology::read(&root, definitions)?,
            root,
            headroom: headroom_bytes / PAGE_SIZE,
        })
    }

    /// The tiers.
    #[must_use]
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The tier of a node as `move_pages` tells it; none for an error or a node of no tier.
    #[must_use]
    pub fn tier(&self, node: i32) -> Option<TierId> {
        self.topology.tier_of(NodeId(u32::try_from(node).ok()?))
    }

    /// Every node that is part of a tier: its tier, size and free bytes.
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

    /// Reads what is free. Only the first tier has a headroom: what lies below takes what comes down.
    #[must_use]
    pub fn free(&self) -> Free {
        let nodes = node_free_bytes(&self.root);
        let of = |node: &NodeId| {
            let free = nodes.get(node).copied().unwrap_or(0) / PAGE_SIZE;
            Some((i32::try_from(node.0).ok()?, free))
        };
        let tiers = self.topology.tiers.iter();
        Free {
            tiers: tiers
                .map(|tier| tier.nodes.iter().filter_map(of).collect())
                .collect(),
            headroom: self.headroom,
        }
    }
}

impl Free {
    /// For tests: free pages per tier; tier and node have one number.
    #[cfg(test)]
    pub fn of(pages: &[u64], headroom: u64) -> Self {
        let tiers = (0..).zip(pages.iter().copied());
        Self {
            tiers: tiers.map(|tier| vec![tier]).collect(),
            headroom,
        }
    }

    /// Free pages of a tier, less the headroom.
    #[must_use]
    pub fn pages(&self, tier: TierId) -> u64 {
        let kept = if tier == TierId::FAST {
            self.headroom
        } else {
            0
        };
        self.with_headroom(tier).saturating_sub(kept)
    }

    /// Free pages of a tier, those of the headroom too.
    #[must_use]
    pub fn with_headroom(&self, tier: TierId) -> u64 {
        let nodes = self.tiers.get(tier.index());
        nodes.map_or(0, |nodes| nodes.iter().map(|(_, free)| free).sum())
    }

    /// Pages of the first tier that are to stay free.
    #[must_use]
    pub fn headroom(&self) -> u64 {
        self.headroom
    }

    /// Pages that must leave the first tier before so many more fit beside the headroom.
    #[must_use]
    pub fn deficit(&self, more: u64) -> u64 {
        let wanted = self.headroom.saturating_add(more);
        wanted.saturating_sub(self.with_headroom(TierId::FAST))
    }

    /// The node of a tier with most free pages, and how many.
    #[must_use]
    pub fn node(&self, tier: TierId) -> Option<(i32, u64)> {
        let nodes = self.tiers.get(tier.index())?;
        nodes.iter().copied().max_by_key(|(_, free)| *free)
    }

    /// The fastest tier below the first that has a node with so many free pages, and that node.
    #[must_use]
    pub fn below(&self, pages: u64) -> Option<(TierId, i32)> {
        let slower = (0..).zip(&self.tiers).skip(1);
        let mut fitting = slower.filter_map(|(tier, _)| {
            let (node, free) = self.node(TierId(tier))?;
            (free >= pages).then_some((TierId(tier), node))
        });
        fitting.next()
    }

    /// Counts pages that went from one node to another.
    pub fn moved(&mut self, from: i32, to: i32, pages: u64) {
        for (node, free) in self.tiers.iter_mut().flatten() {
            if *node == from {
                *free = free.saturating_add(pages);
            }
            if *node == to {
                *free = free.saturating_sub(pages);
            }
        }
    }
}
