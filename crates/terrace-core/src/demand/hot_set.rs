//! The hot set: pages that stay accessible while a VM is tracked, so that only the others cost a fault (HPMBS §2.2, §2.4).

use std::collections::VecDeque;

/// Pages of 2 MiB of the first hot set (HPMBS §2.4).
pub const PAPER_HOT_SET: u32 = 250;
/// Share of the memory in use that the largest hot set has, percent, unless another one is given.
pub const DEFAULT_HOT_SET_PERCENT: u32 = 50;
/// Least and most accesses between two tracked faults (HPMBS §2.4).
const PAPER_LEAST_ACCESSES: u64 = 1_000_000;
const PAPER_MOST_ACCESSES: u64 = 10_000_000;
/// Pages of the smallest hot set: a tenth of the first, and more than the 20 that cannot be restored.
const LEAST_PAGES: u32 = 25;
/// Tracked faults of which the mean interval counts.
const FAULTS: u64 = 64;
/// Largest step, as a quotient of two sizes.
const STEP: u64 = 2;

/// The rule of a hot set that changes its size.
///
/// The paper takes each interval between two faults and resizes by the quotient of interval and bound. Intervals
/// scatter: between random accesses with a mean in the middle of the band (3.2 million), 27 % are shorter than its lower
/// bound and 4 % longer than its upper one, and for 3 % the quotient is ten and more. By the letter a set that is right
/// runs to its largest size at once. So here:
///
/// - *smoothing*: the mean of 64 intervals counts, which for random accesses is within ± 25 % of the truth in 19 of 20
///   cases; the band, a factor of 10, is far wider than that. At the bounds 64 intervals are 0.06 to 0.6 billion
///   accesses: about a second of a busy VM. Where they take longer than 64 times `most_accesses`, the rule waits for no
///   more of them.
/// - *step*: a size is at most doubled or halved at once, because the curve that says what a size would do is what is
///   being measured; a step of 2 cannot cross a band of 10 unless the load has a cliff.
/// - *bounds*: from `least_pages` to `most_pages`. [`Dynamic::paper`] takes a share of the memory in use, half of it by
///   default: the curve is a guess below twice the hot set, and a larger one would leave nothing that is not guessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dynamic {
    /// Accesses between two tracked faults under which the set grows.
    pub least_accesses: u64,
    /// Accesses between two tracked faults over which the set shrinks.
    pub most_accesses: u64,
    /// Pages of the smallest set.
    pub least_pages: u32,
    /// Pages of the largest set.
    pub most_pages: u32,
}

impl Dynamic {
    /// The paper's bounds of accesses, for so many pages in use of which the set may have so many percent.
    #[must_use]
    pub fn paper(pages: u32, percent: u32) -> Self {
        let most = u64::from(pages) * u64::from(percent) / 100;
        Self {
            least_accesses: PAPER_LEAST_ACCESSES,
            most_accesses: PAPER_MOST_ACCESSES,
            least_pages: LEAST_PAGES,
            most_pages: u32::try_from(most).unwrap_or(u32::MAX).max(LEAST_PAGES),
        }
    }

    /// The size after `faults` of which the intervals took `accesses`.
    fn resized(&self, size: u32, accesses: u64, faults: u64) -> u32 {
        let mean = (accesses / faults.max(1)).max(1);
        let wide = u64::from(size);
        let resized = if mean < self.least_accesses {
            (wide.saturating_mul(self.least_accesses) / mean).min(wide * STEP)
        } else if mean > self.most_accesses {
            let quotient = u128::from(wide) * u128::from(self.most_accesses) / u128::from(mean);
            u64::try_from(quotient).unwrap_or(wide).max(wide / STEP)
        } else {
            wide
        };
        let bounded = resized.clamp(1, u64::from(u32::MAX));
        u32::try_from(bounded)
            .unwrap_or(u32::MAX)
            .min(self.most_pages)
            .max(self.least_pages)
    }
}

/// The intervals between tracked faults since the set was full or changed its size.
#[derive(Clone, Copy, Debug)]
struct Intervals {
    start: u64,
    faults: u64,
}

/// A queue of pages that are not tracked: first in, first out. An access to one of them changes nothing and is not
/// seen; a page that leaves is tracked at its next access, and comes back.
#[derive(Clone, Debug)]
pub struct HotSet {
    size: u32,
    largest: u32,
    dynamic: Option<Dynamic>,
    queue: VecDeque<u32>,
    /// A bit per page number: set if the page is in the queue.
    inside: Vec<u64>,
    intervals: Option<Intervals>,
}

impl HotSet {
    /// An empty set for so many pages, at least one; within the bounds of `dynamic`, if it has any.
    #[must_use]
    pub fn new(pages: u32, dynamic: Option<Dynamic>) -> Self {
        let size = match dynamic {
            Some(dynamic) => pages.min(dynamic.most_pages).max(dynamic.least_pages),
            None => pages,
        };
        let size = size.max(1);
        Self {
            size,
            largest: size,
            dynamic,
            queue: VecDeque::new(),
            inside: Vec::new(),
            intervals: None,
        }
    }

    /// Takes a page in at a tracked fault, when the VM has made so many accesses altogether. Pages that leave are added
    /// to `left`: they have to be protected again. A page that is inside already (two vCPUs met the same protection)
    /// stays where it is and is no fault of its own: then this returns false.
    pub fn track(&mut self, page: u32, accesses: u64, left: &mut Vec<u32>) -> bool {
        if self.contains(page) {
            return false;
        }
        self.resize(accesses);
        self.set(page, true);
        self.queue.push_back(page);
        while self.queue.len() > self.size as usize
            && let Some(oldest) = self.queue.pop_front()
        {
            self.set(oldest, false);
            left.push(oldest);
        }
        true
    }

    /// Empties the set, as when tracking ends: pages are added to `left`. Size and bounds stay.
    pub fn drain(&mut self, left: &mut Vec<u32>) {
        left.extend(self.queue.drain(..));
        self.inside.clear();
        self.intervals = None;
    }

    /// Whether a page is inside.
    #[must_use]
    pub fn contains(&self, page: u32) -> bool {
        let word = self.inside.get(page as usize / 64);
        word.is_some_and(|word| word >> (page % 64) & 1 == 1)
    }

    /// The pages inside, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.queue.iter().copied()
    }

    /// Number of pages inside.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether no page is inside.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Number of pages that fit.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The largest size so far: below twice that, a curve is a guess.
    #[must_use]
    pub fn largest(&self) -> u32 {
        self.largest
    }

    /// Whether it may not grow any further.
    #[must_use]
    pub fn is_at_most(&self) -> bool {
        self.dynamic
            .is_none_or(|dynamic| self.size >= dynamic.most_pages)
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.queue.capacity() * size_of::<u32>() + self.inside.capacity() * size_of::<u64>()
    }

    /// Counts the interval that ends with this fault, once the set is full, and changes the size if enough are known.
    fn resize(&mut self, accesses: u64) {
        let Some(dynamic) = self.dynamic else {
            return;
        };
        if self.queue.len() < self.size as usize {
            self.intervals = None;
            return;
        }
        // A counter that went back (a VM that was restored) starts anew.
        let seen = self.intervals.as_mut();
        let Some(seen) = seen.filter(|seen| seen.start <= accesses) else {
            self.intervals = Some(Intervals {
                start: accesses,
                faults: 0,
            });
            return;
        };
        seen.faults += 1;
        let taken = accesses - seen.start;
        if seen.faults < FAULTS && taken <= dynamic.most_accesses.saturating_mul(FAULTS) {
            return;
        }
        self.size = dynamic.resized(self.size, taken, seen.faults);
        self.largest = self.largest.max(self.size);
        self.intervals = Some(Intervals {
            start: accesses,
            faults: 0,
        });
    }

    fn set(&mut self, page: u32, inside: bool) {
        let at = page as usize / 64;
        if at >= self.inside.len() {
            self.inside.resize(at + 1, 0);
        }
        let bit = 1 << (page % 64);
        if inside {
            self.inside[at] |= bit;
        } else {
            self.inside[at] &= !bit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLION: u64 = 1_000_000;

    /// An endless, reproducible series of numbers below `limit`.
    fn random(limit: u64) -> impl FnMut() -> u64 {
        let mut state = 1_u64;
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            ((mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11) % limit
        }
    }

    /// Sizes over so many faults, whose intervals have mean `mean(size)` and are scattered as random accesses are.
    fn sizes(set: &mut HotSet, faults: u32, mean: impl Fn(u32) -> u64) -> Vec<u32> {
        let mut uniform = random(1 << 20);
        let (mut accesses, mut left) = (0, Vec::new());
        let mut next = 0;
        let mut fault = || {
            // The logarithm of a uniform number, in 1/16ths: geometric over its leading bits.
            let number = uniform() + 1;
            let log = 16 * (20 - u64::from(number.ilog2())) - (number << 4 >> number.ilog2()) % 16;
            accesses += mean(set.size()) * log / 23;
            next += 1;
            set.track(next, accesses, &mut left);
            set.size()
        };
        (0..faults).map(|_| fault()).collect()
    }

    #[test]
    fn pages_leave_in_the_order_they_came_and_hits_change_nothing() {
        let mut set = HotSet::new(3, None);
        let mut left = Vec::new();
        for page in [7, 8, 9] {
            assert!(set.track(page, 0, &mut left));
        }
        assert!(!set.track(7, 0, &mut left) && set.contains(7) && left.is_empty());
        assert!(set.track(10, 0, &mut left));
        assert_eq!(
            (&left[..], set.contains(7), set.len()),
            (&[7][..], false, 3)
        );
        assert!(set.track(7, 0, &mut left));
        assert_eq!(left, [7, 8]);
        set.drain(&mut left);
        assert_eq!(left, [7, 8, 9, 10, 7]);
        assert!(set.is_empty() && !set.contains(7) && set.size() == 3);
    }

    #[test]
    fn a_noisy_stream_in_the_band_keeps_the_size() {
        for mean in [2 * MILLION, 3 * MILLION, 6 * MILLION] {
            let mut set = HotSet::new(PAPER_HOT_SET, Some(Dynamic::paper(4096, 50)));
            let sizes = sizes(&mut set, 50_000, |_| mean);
            assert!(sizes.iter().all(|size| *size == PAPER_HOT_SET), "{mean}");
        }
    }

    #[test]
    fn a_step_of_the_load_is_followed_and_then_the_size_rests() {
        // Faults as rare as the set is large: in the band between 1,000 and 10,000 pages.
        let mut set = HotSet::new(PAPER_HOT_SET, Some(Dynamic::paper(1 << 20, 50)));
        let up = sizes(&mut set, 20_000, |size| u64::from(size) * 1000);
        let rest = *up.last().unwrap();
        assert!((1000..=2000).contains(&rest), "{rest}");
        assert!(
            up[up.len() / 2..].iter().all(|size| *size == rest),
            "rests at {rest}"
        );
        // Ten times fewer faults at each size than at the upper bound.
        let down = sizes(&mut set, 20_000, |size| u64::from(size) * 100_000);
        let rest = *down.last().unwrap();
        assert!((50..=100).contains(&rest), "{rest}");
        assert_eq!(set.largest(), *up.iter().max().unwrap());
    }

    #[test]
    fn the_size_stays_within_its_bounds_and_at_most_doubles() {
        let mut set = HotSet::new(PAPER_HOT_SET, Some(Dynamic::paper(4096, 50)));
        assert!(!set.is_at_most());
        let sizes_up = sizes(&mut set, 20_000, |_| 10);
        assert!(sizes_up.windows(2).all(|pair| pair[1] <= 2 * pair[0]));
        assert!(sizes_up.last() == Some(&2048) && set.is_at_most());
        let sizes_down = sizes(&mut set, 2_000, |_| 1000 * MILLION);
        assert!(sizes_down.windows(2).all(|pair| 2 * pair[1] >= pair[0] - 1));
        assert_eq!(sizes_down.last(), Some(&LEAST_PAGES));
    }

    #[test]
    fn a_fixed_set_has_one_size() {
        let mut set = HotSet::new(40, None);
        assert!(
            sizes(&mut set, 1_000, |_| 10)
                .iter()
                .all(|size| *size == 40)
        );
        assert_eq!(set.len(), 40);
    }
}
