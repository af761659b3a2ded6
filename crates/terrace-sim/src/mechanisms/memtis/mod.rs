//! `memtis` (Lee et al., SOSP '23; the authors' kernel, Linux 5.15: mm/htmm_*.c): the hotness at which a page is
//! promoted follows from a histogram of sampled accesses.
//!
//! - Trigger: `ksampled` takes records of loads (one in 199 and more) and stores (one in 100,003);
//!   `kmigrated` of each node wakes every 500 ms.
//! - Threshold: pages are counted in 16 bins, each of twice the count of the one before. Every 100,000
//!   samples the hot threshold becomes the lowest bin above which all pages fit into fast memory
//!   (`__adjust_active_threshold`); a page in the bin below it is warm while hot pages fill less than 90 %
//!   of fast memory, and is not demoted. Every 2 million samples all counts are halved (`__cooling`).
//! - Rate limit: none for moves; `ksampled` lengthens its period while it takes more than 3 % of a
//!   processor.
//! - Victim: the page that has been on fast memory's inactive list longest, if hot pages wait for room or less than 2
//!   % is free (`need_toptier_demotion`).
//!
//! The choice of the 2 MiB pages that are split is in [`split`].

mod cadence;
mod counts;
mod histogram;
mod ksampled;
mod lru;
mod split;
mod thresholds;
mod walks;

use cadence::{Cadence, Due};
use counts::Counts;
pub(super) use ksampled::Ksampled;
use lru::Lru;
use split::Splits;
use thresholds::Thresholds;
use walks::Walks;

use super::needs::{Need, Part};
use super::{Context, Mechanism, MigrationMode, Moved, Sample, Setup, Stage, Unit};
use crate::base::number::low;

/// Time between two wake-ups of `kmigrated` (`htmm_demotion_period_in_ms` and `htmm_promotion_period_in_ms`), ns.
const WAKE_EVERY: u64 = 500_000_000;

/// Bytes of 2 MiB pages that each node's `kmigrated` splits when it wakes (`deferred_split_scan_for_htmm`).
const MAX_SPLIT: u64 = 100 << 20;

/// Least fast memory that is left free, MiB (`get_memcg_promotion_watermark`, `get_memcg_demotion_watermark`).
const LEAST_FREE: u64 = 50;

/// Most of fast memory that is left free: one part in so many, in a fast memory smaller than any the authors thought
/// of.
const MAX_FREE_PART: u64 = 4;

/// Memtis.
#[derive(Debug)]
pub struct Memtis {
    units: u32,
    counts: Counts,
    lru: Lru,
    /// The counts of the parts of 2 MiB pages; `None` if these cannot be split.
    splits: Option<Splits>,
    thresholds: Thresholds,
    cadence: Cadence,
    ksampled: Ksampled,
    walks: Walks,
    wake_at: u64,
    adaptations: u64,
}

impl Memtis {
    /// The least VM for the mechanism's constants.
    pub fn needs() -> Vec<Need> {
        vec![Need {
            part: Part::First,
            least: (LEAST_FREE * MAX_FREE_PART) << 20,
            constant: "keeps 50 MiB of the first tier free (get_memcg_promotion_watermark)",
            relation: "more than a quarter of this VM's",
        }]
    }

    /// A mechanism to which all pages are cold.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        Self {
            units: setup.units,
            counts: Counts::new(setup),
            lru: Lru::new(setup),
            splits: None,
            thresholds: Thresholds::new(),
            cadence: Cadence::new(setup.scale),
            ksampled: Ksampled::new(),
            walks: Walks::default(),
            wake_at: WAKE_EVERY,
            adaptations: 0,
        }
    }

    /// Puts a page on the list that it belongs to.
    fn list(&mut self, context: &Context, unit: Unit) {
        let is_hot = self.thresholds.is_hot(self.counts.bin_of(unit));
        self.lru.put(context, unit, is_hot);
    }

    /// Halves a page's count, and those of its parts, for each cooling that it has not seen.
    fn cool(&mut self, context: &mut Context, unit: Unit) {
        let units = context.units_of(unit);
        let Some((ticks, now)) = self.counts.cool(unit, units) else {
            return;
        };
        if let Some(splits) = &mut self.splits {
            if units > 1 {
                splits.cool(unit, ticks, now, self.thresholds.hot());
                let cost = 512 * context.costs().classify_page;
                context.spend(Stage::Classify, cost);
            } else {
                splits.cool_part(now);
            }
        }
    }

    fn count(&mut self, context: &mut Context, sample: Sample) {
        let unit = context.unit_of_page(sample.page);
        self.cool(context, unit);
        let units = context.units_of(unit);
        let bins = self.counts.sample(unit, units);
        if let Some(splits) = &mut self.splits {
            splits.count(&sample, (units == 1).then_some(bins));
        }
        // A page under way is on no list until it has arrived.
        if self.lru.has(unit) {
            self.list(context, unit);
        }
        match self.cadence.sample() {
            Some(Due::Cooling) => self.begin_cooling(context),
            Some(Due::Adaptation) => self.adapt(context),
            None => {}
        }
    }

    /// Begins a cooling: all counts are halved, that of each page when it is tested or when the walk comes to it.
    fn begin_cooling(&mut self, context: &Context) {
        self.counts.tick();
        if self.walks.want_cooling() {
            self.counts.recount();
            self.thresholds.cool();
            if let Some(splits) = &mut self.splits {
                splits.begin_cooling(context);
            }
        }
    }

    /// Sets the thresholds by the histogram.
    fn adapt(&mut self, context: &Context) {
        self.adaptations += 1;
        let room = context.capacity(0).saturating_sub(promotion_mark(context));
        let fits = self.counts.threshold(room);
        if let Some(splits) = &mut self.splits {
            if self.thresholds.is_cooled() {
                splits.choose(
                    context,
                    self.cadence.cooling_every(),
                    self.counts.coolings(),
                );
            }
            splits.adapt(room);
        }
        let were_split = self.splits.as_ref().is_some_and(Splits::happened);
        if self.thresholds.adapt(fits, room, were_split) {
            self.walks.want_sorting();
        }
    }

    /// Continues the walk over the pages, as far as there is time: cools them, and sorts them into lists.
    fn walk(&mut self, context: &mut Context) {
        let Some(mut unit) = self.walks.at() else {
            return;
        };
        while unit < self.units && context.has_time() {
            self.cool(context, unit);
            if self.lru.has(unit) {
                self.list(context, unit);
            }
            context.spend(Stage::Classify, context.costs().lru_page);
            unit += low(context.units_of(unit));
        }
        self.walks
            .come_to(Some(unit).filter(|unit| *unit < self.units));
    }

    /// Wakes `kmigrated`, which serves the lists first, then demotions, then promotions.
    fn wake(&mut self, context: &mut Context) {
        self.walks.begin();
        self.split(context);
        if context.migrating() == 0 {
            self.demote(context);
            self.promote(context);
        }
    }

    fn demote(&mut self, context: &mut Context) {
        let (free, waiting) = (context.free(0), self.lru.waiting());
        let wanted = if waiting > 0 {
            waiting + promotion_mark(context)
        } else {
            demotion_mark(context)
        };
        if free >= wanted {
            return;
        }
        let wanted = (waiting + promotion_mark(context)).saturating_sub(free);
        let tiers = self.lru.tiers();
        let mut room: Vec<u64> = (0..tiers).map(|tier| context.free(tier)).collect();
        let (mut down, mut units) = (Vec::new(), 0);
        for _ in 0..self.lru.victims() {
            if units >= wanted {
                break;
            }
            let Some(unit) = self.lru.pop_victim(context) else {
                break;
            };
            let takes = context.units_of(unit);
            context.spend(Stage::Classify, context.costs().lru_page);
            let to = (1..tiers).find(|tier| room[usize::from(*tier)] >= takes);
            let spared = self.thresholds.is_warm(self.counts.bin_of(unit));
            let Some(to) = to.filter(|_| !spared) else {
                self.list(context, unit);
                continue;
            };
            room[usize::from(to)] -= takes;
            units += takes;
            down.push((unit, to));
        }
        if units < waiting.min(wanted) {
            // Nothing is spared for being warm while hot pages wait.
            self.thresholds.spare_none();
        }
        submit(context, down);
    }

    fn promote(&mut self, context: &mut Context) {
        // Pages that go down now make room for the next time.
        let room = context.free(0).saturating_sub(promotion_mark(context));
        let (mut up, mut units) = (Vec::new(), 0);
        for tier in 1..self.lru.tiers() {
            while units < room {
                let Some(unit) = self.lru.pop_active(context, tier) else {
                    break;
                };
                units += context.units_of(unit);
                up.push((unit, 0));
            }
        }
        submit(context, up);
    }

    /// Splits some of the pages that were chosen; each part goes to the list that it belongs to.
    fn split(&mut self, context: &mut Context) {
        let each = (context.units_in(MAX_SPLIT) / 512).max(1);
        let most = each * u64::from(self.lru.tiers());
        for _ in 0..most {
            let Some(splits) = &mut self.splits else {
                return;
            };
            let Some(unit) = splits.next() else {
                return;
            };
            // One that is migrated is on no list, and one that was not cooled yet is in no bin.
            if !self.lru.has(unit) || !self.counts.is_cooled(unit) {
                continue;
            }
            self.lru.remove(context, unit);
            if !context.split(unit) {
                self.list(context, unit);
                continue;
            }
            context.spend(Stage::Migrate, 512 * context.costs().hint_page);
            self.counts.split(unit, |part| splits.part(part));
            for part in unit..unit + 512 {
                self.list(context, part);
            }
        }
    }
}

/// Submits whole 2 MiB pages and 4 KiB pages separately.
fn submit(context: &mut Context, pages: Vec<(Unit, u8)>) {
    let (small, whole): (Vec<_>, Vec<_>) = pages
        .into_iter()
        .partition(|(unit, _)| context.units_of(*unit) == 1);
    context.submit(&whole, MigrationMode::Unmap);
    context.submit(&small, MigrationMode::Unmap);
}

/// Units that promotions leave free (`get_memcg_promotion_watermark`): 3 % of fast memory.
fn promotion_mark(context: &Context) -> u64 {
    mark(context, 3, (100, LEAST_FREE), (1500, 1000))
}

/// Free units below which fast memory is freed (`get_memcg_demotion_watermark`): 2 % of it.
fn demotion_mark(context: &Context) -> u64 {
    mark(context, 2, (50, LEAST_FREE), (1000, 1000))
}

/// A part of fast memory, in percent; if that is below or above so many MiB, other sizes.
fn mark(context: &Context, percent: u64, low: (u64, u64), high: (u64, u64)) -> u64 {
    let part = context.capacity(0) * percent / 100;
    let units = |mib: u64| context.units_in(mib << 20);
    if part < units(low.0) {
        // No more than a quarter of a fast memory that is smaller than any the authors thought of.
        units(low.1).min(context.capacity(0) / MAX_FREE_PART)
    } else if part > units(high.0) {
        units(high.1)
    } else {
        part
    }
}

impl Mechanism for Memtis {
    fn run_quantum(&mut self, context: &mut Context) {
        if !self.ksampled.has_begun() {
            self.ksampled.begin(context);
            // `kmigrated` of the slow node, and that of the fast one.
            context.set_movers(2);
            if context.can_split() {
                self.splits = Some(Splits::new(context));
            }
            let mut unit = 0;
            while unit < self.units {
                self.list(context, unit);
                unit += low(context.units_of(unit));
            }
        }
        self.ksampled.keep_quota(context);
        if context.now_ns() >= self.wake_at {
            self.wake_at = context.now_ns() + WAKE_EVERY;
            self.wake(context);
        }
        self.walk(context);
    }

    fn samples(&mut self, context: &mut Context, samples: &[Sample]) {
        let work = samples.len() as u64 * context.costs().sample_work;
        context.spend(Stage::Track, work);
        self.ksampled.spent(work);
        for sample in samples {
            self.count(context, *sample);
        }
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            self.list(context, moved.unit);
        }
    }

    fn displaced(&mut self, context: &mut Context, unit: Unit, _: u8) {
        self.list(context, unit);
    }

    fn rounds(&self) -> u64 {
        self.adaptations
    }

    fn heap_bytes(&self) -> usize {
        let splits = self.splits.as_ref().map_or(0, Splits::heap_bytes);
        self.lru.heap_bytes() + self.counts.heap_bytes() + splits
    }
}
