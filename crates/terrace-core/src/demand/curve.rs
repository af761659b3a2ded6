//! The miss-ratio curve: the misses of each size of memory.

use std::collections::BinaryHeap;

use serde::{Deserialize, Serialize};

use super::Distances;

/// Points that a curve keeps where it is stored or drawn.
pub const REDUCED_POINTS: usize = 256;
/// Parts of a whole in [`Curve::miss_ratio_ppb`].
const BILLION: u128 = 1_000_000_000;

/// The way a curve was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CurveSource {
    /// From the stack of all accesses.
    Exact,
    /// From the accesses that a hot set let through, and nothing in place of the others.
    Tracked,
    /// From the accesses that a hot set let through, and an assumption about the others.
    Restored,
    /// From the accesses to some of the pages.
    Sampled,
    /// From accessed bits, read time after time.
    Ages,
}

impl CurveSource {
    /// The name in results and on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Exact => "exact",
            Self::Tracked => "tracked",
            Self::Restored => "restored",
            Self::Sampled => "sampled",
            Self::Ages => "ages",
        }
    }
}

/// The misses of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    /// Size of memory, pages.
    pub pages: u32,
    /// Misses of a memory of that size, cold ones among them.
    pub misses: u64,
}

/// The observation that a curve is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observed {
    /// The way of observing.
    pub source: CurveSource,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Number of accesses, those not tracked among them.
    pub accesses: u64,
    /// Time of the observation, ns; 0 if there is no time.
    pub span_ns: u64,
    /// Pages by which distances may be off.
    pub resolution_pages: u32,
    /// Sizes below this many pages are a guess.
    pub guess_below_pages: u32,
}

/// A miss-ratio curve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Curve {
    /// The way of observing.
    pub source: CurveSource,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Number of accesses.
    pub accesses: u64,
    /// Time of the observation, ns; 0 if there is no time.
    pub span_ns: u64,
    /// Pages by which distances may be off: a feature of the curve may lie that much further left or right.
    pub resolution_pages: u32,
    /// Sizes below this many pages are a guess.
    pub guess_below_pages: u32,
    /// Sizes in ascending order, misses in descending order; more memory than at the last saves nothing.
    points: Vec<Point>,
}

impl Curve {
    /// The curve of a histogram: one point per page, up to the longest distance.
    #[must_use]
    pub fn new(observed: Observed, distances: &Distances) -> Self {
        let sizes = (1..).zip(distances.all_misses());
        Self::of(
            observed,
            sizes.map(|(pages, misses)| Point { pages, misses }),
        )
    }

    /// The curve through these points. Sizes that do not ascend are left out; misses that ascend, or exceed the
    /// accesses, are cut.
    #[must_use]
    pub fn of(observed: Observed, points: impl IntoIterator<Item = Point>) -> Self {
        let (mut size, mut most) = (0, observed.accesses);
        let mut valid: Vec<Point> = Vec::new();
        for point in points {
            if point.pages <= size {
                continue;
            }
            size = point.pages;
            most = most.min(point.misses);
            valid.push(Point {
                pages: size,
                misses: most,
            });
        }
        Self {
            source: observed.source,
            page_bytes: observed.page_bytes,
            accesses: observed.accesses,
            span_ns: observed.span_ns,
            resolution_pages: observed.resolution_pages,
            guess_below_pages: observed.guess_below_pages,
            points: valid,
        }
    }

    /// The curve of a machine that is so many times as large: pages are as many times larger, and as many times as many
    /// accesses miss in the same time.
    #[must_use]
    pub fn scaled(mut self, times: u64) -> Self {
        self.page_bytes = self.page_bytes.saturating_mul(times);
        self.with_misses_times((times, 1))
    }

    /// The curve of so many times as many misses and accesses in the same time, a fraction.
    #[must_use]
    pub fn with_misses_times(mut self, (times, of): (u64, u64)) -> Self {
        let scaled = |count: u64| {
            let count = u128::from(count) * u128::from(times) / u128::from(of.max(1));
            u64::try_from(count).unwrap_or(u64::MAX)
        };
        self.accesses = scaled(self.accesses);
        for point in &mut self.points {
            point.misses = scaled(point.misses);
        }
        self
    }

    /// The points, by size.
    #[must_use]
    pub fn points(&self) -> &[Point] {
        &self.points
    }

    /// Misses with so many pages; between two points on the line through them, with no memory all accesses.
    #[must_use]
    pub fn misses(&self, pages: u32) -> u64 {
        let after = self.points.partition_point(|point| point.pages < pages);
        let left = match after.checked_sub(1) {
            Some(before) => self.points[before],
            None => Point {
                pages: 0,
                misses: self.accesses,
            },
        };
        let Some(right) = self.points.get(after) else {
            return left.misses;
        };
        let drop = u128::from(left.misses - right.misses) * u128::from(pages - left.pages);
        let drop = drop / u128::from(right.pages - left.pages);
        left.misses - u64::try_from(drop).unwrap_or(left.misses)
    }

    /// Share of the accesses that miss with so many pages, parts of a billion: 1,000,000,000 if all do. 0 without
    /// accesses.
    #[must_use]
    pub fn miss_ratio_ppb(&self, pages: u32) -> u64 {
        let parts = u128::from(self.misses(pages)) * BILLION;
        let ratio = parts.checked_div(u128::from(self.accesses)).unwrap_or(0);
        u64::try_from(ratio).unwrap_or(u64::MAX)
    }

    /// Misses a second with so many pages; `None` if the observation has no time.
    #[must_use]
    pub fn misses_per_s(&self, pages: u32) -> Option<u64> {
        let parts = u128::from(self.misses(pages)) * BILLION;
        let rate = parts.checked_div(u128::from(self.span_ns))?;
        Some(u64::try_from(rate).unwrap_or(u64::MAX))
    }

    /// The least size at which at most so many parts of a billion miss; `None` if no size is enough.
    #[must_use]
    pub fn pages_for_ppb(&self, ratio_ppb: u64) -> Option<u32> {
        let most = u128::from(self.accesses) * u128::from(ratio_ppb) / BILLION;
        let enough = |point: &Point| u128::from(point.misses) <= most;
        let at = self.points.partition_point(|point| !enough(point));
        let (mut high, mut low) = (self.points.get(at)?.pages, 0);
        if let Some(before) = at.checked_sub(1) {
            low = self.points[before].pages;
        }
        // Between the two points misses lie on a line: halve.
        while high - low > 1 {
            let middle = low.midpoint(high);
            if u128::from(self.misses(middle)) <= most {
                high = middle;
            } else {
                low = middle;
            }
        }
        Some(high)
    }

    /// Whether the curve guesses at this size.
    #[must_use]
    pub fn is_guess(&self, pages: u32) -> bool {
        pages < self.guess_below_pages
    }

    /// The same curve with at most so many points, at least two: those between which lines differ least from it.
    #[must_use]
    pub fn reduced(&self, most: usize) -> Self {
        let mut reduced = self.clone();
        reduced.points = fewer(&self.points, most.max(2));
        reduced
    }
}

/// A part of a curve whose inner points are not kept, ordered by how far a line through its ends is off.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Part {
    /// Misses between the line and the point `at`.
    off: u128,
    /// Ends, indices of points; reversed so that the left part of two equal ones comes first.
    ends: std::cmp::Reverse<(usize, usize)>,
    at: usize,
}

/// The points of a reduced curve: the ends, and again and again the point furthest from the lines so far.
fn fewer(points: &[Point], most: usize) -> Vec<Point> {
    if points.len() <= most {
        return points.to_vec();
    }
    let mut chosen = vec![0, points.len() - 1];
    let mut parts = BinaryHeap::from_iter(part(points, 0, points.len() - 1));
    while chosen.len() < most {
        let Some(Part { ends, at, .. }) = parts.pop() else {
            break;
        };
        chosen.push(at);
        let (first, last) = ends.0;
        parts.extend(part(points, first, at));
        parts.extend(part(points, at, last));
    }
    chosen.sort_unstable();
    chosen.into_iter().map(|at| points[at]).collect()
}

/// The part between two points; `None` if all of it lies on the line.
fn part(points: &[Point], first: usize, last: usize) -> Option<Part> {
    let (left, right) = (points[first], points[last]);
    let width = u128::from(right.pages - left.pages);
    let drop = u128::from(left.misses - right.misses);
    // Both sides times the width: no division per point.
    let off = |point: &Point| {
        let own = u128::from(left.misses - point.misses) * width;
        own.abs_diff(drop * u128::from(point.pages - left.pages))
    };
    let (mut at, mut most) = (first, 0);
    for (index, point) in (first..).zip(&points[first..=last]) {
        let off = off(point);
        if off > most {
            (at, most) = (index, off);
        }
    }
    (most > 0).then(|| Part {
        off: most / width,
        ends: std::cmp::Reverse((first, last)),
        at,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OBSERVED: Observed = Observed {
        source: CurveSource::Exact,
        page_bytes: 4096,
        accesses: 1000,
        span_ns: 2_000_000_000,
        resolution_pages: 0,
        guess_below_pages: 0,
    };

    fn curve(points: &[(u32, u64)]) -> Curve {
        let points = points.iter();
        Curve::of(
            OBSERVED,
            points.map(|(pages, misses)| Point {
                pages: *pages,
                misses: *misses,
            }),
        )
    }

    #[test]
    fn sizes_between_points_lie_on_a_line() {
        let curve = curve(&[(10, 500), (20, 100), (30, 50)]);
        let misses: Vec<u64> = [0, 5, 10, 15, 20, 30, 4_000]
            .iter()
            .map(|pages| curve.misses(*pages))
            .collect();
        assert_eq!(misses, [1000, 750, 500, 300, 100, 50, 50]);
        assert_eq!(curve.miss_ratio_ppb(15), 300_000_000);
        assert_eq!(curve.misses_per_s(15), Some(150));
        assert_eq!(
            Curve {
                span_ns: 0,
                ..curve.clone()
            }
            .misses_per_s(15),
            None
        );
        let sizes = [
            1_000_000_000,
            500_000_000,
            300_000_000,
            50_000_000,
            49_999_999,
        ];
        let sizes = sizes.map(|ratio| curve.pages_for_ppb(ratio));
        assert_eq!(sizes, [Some(1), Some(10), Some(15), Some(30), None]);
    }

    #[test]
    fn a_histogram_gives_a_point_per_page() {
        let mut distances = Distances::new();
        distances.add_many(0, 990);
        distances.add_many(2, 8);
        distances.add(None);
        distances.add(None);
        let curve = Curve::new(OBSERVED, &distances);
        let misses: Vec<u64> = curve.points().iter().map(|point| point.misses).collect();
        assert_eq!(misses, [10, 10, 2]);
        assert_eq!(Curve::new(OBSERVED, &Distances::new()).points().len(), 1);
    }

    #[test]
    fn what_no_curve_can_be_is_cut() {
        let curve = curve(&[(5, 2000), (5, 7), (8, 300), (9, 400)]);
        let points: Vec<_> = curve.points().iter().map(|p| (p.pages, p.misses)).collect();
        assert_eq!(points, [(5, 1000), (8, 300), (9, 300)]);
    }

    #[test]
    fn a_cliff_keeps_both_its_sides() {
        let all: Vec<_> = (1..=10_000)
            .map(|pages| (pages, if pages < 7_000 { 900 } else { 10 }))
            .collect();
        let reduced = curve(&all).reduced(4);
        let sizes: Vec<u32> = reduced.points().iter().map(|point| point.pages).collect();
        assert_eq!(sizes, [1, 6_999, 7_000, 10_000]);
        assert!(
            all.iter()
                .all(|(pages, misses)| reduced.misses(*pages) == *misses)
        );
    }

    proptest! {
        #[test]
        fn a_reduced_curve_stays_near(drops in prop::collection::vec((0..50_u64, 1..9_u32), 300..4_000)) {
            let mut accesses = drops.iter().map(|(drop, _)| drop).sum();
            let observed = Observed { accesses, ..OBSERVED };
            let mut pages = 0;
            let points = drops.iter().map(|(drop, step)| {
                accesses -= drop;
                pages += step;
                Point { pages, misses: accesses }
            });
            let curve = Curve::of(observed, points);
            let reduced = curve.reduced(REDUCED_POINTS);
            prop_assert_eq!(reduced.points().len(), REDUCED_POINTS);
            prop_assert_eq!(reduced.points()[0], curve.points()[0]);
            for point in curve.points() {
                let off = reduced.misses(point.pages).abs_diff(point.misses);
                prop_assert!(off * 100 <= observed.accesses, "{off} misses at {} pages", point.pages);
            }
        }
    }
}
