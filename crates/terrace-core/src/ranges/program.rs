//! One process under management: its ranges, and where its pages are.

use terrace_proto::ranges::{Mappings, Params, Range};

use super::extents::Extents;
use super::plan::Held;
use super::tree::RangeTree;

/// Extents of one process that are stored: those of 256 GiB.
const MAX_EXTENTS: usize = 131_072;
/// Epochs in which text, data and stacks are tried to be brought up.
const PINNED_TRIES: u32 = 8;

/// A process under management.
#[derive(Clone, Debug)]
pub struct Program {
    /// The process's ranges.
    pub(super) tree: RangeTree,
    /// The known locations of its pages.
    pub(super) extents: Extents,
    /// Epoch until which its pages are left where they are, because the kernel refuses to move them.
    pub(super) rests_until: u32,
    mappings: Mappings,
    /// Text, data and stack that are still to be brought up; none once that was done.
    pinned: Vec<Range>,
    /// In how many epochs that was tried.
    pinned_tries: u32,
}

impl Program {
    pub(super) fn new(params: Params, mappings: Mappings, extent_pages: u16) -> Self {
        let mut extents = Extents::new(extent_pages);
        extents.follow(&mappings.mapped, MAX_EXTENTS);
        Self {
            tree: RangeTree::new(params, &mappings.seeds),
            extents,
            rests_until: 0,
            pinned: mappings.pinned.clone(),
            pinned_tries: 0,
            mappings,
        }
    }

    /// Follows the process's mappings.
    pub(super) fn follow(&mut self, mappings: Mappings) {
        if mappings == self.mappings {
            return;
        }
        self.extents.follow(&mappings.mapped, MAX_EXTENTS);
        self.tree.reseed(&mappings.seeds);
        self.mappings = mappings;
    }

    /// Begins anew, as when another source of samples counts differently.
    pub(super) fn restart(&mut self, params: Params) {
        self.tree = RangeTree::new(params, &self.mappings.seeds);
    }

    /// The process's ranges.
    #[must_use]
    pub fn tree(&self) -> &RangeTree {
        &self.tree
    }

    /// Mappings that other processes may map, too.
    #[must_use]
    pub(super) fn shared(&self) -> &[Range] {
        &self.mappings.shared
    }

    /// The process's pages by tier, as far as they are known.
    #[must_use]
    pub fn total(&self) -> Held {
        self.extents.total()
    }

    /// Pages of a range that can be moved, as far as is known.
    #[must_use]
    pub fn held(&self, range: Range, epoch: u32) -> Held {
        if self.rests_until > epoch {
            return Held::default();
        }
        self.extents.held(range, epoch)
    }

    /// The ranges that are brought up once.
    pub(super) fn pinned(&self) -> &[Range] {
        &self.pinned
    }

    /// Text, data and stacks are brought up once, all that is left of them after a few tries; later the kernel
    /// and the program decide.
    pub(super) fn forget_pinned(&mut self, all: bool) {
        self.pinned_tries = self.pinned_tries.saturating_add(1);
        if all || self.pinned_tries >= PINNED_TRIES {
            self.pinned.clear();
        }
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.tree.heap_bytes() + self.extents.heap_bytes()
    }
}
