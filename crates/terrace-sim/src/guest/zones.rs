//! The nodes of a guest as its page allocator sees them: free memory, and the watermarks that passes leave.

use std::ops::Range;

use super::marks::Marks;
use crate::machine::TIERS;
use crate::machine::space::Space;

/// A guest's nodes, one for each tier, in the order of the zonelist.
#[derive(Clone, Copy, Debug)]
pub struct Zones {
    /// The nodes' watermarks when the guest booted.
    marks: [Marks; TIERS],
    scale: u64,
    /// 4 KiB pages of an allocation.
    leaf: u64,
}

impl Zones {
    /// The nodes of a guest that booted with so many 4 KiB pages of each, as simulated.
    #[must_use]
    pub fn new(booted: [u64; TIERS], scale: u64) -> Self {
        let all: u64 = booted.iter().sum();
        Self {
            marks: booted.map(|node| Marks::of(node * scale, all * scale)),
            scale,
            leaf: 1,
        }
    }

    /// The same nodes for allocations of so many 4 KiB pages.
    #[must_use]
    pub fn of_leaves(self, leaf: u64) -> Self {
        Self { leaf, ..self }
    }

    /// Pages of a node that the first pass leaves: its low watermark.
    #[must_use]
    pub fn low(&self, tier: usize) -> u64 {
        self.marks[tier].low.div_ceil(self.scale)
    }

    /// Pages of a node that no pass takes: its min watermark.
    #[must_use]
    pub fn min(&self, tier: usize) -> u64 {
        self.marks[tier].min.div_ceil(self.scale)
    }

    /// The node of `tiers` in which the kernel finds a leaf, and whether it has to go below the low watermark for it.
    #[must_use]
    pub fn find(&self, space: &Space, tiers: Range<usize>) -> Option<(usize, bool)> {
        let above_low = |tier: &usize| self.is_above(space, *tier, self.marks[*tier].low);
        if let Some(tier) = tiers.clone().find(above_low) {
            return Some((tier, false));
        }
        let mut rest = tiers;
        let tier = rest.find(|tier| self.has(space, *tier))?;
        Some((tier, true))
    }

    /// Whether a node has a leaf beyond its min watermark.
    #[must_use]
    pub fn has(&self, space: &Space, tier: usize) -> bool {
        self.is_above(space, tier, self.marks[tier].min)
    }

    fn is_above(&self, space: &Space, tier: usize, mark: u64) -> bool {
        let free = space.free_pages(tier);
        free >= self.leaf && (free - (self.leaf - 1)).saturating_mul(self.scale) > mark
    }
}
