//! The difference between two curves of the same accesses.

use std::ops::RangeInclusive;

use super::Curve;

/// The difference of miss ratios over a range of sizes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Number of sizes compared.
    pub sizes: u32,
    /// Mean of the absolute differences, parts of a billion.
    pub mean_ppb: u64,
    /// Largest absolute difference, parts of a billion.
    pub worst_ppb: u64,
    /// Size of the largest difference, pages.
    pub worst_pages: u32,
}

impl Difference {
    /// Compares `curve` with the `exact` one at each of these sizes. A value counts as right if the exact curve has it
    /// within so many per cent of the size to either side: where misses drop at once, a curve may drop a little earlier.
    #[must_use]
    pub fn between(exact: &Curve, curve: &Curve, pages: RangeInclusive<u32>, percent: u32) -> Self {
        let mut difference = Self {
            sizes: 0,
            mean_ppb: 0,
            worst_ppb: 0,
            worst_pages: 0,
        };
        let mut sum = 0_u64;
        for pages in pages {
            let leeway = u64::from(pages) * u64::from(percent) / 100;
            let leeway = u32::try_from(leeway).unwrap_or(u32::MAX);
            let most = exact.miss_ratio_ppb(pages.saturating_sub(leeway));
            let least = exact.miss_ratio_ppb(pages.saturating_add(leeway));
            let ratio = curve.miss_ratio_ppb(pages);
            let off = ratio.abs_diff(ratio.clamp(least, most));
            sum += off;
            difference.sizes += 1;
            if off > difference.worst_ppb {
                difference.worst_ppb = off;
                difference.worst_pages = pages;
            }
        }
        difference.mean_ppb = sum / u64::from(difference.sizes.max(1));
        difference
    }
}

#[cfg(test)]
mod tests {
    use super::super::{CurveSource, Observed, Point};
    use super::*;

    /// All accesses miss below `cliff` pages, a tenth of them from there on.
    fn cliff(cliff: u32) -> Curve {
        let observed = Observed {
            source: CurveSource::Exact,
            page_bytes: 4096,
            accesses: 1000,
            span_ns: 0,
            resolution_pages: 0,
            guess_below_pages: 0,
        };
        let misses = |pages| if pages < cliff { 1000 } else { 100 };
        Curve::of(
            observed,
            (1..=200).map(|pages| Point {
                pages,
                misses: misses(pages),
            }),
        )
    }

    #[test]
    fn a_cliff_may_move_by_the_leeway_and_no_further() {
        let of =
            |pages, percent| Difference::between(&cliff(100), &cliff(pages), 51..=150, percent);
        assert_eq!((of(100, 0).worst_ppb, of(100, 0).sizes), (0, 100));
        let strict = of(104, 0);
        assert_eq!((strict.worst_ppb, strict.worst_pages), (900_000_000, 100));
        assert_eq!(strict.mean_ppb, 36_000_000);
        assert_eq!(of(104, 5).worst_ppb, 0);
        assert_eq!(of(96, 5).worst_ppb, 0);
        assert_eq!(of(110, 5).worst_pages, 105);
    }
}
