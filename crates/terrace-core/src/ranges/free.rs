//! Free memory of a guest's tiers.

use terrace_proto::TierId;
use terrace_proto::ranges::NodeFree;

/// The tier of a node; none for a node of no tier.
#[must_use]
pub fn tier_of(tiers: &[Vec<u32>], node: u32) -> Option<TierId> {
    let at = tiers.iter().position(|nodes| nodes.contains(&node))?;
    u8::try_from(at).ok().map(TierId)
}

/// Free memory at this moment, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Free {
    /// Each tier's nodes with their free pages.
    tiers: Vec<Vec<(u32, u64)>>,
    /// Those of the first tier that stay free, but for the length of an exchange.
    headroom: u64,
}

impl Free {
    /// Of these tiers. Only the first one has a headroom: what lies below takes what comes down.
    #[must_use]
    pub fn new(tiers: &[Vec<u32>], reported: &[NodeFree], headroom: u64) -> Self {
        let pages = |node: u32| {
            let of = reported.iter().find(|free| free.node == node);
            (node, of.map_or(0, |free| free.pages))
        };
        let tiers = tiers.iter();
        Self {
            tiers: tiers
                .map(|nodes| nodes.iter().map(|node| pages(*node)).collect())
                .collect(),
            headroom,
        }
    }

    /// Free pages of a tier, less the headroom.
    #[must_use]
    pub fn pages(&self, tier: TierId) -> u64 {
        let reserved = if tier == TierId::FAST {
            self.headroom
        } else {
            0
        };
        self.with_headroom(tier).saturating_sub(reserved)
    }

    /// Free pages of a tier, those of the headroom too.
    #[must_use]
    pub fn with_headroom(&self, tier: TierId) -> u64 {
        let nodes = self.tiers.get(tier.index());
        nodes.map_or(0, |nodes| {
            let free = nodes.iter().map(|(_, free)| *free);
            free.fold(0, u64::saturating_add)
        })
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
    pub fn node(&self, tier: TierId) -> Option<(u32, u64)> {
        let nodes = self.tiers.get(tier.index())?;
        nodes.iter().copied().max_by_key(|(_, free)| *free)
    }

    /// The fastest tier below the first that has a node with so many free pages, and that node.
    #[must_use]
    pub fn below(&self, pages: u64) -> Option<(TierId, u32)> {
        let slower = (0..).zip(&self.tiers).skip(1);
        let mut fitting = slower.filter_map(|(tier, _)| {
            let (node, free) = self.node(TierId(tier))?;
            (free >= pages).then_some((TierId(tier), node))
        });
        fitting.next()
    }

    /// Counts pages that went from one node to another.
    pub fn moved(&mut self, from: u32, to: u32, pages: u64) {
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
