//! Regions of a node's physical memory, whose pages are taken to be accessed alike (mm/damon/core.c).
//!
//! A region is sampled by one page. Neighbours whose counts differ by little are merged after each aggregation
//! (`kdamond_merge_regions`), and every region is then split at random (`kdamond_split_regions`), so that what differs
//! within one is found.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use crate::base::number::{index, low, multiply_high};

/// Part of the highest count by which those of neighbours may differ to be merged (`kdamond_fn`): a tenth.
const MERGE_PART: u32 = 10;

/// A region of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Region {
    pub start: u32,
    pub end: u32,
    /// The frame that is sampled.
    pub sampled: u32,
    /// Samples of this aggregation that were accessed (`nr_accesses`), and of the last one.
    pub accesses: u32,
    pub last: u32,
    /// Aggregations for which the count has hardly changed.
    pub age: u32,
}

impl Region {
    pub(super) fn len(&self) -> u32 {
        self.end - self.start
    }

    /// Merges the region behind this one into it (`damon_merge_two_regions`): means by size.
    fn merge(&mut self, right: Self) {
        let (a, b) = (u64::from(self.len()), u64::from(right.len()));
        let mean = |x: u32, y: u32| low((u64::from(x) * a + u64::from(y) * b) / (a + b));
        self.accesses = mean(self.accesses, right.accesses);
        self.age = mean(self.age, right.age);
        self.end = right.end;
    }
}

/// The regions of a node, in the order of addresses, without gaps.
#[derive(Debug)]
pub(super) struct Regions {
    all: Vec<Region>,
    most: u32,
    /// Largest region: with it, there are as many as the least number.
    largest: u32,
    /// Number of regions when they were last split.
    last_split: usize,
}

impl Regions {
    /// One region over all frames; `least` and `most` regions are aimed at (`damon_region_sz_limit`).
    pub(super) fn new(frames: u32, (least, most): (u32, u32)) -> Self {
        let whole = Region {
            end: frames,
            ..Region::default()
        };
        Self {
            all: if frames > 0 { vec![whole] } else { Vec::new() },
            most,
            largest: (frames / least.max(1)).max(1),
            last_split: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Region> {
        self.all.iter()
    }

    /// Chooses a frame of each region, and reports it.
    pub(super) fn prepare(
        &mut self,
        random: &mut Xoshiro256PlusPlus,
        mut make_old: impl FnMut(u32),
    ) {
        for region in &mut self.all {
            region.sampled = region.start + below(random, region.len());
            make_old(region.sampled);
        }
    }

    /// Counts the regions whose sampled frame was accessed.
    pub(super) fn check(&mut self, mut is_accessed: impl FnMut(u32) -> bool) {
        for region in &mut self.all {
            region.accesses += u32::from(is_accessed(region.sampled));
        }
    }

    /// Ages the regions, and merges neighbours of similar counts (`damon_merge_regions_of`); if there are still too many,
    /// of less similar ones. `samples`: the highest count.
    pub(super) fn merge(&mut self, samples: u32) {
        let highest = self.all.iter().map(|region| region.accesses).max();
        let mut threshold = highest.unwrap_or(0) / MERGE_PART;
        loop {
            self.merge_similar(threshold);
            threshold = (threshold * 2).max(1);
            if self.all.len() as u64 <= u64::from(self.most) || threshold / 2 >= samples {
                return;
            }
        }
    }

    fn merge_similar(&mut self, threshold: u32) {
        let mut merged: Vec<Region> = Vec::with_capacity(self.all.len());
        for mut region in self.all.drain(..) {
            region.age = if region.accesses.abs_diff(region.last) > threshold {
                0
            } else {
                region.age + 1
            };
            match merged.last_mut() {
                Some(before)
                    if before.accesses.abs_diff(region.accesses) <= threshold
                        && before.len() + region.len() <= self.largest =>
                {
                    before.merge(region);
                }
                _ => merged.push(region),
            }
        }
        self.all = merged;
    }

    /// Begins an aggregation (`kdamond_reset_aggregated`).
    pub(super) fn reset(&mut self) {
        for region in &mut self.all {
            region.last = std::mem::take(&mut region.accesses);
        }
    }

    /// Splits every region into two, as long as there are less than half of the most; into three, if there are as few as
    /// the last time (`kdamond_split_regions`).
    pub(super) fn split(&mut self, random: &mut Xoshiro256PlusPlus) {
        let (regions, most) = (self.all.len(), index(self.most));
        if regions > most / 2 {
            return;
        }
        let parts = if self.last_split == regions && regions < most / 3 {
            3
        } else {
            2
        };
        let mut split = Vec::with_capacity(regions * parts);
        for region in self.all.drain(..) {
            let at = split.len();
            let mut left = region;
            for _ in 1..parts {
                if left.len() <= 2 {
                    break;
                }
                // 10 to 90 percent.
                let tenths = u64::from(1 + below(random, 9));
                let size = low(tenths * u64::from(left.len()) / 10);
                if size == 0 {
                    continue;
                }
                let middle = left.start + size;
                split.insert(
                    at,
                    Region {
                        start: middle,
                        ..left
                    },
                );
                left.end = middle;
            }
            split.insert(at, left);
        }
        self.all = split;
        self.last_split = regions;
    }

    /// Splits a region so that its first part has so many frames; returns whether there is a second one.
    pub(super) fn split_at(&mut self, at: usize, frames: u32) -> bool {
        let region = self.all[at];
        if frames == 0 || frames >= region.len() {
            return false;
        }
        let middle = region.start + frames;
        self.all[at].end = middle;
        self.all.insert(
            at + 1,
            Region {
                start: middle,
                ..region
            },
        );
        true
    }

    pub(super) fn get(&self, at: usize) -> Option<Region> {
        self.all.get(at).copied()
    }

    /// Notes that a scheme was applied to a region.
    pub(super) fn applied(&mut self, at: usize) {
        self.all[at].age = 0;
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Region>()
    }
}

/// A number below `end`.
fn below(random: &mut Xoshiro256PlusPlus, end: u32) -> u32 {
    low(multiply_high(random.next_u64(), u64::from(end)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::random::{Purpose, stream};

    fn random() -> Xoshiro256PlusPlus {
        stream(1, "a", 0, Purpose::Monitoring)
    }

    fn covers(regions: &Regions) {
        let mut end = 0;
        for region in regions.iter() {
            assert_eq!(region.start, end);
            assert!(region.end > region.start);
            end = region.end;
        }
        assert_eq!(end, 10_000);
    }

    #[test]
    fn splits_and_merges_leave_no_gap_and_keep_the_bounds() {
        let (mut regions, mut random) = (Regions::new(10_000, (10, 100)), random());
        for round in 0..200 {
            for _ in 0..20 {
                regions.prepare(&mut random, |_| {});
                // A hot part of 500 frames.
                regions.check(|frame| (4000..4500).contains(&frame));
            }
            regions.merge(20);
            covers(&regions);
            assert!(round < 20 || regions.len() >= 10, "{}", regions.len());
            regions.reset();
            regions.split(&mut random);
            covers(&regions);
            assert!(regions.len() <= 150, "{}", regions.len());
        }
    }

    #[test]
    fn a_hot_part_gets_a_region_of_its_own_and_grows_old() {
        let (mut regions, mut random) = (Regions::new(10_000, (10, 100)), random());
        for _ in 0..100 {
            regions.reset();
            regions.split(&mut random);
            for _ in 0..20 {
                regions.prepare(&mut random, |_| {});
                regions.check(|frame| (4000..4500).contains(&frame));
            }
            regions.merge(20);
        }
        let hot: u32 = regions
            .iter()
            .filter(|region| region.accesses >= 15)
            .map(|region| {
                assert!(region.start >= 3900 && region.end <= 4600, "{region:?}");
                region.len()
            })
            .sum();
        assert!((400..600).contains(&hot), "{hot}");
        assert!(regions.iter().any(|r| r.accesses == 0 && r.age > 50));
    }

    #[test]
    fn merged_regions_have_the_mean_by_size() {
        let region = |start, end, accesses, age| Region {
            start,
            end,
            accesses,
            last: accesses,
            age,
            ..Region::default()
        };
        let mut regions = Regions::new(100, (1, 10));
        regions.all = vec![
            region(0, 75, 20, 4),
            region(75, 100, 18, 8),
            region(100, 101, 3, 2),
        ];
        regions.merge(20);
        let merged: Vec<_> = regions.iter().map(|r| (r.end, r.accesses, r.age)).collect();
        assert_eq!(merged, [(100, 19, 6), (101, 3, 3)]);
    }
}
