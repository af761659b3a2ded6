//! The blocks that are worth emptying.

use std::collections::BTreeSet;

use super::skew::{BLOCK_PAGES, Skew};

/// Limit of hot pages below which a block is emptied (GPAC §4.2: the consolidation limit, CL).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cl {
    /// As many as still free so many pages for each that is copied, at least.
    Auto {
        /// Pages freed for each that is copied.
        gain: u16,
    },
    /// Fewer than so many; the paper's are 10 to 290.
    Below(u16),
}

/// Limits of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Hot pages of a block.
    pub cl: Cl,
    /// Pages that may be copied.
    pub pages: u64,
    /// Free pages in the blocks that take them.
    pub room: u64,
}

/// The blocks to empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Numbers of the blocks, those with the fewest hot pages first.
    pub blocks: Vec<u64>,
    /// The hot pages in them.
    pub pages: u64,
    /// Each block has fewer hot pages than this; 0 for a plan without a block.
    pub cl: u16,
}

impl Plan {
    /// Chooses blocks: those first that free the most pages for each that is copied, (512 − k)/k for k hot pages. Blocks
    /// that rest are left out. A plan that frees no block more than it fills is empty.
    #[must_use]
    pub fn new(skew: &Skew, resting: &BTreeSet<u64>, limits: Limits) -> Self {
        let most = limits.cl.most();
        // By number of hot pages, each in the order of addresses: no sort of what may be many.
        let mut by_count: Vec<Vec<u64>> = vec![Vec::new(); usize::from(most) + 1];
        for (block, hot) in skew.scattered() {
            if hot <= most && !resting.contains(&block) {
                by_count[usize::from(hot)].push(block);
            }
        }
        let mut left = limits.pages.min(limits.room);
        let mut plan = Self::default();
        for (hot, blocks) in (0_u16..).zip(by_count).skip(1) {
            let fits = usize::try_from(left / u64::from(hot)).unwrap_or(usize::MAX);
            let taken = fits.min(blocks.len());
            if taken > 0 {
                let pages = taken as u64 * u64::from(hot);
                left -= pages;
                plan.pages += pages;
                plan.cl = hot + 1;
                plan.blocks.extend(&blocks[..taken]);
            }
            if taken < blocks.len() {
                break;
            }
        }
        if plan.freed() == 0 {
            Self::default()
        } else {
            plan
        }
    }

    /// Blocks that are without a hot page afterwards, less those that are filled.
    #[must_use]
    pub fn freed(&self) -> u64 {
        let filled = self.pages.div_ceil(BLOCK_PAGES.into());
        (self.blocks.len() as u64).saturating_sub(filled)
    }
}

impl Cl {
    /// Most hot pages of a block that is emptied.
    pub(super) fn most(self) -> u16 {
        match self {
            // (512 - k) / k >= gain
            Self::Auto { gain } => BLOCK_PAGES / gain.saturating_add(1),
            Self::Below(cl) => cl.saturating_sub(1).min(BLOCK_PAGES),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    const PLENTY: Limits = Limits {
        cl: Cl::Auto { gain: 1 },
        pages: u64::MAX,
        room: u64::MAX,
    };

    /// Blocks with so many hot pages.
    fn skew(hot: &[u16]) -> Skew {
        let mut skew = Skew::new(hot.len() as u64 * 512);
        for (block, hot) in (0..).zip(hot) {
            (0..u64::from(*hot)).for_each(|page| skew.count(block * 512 + page, true));
        }
        skew
    }

    fn plan(hot: &[u16], limits: Limits) -> Plan {
        Plan::new(&skew(hot), &BTreeSet::new(), limits)
    }

    #[test]
    fn the_sparsest_blocks_come_first_and_dense_ones_stay() {
        let plan = plan(&[4, 0, 300, 1, 256, 257, 4], PLENTY);
        assert_eq!(plan.blocks, [3, 0, 6, 4]);
        assert_eq!((plan.pages, plan.cl, plan.freed()), (265, 257, 3));
    }

    #[test]
    fn budget_and_room_end_a_plan() {
        let hot = [2; 100];
        let few = |pages, room| {
            plan(
                &hot,
                Limits {
                    pages,
                    room,
                    ..PLENTY
                },
            )
            .pages
        };
        assert_eq!((few(9, 512), few(512, 9), few(1, 512)), (8, 8, 0));
    }

    #[test]
    fn what_fills_as_many_blocks_as_it_frees_is_not_done() {
        assert_eq!(plan(&[256, 256], PLENTY).freed(), 1);
        assert_eq!(plan(&[7], PLENTY), Plan::default());
        let all = [512; 20];
        assert_eq!(plan(&all, PLENTY), Plan::default(), "all memory is hot");
    }

    #[test]
    fn the_papers_limit_leaves_out_blocks_with_as_many_pages() {
        let below = |cl| Limits {
            cl: Cl::Below(cl),
            ..PLENTY
        };
        assert_eq!(plan(&[9, 9, 10, 10], below(10)).blocks, [0, 1]);
        assert_eq!(plan(&[9, 9], below(0)), Plan::default());
        assert_eq!(plan(&[400, 400], below(u16::MAX)), Plan::default());
        assert_eq!(plan(&[400, 400, 100], below(u16::MAX)).freed(), 1);
    }

    /// The plan in plain words: all that qualifies, sorted, taken while it fits.
    fn naive(hot: &BTreeMap<u64, (u64, bool)>, resting: &BTreeSet<u64>, limits: Limits) -> Plan {
        let mut all: Vec<(u64, u64)> = hot
            .iter()
            .filter(|(block, (_, movable))| *movable && !resting.contains(block))
            .map(|(block, (hot, _))| (*hot, *block))
            .filter(|(hot, _)| match limits.cl {
                Cl::Auto { gain } => 512 - hot >= u64::from(gain) * hot,
                Cl::Below(cl) => *hot < u64::from(cl),
            })
            .collect();
        all.sort_unstable();
        let mut plan = Plan::default();
        for (hot, block) in all {
            if plan.pages + hot > limits.pages.min(limits.room) {
                break;
            }
            plan.pages += hot;
            plan.blocks.push(block);
            plan.cl = u16::try_from(hot).unwrap() + 1;
        }
        match plan.blocks.len() as u64 > plan.pages.div_ceil(512) {
            true => plan,
            false => Plan::default(),
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn the_plan_is_that_of_the_naive_filter(
            hot in proptest::collection::vec((0_u64..64, 1_u64..=512, proptest::bool::weighted(0.9)), 0..64),
            resting in proptest::collection::btree_set(0_u64..64, 0..8),
            auto in any::<bool>(),
            limit in 0_u16..400,
            pages in 0_u64..6000,
            room in 0_u64..6000,
        ) {
            let cl = if auto { Cl::Auto { gain: limit % 40 } } else { Cl::Below(limit) };
            let limits = Limits { cl, pages, room };
            let blocks: BTreeMap<u64, (u64, bool)> =
                hot.iter().map(|(block, hot, movable)| (*block, (*hot, *movable))).collect();
            let mut skew = Skew::new(64 * 512);
            for (block, (hot, movable)) in &blocks {
                (0..*hot).for_each(|page| skew.count(block * 512 + page, *movable || page > 0));
            }
            prop_assert_eq!(Plan::new(&skew, &resting, limits), naive(&blocks, &resting, limits));
        }
    }
}
