//! The page allocator of a guest's kernel, as far as devices ask it for pages.

use std::ops::Range;

use crate::guest::marks::Marks;
use crate::machine::TIERS;
use crate::machine::space::Space;

/// The allocator: its watermarks, and the hand of its reclaim.
#[derive(Debug)]
pub(super) struct Allocator {
    /// The nodes' watermarks when the guest booted.
    marks: [Marks; TIERS],
    scale: u64,
    /// Whether the guest's reclaim demotes.
    demotes: bool,
    /// The next page that reclaim tests.
    hand: u32,
}

impl Allocator {
    /// The allocator of a guest that booted with so many pages of each node, as simulated.
    pub(super) fn new(booted: [u64; TIERS], scale: u64, demotes: bool) -> Self {
        let all: u64 = booted.iter().sum();
        Self {
            marks: booted.map(|node| Marks::of(node * scale, all * scale)),
            scale,
            demotes,
            hand: 0,
        }
    }

    /// Whether the guest's reclaim demotes.
    pub(super) fn demotes(&self) -> bool {
        self.demotes
    }

    /// Pages of a node that the first pass leaves: its low watermark.
    pub(super) fn low(&self, tier: usize) -> u64 {
        self.marks[tier].low.div_ceil(self.scale)
    }

    /// Pages of a node that no pass takes: its min watermark.
    pub(super) fn min(&self, tier: usize) -> u64 {
        self.marks[tier].min.div_ceil(self.scale)
    }

    /// The node of `tiers` in which the kernel finds a page, and whether it has to go below the low watermark for it.
    pub(super) fn find(&self, space: &Space, tiers: Range<usize>) -> Option<(usize, bool)> {
        let above_low = |tier: &usize| self.is_above(space, *tier, self.marks[*tier].low);
        if let Some(tier) = tiers.clone().find(above_low) {
            return Some((tier, false));
        }
        let mut rest = tiers;
        let tier = rest.find(|tier| self.has(space, *tier))?;
        Some((tier, true))
    }

    /// Whether a node has a page beyond its min watermark.
    pub(super) fn has(&self, space: &Space, tier: usize) -> bool {
        self.is_above(space, tier, self.marks[tier].min)
    }

    fn is_above(&self, space: &Space, tier: usize, mark: u64) -> bool {
        space.below_limit(tier) * self.scale > mark
    }

    /// The page that reclaim tests next, out of `pages`.
    pub(super) fn next_page(&mut self, pages: u32) -> u32 {
        let page = self.hand;
        self.hand = if page + 1 == pages { 0 } else { page + 1 };
        page
    }
}
