//! One bit per page.

use serde::{Deserialize, Serialize};

/// The reason why words do not form a bitmap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BitmapError {
    /// Not as many words as the page count needs.
    #[error("a bitmap of {pages} pages needs {want} words, got {got}")]
    Length {
        /// Pages announced.
        pages: u64,
        /// Words needed.
        want: u64,
        /// Words given.
        got: usize,
    },
    /// A bit beyond the last page is set.
    #[error("a bitmap of {0} pages has a bit set beyond its end")]
    Tail(u64),
}

#[derive(Clone, Serialize, Deserialize)]
struct Raw {
    pages: u64,
    words: Vec<u64>,
}

/// A set of pages numbered from 0, one bit each, 64 pages a word, lowest page in bit 0.
///
/// Invariant: exactly `pages.div_ceil(64)` words, and no bit set at or beyond `pages`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(try_from = "Raw", into = "Raw")]
pub struct PageBitmap {
    pages: u64,
    words: Vec<u64>,
}

impl From<PageBitmap> for Raw {
    fn from(b: PageBitmap) -> Self {
        Self {
            pages: b.pages,
            words: b.words,
        }
    }
}

impl TryFrom<Raw> for PageBitmap {
    type Error = BitmapError;

    fn try_from(raw: Raw) -> Result<Self, BitmapError> {
        Self::from_words(raw.pages, raw.words)
    }
}

impl PageBitmap {
    /// An empty set over `pages` pages.
    ///
    /// # Panics
    /// If a bitmap of that size cannot be addressed (more than 2^63 pages).
    #[must_use]
    pub fn new(pages: u64) -> Self {
        let len = usize::try_from(pages.div_ceil(64)).expect("a bitmap fits in memory");
        Self {
            pages,
            words: vec![0; len],
        }
    }

    /// The set of all `pages` pages.
    #[must_use]
    pub fn full(pages: u64) -> Self {
        let mut map = Self::new(pages);
        map.words.fill(u64::MAX);
        map.trim();
        map
    }

    /// Takes over words.
    ///
    /// # Errors
    /// If the number of words is not that of `pages`, or a bit beyond the end is set.
    pub fn from_words(pages: u64, words: Vec<u64>) -> Result<Self, BitmapError> {
        let want = pages.div_ceil(64);
        if words.len() as u64 != want {
            return Err(BitmapError::Length {
                pages,
                want,
                got: words.len(),
            });
        }
        let map = Self { pages, words };
        if map
            .tail_mask()
            .is_some_and(|mask| map.words[map.words.len() - 1] & !mask != 0)
        {
            return Err(BitmapError::Tail(pages));
        }
        Ok(map)
    }

    fn tail_mask(&self) -> Option<u64> {
        let rest = self.pages % 64;
        (rest != 0).then(|| (1 << rest) - 1)
    }

    fn trim(&mut self) {
        if let (Some(mask), Some(last)) = (self.tail_mask(), self.words.last_mut()) {
            *last &= mask;
        }
    }

    /// Pages that the set is drawn from (not the number of pages in it).
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Blocks of 2 MiB with pages whose bit is set, and how many these are; lowest first.
    pub fn blocks(&self) -> impl Iterator<Item = (u32, u64)> + '_ {
        let blocks = (0..).zip(self.words.chunks(8));
        blocks.filter_map(|(block, bits)| {
            let pages: u64 = bits.iter().map(|bits| u64::from(bits.count_ones())).sum();
            (pages > 0).then_some((block, pages))
        })
    }

    /// The words, lowest pages first.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Overwrites word `index`; bits beyond the end are dropped. Out of range: nothing happens.
    pub fn set_word(&mut self, index: usize, word: u64) {
        if let Some(slot) = self.words.get_mut(index) {
            *slot = word;
            if index + 1 == self.words.len() {
                self.trim();
            }
        }
    }

    /// Whether `page` is in the set; false beyond the end.
    #[must_use]
    #[inline]
    pub fn get(&self, page: u64) -> bool {
        page < self.pages && self.word(page) >> (page % 64) & 1 == 1
    }

    #[inline]
    fn word(&self, page: u64) -> u64 {
        usize::try_from(page / 64)
            .ok()
            .and_then(|i| self.words.get(i))
            .copied()
            .unwrap_or(0)
    }

    /// Adds `page`; beyond the end nothing happens.
    #[inline]
    pub fn set(&mut self, page: u64) {
        self.put(page, true);
    }

    /// Adds or removes `page`; beyond the end nothing happens.
    #[inline]
    pub fn put(&mut self, page: u64, on: bool) {
        if page >= self.pages {
            return;
        }
        let Some(word) = usize::try_from(page / 64)
            .ok()
            .and_then(|i| self.words.get_mut(i))
        else {
            return;
        };
        let bit = 1 << (page % 64);
        if on { *word |= bit } else { *word &= !bit }
    }

    /// Adds `len` pages from `start`, cut off at the end.
    pub fn set_range(&mut self, start: u64, len: u64) {
        let end = start.saturating_add(len).min(self.pages);
        let mut page = start;
        while page < end {
            let upto = (page / 64 + 1).saturating_mul(64).min(end);
            let n = upto - page;
            let ones = if n == 64 { u64::MAX } else { (1 << n) - 1 };
            if let Some(w) = usize::try_from(page / 64)
                .ok()
                .and_then(|i| self.words.get_mut(i))
            {
                *w |= ones << (page % 64);
            }
            page = upto;
        }
    }

    /// Adds the pages of another set; those beyond this one's end are left out.
    pub fn add(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
        self.trim();
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Number of pages in the set.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.words.iter().map(|w| u64::from(w.count_ones())).sum()
    }

    /// The pages of the set in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let base = i as u64 * 64;
            std::iter::successors((word != 0).then_some(word), |w| {
                let rest = w & (w - 1);
                (rest != 0).then_some(rest)
            })
            .map(move |w| base + u64::from(w.trailing_zeros()))
        })
    }

    /// Bytes of heap that the words take.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.words.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(
            pages in 0u64..300,
            ops in prop::collection::vec((0u64..320, 0u64..130, any::<bool>()), 0..40),
        ) {
            let mut map = PageBitmap::new(pages);
            let mut naive = BTreeSet::new();
            for (page, len, range) in ops {
                if range {
                    map.set_range(page, len);
                    naive.extend((page..page + len).filter(|p| *p < pages));
                } else {
                    map.put(page, len % 2 == 0);
                    if page < pages && len % 2 == 0 { naive.insert(page); } else { naive.remove(&page); }
                }
            }
            prop_assert_eq!(map.iter().collect::<Vec<_>>(), naive.iter().copied().collect::<Vec<_>>());
            prop_assert_eq!(map.count(), naive.len() as u64);
            prop_assert!((0..330).all(|p| map.get(p) == naive.contains(&p)));
            prop_assert!(PageBitmap::from_words(pages, map.words().to_vec()).is_ok());
        }
    }

    #[test]
    fn a_bit_beyond_the_end_is_refused_also_when_decoded() {
        assert_eq!(
            PageBitmap::from_words(3, vec![8]),
            Err(BitmapError::Tail(3))
        );
        assert!(PageBitmap::from_words(65, vec![0]).is_err());
        let bytes = postcard::to_allocvec(&(3u64, vec![8u64])).unwrap();
        assert!(postcard::from_bytes::<PageBitmap>(&bytes).is_err());
    }

    #[test]
    fn full_ends_at_the_last_page() {
        assert_eq!(PageBitmap::full(70).count(), 70);
        assert_eq!(PageBitmap::full(64).count(), 64);
    }
}
