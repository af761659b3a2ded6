//! A seeded choice of pages: single ones scattered over the region, or one run.

/// Marsaglia's xorshift64: enough to scatter pages, and the same on every run.
pub struct Xorshift(u64);

impl Xorshift {
    /// A generator that gives the same numbers for the same seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // An odd multiplier keeps different seeds different; the state must not be zero.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// A number below `end`, which must not be 0.
    pub fn below(&mut self, end: usize) -> usize {
        // The result is smaller than `end`, which is a `usize`.
        usize::try_from(self.next() % end as u64).unwrap_or(0)
    }
}

/// The layout of the hot pages in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Single pages all over it.
    Scattered,
    /// One run of neighbours.
    Clustered,
    /// As many in each 2 MiB of the region's first part.
    Sparse {
        /// So many.
        each: usize,
    },
}

/// Pages of 2 MiB.
const BLOCK_PAGES: usize = 512;

/// `wanted` different page numbers below `pages`.
#[must_use]
pub fn choose(pages: usize, wanted: usize, seed: u64, layout: Layout) -> Vec<u32> {
    match layout {
        Layout::Scattered => scattered(pages, wanted, seed),
        Layout::Clustered => clustered(pages, wanted, seed),
        Layout::Sparse { each } => sparse(pages, wanted, seed, each.clamp(1, BLOCK_PAGES)),
    }
}

/// `wanted` page numbers in a row, the first of which may be any that leaves room for all.
fn clustered(pages: usize, wanted: usize, seed: u64) -> Vec<u32> {
    let wanted = wanted.min(pages);
    scattered(pages - wanted + 1, 1, seed)
        .into_iter()
        .flat_map(|first| (first..).take(wanted))
        .collect()
}

/// `each` pages of each block, until there are enough.
fn sparse(pages: usize, wanted: usize, seed: u64, each: usize) -> Vec<u32> {
    let blocks = (0..pages / BLOCK_PAGES).zip(seed..);
    let all = blocks.flat_map(|(block, seed)| {
        let first = u32::try_from(block * BLOCK_PAGES).unwrap_or(0);
        let inside = scattered(BLOCK_PAGES, each, seed).into_iter();
        inside.map(move |page| first + page)
    });
    all.take(wanted).collect()
}

/// `wanted` page numbers in the order in which they were drawn.
fn scattered(pages: usize, wanted: usize, seed: u64) -> Vec<u32> {
    let mut random = Xorshift::new(seed);
    let mut taken = vec![false; pages];
    let mut chosen = Vec::with_capacity(wanted);
    while chosen.len() < wanted.min(pages) {
        let drawn = random.next() % pages as u64;
        let (Ok(page), Ok(index)) = (u32::try_from(drawn), usize::try_from(drawn)) else {
            continue;
        };
        if !taken[index] {
            taken[index] = true;
            chosen.push(page);
        }
    }
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_set_is_scattered_and_depends_on_the_seed_alone() {
        let choose = |seed| choose(10_000, 1_000, seed, Layout::Scattered);
        let mut first = choose(1);
        assert_eq!(first, choose(1));
        assert_ne!(first, choose(2));
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 1_000);
        let neighbours = first.windows(2).filter(|w| w[0] + 1 == w[1]).count();
        assert!(neighbours < 200, "{neighbours} neighbours in 1000");
    }

    #[test]
    fn a_sparse_hot_set_has_as_many_pages_in_each_block() {
        let chosen = choose(10 * 512, 24, 3, Layout::Sparse { each: 4 });
        let of = |block: u32| chosen.iter().filter(|page| **page / 512 == block).count();
        assert_eq!(
            (0..10).map(of).collect::<Vec<_>>(),
            [4, 4, 4, 4, 4, 4, 0, 0, 0, 0]
        );
        assert_eq!(choose(512, 9, 3, Layout::Sparse { each: 4 }).len(), 4);
    }

    #[test]
    fn a_clustered_hot_set_is_one_run_inside_the_region() {
        for seed in 0..100 {
            let run = choose(100, 10, seed, Layout::Clustered);
            assert_eq!(run.len(), 10);
            assert!(run.windows(2).all(|w| w[0] + 1 == w[1]) && run[9] < 100);
        }
        let all = choose(8, 10, 1, Layout::Clustered);
        assert_eq!(all, (0..8).collect::<Vec<_>>());
    }
}
