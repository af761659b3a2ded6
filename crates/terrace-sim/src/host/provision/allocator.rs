//! The page allocator of a guest's kernel, as far as devices ask it for pages.

use crate::guest::zones::Zones;
use crate::machine::TIERS;

/// The allocator: its nodes, and the hand of its reclaim.
#[derive(Debug)]
pub(super) struct Allocator {
    /// The guest's nodes.
    pub(super) zones: Zones,
    /// Whether the guest's reclaim demotes.
    demotes: bool,
    /// The next page that reclaim tests.
    hand: u32,
}

impl Allocator {
    /// The allocator of a guest that booted with so many pages of each node, as simulated.
    pub(super) fn new(booted: [u64; TIERS], scale: u64, demotes: bool) -> Self {
        Self {
            zones: Zones::new(booted, scale),
            demotes,
            hand: 0,
        }
    }

    /// Whether the guest's reclaim demotes.
    pub(super) fn demotes(&self) -> bool {
        self.demotes
    }

    /// The page that reclaim tests next, out of `pages`.
    pub(super) fn next_page(&mut self, pages: u32) -> u32 {
        let page = self.hand;
        self.hand = if page + 1 == pages { 0 } else { page + 1 };
        page
    }
}
