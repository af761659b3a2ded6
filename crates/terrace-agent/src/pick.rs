//! The pages that a plan's shares mean.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::hyperplace::{Ranked, Share};
use terrace_proto::TierId;

use crate::exchange::{Pages, Piece};
use crate::managed::Managed;
use crate::room::Room;

/// Pages of text, data and stacks that are brought up in an epoch.
const MOST_PINNED: u64 = 16_384;

/// Looks up pages.
pub struct Picker<'a> {
    /// Processes.
    pub managed: &'a BTreeMap<u32, Managed>,
    /// The process of each tree.
    pub pids: &'a [u32],
    /// The ranking.
    pub ranked: &'a [Ranked],
    /// The kernel.
    pub pages: &'a mut dyn Pages,
    /// Tiers.
    pub room: &'a Room,
    /// Pages that may travel in each direction together.
    pub budget: u64,
}

impl Picker<'_> {
    /// Pages of the shares' ranges that are in fast memory, or that are not, in order of address: those
    /// found now, whatever was known. Never more than half of the budget, so that both directions fit.
    pub fn shares(&mut self, shares: &[Share], fast: bool) -> Vec<Piece> {
        let mut left = self.budget / 2;
        let mut pieces = Vec::new();
        for share in shares {
            let wanted = share.pages.min(left);
            let before = size(&pieces);
            self.range(share.rank, fast, wanted, &mut pieces);
            left = left.saturating_sub(size(&pieces) - before);
            if left == 0 {
                break;
            }
        }
        pieces
    }

    /// So many pages of the coldest ranges, but of none that a plan demotes already.
    pub fn coldest(&mut self, wanted: u64, planned: &[Share]) -> Vec<Piece> {
        let planned: BTreeSet<usize> = planned.iter().map(|share| share.rank).collect();
        let wanted = wanted.min(self.budget / 2);
        let mut pieces = Vec::new();
        for rank in (0..self.ranked.len()).rev() {
            let got = size(&pieces);
            if got >= wanted {
                break;
            }
            if !planned.contains(&rank) {
                self.range(rank, true, wanted - got, &mut pieces);
            }
        }
        pieces
    }

    /// Text, data and stacks that are in slow memory.
    pub fn pinned(&mut self) -> Vec<Piece> {
        let mut pieces = Vec::new();
        for managed in self.managed.values() {
            for range in &managed.pinned {
                let found = managed.survey(*range, self.pages, self.room);
                let slow = found.unwrap_or_default().into_iter();
                pieces.extend(slow.filter(|piece| piece.tier != TierId::FAST));
                if size(&pieces) >= MOST_PINNED {
                    return pieces;
                }
            }
        }
        pieces
    }

    fn range(&mut self, rank: usize, fast: bool, wanted: u64, pieces: &mut Vec<Piece>) {
        let Some(ranked) = self.ranked.get(rank) else {
            return;
        };
        let pid = self.pids.get(ranked.tree);
        let Some(managed) = pid.and_then(|pid| self.managed.get(pid)) else {
            return;
        };
        let mut left = wanted;
        for at in managed.extents.within(ranked.leaf.range) {
            if left == 0 {
                return;
            }
            let Some(extent) = managed.extents.get(at) else {
                continue;
            };
            let here = if fast { extent.fast } else { extent.slow };
            if here == 0 {
                continue;
            }
            // A process that ended has no pages.
            let found = managed.survey(extent.range(), self.pages, self.room);
            for piece in found.unwrap_or_default() {
                let right = (piece.tier == TierId::FAST) == fast;
                // A huge page that would be too much stays whole where it is.
                if right && u64::from(piece.pages) <= left {
                    left -= u64::from(piece.pages);
                    pieces.push(piece);
                }
            }
        }
    }
}

fn size(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.pages)).sum()
}
