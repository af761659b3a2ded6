//! `memtis` (Lee et al., SOSP '23; the authors' kernel, Linux 5.15: mm/htmm_*.c): a histogram of sampled
//! accesses decides how hot a page must be.
//!
//! - Trigger: `ksampled` takes records of loads (one in 199 and more) and stores (one in 100,003);
//!   `kmigrated` of each node wakes every 500 ms.
//! - Threshold: pages are counted in 16 bins, each of twice the count of the one before. Every 100,000
//!   samples the hot threshold becomes the lowest bin above which all pages fit into fast memory
//!   (`__adjust_active_threshold`); a page in the bin below it is warm while hot pages fill less than 90 %
//!   of fast memory, and is not demoted. Every 2 million samples all counts are halved (`__cooling`).
//! - Rate limit: none for moves; `ksampled` lengthens its period while it takes more than 3 % of a
//!   processor.
//! - Victim: the page that has been on fast memory's inactive list longest, where hot pages wait for room or
//!   less than 2 % is free (`need_toptier_demotion`).
//!
//! Which 2 MiB pages are split, and when, is in [`split`].

mod split;

use split::Splits;

use super::lists::Lists;
use super::{Ground, Mechanism, Moved, Pmu, Sample, Setup, Stage, Travelling, Unit};
use crate::words::number::{index, low};

/// Loads per sample that `ksampled` goes through (`pebs_period_list`).
const PERIODS: [u64; 30] = [
    199, 293, 401, 499, 599, 701, 797, 907, 997, 1201, 1399, 1601, 1801, 1999, 2503, 3001, 3499,
    4001, 4507, 4999, 6007, 7001, 7993, 9001, 10007, 12007, 13999, 16001, 17989, 19997,
];

/// Stores per sample (`pebs_inst_period_list`).
const STORE_PERIOD: u64 = 100_003;

/// Records that a buffer of 64 KiB takes (`PEBS_BUFFER_SIZE`; 200 bytes each, `struct pebs_record_skl`): what
/// is asked of a sample lets the kernel take many with one interrupt.
const BUFFER: usize = 327;

/// `ksampled_soft_cpu_quota`, and how far from it the period is let alone, thousandths of a processor.
const QUOTA: (u64, u64) = (30, 5);

/// Time between two looks at what `ksampled` took, ns.
const QUOTA_EVERY: u64 = 15_000_000_000;

/// `htmm_cooling_period` and `htmm_adaptation_period`, samples.
const COOLING: u64 = 2_000_000;
const ADAPTATION: u64 = 100_000;

/// `htmm_demotion_period_in_ms` and `htmm_promotion_period_in_ms`, ns.
const WAKE_EVERY: u64 = 500_000_000;

/// Bins of the histogram.
const BINS: usize = 16;

/// Least hot threshold (`htmm_thres_hot`).
const LEAST_HOT: usize = 1;

/// Percent of fast memory below which hot pages leave room for warm ones (α, §4.2.1).
const WARM_BELOW: u64 = 90;

/// What a sample counts for a 4 KiB page, so that counts compare with those of 2 MiB pages (`HPAGE_PMD_NR`).
const WEIGHT: u32 = 512;

/// Bytes of 2 MiB pages that each node's `kmigrated` splits when it wakes (`deferred_split_scan_for_htmm`).
const MOST_SPLIT: u64 = 100 << 20;

/// Lists of each tier.
const INACTIVE: u8 = 0;
const ACTIVE: u8 = 1;
const KINDS: u8 = 2;

/// What is known of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    count: u32,
    /// The clock when it was last halved.
    clock: u32,
}

/// The bin of a count (`get_idx`).
fn bin(count: u32) -> usize {
    index(count.saturating_add(1).ilog2()).min(BINS - 1)
}

/// What `kmigrated` does with its lists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Walk {
    /// Nothing.
    #[default]
    None,
    /// It will begin when it wakes.
    Wanted,
    /// It has come to a page.
    At(Unit),
}

/// Memtis.
#[derive(Debug)]
pub struct Memtis {
    units: u32,
    tiers: u8,
    /// What a sample counts for a page that is one unit.
    weight: u32,
    pages: Vec<Page>,
    lists: Lists,
    /// Units on each list.
    on_lists: Vec<u64>,
    /// Units per bin.
    bins: [u64; BINS],
    /// What it knows of the parts of 2 MiB pages, where these can be split.
    splits: Option<Splits>,
    hot: usize,
    warm: usize,
    clock: u32,
    /// Pages were cooled since thresholds were adapted.
    cooled: bool,
    cooling: Walk,
    adjusting: Walk,
    cooling_every: u64,
    adapt_every: u64,
    samples: u64,
    /// Index of the period; none: it has not begun.
    period: Option<usize>,
    /// What `ksampled` took since it was looked at, ps.
    sampled_ps: u64,
    quota_at: u64,
    wake_at: u64,
    adaptations: u64,
}

impl Memtis {
    /// It begins with all pages cold.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let tiers = u8::try_from(setup.tiers).unwrap_or(u8::MAX / KINDS);
        let mut bins = [0; BINS];
        bins[0] = u64::from(setup.units);
        Self {
            units: setup.units,
            tiers,
            weight: if setup.pages_per_unit == 1 { WEIGHT } else { 1 },
            pages: vec![Page::default(); index(setup.units)],
            lists: Lists::new(tiers * KINDS, setup.units),
            on_lists: vec![0; usize::from(tiers * KINDS)],
            bins,
            splits: None,
            hot: LEAST_HOT,
            warm: LEAST_HOT,
            clock: 0,
            cooled: false,
            cooling: Walk::None,
            adjusting: Walk::None,
            cooling_every: (COOLING / setup.scale).max(1),
            adapt_every: (ADAPTATION / setup.scale).max(1),
            samples: 0,
            period: None,
            sampled_ps: 0,
            quota_at: QUOTA_EVERY,
            wake_at: WAKE_EVERY,
            adaptations: 0,
        }
    }

    fn sample_by(&mut self, ground: &mut Ground, period: usize) {
        self.period = Some(period);
        ground.sample(Some(Pmu {
            load_period: PERIODS[period],
            store_period: STORE_PERIOD,
            buffer: BUFFER,
            divisor: 1,
        }));
    }

    /// Puts a page on the list that it belongs to.
    fn list(&mut self, ground: &Ground, unit: Unit) {
        let active = bin(self.pages[index(unit)].count) >= self.hot;
        let kind = if active { ACTIVE } else { INACTIVE };
        let list = ground.tier(unit).unwrap_or(0) * KINDS + kind;
        if self.lists.list_of(unit) != Some(list) {
            self.unlist(ground, unit);
            self.lists.push(list, unit);
            self.on_lists[usize::from(list)] += ground.units_of(unit);
        }
    }

    fn unlist(&mut self, ground: &Ground, unit: Unit) {
        if let Some(list) = self.lists.list_of(unit) {
            self.lists.remove(unit);
            self.on_lists[usize::from(list)] -= ground.units_of(unit);
        }
    }

    /// Takes the page that has been on a list longest off it.
    fn pop(&mut self, ground: &Ground, list: u8) -> Option<Unit> {
        let unit = self.lists.tail(list)?;
        self.unlist(ground, unit);
        Some(unit)
    }

    /// Halves a page's count for each cooling that it has not seen, and counts it again.
    fn cool(&mut self, ground: &mut Ground, unit: Unit) {
        let page = &mut self.pages[index(unit)];
        let ticks = self.clock.wrapping_sub(page.clock);
        if ticks == 0 {
            return;
        }
        page.count = page.count.checked_shr(ticks).unwrap_or(0);
        page.clock = self.clock;
        let now = bin(page.count);
        self.bins[now] += ground.units_of(unit);
        if let Some(splits) = &mut self.splits {
            if ground.units_of(unit) > 1 {
                splits.cool(unit, ticks, now, self.hot);
                let looks = 512 * ground.costs().classify_page;
                ground.spend(Stage::Classify, looks);
            } else {
                splits.bins[now] += 1;
            }
        }
    }

    fn count(&mut self, ground: &mut Ground, sample: Sample) {
        let unit = ground.unit_of_page(sample.page);
        self.cool(ground, unit);
        let units = ground.units_of(unit);
        let page = &mut self.pages[index(unit)];
        let before = bin(page.count);
        let weight = if units == 1 { self.weight } else { 1 };
        page.count = page.count.saturating_add(weight);
        let now = bin(page.count);
        rebin(&mut self.bins, before, now, units);
        if let Some(splits) = &mut self.splits {
            let part = (units == 1).then_some((before, now));
            splits.count(&sample, part);
        }
        // A page under way is on no list until it has arrived.
        if self.lists.list_of(unit).is_some() {
            self.list(ground, unit);
        }
        self.samples += 1;
        if self.samples.is_multiple_of(self.cooling_every) {
            self.begin_cooling(ground);
        } else if self.samples.is_multiple_of(self.adapt_every) {
            self.adapt(ground);
        }
    }

    /// All counts are halved from now on: those of pages that are looked at, or that the walk comes to.
    fn begin_cooling(&mut self, ground: &Ground) {
        self.clock = self.clock.wrapping_add(1);
        if self.cooling == Walk::None {
            self.bins = [0; BINS];
            self.cooled = true;
            self.cooling = Walk::Wanted;
            if let Some(splits) = &mut self.splits {
                splits.begin_cooling(ground);
            }
        }
    }

    /// Sets the thresholds by the histogram.
    fn adapt(&mut self, ground: &Ground) {
        self.adaptations += 1;
        let room = ground.capacity(0).saturating_sub(promotion_mark(ground));
        let (fits, active) = threshold(&self.bins, room);
        let before = self.hot;
        if self.cooled {
            // Not all pages are counted yet: it goes down by one at most.
            self.cooled = false;
            if fits < self.hot {
                self.hot = (self.hot - 1).max(LEAST_HOT);
            }
            if let Some(splits) = &mut self.splits {
                splits.choose(ground, self.cooling_every, self.clock);
            }
        } else if self.splits.as_ref().is_some_and(Splits::happened) {
            self.hot = fits;
        } else {
            self.hot = self.hot.max(fits);
        }
        if let Some(splits) = &mut self.splits {
            splits.hot = threshold(&splits.bins, room).0;
        }
        if self.hot != before {
            self.adjusting = Walk::Wanted;
        }
        let leaves_room = active < room * WARM_BELOW / 100;
        self.warm = self.hot - usize::from(leaves_room);
    }

    /// `ksampled` looks at its own use of the processor.
    fn keep_quota(&mut self, ground: &mut Ground) {
        let Some(period) = self.period else {
            return;
        };
        let quota_ps = Ground::ps(QUOTA_EVERY / ground.setup().scale);
        let used = self.sampled_ps * 1000 / quota_ps.max(1);
        self.sampled_ps = 0;
        self.quota_at += QUOTA_EVERY;
        if used > QUOTA.0 + QUOTA.1 && period + 1 < PERIODS.len() {
            self.sample_by(ground, period + 1);
        } else if used < QUOTA.0 - QUOTA.1 && period > 0 {
            self.sample_by(ground, period - 1);
        }
    }

    /// Goes on over the pages, as far as there is time: cools them, and sorts them into lists.
    fn walk(&mut self, ground: &mut Ground) {
        let at = match (self.cooling, self.adjusting) {
            (Walk::At(unit), _) | (Walk::None, Walk::At(unit)) => unit,
            _ => return,
        };
        let mut unit = at;
        while unit < self.units && ground.has_time() {
            self.cool(ground, unit);
            if self.lists.list_of(unit).is_some() {
                self.list(ground, unit);
            }
            ground.spend(Stage::Classify, ground.costs().lru_page);
            unit += low(ground.units_of(unit));
        }
        let next = if unit < self.units {
            Walk::At(unit)
        } else {
            Walk::None
        };
        if self.cooling == Walk::None {
            self.adjusting = next;
        } else {
            self.cooling = next;
        }
    }

    /// `kmigrated` wakes: the lists first, then what goes down, then what goes up.
    fn wake(&mut self, ground: &mut Ground) {
        if self.cooling == Walk::Wanted {
            self.cooling = Walk::At(0);
            // Sorting is part of it.
            self.adjusting = Walk::None;
        } else if self.adjusting == Walk::Wanted {
            self.adjusting = Walk::At(0);
        }
        self.split(ground);
        if ground.travelling() == 0 {
            self.demote(ground);
            self.promote(ground);
        }
    }

    fn waiting(&self) -> u64 {
        (1..self.tiers)
            .map(|tier| self.on_lists[usize::from(tier * KINDS + ACTIVE)])
            .sum()
    }

    fn demote(&mut self, ground: &mut Ground) {
        let (free, waiting) = (ground.free(0), self.waiting());
        let wanted = if waiting > 0 {
            waiting + promotion_mark(ground)
        } else {
            demotion_mark(ground)
        };
        if free >= wanted {
            return;
        }
        let wanted = (waiting + promotion_mark(ground)).saturating_sub(free);
        let mut room: Vec<u64> = (0..self.tiers).map(|tier| ground.free(tier)).collect();
        let (mut down, mut units) = (Vec::new(), 0);
        for _ in 0..self.lists.len(INACTIVE) {
            if units >= wanted {
                break;
            }
            let Some(unit) = self.pop(ground, INACTIVE) else {
                break;
            };
            let takes = ground.units_of(unit);
            ground.spend(Stage::Classify, ground.costs().lru_page);
            let to = (1..self.tiers).find(|tier| room[usize::from(*tier)] >= takes);
            let spared = bin(self.pages[index(unit)].count) >= self.warm;
            let Some(to) = to.filter(|_| !spared) else {
                self.list(ground, unit);
                continue;
            };
            room[usize::from(to)] -= takes;
            units += takes;
            down.push((unit, to));
        }
        if units < waiting.min(wanted) {
            // Nothing is spared for being warm while hot pages wait.
            self.warm = self.hot;
        }
        submit(ground, down);
    }

    fn promote(&mut self, ground: &mut Ground) {
        // What goes down now makes room for the next time.
        let room = ground.free(0).saturating_sub(promotion_mark(ground));
        let (mut up, mut units) = (Vec::new(), 0);
        for tier in 1..self.tiers {
            while units < room {
                let Some(unit) = self.pop(ground, tier * KINDS + ACTIVE) else {
                    break;
                };
                units += ground.units_of(unit);
                up.push((unit, 0));
            }
        }
        submit(ground, up);
    }

    /// Splits some of the pages that were chosen; each part goes to the list that it belongs to.
    fn split(&mut self, ground: &mut Ground) {
        let each = (ground.units_in(MOST_SPLIT) / 512).max(1);
        let most = each * u64::from(self.tiers);
        for _ in 0..most {
            let Some(splits) = &mut self.splits else {
                return;
            };
            let Some(unit) = splits.next() else {
                return;
            };
            let page = self.pages[index(unit)];
            // One that travels is on no list, and one that was not cooled yet is in no bin.
            if self.lists.list_of(unit).is_none() || page.clock != self.clock {
                continue;
            }
            self.unlist(ground, unit);
            if !ground.split(unit) {
                self.list(ground, unit);
                continue;
            }
            ground.spend(Stage::Migrate, 512 * ground.costs().hint_page);
            let was = bin(page.count);
            self.bins[was] = self.bins[was].saturating_sub(512);
            for part in unit..unit + 512 {
                let count = self.splits.as_ref().map_or(0, |splits| splits.part(part));
                self.pages[index(part)] = Page { count, ..page };
                self.bins[bin(count)] += 1;
                self.list(ground, part);
            }
        }
    }
}

/// A page goes from a bin to another.
fn rebin(bins: &mut [u64; BINS], before: usize, now: usize, units: u64) {
    if before != now {
        bins[before] = bins[before].saturating_sub(units);
        bins[now] += units;
    }
}

/// Whole 2 MiB pages and 4 KiB pages go separately.
fn submit(ground: &mut Ground, pages: Vec<(Unit, u8)>) {
    let (small, whole): (Vec<_>, Vec<_>) = pages
        .into_iter()
        .partition(|(unit, _)| ground.units_of(*unit) == 1);
    ground.submit(&whole, Travelling::Unmap);
    ground.submit(&small, Travelling::Unmap);
}

/// The lowest bin above which, with itself, all pages fit, and how many these are.
fn threshold(bins: &[u64; BINS], room: u64) -> (usize, u64) {
    let (mut fits, mut active) = (BINS, 0);
    while fits > 0 && active + bins[fits - 1] <= room {
        fits -= 1;
        active += bins[fits];
    }
    (fits.clamp(LEAST_HOT, BINS - 1), active)
}

/// Units that promotions leave free (`get_memcg_promotion_watermark`): 3 % of fast memory.
fn promotion_mark(ground: &Ground) -> u64 {
    mark(ground, 3, (100, 50), (1500, 1000))
}

/// Units below which fast memory is freed (`get_memcg_demotion_watermark`): 2 % of it.
fn demotion_mark(ground: &Ground) -> u64 {
    mark(ground, 2, (50, 50), (1000, 1000))
}

/// A part of fast memory, in percent; where it is below or above so many MiB, other sizes.
fn mark(ground: &Ground, percent: u64, low: (u64, u64), high: (u64, u64)) -> u64 {
    let part = ground.capacity(0) * percent / 100;
    let units = |mib: u64| ground.units_in(mib << 20);
    if part < units(low.0) {
        // No more than a quarter of a fast memory that is smaller than any the authors thought of.
        units(low.1).min(ground.capacity(0) / 4)
    } else if part > units(high.0) {
        units(high.1)
    } else {
        part
    }
}

impl Mechanism for Memtis {
    fn pass(&mut self, ground: &mut Ground) {
        if self.period.is_none() {
            self.sample_by(ground, 0);
            // `kmigrated` of the slow node, and that of the fast one.
            ground.set_movers(2);
            if ground.can_split() {
                self.splits = Some(Splits::new(ground));
            }
            let mut unit = 0;
            while unit < self.units {
                self.list(ground, unit);
                unit += low(ground.units_of(unit));
            }
        }
        if ground.now_ns() >= self.quota_at {
            self.keep_quota(ground);
        }
        if ground.now_ns() >= self.wake_at {
            self.wake_at = ground.now_ns() + WAKE_EVERY;
            self.wake(ground);
        }
        self.walk(ground);
    }

    fn samples(&mut self, ground: &mut Ground, samples: &[Sample]) {
        let work = samples.len() as u64 * ground.costs().sample_work;
        ground.spend(Stage::Track, work);
        self.sampled_ps += work;
        for sample in samples {
            self.count(ground, *sample);
        }
    }

    fn moved(&mut self, ground: &mut Ground, moved: &[Moved]) {
        for moved in moved {
            self.list(ground, moved.unit);
        }
    }

    fn pushed(&mut self, ground: &mut Ground, unit: Unit, _: u8) {
        self.list(ground, unit);
    }

    fn rounds(&self) -> u64 {
        self.adaptations
    }

    fn heap_bytes(&self) -> usize {
        let splits = self.splits.as_ref().map_or(0, Splits::heap_bytes);
        self.lists.heap_bytes() + self.pages.capacity() * size_of::<Page>() + splits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hot_threshold_is_the_lowest_from_which_all_pages_fit() {
        let mut bins = [0; BINS];
        (bins[0], bins[9], bins[10], bins[12]) = (1000, 300, 100, 50);
        assert_eq!(threshold(&bins, 40), (13, 0));
        assert_eq!(threshold(&bins, 150), (10, 150));
        assert_eq!(threshold(&bins, 450), (LEAST_HOT, 450));
        bins[15] = 2000;
        assert_eq!(threshold(&bins, 1500), (15, 0));
    }

    #[test]
    fn bins_are_of_twice_the_count_and_one_sample_of_a_4_kib_page_is_512_of_a_2_mib_page() {
        assert_eq!([0, 1, 2, 3, 6, 7].map(bin), [0, 1, 1, 2, 2, 3]);
        assert_eq!([WEIGHT, 2 * WEIGHT, u32::MAX].map(bin), [9, 10, 15]);
    }
}
