//! `hemem` (Raybuck et al., SOSP '21), with the constants of a later fork: sampling by the processor's counters, two
//! thresholds, lists.
//!
//! - Trigger: a thread reads the records of loads and of stores, one in 19,997 of each; another reads
//!   the lists every 10 ms (§3.3, §3.4; `pebs_scan_thread`, `pebs_policy_thread`).
//! - Threshold: 4 samples of loads (from fast and slow memory together) or 4 of stores make a page hot; a
//!   count above 10 moves a global clock on, and each page's counts are halved once per tick when it is
//!   next checked.
//! - Rate limit: none that matters (10 GB in 10 ms); one thread moves, 2 MiB at a time.
//! - Victim: the page that has been on fast memory's cold list longest, and only if a hot page needs its place.
//!   Write-heavy pages go up first.
//!
//! HeMem's page is 2 MiB. On a scaled machine it is smaller by the scale, as ranges are, as far as the VM's own pages
//! allow it, and so is the sampling period.

use super::lists::Lists;
use super::{Context, Mechanism, MigrationMode, Moved, Pmu, Sample, Setup, Stage, Unit};
use crate::base::number::{index, low, to_usize};

/// Loads per sample, and stores per sample.
const PERIOD: u64 = 19_997;

/// Records in a buffer: its samples ask for the latency of loads, so the kernel takes each with an
/// interrupt of its own (`LARGE_PEBS_FLAGS`, arch/x86/events/perf_event.h).
const BUFFER: usize = 1;

/// Samples that make a page hot.
const HOT: u16 = 4;

/// Samples above which all pages are cooled.
const COOL: u16 = 10;

/// Time between two checks of the lists, ns.
const POLICY_PERIOD_NS: u64 = 10_000_000;

/// 4 KiB pages of one of HeMem's pages.
const PAGE: u64 = 512;

/// Pages taken at a check: more than a copy has time for until the next.
const PAGES_PER_PASS: u64 = 32;

/// Pages of a hot list that are checked again at a time, after a tick of the clock.
const COOLING_PAGES: u64 = 8192;

/// Kinds of lists, of which each tier has all.
const COLD: u8 = 0;
const READ: u8 = 1;
const WRITTEN: u8 = 2;
const KINDS: u8 = 3;

/// The state of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Numbers of samples: of loads from the first tier, of loads from others, and of stores.
    counts: [u16; 3],
    /// The clock when the counts were last halved.
    clock: u32,
}

impl Page {
    fn cool(&mut self, clock: u32) {
        let ticks = clock.wrapping_sub(self.clock);
        self.counts = self.counts.map(|n| n.checked_shr(ticks).unwrap_or(0));
        self.clock = clock;
    }

    fn kind(&self) -> u8 {
        let [fast, slow, stores] = self.counts;
        if stores >= HOT {
            WRITTEN
        } else if fast + slow >= HOT {
            READ
        } else {
            COLD
        }
    }
}

/// `HeMem`.
#[derive(Debug)]
pub struct Hemem {
    units: u32,
    tiers: u8,
    /// Units of one of HeMem's pages.
    units_per_page: u32,
    /// The factor by which such a page is smaller than the full-size one.
    divisor: u64,
    pages: Vec<Page>,
    lists: Lists,
    clock: u32,
    /// Pages per tier that are still to be checked since the clock's last tick.
    cooling: Vec<u64>,
    /// When the lists are checked next; `None` before the mechanism has begun.
    due: Option<u64>,
    passes: u64,
}

impl Hemem {
    /// A mechanism to which all pages are cold.
    #[must_use]
    pub fn new(setup: &Setup) -> Self {
        let whole = PAGE / setup.pages_per_unit;
        let units_per_page = low((whole / setup.scale).max(1));
        let pages = setup.units.div_ceil(units_per_page);
        let tiers = u8::try_from(setup.tiers).unwrap_or(u8::MAX / KINDS);
        Self {
            units: setup.units,
            tiers,
            units_per_page,
            divisor: whole / u64::from(units_per_page),
            pages: vec![Page::default(); index(pages)],
            lists: Lists::new(tiers * KINDS, pages),
            clock: 0,
            cooling: vec![0; setup.tiers],
            due: None,
            passes: 0,
        }
    }

    /// The units of a page.
    fn span(&self, page: u32) -> std::ops::Range<Unit> {
        let first = page * self.units_per_page;
        first..(first + self.units_per_page).min(self.units)
    }

    fn tier(&self, context: &Context, page: u32) -> u8 {
        context.tier(self.span(page).start).unwrap_or(0)
    }

    /// Puts a page on the list that it belongs to.
    fn list(&mut self, context: &Context, page: u32) {
        let kind = self.pages[index(page)].kind();
        let list = self.tier(context, page) * KINDS + kind;
        if self.lists.list_of(page) != Some(list) {
            self.lists.push(list, page);
        }
    }

    fn begin(&mut self, context: &mut Context) {
        context.sample(Some(Pmu {
            load_period: PERIOD,
            store_period: PERIOD,
            buffer: BUFFER,
            divisor: self.divisor,
        }));
        // It write-protects one of its pages at a time.
        context.set_batch(to_usize(u64::from(self.units_per_page)));
        for page in 0..low(self.pages.len() as u64) {
            self.list(context, page);
        }
    }

    fn count(&mut self, context: &mut Context, sample: Sample) {
        let page = context.unit_of_page(sample.page) / self.units_per_page;
        let of = match (sample.write, sample.tier) {
            (true, _) => 2,
            (false, 0) => 0,
            (false, _) => 1,
        };
        let known = &mut self.pages[index(page)];
        known.cool(self.clock);
        known.counts[of] += 1;
        if known.counts[of] > COOL {
            self.clock = self.clock.wrapping_add(1);
            for tier in 0..self.tiers {
                self.cooling[usize::from(tier)] = self.hot_pages(tier);
            }
        }
        // A page under way is on no list until it has arrived.
        if self.lists.list_of(page).is_some() {
            self.list(context, page);
        }
    }

    fn hot_pages(&self, tier: u8) -> u64 {
        self.lists.len(tier * KINDS + READ) + self.lists.len(tier * KINDS + WRITTEN)
    }

    /// Checks pages of hot lists again, a part at a time.
    fn cool(&mut self, context: &mut Context) {
        for tier in 0..self.tiers {
            let left = self.cooling[usize::from(tier)];
            let now = left.min(COOLING_PAGES);
            for turn in 0..now {
                let (first, second) = if turn % 2 == 0 {
                    (WRITTEN, READ)
                } else {
                    (READ, WRITTEN)
                };
                let page = self.lists.pop(tier * KINDS + first);
                let Some(page) = page.or_else(|| self.lists.pop(tier * KINDS + second)) else {
                    break;
                };
                self.pages[index(page)].cool(self.clock);
                self.list(context, page);
            }
            context.spend(Stage::Classify, now * context.costs().classify_page);
            self.cooling[usize::from(tier)] = left - now;
        }
    }

    /// The next page to promote: first of those that are written, then of those that are read.
    fn next_hot(&mut self) -> Option<u32> {
        let lists = [WRITTEN, READ].map(|kind| (1..self.tiers).map(move |t| t * KINDS + kind));
        lists
            .into_iter()
            .flatten()
            .find_map(|list| self.lists.pop(list))
    }

    /// Sends hot pages up, and as many cold ones down before as are needed for room: 2 MiB of each in turn.
    fn migrate(&mut self, context: &mut Context) {
        let per_page = u64::from(self.units_per_page);
        let chunk = (PAGE / context.setup().pages_per_unit / per_page).max(1);
        let mut left = (context.units_in(PAGES_PER_PASS * PAGE * 4096) / per_page).max(1);
        let mut free = context.free(0);
        while left > 0 {
            let (mut up, mut down) = (Vec::new(), Vec::new());
            let to = (1..self.tiers).find(|tier| context.free(*tier) >= chunk * per_page);
            for _ in 0..chunk.min(left) {
                let Some(page) = self.next_hot() else {
                    break;
                };
                if free < per_page {
                    let Some((to, cold)) = to.zip(self.lists.pop(COLD)) else {
                        // All of fast memory is hot: it stays hot where it is.
                        self.list(context, page);
                        break;
                    };
                    down.extend(self.span(cold).map(|unit| (unit, to)));
                    free += per_page;
                }
                up.extend(self.span(page).map(|unit| (unit, 0)));
                free -= per_page;
            }
            if up.is_empty() {
                return;
            }
            context.submit(&down, MigrationMode::Protect);
            context.submit(&up, MigrationMode::Protect);
            left = left.saturating_sub(chunk);
        }
    }
}

impl Mechanism for Hemem {
    fn run_quantum(&mut self, context: &mut Context) {
        let Some(due) = self.due else {
            self.begin(context);
            self.due = Some(context.now_ns() + POLICY_PERIOD_NS);
            return;
        };
        if context.now_ns() < due || context.migrating() > 0 {
            return;
        }
        self.due = Some(context.now_ns() + POLICY_PERIOD_NS);
        self.passes += 1;
        self.cool(context);
        self.migrate(context);
    }

    fn samples(&mut self, context: &mut Context, samples: &[Sample]) {
        let work = samples.len() as u64 * context.costs().sample_work;
        context.spend(Stage::Track, work / self.divisor);
        for sample in samples {
            self.count(context, *sample);
        }
    }

    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        for moved in moved {
            let page = moved.unit / self.units_per_page;
            if self.span(page).end == moved.unit + 1 {
                self.list(context, page);
            }
        }
    }

    fn rounds(&self) -> u64 {
        self.passes
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.pages.capacity() * size_of::<Page>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::side::Side;

    fn hemem(scale: u64, pages_per_unit: u64) -> Hemem {
        Hemem::new(&Setup {
            units: 1 << 10,
            tiers: 2,
            pages_per_unit,
            scale,
            seed: 1,
            vcpus: 2,
            vm: "a".into(),
            side: Side::Host,
        })
    }

    #[test]
    fn a_sample_stands_for_a_huge_pages_accesses_at_any_scale() {
        let shape = |scale, pages| {
            let hemem = hemem(scale, pages);
            (hemem.units_per_page, hemem.divisor)
        };
        assert_eq!([shape(1, 1), shape(64, 1)], [(512, 1), (8, 64)]);
        assert_eq!([shape(512, 1), shape(1024, 1)], [(1, 512), (1, 512)]);
        assert_eq!([shape(1, 512), shape(64, 512)], [(1, 1), (1, 1)]);
    }

    #[test]
    fn write_heavy_pages_go_up_first() {
        let mut hemem = hemem(512, 1);
        let page = |counts| Page { counts, clock: 0 };
        let pages = [page([1, 3, 0]), page([0, 9, 3]), page([0, 0, 4])];
        for (number, page) in (0..).zip(pages) {
            hemem.lists.push(KINDS + page.kind(), number);
        }
        let order: Vec<u32> = std::iter::from_fn(|| hemem.next_hot()).collect();
        assert_eq!(order, [2, 0, 1]);
    }

    #[test]
    fn a_page_is_cooled_once_for_each_tick_since_it_was_looked_at() {
        let mut page = Page {
            counts: [10, 1, 7],
            clock: 3,
        };
        page.cool(5);
        assert_eq!((page.counts, page.kind()), ([2, 0, 1], COLD));
        page.cool(5 + 40);
        assert_eq!(page.counts, [0; 3]);
    }
}
