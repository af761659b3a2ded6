//! A compact histogram of the times of operations.

use super::PS;
use crate::base::number::{float, to_usize};

/// Bits stored after the leading one: the error is at most 1/32 of a value.
const BITS: u32 = 5;

/// Counts of times by size, exact to about 3 %.
#[derive(Clone, Debug)]
pub struct Histogram {
    counts: Vec<u64>,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: vec![0; to_usize(bucket(u64::MAX)) + 1],
        }
    }
}

#[inline]
fn bucket(ps: u64) -> u64 {
    let ps = ps.max(1 << BITS);
    let shift = ps.ilog2() - BITS;
    u64::from(shift) << BITS | ps >> shift & ((1 << BITS) - 1)
}

/// The middle of a bucket, ps.
fn middle(bucket: u64) -> f64 {
    let shift = bucket >> BITS;
    let low = (bucket & ((1 << BITS) - 1) | 1 << BITS) << shift;
    float(low) + float((1_u64 << shift) - 1) / 2.0
}

impl Histogram {
    /// Counts one time, ps.
    #[inline]
    pub fn add(&mut self, ps: u64) {
        self.counts[to_usize(bucket(ps))] += 1;
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Self) {
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    /// The time that a share of all times does not exceed, ns; 0 if there are no times.
    #[must_use]
    pub fn quantile_ns(&self, share: f64) -> f64 {
        let rank = share * float(self.counts.iter().sum());
        let mut seen = 0;
        for (at, count) in (0_u64..).zip(&self.counts) {
            seen += count;
            if *count > 0 && float(seen) >= rank {
                return middle(at) / float(PS);
            }
        }
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_3_percent_of_sorted_times() {
        let mut times: Vec<u64> = (0..5000_u64)
            .map(|i| 50 + crate::base::random::mix(i) % (1 << (10 + i % 20)))
            .collect();
        let mut histogram = Histogram::default();
        times.iter().for_each(|t| histogram.add(*t));
        times.sort_unstable();
        for share in [0.01, 0.5, 0.9, 0.99] {
            let exact = times[to_usize(crate::base::number::whole(share * 5000.0)) - 1];
            let found = histogram.quantile_ns(share) * 1000.0;
            let off = (found / float(exact) - 1.0).abs();
            assert!(off < 0.032, "{share}: {found} for {exact}");
        }
        assert!(Histogram::default().quantile_ns(0.5).abs() < 1e-9);
    }
}
