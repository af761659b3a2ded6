//! All accesses of a load, of which a hot set lets some through to a stack: tracking by protection faults, without the
//! faults.

use super::{Curve, CurveSource, Distances, HotSet, Observed, Stack, restored};

/// A stack behind a hot set.
#[derive(Clone, Debug)]
pub struct Tracked {
    hot_set: HotSet,
    stack: Stack,
    distances: Distances,
    accesses: u64,
    /// Pages that left the hot set; nobody has to protect them here.
    left: Vec<u32>,
}

impl Tracked {
    /// Nothing tracked yet.
    #[must_use]
    pub fn new(hot_set: HotSet) -> Self {
        Self {
            hot_set,
            stack: Stack::new(),
            distances: Distances::new(),
            accesses: 0,
            left: Vec::new(),
        }
    }

    /// Notes an access, tracked or not.
    pub fn access(&mut self, page: u32) {
        self.accesses += 1;
        if self.hot_set.track(page, self.accesses, &mut self.left) {
            self.distances.add(self.stack.access(page));
        }
        self.left.clear();
    }

    /// Number of accesses that were tracked, cold misses among them.
    #[must_use]
    pub fn tracked(&self) -> u64 {
        self.distances.total()
    }

    /// Number of cold misses.
    #[must_use]
    pub fn cold(&self) -> u64 {
        self.distances.cold()
    }

    /// The hot set.
    #[must_use]
    pub fn hot_set(&self) -> &HotSet {
        &self.hot_set
    }

    /// The restored curve; that of the tracked accesses alone ([`CurveSource::Tracked`]) if the hot set is too small to
    /// restore.
    #[must_use]
    pub fn curve(&self, page_bytes: u64, span_ns: u64) -> Curve {
        let largest = self.hot_set.largest();
        let all = restored(&self.distances, self.accesses, largest);
        let observed = Observed {
            source: match all {
                Some(_) => CurveSource::Restored,
                None => CurveSource::Tracked,
            },
            page_bytes,
            accesses: self.accesses,
            span_ns,
            resolution_pages: largest,
            guess_below_pages: largest.saturating_mul(2),
        };
        Curve::new(observed, all.as_ref().unwrap_or(&self.distances))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_distances_are_tracked_and_short_ones_are_not() {
        let mut tracked = Tracked::new(HotSet::new(30, None));
        // Ten pages again and again, and a sweep over 300 between two rounds of them.
        for _ in 0..10 {
            for page in 0..300 {
                tracked.access(1000 + page);
                (0..10).for_each(|hot| tracked.access(hot));
            }
        }
        let curve = tracked.curve(2 << 20, 0);
        assert_eq!(
            (curve.source, curve.guess_below_pages),
            (CurveSource::Restored, 60)
        );
        assert_eq!((curve.accesses, tracked.cold()), (33_000, 310));
        // Each sweep but the first misses 300 pages unless they fit beside the ten.
        assert!(curve.misses(60) >= 3_000 && curve.misses(290) >= 3_000);
        assert_eq!(curve.misses(310), 310);
    }

    #[test]
    fn a_small_hot_set_says_that_it_is_not_restored() {
        let mut tracked = Tracked::new(HotSet::new(20, None));
        (0..1_000).for_each(|access| tracked.access(access % 40));
        let curve = tracked.curve(4096, 0);
        assert_eq!(curve.source, CurveSource::Tracked);
        assert_eq!((curve.misses(39), curve.misses(40)), (1_000, 40));
    }
}
