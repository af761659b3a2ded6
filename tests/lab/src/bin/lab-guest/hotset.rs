//! A seeded choice of single pages, scattered over the region, or of one run of them.

/// Marsaglia's xorshift64: enough to scatter pages, and the same on every run.
struct Xorshift(u64);

impl Xorshift {
    fn new(seed: u64) -> Self {
        // An odd multiplier keeps different seeds different; the state must not be zero.
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// `wanted` different page numbers below `pages`, in the order they were drawn.
pub fn choose(pages: usize, wanted: usize, seed: u64) -> Vec<u32> {
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

/// `wanted` page numbers below `pages` that follow each other.
pub fn choose_run(pages: usize, wanted: usize, seed: u64) -> Vec<u32> {
    let last_start = pages.saturating_sub(wanted) as u64;
    let start = Xorshift::new(seed).next() % (last_start + 1);
    (start..)
        .take(wanted.min(pages))
        .filter_map(|page| u32::try_from(page).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hot_set_is_scattered_and_depends_on_the_seed_alone() {
        let mut first = choose(10_000, 1_000, 1);
        assert_eq!(first, choose(10_000, 1_000, 1));
        assert_ne!(first, choose(10_000, 1_000, 2));
        first.sort_unstable();
        first.dedup();
        assert_eq!(first.len(), 1_000);
        let neighbours = first.windows(2).filter(|w| w[0] + 1 == w[1]).count();
        assert!(neighbours < 200, "{neighbours} neighbours in 1000");
    }

    #[test]
    fn a_run_lies_in_the_region_and_depends_on_the_seed() {
        let run = choose_run(10_000, 1_000, 1);
        assert!(run.windows(2).all(|w| w[0] + 1 == w[1]));
        assert!(run.len() == 1_000 && run[999] < 10_000);
        assert_ne!(run, choose_run(10_000, 1_000, 2));
        assert_eq!(choose_run(3, 9, 1), [0, 1, 2]);
    }
}
