//! Distances from accessed bits that are read and cleared time after time.
//!
//! The time between two scans is a window. A page found accessed in a window, and in no window since an earlier one,
//! lies under all pages found since: those last found in windows between. Pages of the two windows themselves lie
//! above or below it, which is not seen: half of each is counted. So a distance is off by up to a window's footprint
//! to either side, and sizes below that are a guess. Only the first access in a window is seen, but the others have
//! distances below the window's footprint: from there on misses are all counted.

use std::collections::VecDeque;

use super::{Curve, CurveSource, Distances, Observed};

/// Windows that are told apart: an hour of one a second, and more. A page idle for longer is taken to be as old as the
/// oldest.
const MOST_WINDOWS: usize = 4096;
/// Parts of an access that fades: halved eight times it is gone.
const FADING_PARTS: u64 = 256;
/// The window of a page that was never found.
const NEVER: u32 = u32::MAX;

/// The sum of the ages of a VM's memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Aged {
    /// Memory that programs of the guest map, bytes. Page cache that is not mapped is not seen.
    pub mapped_bytes: u64,
    /// Memory of that without which they would hardly miss any, bytes.
    pub unused_bytes: u64,
    /// Time that was observed, ns.
    pub span_ns: u64,
}

/// The age of each page, and a histogram of distances made of them.
#[derive(Clone, Debug)]
pub struct Ages {
    /// The window in which a page was found last.
    last: Vec<u32>,
    /// Pages last found in each window, the oldest first.
    found: VecDeque<u32>,
    /// The number of the first window in `found`.
    oldest: u32,
    distances: Distances,
    /// Pages of the largest window.
    footprint: u32,
    /// Parts in which an access is counted.
    parts: u64,
}

impl Default for Ages {
    fn default() -> Self {
        Self::new()
    }
}

impl Ages {
    /// No page found yet.
    #[must_use]
    pub fn new() -> Self {
        Self::in_parts(1)
    }

    /// The same, if accesses are to count for less and less: see [`Ages::halve`].
    #[must_use]
    pub fn fading() -> Self {
        Self::in_parts(FADING_PARTS)
    }

    fn in_parts(parts: u64) -> Self {
        Self {
            last: Vec::new(),
            found: VecDeque::new(),
            oldest: 0,
            distances: Distances::new(),
            footprint: 0,
            parts,
        }
    }

    /// Lets all accesses so far count half. Parts of one that are less than the smallest are gone.
    pub fn halve(&mut self) {
        self.distances.halve();
        self.footprint = 0;
    }

    /// Ends a window: the pages found accessed in it, each once. A page named twice counts once.
    pub fn scan(&mut self, pages: &[u32]) {
        let mut window = self.oldest.saturating_add(saturated(self.found.len()));
        if window == NEVER {
            // 13 years of ten windows a second: pages are as if never found, once.
            *self = Self::in_parts(self.parts);
            window = 0;
        }
        let before = self.found.clone();
        let mut again = VecDeque::from(vec![0; self.found.len()]);
        for held in pages.iter().filter_map(|page| self.window_of(*page)) {
            again[held] += 1;
        }
        let (after, again) = (younger(&before), younger(&again));
        let now = saturated(pages.len());
        let mut different = 0;
        for page in pages {
            let at = *page as usize;
            if at >= self.last.len() {
                self.last.resize(at + 1, NEVER);
            }
            if self.last[at] == window {
                continue;
            }
            different += 1;
            let distance = self.window_of(*page).map(|held| {
                self.found[held] -= 1;
                // The others of both windows; those of this one that were found in between are counted there.
                let unseen = (before[held] - 1) + (now - again[held] - 1);
                after[held] + unseen / 2
            });
            match distance {
                Some(distance) => self.distances.add_many(distance, self.parts),
                None => self.distances.add_cold(self.parts),
            }
            self.last[at] = window;
        }
        self.footprint = self.footprint.max(different);
        self.found.push_back(different);
        if self.found.len() > MOST_WINDOWS
            && let Some(oldest) = self.found.pop_front()
        {
            self.oldest += 1;
            self.found[0] += oldest;
        }
    }

    /// Number of pages found so far, if nothing faded.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.distances.cold() / self.parts
    }

    /// The least number of pages with which no more accesses miss than so many thousandths of one, first ones apart.
    #[must_use]
    pub fn needed(&self, misses_milli: u64) -> u32 {
        let misses = u128::from(misses_milli) * u128::from(self.parts) / 1000;
        let misses = u64::try_from(misses).unwrap_or(u64::MAX);
        let Some(longest) = self.distances.longest() else {
            return 0;
        };
        let mut missed = 0;
        let fits = |distance: &u32| {
            missed += self.distances.count(*distance);
            missed <= misses
        };
        let least = (0..=longest).rev().take_while(fits).last();
        least.unwrap_or(longest + 1)
    }

    /// The curve of all windows so far, in which the VM made so many accesses; as many as were seen, if more were.
    #[must_use]
    pub fn curve(&self, page_bytes: u64, accesses: u64, span_ns: u64) -> Curve {
        let observed = Observed {
            source: CurveSource::Ages,
            page_bytes,
            accesses: accesses.max(self.distances.total()),
            span_ns,
            resolution_pages: self.footprint,
            guess_below_pages: self.footprint,
        };
        Curve::new(observed, &self.distances)
    }

    /// The curve of accesses that fade, each of so many pages.
    #[must_use]
    pub fn faded(&self, page_bytes: u64, of_each: u64, span_ns: u64) -> Curve {
        let curve = self.curve(page_bytes, 0, span_ns);
        curve.with_misses_times((of_each, self.parts))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.last.capacity() * size_of::<u32>()
            + self.found.capacity() * size_of::<u32>()
            + self.distances.heap_bytes()
    }

    /// Place in `found` of a page's window.
    fn window_of(&self, page: u32) -> Option<usize> {
        let last = *self.last.get(page as usize)?;
        let place = last.saturating_sub(self.oldest);
        (last != NEVER).then_some(place as usize)
    }
}

/// For each window, the sum of the younger ones.
fn younger(windows: &VecDeque<u32>) -> Vec<u32> {
    let mut younger = vec![0; windows.len()];
    let mut sum = 0;
    for (place, pages) in windows.iter().enumerate().rev() {
        younger[place] = sum;
        sum += pages;
    }
    younger
}

fn saturated(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_lies_under_those_found_since() {
        let mut ages = Ages::new();
        ages.scan(&[0]);
        ages.scan(&[1, 2, 3]);
        ages.scan(&[4, 1]);
        assert_eq!(ages.pages(), 5);
        ages.scan(&[0]);
        let curve = ages.curve(4096, 1000, 0);
        // Page 1 was found in the window before: half of the three others of both windows, rounded down. Page 0 lies
        // under all four others.
        let misses = [1, 2, 3, 4, 5, 6].map(|pages| curve.misses(pages));
        assert_eq!(misses, [7, 6, 6, 6, 5, 5]);
        assert_eq!((curve.resolution_pages, curve.accesses), (3, 1000));
    }

    #[test]
    fn what_is_needed_is_what_is_found_again_and_again() {
        let mut ages = Ages::new();
        ages.scan(&(0..64).collect::<Vec<_>>());
        assert_eq!(ages.needed(0), 0, "nothing was found again");
        for _ in 0..20 {
            ages.scan(&(0..16).collect::<Vec<_>>());
        }
        assert_eq!(
            (ages.needed(0), ages.needed(15)),
            (40, 40),
            "from 64 to 16 pages"
        );
        // The misses of the first window after all 64 pages are few.
        assert_eq!(ages.needed(16_000), 16);
        ages.scan(&[60]);
        assert_eq!((ages.needed(16_000), ages.needed(17_000)), (40, 16));
    }

    #[test]
    fn what_was_used_once_fades() {
        let mut ages = Ages::fading();
        for _ in 0..2 {
            ages.scan(&(0..64).collect::<Vec<_>>());
        }
        let mut halved = 0;
        while ages.needed(500) > 16 {
            for _ in 0..12 {
                ages.scan(&(0..16).collect::<Vec<_>>());
            }
            ages.halve();
            halved += 1;
        }
        assert_eq!(ages.needed(500), 16);
        assert_eq!(
            halved, 8,
            "80 accesses of more pages are less than half of one"
        );
        let curve = ages.faded(4096, 10, 1_000_000_000);
        assert_eq!(curve.misses(8), curve.accesses, "all of what is used is");
        assert!((1880..=1930).contains(&curve.accesses), "{curve:?}");
    }

    #[test]
    fn a_page_named_twice_counts_once() {
        let (mut once, mut twice) = (Ages::new(), Ages::new());
        for window in [[0, 1], [2, 3], [4, 5], [0, 2]] {
            once.scan(&window);
            twice.scan(&[window, window].concat());
        }
        assert_eq!(once.pages(), twice.pages());
        assert_eq!(once.found, twice.found);
        assert_eq!(once.footprint, twice.footprint);
    }

    #[test]
    fn the_oldest_windows_are_one() {
        let mut ages = Ages::new();
        ages.scan(&[0, 1]);
        for window in 0..=MOST_WINDOWS {
            ages.scan(&[2 + u32::try_from(window % 5).unwrap()]);
        }
        assert_eq!(ages.found.len(), MOST_WINDOWS);
        ages.scan(&[1]);
        assert_eq!(ages.found.iter().sum::<u32>(), 7, "a page is in one window");
        assert_eq!(
            ages.curve(4096, 0, 0).misses(5),
            8,
            "page 1 lay under five pages"
        );
    }
}
