//! Which 2 MiB pages Memtis splits (§4.3 of its paper; `set_memcg_nr_split`, `check_transhuge_cooling`).
//!
//! Samples are counted for each 4 KiB part too, in a histogram as if all pages were of 4 KiB. Where fast memory
//! would then have more hits than it has, as many pages are split as that gain is worth, those first whose
//! accesses are the most skewed.

use super::{BINS, Ground, LEAST_HOT, Sample, Unit, WEIGHT, bin, rebin};
use crate::words::number::{index, low};

/// Parts of a page.
const PARTS: u64 = 512;

/// Percent of the hits that are estimated, to be on the safe side.
const ESTIMATED: u64 = 95;

/// Percent of the hits before that there must be after a split, or no more is split.
const MUST_GAIN: u64 = 103;

/// `htmm_gamma`: tenths of what the gain is worth that are split.
const GAMMA: u64 = 4;

/// Pages from this bin on are hot all over: they stay whole.
const VERY_HOT: usize = 13;

/// Hits of fast memory: since the last cooling, and a sum in which older ones count half each time.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    now: u64,
    before: u64,
}

impl Hits {
    fn cool(&mut self) {
        self.before = self.before / 2 + self.now;
        self.now = 0;
    }
}

/// What is known of parts.
#[derive(Debug)]
pub(super) struct Splits {
    /// Counts of parts of pages that are whole.
    parts: Vec<u32>,
    /// Skewness of whole pages, since they were cooled.
    skew: Vec<u64>,
    /// All parts per bin.
    pub(super) bins: [u64; BINS],
    /// The threshold if all pages were of 4 KiB.
    pub(super) hot: usize,
    real: Hits,
    possible: Hits,
    /// Accesses to hot parts of whole pages, and such pages, since the last cooling.
    used: (u64, u64),
    samples: u64,
    wanted: bool,
    happened: bool,
    /// A split brought nothing: there is no other.
    ended: bool,
    chosen: std::collections::VecDeque<Unit>,
}

impl Splits {
    pub(super) fn new(ground: &Ground) -> Self {
        let units = ground.units();
        let mut bins = [0; BINS];
        bins[0] = u64::from(units);
        Self {
            parts: vec![0; index(units)],
            skew: vec![0; index(units.div_ceil(512))],
            bins,
            hot: LEAST_HOT,
            real: Hits::default(),
            possible: Hits::default(),
            used: (0, 0),
            samples: 0,
            wanted: false,
            happened: false,
            ended: false,
            chosen: std::collections::VecDeque::new(),
        }
    }

    /// Whether pages were split since the last decision.
    pub(super) fn happened(&self) -> bool {
        self.happened
    }

    /// Count of a part.
    pub(super) fn part(&self, unit: Unit) -> u32 {
        self.parts[index(unit)]
    }

    /// A sample; the bins that its page was in and is in, if that is a 4 KiB page.
    pub(super) fn count(&mut self, sample: &Sample, page: Option<(usize, usize)>) {
        let (before, now) = page.unwrap_or_else(|| {
            let part = &mut self.parts[index(sample.page)];
            let before = bin(*part);
            *part = part.saturating_add(WEIGHT);
            (before, bin(*part))
        });
        rebin(&mut self.bins, before, now, 1);
        self.samples += 1;
        self.real.now += u64::from(sample.tier == 0);
        self.possible.now += u64::from(before >= self.hot);
    }

    /// Halves the counts of a whole page's parts; `now` is the bin of the page, `hot` the threshold of pages.
    pub(super) fn cool(&mut self, first: Unit, ticks: u32, now: usize, hot: usize) {
        let hot = hot.min(self.hot);
        let (mut in_use, mut accesses, mut squares) = (0, 0, 0);
        for part in &mut self.parts[index(first)..index(first) + 512] {
            let count = u64::from(*part);
            if bin(*part) >= hot {
                in_use += 1;
                accesses += count;
            }
            squares += count * count;
            *part = part.checked_shr(ticks).unwrap_or(0);
            self.bins[bin(*part)] += 1;
        }
        let skewed = in_use > 0 && now < VERY_HOT;
        self.skew[index(first >> 9)] = if skewed {
            squares / (in_use * in_use)
        } else {
            0
        };
        if in_use > 0 {
            self.used.0 += accesses / PARTS;
            self.used.1 += 1;
        }
    }

    /// All counts are halved from now on.
    pub(super) fn begin_cooling(&mut self, ground: &Ground) {
        self.bins = [0; BINS];
        self.hot = (self.hot - 1).max(LEAST_HOT);
        self.used = (0, 0);
        let before = self.real.before;
        self.real.cool();
        self.possible.cool();
        let enough = (u64::from(ground.units()) / 4).max(ground.capacity(0));
        if self.ended || self.wanted || self.samples <= enough {
            return;
        }
        if self.happened && self.real.before < before * MUST_GAIN / 100 {
            self.ended = true;
            self.chosen.clear();
            return;
        }
        self.happened = false;
        self.wanted = true;
    }

    /// Chooses what is split, if that is wanted.
    pub(super) fn choose(&mut self, ground: &Ground, cooling_every: u64, coolings: u32) {
        if !std::mem::take(&mut self.wanted) {
            return;
        }
        self.samples = 0;
        let count = self.worth(ground, cooling_every, coolings);
        let blocks = low(u64::from(ground.units()) / PARTS);
        let mut pages: Vec<(u64, Unit)> = (0..blocks)
            .map(|block| (self.skew[index(block)], block << 9))
            .filter(|(skew, first)| *skew > 0 && ground.units_of(*first) > 1)
            .collect();
        pages.sort_unstable_by_key(|(skew, first)| (u64::MAX - skew, *first));
        let chosen = pages.into_iter().map(|(_, first)| first);
        self.chosen = chosen.take(index(low(count))).collect();
    }

    /// Pages that a split is worth: hits that it would gain, over the accesses to a page, times what a slow
    /// access costs more.
    fn worth(&self, ground: &Ground, cooling_every: u64, coolings: u32) -> u64 {
        let possible = self.possible.before * ESTIMATED / 100;
        let gain = possible.saturating_sub(self.real.before);
        let (accesses, pages) = self.used;
        let each = accesses.checked_div(pages).unwrap_or(0);
        if gain == 0 || each == 0 {
            return 0;
        }
        // All samples, of which older ones count half with each cooling.
        let older = coolings.saturating_sub(1);
        let samples = 2 * cooling_every - cooling_every.checked_shr(older).unwrap_or(0);
        let (fast, slow) = (ground.read_ps(0).max(1), ground.read_ps(1));
        let pages = gain * accesses / samples.max(1) / each;
        let parts = pages * PARTS * slow.saturating_sub(fast) / fast * GAMMA / 10;
        parts.div_ceil(PARTS)
    }

    /// The next that shall be split.
    pub(super) fn next(&mut self) -> Option<Unit> {
        let next = self.chosen.pop_front();
        self.happened |= next.is_some();
        next
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.parts.capacity() * 4 + self.skew.capacity() * 8 + self.chosen.capacity() * 4
    }
}
