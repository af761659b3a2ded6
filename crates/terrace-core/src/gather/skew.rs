//! Hot base pages of each block of a guest's physical memory.

use std::ops::Range;

use super::heat::Heat;

/// Base pages of a block.
pub const BLOCK_PAGES: u16 = 512;

/// A hot page of the block cannot be moved.
const FIXED: u16 = 1 << 15;
/// The block takes what is gathered.
const TARGET: u16 = 1 << 14;
/// The hot pages.
const COUNT: u16 = TARGET - 1;

/// Number of hot base pages of each block: two bytes for each 2 MiB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Skew {
    blocks: Vec<u16>,
}

impl Skew {
    /// Of a guest with so many frames of 4 KiB; nothing is hot yet.
    ///
    /// # Panics
    /// If a map of that many blocks does not fit in memory.
    #[must_use]
    pub fn new(frames: u64) -> Self {
        let blocks = usize::try_from(frames.div_ceil(BLOCK_PAGES.into()));
        Self {
            blocks: vec![0; blocks.expect("a guest's memory has an address")],
        }
    }

    /// Counts a hot page by its frame; each frame is counted once. One that is pinned, shared or of an unknown kind is not
    /// movable. Frames beyond the guest's memory are ignored.
    pub fn count(&mut self, frame: u64, movable: bool) {
        let at = usize::try_from(frame / u64::from(BLOCK_PAGES));
        if let Some(block) = at.ok().and_then(|at| self.blocks.get_mut(at)) {
            if *block & COUNT < BLOCK_PAGES {
                *block += 1;
            }
            if !movable {
                *block |= FIXED;
            }
        }
    }

    /// Counts the hot pages of whole blocks at once, from one block on; pages beyond the guest's memory are ignored.
    pub fn count_blocks(&mut self, first: u64, pages: &[Heat]) {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let blocks = self.blocks.iter_mut().skip(first);
        for (block, pages) in blocks.zip(pages.chunks(BLOCK_PAGES.into())) {
            let hot: u16 = pages.iter().map(|heat| u16::from(heat.is_hot())).sum();
            let fixed = pages.iter().fold(false, |fixed, heat| {
                fixed | (heat.is_hot() & !heat.is_movable())
            });
            *block = *block & !COUNT | (*block & COUNT).saturating_add(hot).min(BLOCK_PAGES);
            if fixed {
                *block |= FIXED;
            }
        }
    }

    /// The blocks of these frames take what is gathered: they are not emptied.
    pub fn target(&mut self, frames: Range<u64>) {
        let by = u64::from(BLOCK_PAGES);
        let (first, end) = (frames.start / by, frames.end.div_ceil(by));
        let blocks = self.blocks.len();
        let at = |block: u64| usize::try_from(block).unwrap_or(usize::MAX).min(blocks);
        for block in &mut self.blocks[at(first)..at(end)] {
            *block |= TARGET;
        }
    }

    /// Hot pages of a block; none beyond the guest's memory.
    #[must_use]
    pub fn hot(&self, block: u64) -> u16 {
        let at = usize::try_from(block).ok();
        at.and_then(|at| self.blocks.get(at))
            .map_or(0, |block| block & COUNT)
    }

    /// Blocks with a hot page: so many are hot for a host that moves 2 MiB.
    #[must_use]
    pub fn hot_blocks(&self) -> u64 {
        let hot = self.blocks.iter().filter(|block| **block & COUNT > 0);
        hot.count() as u64
    }

    /// Blocks by their number of hot pages, 0 to 512.
    #[must_use]
    pub fn histogram(&self) -> Vec<u64> {
        let mut histogram = vec![0; usize::from(BLOCK_PAGES) + 1];
        for block in &self.blocks {
            histogram[usize::from(block & COUNT)] += 1;
        }
        histogram
    }

    /// Blocks that can be emptied, with their hot pages: some are hot, all of those are movable, and nothing is gathered
    /// there.
    pub(super) fn scattered(&self) -> impl Iterator<Item = (u64, u16)> {
        let each = (0..).zip(&self.blocks);
        each.filter(|(_, block)| **block & (FIXED | TARGET) == 0 && **block > 0)
            .map(|(at, block)| (at, *block))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_count_for_their_block_and_no_more_than_it_has() {
        let mut skew = Skew::new(3 * 512 + 1);
        for frame in [0, 511, 512, 1536, 1537, 4 * 512, u64::MAX] {
            skew.count(frame, true);
        }
        (0..600).for_each(|_| skew.count(1024, true));
        let hot: Vec<u16> = (0..5).map(|block| skew.hot(block)).collect();
        assert_eq!(hot, [2, 1, 512, 2, 0]);
        let histogram = skew.histogram();
        assert_eq!((histogram[1], histogram[2], histogram[512]), (1, 2, 1));
        assert_eq!(histogram.iter().sum::<u64>(), 4);
        assert_eq!(skew.hot_blocks(), 4);
        assert_eq!(Skew::new(2000).hot_blocks(), 0);
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(1000))]
        #[test]
        fn blocks_are_counted_as_their_pages_are(
            first in 0_u64..4,
            pages in proptest::collection::vec((0_u8..8, proptest::bool::weighted(0.99)), 0..1600),
        ) {
            let heat: Vec<Heat> = pages.iter().map(|(windows, movable)| {
                let mut heat = Heat::default();
                (0..3).for_each(|bit| heat.push(windows >> bit & 1 == 1));
                heat.set_movable(*movable);
                heat
            }).collect();
            let (mut at_once, mut each) = (Skew::new(4 * 512), Skew::new(4 * 512));
            at_once.count_blocks(first, &heat);
            for (frame, (windows, movable)) in (first * 512..).zip(pages) {
                if windows.count_ones() >= 2 {
                    each.count(frame, movable);
                }
            }
            proptest::prop_assert_eq!(at_once, each);
        }
    }

    #[test]
    fn blocks_with_fixed_pages_and_targets_are_not_emptied() {
        let mut skew = Skew::new(4 * 512);
        for block in 0..4 {
            skew.count(block * 512, block != 1);
        }
        skew.target(2 * 512..2 * 512 + 1);
        skew.target(u64::MAX - 1..u64::MAX);
        let blocks: Vec<(u64, u16)> = skew.scattered().collect();
        assert_eq!(blocks, [(0, 1), (3, 1)]);
    }
}
