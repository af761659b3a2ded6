//! The pages that a plan's shares mean.

use std::collections::{BTreeMap, BTreeSet};

use terrace_core::hyperplace::{Held, Plan, Ranked, Share};
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
    /// This epoch.
    pub epoch: u32,
    /// Extents that were looked at: process and place.
    pub touched: BTreeSet<(u32, usize)>,
}

impl Picker<'_> {
    /// At most `most` pages of the shares' ranges that are in fast memory, or that are not, in order of
    /// address: those found now, whatever was known.
    pub fn shares(&mut self, shares: &[Share], fast: bool, most: u64) -> Vec<Piece> {
        let mut left = most;
        let mut pieces = Vec::new();
        for share in shares {
            if left == 0 {
                break;
            }
            let wanted = share.pages.min(left);
            left -= wanted - self.range(share.rank, fast, wanted, &mut pieces);
        }
        pieces
    }

    /// At most `most` pages of text, data and stacks that are in slow memory. They may be mapped by others, too.
    pub fn pinned(&mut self, most: u64) -> Vec<Piece> {
        let mut left = most.min(MOST_PINNED);
        let mut pieces: Vec<Piece> = Vec::new();
        for managed in self.managed.values() {
            for range in &managed.pinned {
                let found = managed.survey(*range, self.pages, self.room);
                for piece in found.unwrap_or_default() {
                    let pages = u64::from(piece.pages);
                    if piece.tier == TierId::FAST {
                        continue;
                    }
                    if pages > left {
                        return pieces;
                    }
                    left -= pages;
                    pieces.push(Piece {
                        shared: true,
                        ..piece
                    });
                }
            }
        }
        pieces
    }

    /// Takes pages of a range; says how many of those wanted were not found.
    fn range(&mut self, rank: usize, fast: bool, wanted: u64, pieces: &mut Vec<Piece>) -> u64 {
        let ranked = self.ranked.get(rank);
        let pid = ranked.and_then(|ranked| self.pids.get(ranked.tree));
        let managed = pid.and_then(|pid| self.managed.get(pid));
        let (Some(ranked), Some(managed)) = (ranked, managed) else {
            return wanted;
        };
        let mut left = wanted;
        for at in managed.extents.within(ranked.leaf.range) {
            let Some(extent) = managed.extents.get(at) else {
                continue;
            };
            let here = if fast { extent.fast } else { extent.slow };
            if here == 0 || extent.rests(self.epoch) {
                continue;
            }
            self.touched.insert((managed.pid(), at));
            // A process that ended has no pages.
            let found = managed.survey(extent.range(), self.pages, self.room);
            for piece in found.unwrap_or_default() {
                if (piece.tier == TierId::FAST) != fast {
                    continue;
                }
                let pages = u64::from(piece.pages);
                if pages > left {
                    // The rest of a share that is less than a huge page waits for a larger one.
                    return left;
                }
                left -= pages;
                pieces.push(piece);
            }
            if left == 0 {
                break;
            }
        }
        left
    }
}

/// What goes down: the plan's shares, and of what does not belong into fast memory so many pages more, the
/// coldest first.
#[must_use]
pub fn going_down(plan: &Plan, held: &[Held], more: u64) -> Vec<Share> {
    let mut planned: BTreeMap<usize, u64> = BTreeMap::new();
    for share in &plan.demote {
        *planned.entry(share.rank).or_default() += share.pages;
    }
    let rising: BTreeSet<usize> = plan.promote.iter().map(|share| share.rank).collect();
    let mut left = more;
    for rank in (plan.fits..held.len()).rev() {
        if rising.contains(&rank) {
            continue;
        }
        let there = held[rank].fast;
        let already = planned.get(&rank).copied().unwrap_or(0);
        let extra = there.saturating_sub(already).min(left);
        if extra > 0 {
            planned.insert(rank, already + extra);
            left -= extra;
        }
    }
    let shares = planned.into_iter().rev();
    shares.map(|(rank, pages)| Share { rank, pages }).collect()
}

/// 4 KiB pages of pieces.
#[must_use]
pub fn size(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.pages)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn share(rank: usize, pages: u64) -> Share {
        Share { rank, pages }
    }

    #[test]
    fn more_goes_down_from_the_coldest_and_nothing_that_belongs_into_fast_memory() {
        let held = [100, 50, 30, 20].map(|fast| Held { fast, slow: 0 });
        let plan = Plan {
            promote: vec![share(1, 5)],
            demote: vec![share(3, 10)],
            fits: 1,
        };
        assert_eq!(going_down(&plan, &held, 0), [share(3, 10)]);
        assert_eq!(going_down(&plan, &held, 15), [share(3, 20), share(2, 5)]);
        // Ranges 0, which fits, and 1, which comes up, stay whole.
        let all = going_down(&plan, &held, 1000);
        assert_eq!(all, [share(3, 20), share(2, 30)]);
    }
}
