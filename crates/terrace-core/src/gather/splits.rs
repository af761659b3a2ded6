//! Larger pages of the guest itself, split to see which of their parts are hot.

use std::collections::{BTreeMap, BTreeSet};

use super::plan::Cl;
use super::skew::BLOCK_PAGES;

/// A process's virtual page of 2 MiB: the process's number, and the address by 2 MiB.
pub type LargePage = (u32, u64);

/// Larger pages that were split, and those that are to stay whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Splits {
    split: BTreeSet<LargePage>,
    /// Most of these were hot, once it could be seen.
    dense: BTreeSet<LargePage>,
}

impl Splits {
    /// Chooses so many hot larger pages at most, spread evenly over all. Those that turned out dense are left out.
    #[must_use]
    pub fn choose(&self, hot: &[LargePage], most: usize) -> Vec<LargePage> {
        let open: Vec<LargePage> = hot
            .iter()
            .copied()
            .filter(|page| !self.dense.contains(page))
            .collect();
        let take = most.min(open.len());
        (0..take).map(|at| open[at * open.len() / take]).collect()
    }

    /// Takes in that a page was split.
    pub fn split(&mut self, page: LargePage) {
        self.split.insert(page);
    }

    /// The split pages with too many hot parts for this limit, by the hot base pages of each process (ascending numbers). They are
    /// to be made whole again, and stay so. To be asked once the parts of what was split were watched.
    pub fn join(&mut self, hot: &BTreeMap<u32, Vec<u64>>, cl: Cl) -> Vec<LargePage> {
        let by = u64::from(BLOCK_PAGES);
        let parts = |(pid, block): &LargePage| {
            let pages = hot.get(pid).map_or(&[][..], Vec::as_slice);
            let below = |page: u64| pages.partition_point(|at| *at < page);
            below((block + 1).saturating_mul(by)) - below(block * by)
        };
        let is_dense = |page: &LargePage| parts(page) > usize::from(cl.most());
        let dense: Vec<LargePage> = self
            .split
            .iter()
            .filter(|page| is_dense(page))
            .copied()
            .collect();
        for page in &dense {
            self.split.remove(page);
            self.dense.insert(*page);
        }
        dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_spread_over_all() {
        let splits = Splits::default();
        let hot: Vec<LargePage> = (0..10).map(|block| (7, block)).collect();
        let chosen = |most| -> Vec<u64> {
            let chosen = splits.choose(&hot, most);
            chosen.into_iter().map(|(_, block)| block).collect()
        };
        assert_eq!(chosen(3), [0, 3, 6]);
        assert_eq!(chosen(100).len(), 10);
        assert_eq!(chosen(0), [0; 0]);
        assert_eq!(splits.choose(&[], 3), []);
    }

    #[test]
    fn dense_pages_are_made_whole_again_and_stay_so() {
        let mut splits = Splits::default();
        splits.split((7, 2));
        splits.split((7, 3));
        splits.split((8, 2));
        let mut pages: Vec<u64> = (1024..1024 + 257).collect();
        pages.extend(1536..1536 + 256);
        let hot = [(7, pages)].into();
        let cl = Cl::Auto { gain: 1 };
        assert_eq!(splits.join(&hot, cl), [(7, 2)]);
        assert_eq!(splits.join(&hot, cl), []);
        assert_eq!(splits.choose(&[(7, 2), (7, 4)], 9), [(7, 4)]);
        assert_eq!(splits.join(&hot, Cl::Below(10)), [(7, 3)]);
    }
}
