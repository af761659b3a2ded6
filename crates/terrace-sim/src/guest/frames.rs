//! The free frames of a guest, each standing for the leaf that begins there.

use std::collections::VecDeque;

use crate::machine::TIERS;
use crate::machine::second_stage::bits;
use crate::machine::space::Space;

/// The free frames of a guest.
///
/// If a device sizes the guest's nodes, or the guest moves pages between them, a frame with host memory behind it lies in the node of
/// that memory's tier, and one without may come to lie in any node that has room. Otherwise nodes are not told apart.
#[derive(Clone, Debug, Default)]
pub struct Frames {
    /// Free frames with host memory by tier, the longest free first; all are in the first list if nodes are not told apart.
    idle: [VecDeque<u32>; TIERS],
    /// Free frames without host memory, if nodes are told apart.
    bare: Vec<u32>,
    /// Whether nodes are told apart.
    is_sized: bool,
}

impl Frames {
    /// No frames yet, of a guest whose nodes are told apart.
    #[must_use]
    pub fn sized() -> Self {
        Self {
            is_sized: true,
            ..Self::default()
        }
    }

    /// Whether nodes are told apart.
    #[must_use]
    pub fn is_sized(&self) -> bool {
        self.is_sized
    }

    /// Number of free frames, those without host memory included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.bare.len() + self.idle.iter().map(VecDeque::len).sum::<usize>()
    }

    /// Whether no frame is free.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Takes in a frame that became free.
    pub fn free(&mut self, space: &mut Space, frame: u32) {
        if !self.is_sized {
            return self.idle[0].push_back(frame);
        }
        let unit = space.second.unit_of(frame);
        match space.second.tier(unit).map(usize::from) {
            Some(tier) => {
                space.quota.idles(tier, units(space));
                self.idle[tier].push_back(frame);
            }
            None => self.bare.push(frame),
        }
    }

    /// The frame that has been free the longest, of a guest whose nodes are not told apart.
    pub fn pop(&mut self) -> Option<u32> {
        self.idle[0].pop_front()
    }

    /// A free frame of a tier's node. If its memory is new from the host, the first access to it faults.
    pub fn pop_of(&mut self, space: &mut Space, tier: usize) -> Option<u32> {
        if let Some(frame) = self.idle[tier].pop_front() {
            space.quota.idles(tier, -units(space));
            return Some(frame);
        }
        if self.bare.is_empty() || !space.quota.take_of(tier, space.units_per_leaf()) {
            return None;
        }
        let frame = self.bare.pop()?;
        let pages = space.guest.pages_per_leaf();
        // Only what a balloon of 4 KiB pages gave back comes here, if blocks can be split.
        space.second.split(space.second.unit_of(frame));
        space.second.put_leaf(frame, pages, u8::try_from(tier).ok());
        space.second.raise_leaf(frame, pages, bits::UNFILLED);
        Some(frame)
    }

    /// Takes the host memory from behind free frames until the guest holds no more of a tier than its node has; returns
    /// the number of 4 KiB pages that the host has back.
    pub fn strip(&mut self, space: &mut Space, tier: usize) -> u64 {
        let mut pages = 0;
        while space.is_over_limit(tier) && self.strip_one(space, tier) {
            pages += space.guest.pages_per_leaf();
        }
        pages
    }

    /// Takes the host memory from behind one free leaf of a tier; returns whether there was one.
    pub fn strip_one(&mut self, space: &mut Space, tier: usize) -> bool {
        let Some(frame) = self.idle[tier].pop_front() else {
            return false;
        };
        let pages = space.guest.pages_per_leaf();
        space.second.put_leaf(frame, pages, None);
        space.quota.idles(tier, -units(space));
        self.bare.push(frame);
        true
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        let idle: usize = self.idle.iter().map(VecDeque::capacity).sum();
        size_of::<u32>() * (idle + self.bare.capacity())
    }
}

/// Units of the second stage that a leaf counts as.
fn units(space: &Space) -> i64 {
    i64::try_from(space.units_per_leaf()).unwrap_or(i64::MAX)
}
