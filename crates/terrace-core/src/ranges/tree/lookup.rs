//! An index of leaves by page: the leaves' first pages once more, in the order in which a search asks for them.
//!
//! The keys are a perfect binary tree, level by level from the middle one on. The first levels, which each
//! search reads, then share a few cache lines, and a step is one load, one comparison and no branch.

/// First pages of the leaves, as a search reads them.
#[derive(Clone, Debug, Default)]
pub(super) struct Lookup {
    /// Key k is followed by 2k if it is beyond the page and by 2k + 1 if not; key 0 is none.
    keys: Vec<u64>,
    levels: u32,
}

impl Lookup {
    /// Over first pages in ascending order.
    pub(super) fn new(starts: &[u64]) -> Self {
        let levels = usize::BITS - starts.len().leading_zeros();
        let len = 1_usize << levels;
        let mut keys = vec![u64::MAX; len];
        // The keys of a level stand at odd multiples of its step.
        for level in 0..levels {
            let step = len >> (level + 1);
            let row = &mut keys[1 << level..2 << level];
            for (key, start) in row
                .iter_mut()
                .zip(starts.iter().skip(step - 1).step_by(2 * step))
            {
                *key = *start;
            }
        }
        Self { keys, levels }
    }

    /// How many of the first pages are at most `page`; for the last page of all, at least so many.
    #[inline]
    pub(super) fn upto(&self, page: u64) -> usize {
        let step = |k: usize| match self.keys.get(k) {
            Some(key) => 2 * k + usize::from(*key <= page),
            None => k,
        };
        let mut k = 1;
        // By fours: a loop's end that is foreseen wrongly costs as much as half of the steps.
        for _ in 0..self.levels / 4 {
            k = step(step(step(step(k))));
        }
        for _ in 0..self.levels % 4 {
            k = step(k);
        }
        k.saturating_sub(1 << self.levels)
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.keys.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::Lookup;

    #[test]
    fn nothing_is_found_where_nothing_is() {
        assert_eq!(Lookup::new(&[]).upto(7), 0);
        assert_eq!(Lookup::default().upto(7), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn a_search_finds_what_counting_does(
            starts in prop::collection::btree_set(0_u64..500, 0..70),
            pages in prop::collection::vec(0_u64..500, 1..20),
        ) {
            let starts: Vec<u64> = starts.into_iter().collect();
            let lookup = Lookup::new(&starts);
            for page in pages {
                let naive = starts.iter().filter(|start| **start <= page).count();
                prop_assert_eq!(lookup.upto(page), naive);
            }
        }
    }
}
