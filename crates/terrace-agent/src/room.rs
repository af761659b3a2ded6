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
    /// Per tier: free pages and the node that has most of them.
    tiers: Vec<(u64, i32)>,
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
        let tiers = self.topology.tiers.iter().map(|tier| {
            let of = |node: &NodeId| nodes.get(node).copied().unwrap_or(0) / PAGE_SIZE;
            let best = tier.nodes.iter().max_by_key(|node| of(node));
            let node = best.and_then(|node| i32::try_from(node.0).ok());
            (tier.nodes.iter().map(of).sum(), node.unwrap_or(-1))
        });
        Free {
            tiers: tiers.collect(),
            headroom: self.headroom,
        }
    }
}

impl Free {
    /// For tests: free pages per tier; tier and node have one number.
    #[cfg(test)]
    pub fn of(pages: &[u64], headroom: u64) -> Self {
        Self {
            tiers: pages.iter().copied().zip(0..).collect(),
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
        self.tiers.get(tier.index()).map_or(0, |(pages, _)| *pages)
    }

    /// Pages that must leave the first tier before so many more fit beside the headroom.
    #[must_use]
    pub fn deficit(&self, more: u64) -> u64 {
        let wanted = self.headroom.saturating_add(more);
        wanted.saturating_sub(self.with_headroom(TierId::FAST))
    }

    /// The node of a tier with most free memory.
    #[must_use]
    pub fn node(&self, tier: TierId) -> Option<i32> {
        self.tiers
            .get(tier.index())
            .map(|(_, node)| *node)
            .filter(|node| *node >= 0)
    }

    /// The fastest tier below the first that has room for so many pages.
    #[must_use]
    pub fn below(&self, pages: u64) -> Option<TierId> {
        let slower = self.tiers.iter().zip(0..).skip(1);
        let fits = |((free, node), _): &(&(u64, i32), u8)| *free >= pages && *node >= 0;
        slower.into_iter().find(fits).map(|(_, tier)| TierId(tier))
    }

    /// Counts pages that went from one tier to another.
    pub fn moved(&mut self, from: TierId, to: TierId, pages: u64) {
        if let Some((free, _)) = self.tiers.get_mut(from.index()) {
            *free = free.saturating_add(pages);
        }
        if let Some((free, _)) = self.tiers.get_mut(to.index()) {
            *free = free.saturating_sub(pages);
        }
    }
}
