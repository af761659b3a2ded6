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
/// The window of a page that was never found.
const NEVER: u64 = u64::MAX;

/// The age of each page, and a histogram of distances made of them.
#[derive(Clone, Debug, Default)]
pub struct Ages {
    /// The window in which a page was found last.
    last: Vec<u64>,
    /// Pages last found in each window, the oldest first.
    found: VecDeque<u32>,
    /// The number of the first window in `found`.
    oldest: u64,
    distances: Distances,
    /// Pages of the largest window.
    footprint: u32,
}

impl Ages {
    /// No page found yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Ends a window: the pages found accessed in it, each once.
    pub fn scan(&mut self, pages: &[u32]) {
        let window = self.oldest + self.found.len() as u64;
        let after = self.younger();
        // Pages of this window that were found before: half of them lie above a page that comes back.
        let again = pages.iter().filter(|page| self.window_of(**page).is_some());
        let here = saturated(again.count());
        let before = self.found.clone();
        let mut now = 0;
        for page in pages {
            let at = *page as usize;
            if at >= self.last.len() {
                self.last.resize(at + 1, NEVER);
            }
            let distance = self.window_of(*page).map(|held| {
                self.found[held] -= 1;
                after[held] + (before[held] + here) / 2
            });
            self.distances.add(distance);
            self.last[at] = window;
            now += 1;
        }
        self.footprint = self.footprint.max(now);
        self.found.push_back(now);
        if self.found.len() > MOST_WINDOWS
            && let Some(oldest) = self.found.pop_front()
        {
            self.oldest += 1;
            self.found[0] += oldest;
        }
    }

    /// Number of pages found so far.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.distances.cold()
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

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.last.capacity() * size_of::<u64>()
            + self.found.capacity() * size_of::<u32>()
            + self.distances.heap_bytes()
    }

    /// Place in `found` of a page's window.
    fn window_of(&self, page: u32) -> Option<usize> {
        let last = *self.last.get(page as usize)?;
        let place = last.saturating_sub(self.oldest);
        (last != NEVER).then(|| usize::try_from(place).unwrap_or(0))
    }

    /// For each window, the number of pages last found in younger ones.
    fn younger(&self) -> Vec<u32> {
        let mut younger = vec![0; self.found.len()];
        let mut sum = 0;
        for (place, found) in self.found.iter().enumerate().rev() {
            younger[place] = sum;
            sum += found;
        }
        younger
    }
}

fn saturated(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
