//! A seeded choice of single pages, scattered over the region.

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
}
