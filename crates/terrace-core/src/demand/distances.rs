//! A histogram of distances.

use serde::{Deserialize, Serialize};

/// Number of accesses at each distance, and of cold misses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distances {
    counts: Vec<u64>,
    reuses: u64,
    cold: u64,
}

impl Distances {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an access as [`Stack::access`](super::Stack::access) returned it; `None` is a cold miss.
    pub fn add(&mut self, distance: Option<u32>) {
        match distance {
            Some(distance) => self.add_many(distance, 1),
            None => self.cold += 1,
        }
    }

    /// Adds so many accesses of a distance.
    pub fn add_many(&mut self, distance: u32, count: u64) {
        let at = distance as usize;
        if at >= self.counts.len() {
            if count == 0 {
                return;
            }
            self.counts.resize(at + 1, 0);
        }
        self.counts[at] += count;
        self.reuses += count;
    }

    /// Adds so many cold misses.
    pub fn add_cold(&mut self, count: u64) {
        self.cold += count;
    }

    /// Halves all counts, rounded down.
    pub fn halve(&mut self) {
        self.counts.iter_mut().for_each(|count| *count /= 2);
        self.reuses = self.counts.iter().sum();
        self.cold /= 2;
    }

    /// Adds another histogram.
    pub fn merge(&mut self, other: &Self) {
        for (distance, count) in (0..).zip(&other.counts) {
            self.add_many(distance, *count);
        }
        self.cold += other.cold;
    }

    /// Empties it; its memory is kept for the next interval.
    pub fn clear(&mut self) {
        self.counts.clear();
        self.reuses = 0;
        self.cold = 0;
    }

    /// Number of cold misses: of pages, unless some were forgotten.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.cold
    }

    /// Number of accesses that are no cold misses.
    #[must_use]
    pub fn reuses(&self) -> u64 {
        self.reuses
    }

    /// Number of accesses.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.reuses + self.cold
    }

    /// Number of accesses of one distance.
    #[must_use]
    pub fn count(&self, distance: u32) -> u64 {
        self.counts.get(distance as usize).copied().unwrap_or(0)
    }

    /// The longest distance; `None` without reuses.
    #[must_use]
    pub fn longest(&self) -> Option<u32> {
        let last = self.counts.iter().rposition(|count| *count > 0)?;
        u32::try_from(last).ok()
    }

    /// The shortest distance that at least so many per mille of the reuses do not exceed; `None` without reuses. A
    /// memory that shall hit them has one page more.
    #[must_use]
    pub fn within(&self, per_mille: u32) -> Option<u32> {
        let wanted = (u128::from(self.reuses) * u128::from(per_mille)).div_ceil(1000);
        let mut seen = 0;
        let covered = |count: &u64| {
            seen += u128::from(*count);
            seen >= wanted && seen > 0
        };
        let at = self.counts.iter().position(covered)?;
        u32::try_from(at).ok()
    }

    /// Number of misses of a memory of so many pages: distances as long as that and longer, and cold misses.
    #[must_use]
    pub fn misses(&self, pages: u32) -> u64 {
        let long = self.counts.iter().skip(pages as usize);
        long.sum::<u64>() + self.cold
    }

    /// Misses at 1, 2, … pages, until only cold ones are left.
    pub(super) fn all_misses(&self) -> Vec<u64> {
        let mut misses = self.cold;
        let mut all: Vec<u64> = Vec::with_capacity(self.counts.len().max(1));
        if self.counts.is_empty() {
            all.push(misses);
        }
        for count in self.counts.iter().rev() {
            all.push(misses);
            misses += count;
        }
        all.reverse();
        all
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.counts.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misses_are_long_distances_and_cold_ones() {
        let mut distances = Distances::new();
        for distance in [None, None, None, Some(0), Some(1), Some(1), Some(4)] {
            distances.add(distance);
        }
        let misses: Vec<u64> = (0..7).map(|pages| distances.misses(pages)).collect();
        assert_eq!(misses, [7, 6, 4, 4, 4, 3, 3]);
        assert_eq!(distances.all_misses(), [6, 4, 4, 4, 3]);
        assert_eq!((distances.total(), distances.longest()), (7, Some(4)));
        assert_eq!(Distances::new().all_misses(), [0]);
    }

    #[test]
    fn a_share_of_the_reuses_lies_within_a_distance() {
        let mut distances = Distances::new();
        assert_eq!(distances.within(950), None);
        distances.add(None);
        distances.add_many(3, 95);
        distances.add_many(100, 4);
        distances.add_many(5000, 1);
        let within = [0, 1, 950, 951, 990, 991, 1000].map(|share| distances.within(share));
        assert_eq!(within, [3, 3, 3, 100, 100, 5000, 5000].map(Some));
    }

    #[test]
    fn merging_adds_and_clearing_empties() {
        let mut one = Distances::new();
        one.add(None);
        one.add_many(7, 2);
        let mut both = one.clone();
        both.merge(&one);
        assert_eq!((both.cold(), both.count(7), both.reuses()), (2, 4, 4));
        both.clear();
        assert_eq!(both, Distances::new());
    }
}
