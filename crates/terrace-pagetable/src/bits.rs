//! A bitmap that takes 64 bits at any position, for frames that come in runs.

use terrace_proto::PageBitmap;

/// A number as an index into memory. A number that does not fit is out of every bound.
#[inline]
pub(crate) fn position(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// 64 bits of `words` from bit `start`; zero beyond the end.
#[inline]
pub(crate) fn window(words: &[u64], start: u64) -> u64 {
    let word = |at: usize| words.get(at).copied().unwrap_or(0);
    let (at, shift) = (position(start / 64), start % 64);
    // Two shifts, because one of 64 places does not exist.
    word(at) >> shift | word(at.saturating_add(1)) << 1 << (63 - shift)
}

/// One bit per page, and a spare word at the end, so that 64 bits can be added at the last page.
///
/// **Invariant:** no bit at or beyond `pages` is set: callers check what they add.
#[derive(Clone, Debug)]
pub(crate) struct Bits {
    pages: u64,
    chunks: Vec<u64>,
}

impl Bits {
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            pages,
            chunks: vec![0; position(pages.div_ceil(64) + 1)],
        }
    }

    pub(crate) fn clear(&mut self) {
        self.chunks.fill(0);
    }

    /// Adds the pages `start + i` for the bits `i` of `mask`.
    #[inline]
    pub(crate) fn add_window(&mut self, start: u64, mask: u64) {
        let (at, shift) = (position(start / 64), start % 64);
        if let Some([low, high]) = self.chunks.get_mut(at..at.saturating_add(2)) {
            *low |= mask << shift;
            *high |= mask >> 1 >> (63 - shift);
        }
    }

    /// Adds `len` pages from `start`.
    pub(crate) fn add_range(&mut self, start: u64, len: u64) {
        let mut done = 0;
        while done < len {
            let ones = u64::MAX >> (64 - (len - done).min(64));
            self.add_window(start + done, ones);
            done += 64;
        }
    }

    /// Removes a page from the set.
    #[inline]
    pub(crate) fn remove(&mut self, page: u64) {
        if let Some(word) = self.chunks.get_mut(position(page / 64)) {
            *word &= !(1 << (page % 64));
        }
    }

    /// Removes a page from the set, and says whether it was in it.
    pub(crate) fn take(&mut self, page: u64) -> bool {
        let was = self.any(page, 1);
        self.remove(page);
        was
    }

    /// Number of pages in the set.
    pub(crate) fn count(&self) -> usize {
        self.chunks
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Empties the set, the lowest page first.
    pub(crate) fn take_each(&mut self, mut take: impl FnMut(u64)) {
        for (first, word) in (0..).step_by(64).zip(&mut self.chunks) {
            let mut rest = std::mem::take(word);
            while rest != 0 {
                take(first + u64::from(rest.trailing_zeros()));
                rest &= rest - 1;
            }
        }
    }

    /// Adds `page` and says whether it is new.
    pub(crate) fn insert(&mut self, page: u64) -> bool {
        let Some(word) = self.chunks.get_mut(position(page / 64)) else {
            return false;
        };
        let bit = 1 << (page % 64);
        let new = *word & bit == 0;
        *word |= bit;
        new
    }

    /// Whether any of `len` pages from `start` is in the set. Both multiples of 64, or `len` 1.
    pub(crate) fn any(&self, start: u64, len: u64) -> bool {
        if len == 1 {
            return window(&self.chunks, start) & 1 == 1;
        }
        let words = position(start / 64)..position((start + len) / 64);
        self.chunks
            .get(words)
            .is_some_and(|w| w.iter().any(|w| *w != 0))
    }

    /// Becomes the set of 2 MiB blocks of which `pages` has a page.
    pub(crate) fn set_blocks_of(&mut self, pages: &PageBitmap) {
        self.clear();
        for (block, words) in (0..self.pages).zip(pages.words().chunks(8)) {
            if words.iter().any(|w| *w != 0) {
                self.insert(block);
            }
        }
    }

    /// Adds all pages of the 2 MiB blocks in `blocks`.
    pub(crate) fn add_blocks(&mut self, blocks: &Self) {
        for (at, _) in blocks.chunks.iter().enumerate().filter(|(_, w)| **w != 0) {
            let mut word = blocks.chunks[at];
            while word != 0 {
                let block = at as u64 * 64 + u64::from(word.trailing_zeros());
                self.add_range(block * 512, 512);
                word &= word - 1;
            }
        }
    }

    /// The set as plain data.
    pub(crate) fn into_bitmap(mut self) -> PageBitmap {
        self.chunks.pop();
        PageBitmap::from_words(self.pages, self.chunks).expect("no bit beyond the last page")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn windows_at_any_position_behave_like_a_set(
            adds in prop::collection::vec((0_u64..900, any::<u64>()), 0..20),
        ) {
            let mut bits = Bits::new(964);
            let mut naive = vec![false; 1_200];
            for (start, mask) in adds {
                bits.add_window(start, mask);
                for i in (0..64).filter(|i| mask >> i & 1 == 1) {
                    naive[position(start + i)] = true;
                }
            }
            for start in (0..1_100).step_by(7) {
                let want = (0..64).filter(|i| naive[start + i]).fold(0, |m, i| m | 1 << i);
                prop_assert_eq!(window(&bits.chunks, start as u64), want);
            }
            let all = bits.into_bitmap();
            prop_assert!((0..964).all(|page| all.get(page) == naive[position(page)]));
        }
    }

    #[test]
    fn blocks_and_their_pages_are_converted_both_ways() {
        let mut pages = PageBitmap::new(1400);
        pages.set(511);
        pages.set(1399);
        let mut blocks = Bits::new(3);
        blocks.set_blocks_of(&pages);
        assert!(blocks.any(0, 1) && !blocks.any(1, 1) && blocks.any(2, 1));
        let mut one = Bits::new(3);
        one.insert(1);
        let mut all = Bits::new(1400);
        all.add_blocks(&one);
        assert!(all.into_bitmap().iter().eq(512..1024));
    }

    #[test]
    fn an_empty_set_of_no_pages_is_fine() {
        let mut none = Bits::new(0);
        none.add_window(5000, 1);
        assert_eq!(none.into_bitmap(), PageBitmap::new(0));
    }
}
