//! The choice of the 2 MiB pages that Memtis splits (§4.3 of its paper; `set_memcg_nr_split`,
//! `check_transhuge_cooling`).
//!
//! Samples are counted for each 4 KiB part too, in a histogram as if all pages were of 4 KiB. If fast memory would
//! then have more hits than it has, as many pages are split as that gain is worth, those with the most skewed
//! accesses first.

use super::counts::WEIGHT;
use super::histogram::{Histogram, MIN_HOT, bin};
use super::{Context, Sample, Unit};
use crate::base::number::{index, low};

/// Parts of a page.
const PARTS: u64 = 512;

/// Percent of the possible hits that count, to be on the safe side.
const ESTIMATED: u64 = 95;

/// Percent of the earlier hits that there must be after a split; with fewer, no more is split.
const MUST_GAIN: u64 = 103;

/// Share of the pages that the gain is worth that is split, in tenths (`htmm_gamma`).
const GAMMA: u64 = 4;

/// The bin from which pages are hot all over: they stay whole.
const VERY_HOT: usize = 13;

/// Hits of fast memory: those since the last cooling, and a sum in which older ones count half each time.
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

/// The counts of parts, and the decisions that follow from them.
#[derive(Debug)]
pub(super) struct Splits {
    /// Counts of parts of pages that are whole.
    parts: Vec<u32>,
    /// Skewness of whole pages when they were last cooled.
    skew: Vec<u64>,
    /// All parts, as if all pages were of 4 KiB, with the threshold that follows from them.
    histogram: Histogram,
    hot: usize,
    real: Hits,
    possible: Hits,
    /// Accesses to hot parts of whole pages, and the number of such pages, since the last cooling.
    used: (u64, u64),
    samples: u64,
    wanted: bool,
    happened: bool,
    /// Whether a split brought nothing, so that there is no other.
    ended: bool,
    chosen: std::collections::VecDeque<Unit>,
}

impl Splits {
    pub(super) fn new(context: &Context) -> Self {
        let units = context.units();
        Self {
            parts: vec![0; index(units)],
            skew: vec![0; index(units.div_ceil(512))],
            histogram: Histogram::new(units),
            hot: MIN_HOT,
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

    /// The count of a part.
    pub(super) fn part(&self, unit: Unit) -> u32 {
        self.parts[index(unit)]
    }

    /// Counts a sample. `page`: the bins of its page before and after, if that is a 4 KiB page.
    pub(super) fn count(&mut self, sample: &Sample, page: Option<(usize, usize)>) {
        let (before, now) = page.unwrap_or_else(|| {
            let part = &mut self.parts[index(sample.page)];
            let before = bin(*part);
            *part = part.saturating_add(WEIGHT);
            (before, bin(*part))
        });
        self.histogram.shift(before, now, 1);
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
            self.histogram.add(bin(*part), 1);
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

    /// Counts a cooled part that is a page of its own, in its present bin.
    pub(super) fn cool_part(&mut self, now: usize) {
        self.histogram.add(now, 1);
    }

    /// Sets the threshold by the histogram.
    pub(super) fn adapt(&mut self, room: u64) {
        self.hot = self.histogram.threshold(room).0;
    }

    /// Begins a cooling of all counts, and decides whether a split is wanted.
    pub(super) fn begin_cooling(&mut self, context: &Context) {
        self.histogram.clear();
        self.hot = (self.hot - 1).max(MIN_HOT);
        self.used = (0, 0);
        let before = self.real.before;
        self.real.cool();
        self.possible.cool();
        let enough = (u64::from(context.units()) / 4).max(context.capacity(0));
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

    /// Chooses the pages to split, if a split is wanted.
    pub(super) fn choose(&mut self, context: &Context, cooling_every: u64, coolings: u32) {
        if !std::mem::take(&mut self.wanted) {
            return;
        }
        self.samples = 0;
        let count = self.worth(context, cooling_every, coolings);
        let blocks = low(u64::from(context.units()) / PARTS);
        let mut pages: Vec<(u64, Unit)> = (0..blocks)
            .map(|block| (self.skew[index(block)], block << 9))
            .filter(|(skew, first)| *skew > 0 && context.units_of(*first) > 1)
            .collect();
        pages.sort_unstable_by_key(|(skew, first)| (u64::MAX - skew, *first));
        let chosen = pages.into_iter().map(|(_, first)| first);
        self.chosen = chosen.take(index(low(count))).collect();
    }

    /// Number of pages that a split is worth: the hits that it would gain, over the accesses to a page, times the
    /// extra cost of a slow access.
    fn worth(&self, context: &Context, cooling_every: u64, coolings: u32) -> u64 {
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
        let (fast, slow) = (context.read_ps(0).max(1), context.read_ps(1));
        let pages = gain * accesses / samples.max(1) / each;
        let parts = pages * PARTS * slow.saturating_sub(fast) / fast * GAMMA / 10;
        parts.div_ceil(PARTS)
    }

    /// The next page to split.
    pub(super) fn next(&mut self) -> Option<Unit> {
        let next = self.chosen.pop_front();
        self.happened |= next.is_some();
        next
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.parts.capacity() * 4 + self.skew.capacity() * 8 + self.chosen.capacity() * 4
    }
}
