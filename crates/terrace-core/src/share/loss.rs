//! Time that a VM loses for want of memory, for each size: the one currency in which memory is divided.
//!
//! Responsible for: a line through points (bytes, ns lost per second), falling to the right, from faults (the
//! miss-ratio curve, HPMBS §2.1) or from slow accesses (a ranking's heat), read in both directions. It leaves to
//! others: weights, and who gets what.

use crate::demand::Curve;

/// Nanoseconds in a second.
const SECOND_NS: u128 = 1_000_000_000;

/// Memory of equal heat: a group of a ranking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heat {
    /// Bytes of the group.
    pub bytes: u64,
    /// Accesses to all of it, per second.
    pub accesses_per_s: u64,
}

/// A point of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Point {
    bytes: u64,
    lost_ns: u64,
}

/// Time lost per second at each size, ns: a falling line of straight parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// Sizes ascend from 0, losses never rise; beyond the last point nothing more is saved.
    points: Vec<Point>,
}

impl Loss {
    /// By faults: the curve's misses per second, each of which takes `fault_ns`. `None` if the curve has no time.
    #[must_use]
    pub fn of_curve(curve: &Curve, fault_ns: u64) -> Option<Self> {
        if curve.span_ns == 0 {
            return None;
        }
        let lost = |misses: u64| {
            let all = (u128::from(misses) * u128::from(fault_ns)).saturating_mul(SECOND_NS);
            saturated(all / u128::from(curve.span_ns))
        };
        let right = curve.points().iter().map(|point| Point {
            bytes: u64::from(point.pages).saturating_mul(curve.page_bytes),
            lost_ns: lost(point.misses),
        });
        Some(Self::falling(lost(curve.accesses), right))
    }

    /// By what is lost now, with `size` bytes, and nothing is with so many more.
    #[must_use]
    pub fn until(size: u64, lost_ns: u64, more: u64) -> Self {
        let enough = Point {
            bytes: size.saturating_add(more),
            lost_ns: 0,
        };
        let now = Point {
            bytes: size,
            lost_ns,
        };
        Self::falling(lost_ns, [now, enough].into_iter())
    }

    /// By slow accesses: with so many bytes of the fast tier its hottest memory is there, and each access to the
    /// rest takes `extra_ns` longer. `heat`: the hottest first.
    #[must_use]
    pub fn of_heat(heat: &[Heat], extra_ns: u64) -> Self {
        let lost = |accesses: u128| saturated(accesses.saturating_mul(u128::from(extra_ns)));
        let all: u128 = heat.iter().map(|h| u128::from(h.accesses_per_s)).sum();
        let (mut bytes, mut slow) = (0_u64, all);
        let right = heat.iter().map(|group| {
            bytes = bytes.saturating_add(group.bytes);
            slow -= u128::from(group.accesses_per_s);
            Point {
                bytes,
                lost_ns: lost(slow),
            }
        });
        Self::falling(lost(all), right)
    }

    /// Points that are no further right than the one before count for nothing; a loss that rises is cut.
    fn falling(without: u64, right: impl Iterator<Item = Point>) -> Self {
        let mut points = vec![Point {
            bytes: 0,
            lost_ns: without,
        }];
        let mut last = points[0];
        for point in right {
            if point.bytes <= last.bytes {
                continue;
            }
            last = Point {
                bytes: point.bytes,
                lost_ns: point.lost_ns.min(last.lost_ns),
            };
            points.push(last);
        }
        Self { points }
    }

    /// Time lost per second with so many bytes, ns; between two points rounded up.
    #[must_use]
    pub fn at(&self, bytes: u64) -> u64 {
        let after = self.points.partition_point(|point| point.bytes <= bytes);
        let left = self.points[after - 1];
        let Some(right) = self.points.get(after) else {
            return left.lost_ns;
        };
        let drop = u128::from(left.lost_ns - right.lost_ns) * u128::from(bytes - left.bytes);
        left.lost_ns - saturated(drop / u128::from(right.bytes - left.bytes))
    }

    /// The least size at which no more than this is lost, bytes; `None` if no size is enough.
    #[must_use]
    pub fn least_bytes(&self, lost_ns: u64) -> Option<u64> {
        let enough = self.points.partition_point(|point| point.lost_ns > lost_ns);
        let right = self.points.get(enough)?;
        let Some(before) = enough.checked_sub(1) else {
            return Some(0);
        };
        let left = self.points[before];
        let part = u128::from(left.lost_ns - lost_ns) * u128::from(right.bytes - left.bytes);
        let part = part.div_ceil(u128::from(left.lost_ns - right.lost_ns));
        Some(left.bytes + saturated(part))
    }

    /// Time lost per second with all the memory that could be used, ns.
    #[must_use]
    pub fn unavoidable_ns(&self) -> u64 {
        self.points[self.points.len() - 1].lost_ns
    }

    /// The least size above which nothing more is saved, bytes.
    #[must_use]
    pub fn end_bytes(&self) -> u64 {
        self.least_bytes(self.unavoidable_ns()).unwrap_or(0)
    }
}

fn saturated(number: u128) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::demand::{CurveSource, Observed, Point as CurvePoint};

    fn curve(span_ns: u64) -> Curve {
        let observed = Observed {
            source: CurveSource::Exact,
            page_bytes: 4096,
            accesses: 1000,
            span_ns,
            resolution_pages: 0,
            guess_below_pages: 0,
        };
        let points = [(10, 500), (20, 100)].map(|(pages, misses)| CurvePoint { pages, misses });
        Curve::of(observed, points)
    }

    #[test]
    fn faults_cost_their_time_per_second() {
        let loss = Loss::of_curve(&curve(2_000_000_000), 100).unwrap();
        let lost = [0, 5, 10, 15, 20, 99].map(|pages| loss.at(pages * 4096));
        assert_eq!(lost, [50_000, 37_500, 25_000, 15_000, 5_000, 5_000]);
        assert_eq!(
            (loss.unavoidable_ns(), loss.end_bytes()),
            (5_000, 20 * 4096)
        );
        assert_eq!(loss.least_bytes(15_000), Some(15 * 4096));
        assert_eq!(loss.least_bytes(4_999), None);
        assert_eq!(Loss::of_curve(&curve(0), 100), None);
    }

    #[test]
    fn slow_accesses_cost_what_they_take_longer() {
        let group = |bytes, accesses_per_s| Heat {
            bytes,
            accesses_per_s,
        };
        let loss = Loss::of_heat(&[group(100, 30), group(0, 5), group(400, 20)], 10);
        // A group without bytes needs no memory: its accesses are slow until the next point.
        assert_eq!(
            [0, 50, 100, 300, 500].map(|b| loss.at(b)),
            [550, 400, 250, 125, 0]
        );
        assert_eq!(loss.least_bytes(250), Some(100));
        let huge = group(u64::MAX, u64::MAX);
        assert_eq!(Loss::of_heat(&[huge, huge], u64::MAX).at(0), u64::MAX);
        assert_eq!(Loss::of_heat(&[], 10).end_bytes(), 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn the_least_size_is_the_first_that_is_enough(
            heat in prop::collection::vec((0..40_u64, 0..50_u64), 0..8),
            lost in 0..400_u64,
        ) {
            let heat: Vec<Heat> = heat
                .into_iter()
                .map(|(bytes, accesses_per_s)| Heat { bytes, accesses_per_s })
                .collect();
            let loss = Loss::of_heat(&heat, 3);
            let naive = (0..=400).find(|bytes| loss.at(*bytes) <= lost);
            prop_assert_eq!(loss.least_bytes(lost), naive);
            prop_assert!((0..400).all(|bytes| loss.at(bytes) >= loss.at(bytes + 1)));
        }
    }
}
