//! Distances from a sample of the pages, of a fixed number, chosen by hash.
//!
//! A page is in the sample if its hash is below a threshold; when more pages than allowed are in, the threshold comes
//! down and those above leave. With one page in n sampled, a distance among them stands for n times as long a one, and
//! an access for n. A hot page that is in the sample, or is not, makes the number of accesses wrong: what is off goes to
//! distance 0 (such pages lie at the top), so that the misses of each size are shares of all accesses. Fixed-size
//! SHARDS (Waldspurger and others, FAST 2015, §4) is the model.

use std::collections::BinaryHeap;

use super::{Curve, CurveSource, Observed, Point, Stack};

/// Pages in a sample, unless another number is given.
pub const DEFAULT_SAMPLED_PAGES: u32 = 8192;
/// Hashes are below this.
const HASHES: u64 = 1 << 32;
/// Parts of an access in the histogram: weights are no whole numbers.
const WEIGHT_BITS: u32 = 16;
/// Sampled distances on both sides of a size between which a curve can tell: under so many, it is a guess.
const LEAST_DISTANCE: u64 = 16;

/// A sample of pages and a histogram of its distances, in memory that does not depend on the number of pages.
#[derive(Clone, Debug)]
pub struct Sampled {
    seed: u64,
    most: usize,
    threshold: u64,
    stack: Stack,
    /// Sampled pages by hash, the greatest first.
    pages: BinaryHeap<(u64, u32)>,
    /// Weighted accesses by bucket of distances.
    buckets: Vec<u64>,
    cold: u64,
    accesses: u64,
}

impl Sampled {
    /// An empty sample of at most `pages` pages, at least one; another `seed` chooses other pages.
    #[must_use]
    pub fn new(pages: u32, seed: u64) -> Self {
        Self {
            seed,
            most: pages.max(1) as usize,
            threshold: HASHES,
            stack: Stack::new(),
            pages: BinaryHeap::new(),
            buckets: Vec::new(),
            cold: 0,
            accesses: 0,
        }
    }

    /// Notes an access.
    pub fn access(&mut self, page: u32) {
        self.accesses += 1;
        let hash = hash(page, self.seed);
        if hash >= self.threshold {
            return;
        }
        let weight = (HASHES << WEIGHT_BITS) / self.threshold;
        if let Some(distance) = self.stack.access(page) {
            let bucket = self.bucket(u64::from(distance) * HASHES / self.threshold);
            if bucket >= self.buckets.len() {
                self.buckets.resize(bucket + 1, 0);
            }
            self.buckets[bucket] += weight;
        } else {
            self.cold += weight;
            self.pages.push((hash, page));
            self.leave();
        }
    }

    /// Number of accesses so far, those to other pages among them.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.accesses
    }

    /// Number of pages in the sample.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Whether all pages so far are in the sample: then the curve is exact.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.threshold == HASHES
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.stack.heap_bytes()
            + self.pages.capacity() * size_of::<(u64, u32)>()
            + self.buckets.capacity() * size_of::<u64>()
    }

    /// The curve of all accesses so far.
    #[must_use]
    pub fn curve(&self, page_bytes: u64, span_ns: u64) -> Curve {
        let pages_per_sampled = HASHES.div_ceil(self.threshold);
        let resolution = if self.is_whole() {
            0
        } else {
            pages_per_sampled
        };
        let observed = Observed {
            source: CurveSource::Sampled,
            page_bytes,
            accesses: self.accesses,
            span_ns,
            resolution_pages: saturated(resolution),
            guess_below_pages: saturated(resolution * LEAST_DISTANCE),
        };
        let mut misses = self.cold;
        let mut points = Vec::new();
        if self.buckets.is_empty() {
            points.push((0, misses));
        }
        for (bucket, weight) in self.buckets.iter().enumerate().rev() {
            // A bucket without accesses lies on the line between its neighbours only if it has their misses.
            let next_is_set = self.buckets.get(bucket + 1).is_some_and(|next| *next > 0);
            if *weight > 0 || next_is_set || bucket == 0 {
                points.push((self.longest(bucket), misses));
            }
            misses += weight;
        }
        points.reverse();
        let points = points.into_iter().map(|(longest, misses)| Point {
            pages: saturated(longest + 1),
            misses: (misses + (1 << WEIGHT_BITS >> 1)) >> WEIGHT_BITS,
        });
        Curve::of(observed, points)
    }

    /// Has the page with the greatest hash leave, and all others of that hash, if there are too many.
    fn leave(&mut self) {
        if self.pages.len() <= self.most {
            return;
        }
        let Some((greatest, _)) = self.pages.peek() else {
            return;
        };
        // A threshold of 0 would divide by itself.
        self.threshold = (*greatest).max(1);
        while let Some((hash, page)) = self.pages.peek().copied()
            && hash >= self.threshold
        {
            self.pages.pop();
            self.stack.forget(page);
        }
    }

    /// Distances with a bucket each: all of a whole sample's. Longer ones share a bucket with some as long as
    /// themselves, to this part of their length.
    fn single(&self) -> u64 {
        (self.most as u64).next_power_of_two().max(2)
    }

    fn bucket(&self, distance: u64) -> usize {
        let single = self.single();
        if distance < single {
            return usize::try_from(distance).unwrap_or(usize::MAX);
        }
        let doublings = distance.ilog2() - single.ilog2() + 1;
        let within = (distance >> doublings) - single / 2;
        usize::try_from(single + u64::from(doublings - 1) * (single / 2) + within)
            .unwrap_or(usize::MAX)
    }

    /// The longest distance of a bucket.
    fn longest(&self, bucket: usize) -> u64 {
        let (single, bucket) = (self.single(), bucket as u64);
        if bucket < single {
            return bucket;
        }
        let (doublings, within) = (
            (bucket - single) / (single / 2) + 1,
            (bucket - single) % (single / 2),
        );
        ((within + single / 2 + 1) << doublings) - 1
    }
}

/// The number, or the largest that fits.
fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// The upper half of a mix of page and seed (the finisher of splitmix64, Steele and others, OOPSLA 2014).
fn hash(page: u32, seed: u64) -> u64 {
    let mut mixed = seed
        .wrapping_mul(0xd129_0d3a_5ce3_8f4d)
        .wrapping_add(u64::from(page))
        .wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (mixed ^ mixed >> 31) >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demand::Distances;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_whole_sample_is_exact(accesses in prop::collection::vec(0..600_u32, 1..4_000), seed in any::<u64>()) {
            let (mut sampled, mut stack, mut distances) = (Sampled::new(600, seed), Stack::new(), Distances::new());
            for page in accesses {
                sampled.access(page);
                distances.add(stack.access(page));
            }
            prop_assert!(sampled.is_whole());
            let curve = sampled.curve(4096, 0);
            for pages in 1..=601 {
                prop_assert_eq!(curve.misses(pages), distances.misses(pages), "{} pages", pages);
            }
        }

        #[test]
        fn buckets_hold_the_distances_up_to_their_longest(distance in 0..u64::from(u32::MAX), most in 1..20_000_u32) {
            let sampled = Sampled::new(most, 0);
            let bucket = sampled.bucket(distance);
            let longest = sampled.longest(bucket);
            prop_assert!(distance <= longest && (longest - distance) * sampled.single() <= 2 * longest);
            prop_assert_eq!(sampled.bucket(longest), bucket);
            prop_assert_eq!(sampled.bucket(longest + 1), bucket + 1);
        }
    }

    #[test]
    fn memory_does_not_grow_with_the_pages() {
        let mut sampled = Sampled::new(256, 7);
        for page in 0..1_000_000 {
            sampled.access(page % 250_000);
        }
        assert!(sampled.pages() <= 256 && !sampled.is_whole());
        assert!(sampled.heap_bytes() < 100_000, "{}", sampled.heap_bytes());
        let curve = sampled.curve(4096, 0);
        assert!(curve.resolution_pages > 900 && curve.is_guess(10_000));
        // A sweep hits nothing until all of it fits.
        let ratios = [100_000, 300_000].map(|pages| curve.miss_ratio_ppb(pages) / 10_000_000);
        assert!(
            ratios[0] >= 95 && (20..=30).contains(&ratios[1]),
            "{ratios:?}"
        );
    }
}
