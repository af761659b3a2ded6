//! The hot base pages of a VM, for a guest that gathers them (GPAC) and has no heat of its own.
//!
//! Responsible for: which pages are named, in which order, and by which scans. It leaves to others: naming them, and which of them the
//! guest gathers: the filter lives there.
//!
//! A page is hot if it was touched in most windows of the round: what the policy takes for hot fills the first tier, whatever its
//! size, and a page that is touched now and then is not worth copying. A page that is part of a 2 MiB leaf of the guest's tables is never named: the
//! leaf's bits do not distinguish its parts.

use std::cmp::Reverse;

use terrace_proto::{Gfn, PageBitmap, PageSize, ScanAnswer, Tick, VmId};

use super::Engine;
use super::vm::Vm;
use crate::config::EngineConfig;
use crate::pages::BLOCK;

/// The hot base pages of a VM by one round.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotPages {
    /// The round.
    pub round: u64,
    /// When its accesses began to be counted.
    pub began: Tick,
    /// Hot pages, those that are not named included.
    pub hot: u64,
    /// Blocks of 2 MiB of guest-physical memory with a hot page.
    pub blocks: u64,
    /// The pages, hottest first.
    pub named: Vec<Gfn>,
}

/// Blocks of 2 MiB of which some scan of the round under way could not distinguish the pages.
#[derive(Clone, Debug)]
pub(crate) struct CoarseBlocks(PageBitmap);

impl Default for CoarseBlocks {
    fn default() -> Self {
        Self(PageBitmap::new(0))
    }
}

impl CoarseBlocks {
    /// Takes in an answer; `first` is that of the clearing pass.
    pub fn hear(&mut self, answer: &ScanAnswer, first: bool) {
        if first {
            self.0 = answer.huge_leaf.clone();
            return;
        }
        let coarse = answer.huge_leaf.iter();
        coarse.for_each(|block| self.0.put(block, true));
    }

    /// Takes in an answer about a part of a VM with so many blocks; `first` is that of the round's first pass.
    pub fn hear_part(&mut self, coarse: &[u32], blocks: u64, first: bool) {
        if first {
            self.0 = PageBitmap::new(blocks);
        }
        coarse
            .iter()
            .for_each(|block| self.0.put((*block).into(), true));
    }

    fn has(&self, block: usize) -> bool {
        let block = block as u64;
        block < self.0.pages() && self.0.get(block)
    }

    /// Whether no page was seen by itself.
    fn is_all(&self) -> bool {
        self.0.pages() > 0 && self.0.count() == self.0.pages()
    }

    /// Bytes on the heap.
    pub fn heap_bytes(&self) -> usize {
        usize::try_from(self.0.pages() / 8).unwrap_or(usize::MAX)
    }
}

impl Engine {
    /// The hot base pages of a VM, `most` at most, by the round that ranked its pages last. `None` if none did, if the heat of that round
    /// is gone, or if its pages are not seen one by one.
    #[must_use]
    pub fn hot_pages(&self, vm: VmId, most: usize) -> Option<HotPages> {
        self.vms.get(&vm)?.hot_pages(most, &self.shared.config)
    }
}

/// Degrees of a block's pages: 0 for those that are not hot.
type Degrees = [u8; BLOCK];

impl Vm {
    fn hot_pages(&self, most: usize, config: &EngineConfig) -> Option<HotPages> {
        // The heat of the last round is cleared when the next one begins.
        let round = self.rounds.current.as_ref().or(self.rounds.last.as_ref())?;
        round.classified_at?;
        let is_seen = self.pages.ram().unit() == PageSize::Base && self.observes();
        if !is_seen || self.observer.coarse.is_all() {
            return None;
        }
        let mut counts = [0_u64; 256];
        let mut blocks = 0;
        self.each_block(config, |_, degrees| {
            let hot = degrees.iter().filter(|degree| **degree > 0);
            let before: u64 = counts.iter().sum();
            hot.for_each(|degree| counts[usize::from(*degree)] += 1);
            blocks += u64::from(counts.iter().sum::<u64>() > before);
        });
        let (border, mut at_border) = border(&counts, most as u64);
        let mut named: Vec<(Reverse<u8>, Gfn)> = Vec::new();
        self.each_block(config, |first, degrees| {
            for (gfn, degree) in (first..).map(Gfn).zip(degrees) {
                let room = usize::from(*degree) == border && at_border > 0;
                at_border -= u64::from(room);
                if room || usize::from(*degree) > border {
                    named.push((Reverse(*degree), gfn));
                }
            }
        });
        named.sort_unstable();
        Some(HotPages {
            round: round.number,
            began: round.started_at,
            hot: counts.iter().sum(),
            blocks,
            named: named.into_iter().map(|(_, gfn)| gfn).collect(),
        })
    }

    /// Gives the degrees of the pages of each block whose pages are seen one by one, with the number of its first page.
    fn each_block(&self, config: &EngineConfig, mut give: impl FnMut(u64, &Degrees)) {
        let windows = u16::from(self.rhythm(config).windows);
        let (read, write) = config.weights();
        let counts = self.pages.reads.chunks(BLOCK);
        let counts = counts.zip(self.pages.writes.chunks(BLOCK));
        for (block, (reads, writes)) in counts.enumerate() {
            let is_cold = reads.iter().chain(writes).all(|count| *count == 0);
            if is_cold || self.observer.coarse.has(block) {
                continue;
            }
            let mut degrees = [0; BLOCK];
            let first = block * BLOCK;
            for (at, (reads, writes)) in reads.iter().zip(writes).enumerate() {
                let visits = u16::from(*reads) + u16::from(*writes);
                if visits * 2 > windows && self.is_seen(first + at) {
                    let degree = reads.saturating_mul(read.max(1));
                    degrees[at] = degree.saturating_add(writes.saturating_mul(write.max(1)));
                }
            }
            give(first as u64, &degrees);
        }
    }

    /// Whether a user table maps the page, and the host has one there.
    fn is_seen(&self, unit: usize) -> bool {
        let unit = u32::try_from(unit).ok();
        unit.is_some_and(|unit| self.pages.known(unit) && self.pages.tier(unit).is_some())
    }
}

/// The degree of which not all pages are among the `most` hottest, and how many of them are. All above it are.
fn border(counts: &[u64; 256], most: u64) -> (usize, u64) {
    let mut left = most;
    for degree in (1..counts.len()).rev() {
        if counts[degree] > left {
            return (degree, left);
        }
        left -= counts[degree];
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_fit_and_of_the_next_ones_as_many_as_have_room() {
        let mut counts = [0; 256];
        (counts[9], counts[5], counts[1]) = (3, 4, 100);
        for (most, at) in [
            (0, (9, 0)),
            (2, (9, 2)),
            (3, (5, 0)),
            (5, (5, 2)),
            (8, (1, 1)),
        ] {
            assert_eq!(border(&counts, most), at, "{most}");
        }
        assert_eq!(border(&counts, 107), (0, 0), "all of them");
    }
}
