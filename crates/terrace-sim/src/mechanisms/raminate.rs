//! `raminate`: RAMinate (Hirofuchi and Takano, SoCC '16), page exchange by a corked multi-queue.
//!
//! - Trigger: a scan of the whole second stage every second reads and clears A and D of each page (vTMM,
//!   §4.3.2; HMvisor, §3.2.1); it takes 2 µs a page, so large VMs are scanned less often.
//! - Threshold: a page's queue is the logarithm of the number of scans that found it written; pages that were only
//!   read are in queues below. A page of a slow tier changes places with one of the tier above if its queue is
//!   higher.
//! - Rate limit: from the first scan on, the cork is out once a second (keys: `scan_ms`, `migrate_ms`, `decay_ms`), for
//!   at most 1,024 pages of 4 KiB of all tiers together. Where a unit is more than that, the bytes add up until it fits.
//! - Victim: the page that has been longest in the lowest queue of the tier above that is not empty.
//!
//! Further figures of RAMinate's own paper are not known here: `docs/baselines/raminate.md` names the source of each
//! figure.

use terrace_proto::PAGE_SIZE;

use super::lists::Lists;
use super::{Context, Mechanism, MigrationMode, Moved, Setup, Stage, Unit};
use crate::base::number::index;
use crate::machine::{PS, TIERS};

/// Time of scanning one page, ps: 800 ms for 1.6 GB of 4 KiB pages (HMvisor, §3.2.1).
const SCAN_PAGE: u64 = 2_000 * PS;

/// The most bytes that change tier each time that the cork is out: HMvisor's limit for the same purpose, 1,024 pages.
const EPOCH_BYTES: u64 = 1024 * 4096;

/// Units that change tier in an exchange.
const EXCHANGE: u64 = 2;

/// Bytes that may change tier, of the full-size machine. A budget holds what one epoch brings, or an exchange if
/// that is more, so that large units come seldom, but by whole ones.
#[derive(Clone, Copy, Debug)]
struct Budget {
    bytes: u64,
    unit_bytes: u64,
}

impl Budget {
    fn new(setup: &Setup) -> Self {
        Self {
            bytes: 0,
            unit_bytes: setup.pages_per_unit * PAGE_SIZE * setup.scale,
        }
    }

    /// Adds what an epoch brings; returns the units that may change tier.
    fn begin_epoch(&mut self) -> u64 {
        let most = EPOCH_BYTES.max(EXCHANGE * self.unit_bytes);
        self.bytes = (self.bytes + EPOCH_BYTES).min(most);
        self.bytes / self.unit_bytes
    }

    fn spend(&mut self, units: u64) {
        self.bytes = self.bytes.saturating_sub(units * self.unit_bytes);
    }
}

/// The parameters of RAMinate, ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cork {
    /// Time between the starts of two scans: 1 s (vTMM, §4.3.2; HMvisor, §3.2.1).
    pub scan_ms: u32,
    /// Time between two times that the cork is out: 1 s, HMvisor's migration epoch.
    pub migrate_ms: u32,
    /// Time without an access after which a page moves one queue down: 8 s (estimate). It is counted in scans, by
    /// the time that lies between them where they keep up.
    pub decay_ms: u32,
}

impl Cork {
    /// The parameters that hold if nothing is said.
    pub const DEFAULT: Self = Self {
        scan_ms: 1000,
        migrate_ms: 1000,
        decay_ms: 8000,
    };

    /// Scans without an access after which a page sinks.
    fn lifetime(self) -> u8 {
        let scans = self.decay_ms / self.scan_ms.max(1);
        u8::try_from(scans).unwrap_or(u8::MAX).max(1)
    }
}

fn ns(ms: u32) -> u64 {
    u64::from(ms) * 1_000_000
}

/// Queues of a tier: of pages never found, of those only read by the logarithm of an 8-bit count, of those
/// written.
const QUEUES: u8 = 17;

/// The state of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// Number of scans that found the page accessed but not written.
    reads: u8,
    /// Number of scans that found the page written.
    writes: u8,
    /// Number of scans since the page was last found accessed, or sank by a queue.
    idle: u8,
}

impl Page {
    /// Takes in a scan's findings about the page.
    fn seen(&mut self, accessed: bool, written: bool, lifetime: u8) {
        if written {
            self.writes = self.writes.saturating_add(1);
        } else if accessed {
            self.reads = self.reads.saturating_add(1);
        } else {
            self.idle += 1;
            if self.idle < lifetime {
                return;
            }
            // One queue less: the lower half of what it had.
            self.writes /= 2;
            self.reads /= 2;
        }
        self.idle = 0;
    }

    fn queue(self) -> u8 {
        let level = |count: u8| count.checked_ilog2().map_or(0, |log| 1 + log);
        let queue = match level(self.writes) {
            0 => level(self.reads),
            level => 8 + level,
        };
        u8::try_from(queue).unwrap_or(QUEUES - 1)
    }
}

/// The mechanism RAMinate.
#[derive(Debug)]
pub struct Raminate {
    cork: Cork,
    budget: Budget,
    pages: Vec<Page>,
    /// The queues of each tier, the first tier's first.
    queues: Lists,
    next: Unit,
    /// The start of the present scan, or the earliest start of the next, ns.
    due: u64,
    /// The earliest time at which the cork is out again, ns.
    epoch: u64,
    scanning: bool,
    scans: u64,
}

impl Raminate {
    /// A mechanism that knows nothing of any page yet.
    #[must_use]
    pub fn new(setup: &Setup, cork: Cork) -> Self {
        let lists = u8::try_from(TIERS).map_or(u8::MAX, |tiers| tiers * QUEUES);
        Self {
            cork,
            budget: Budget::new(setup),
            pages: vec![Page::default(); index(setup.units)],
            queues: Lists::new(lists, setup.units),
            next: 0,
            due: ns(cork.scan_ms),
            epoch: 0,
            scanning: false,
            scans: 0,
        }
    }

    fn queue_up(&mut self, unit: Unit, tier: u8) {
        let list = tier * QUEUES + self.pages[index(unit)].queue();
        if self.queues.list_of(unit) != Some(list) {
            self.queues.push(list, unit);
        }
    }

    /// Continues the scan; returns whether it is over.
    fn scan(&mut self, context: &mut Context) -> bool {
        while self.next < context.units() {
            if !context.has_time() {
                return false;
            }
            let unit = self.next;
            self.next += 1;
            context.spend(Stage::Track, SCAN_PAGE);
            let (accessed, written) = (context.young(unit), context.written(unit));
            self.pages[index(unit)].seen(accessed, written, self.cork.lifetime());
            if let Some(tier) = context.tier(unit).filter(|_| !context.is_migrating(unit)) {
                self.queue_up(unit, tier);
            }
        }
        self.next = 0;
        true
    }

    /// The highest queue of a tier that is not empty.
    fn highest(&self, tier: u8) -> Option<u8> {
        (0..QUEUES)
            .rev()
            .find(|queue| !self.queues.is_empty(tier * QUEUES + queue))
    }

    fn lowest(&self, tier: u8) -> Option<u8> {
        (0..QUEUES).find(|queue| !self.queues.is_empty(tier * QUEUES + queue))
    }

    /// Takes the cork out: at most so many pages of a tier and the one above change places. Returns how many do.
    fn uncork(&mut self, context: &mut Context, tier: u8, most: u64) -> u64 {
        let above = tier - 1;
        let (mut rise, mut exchange) = (Vec::new(), Vec::new());
        let mut free = context.free(above);
        let mut left = most;
        while left > 0 {
            let Some(queue) = self.highest(tier).filter(|queue| *queue > 0) else {
                break;
            };
            let from = tier * QUEUES + queue;
            if free > 0 {
                free -= 1;
                left -= 1;
                rise.extend(self.queues.pop(from).map(|unit| (unit, above)));
                continue;
            }
            let victim = self.lowest(above).filter(|lowest| *lowest < queue);
            let Some(victim) = victim.filter(|_| left >= EXCHANGE) else {
                break;
            };
            if let Some(unit) = self.queues.pop(from)
                && let Some(victim) = self.queues.pop(above * QUEUES + victim)
            {
                exchange.extend([(unit, above), (victim, tier)]);
            }
            left -= EXCHANGE;
        }
        let chosen = (rise.len() + exchange.len()) as u64;
        context.spend(Stage::Classify, chosen * context.costs().classify_page);
        context.submit(&rise, MigrationMode::Unmap);
        context.submit(&exchange, MigrationMode::Exchange);
        chosen
    }
}

impl Mechanism for Raminate {
    fn run_quantum(&mut self, context: &mut Context) {
        let now = context.now_ns();
        if !self.scanning && now >= self.due {
            self.scanning = true;
            self.due = now + ns(self.cork.scan_ms);
        }
        if self.scanning && self.scan(context) {
            self.scanning = false;
            self.scans += 1;
            // Bits that were cleared are seen again only by walks.
            context.flush();
        }
        if self.scans == 0 || now < self.epoch || context.migrating() > 0 {
            return;
        }
        self.epoch = now + ns(self.cork.migrate_ms);
        let mut left = self.budget.begin_epoch();
        let tiers = u8::try_from(context.setup().tiers).unwrap_or(1);
        for tier in 1..tiers {
            let chosen = self.uncork(context, tier, left);
            self.budget.spend(chosen);
            left -= chosen;
        }
    }

    fn moved(&mut self, _: &mut Context, moved: &[Moved]) {
        for page in moved {
            if let Some(tier) = page.outcome.now {
                self.queue_up(page.unit, tier);
            }
        }
    }

    fn rounds(&self) -> u64 {
        self.scans
    }

    fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>() + self.queues.heap_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFETIME: u8 = 8;

    #[test]
    fn the_default_lifetime_is_of_eight_scans_and_a_key_sets_it() {
        assert_eq!(Cork::DEFAULT.lifetime(), LIFETIME);
        let five_seconds = Cork {
            decay_ms: 5000,
            ..Cork::DEFAULT
        };
        assert_eq!(five_seconds.lifetime(), 5);
    }

    #[test]
    fn one_written_page_is_above_all_that_are_only_read() {
        let mut read = Page::default();
        (0..300).for_each(|_| read.seen(true, false, LIFETIME));
        let mut written = Page::default();
        written.seen(true, true, LIFETIME);
        assert_eq!((read.queue(), written.queue()), (8, 9));
        (0..300).for_each(|_| written.seen(true, true, LIFETIME));
        assert_eq!(written.queue(), QUEUES - 1);
    }

    #[test]
    fn a_page_that_is_not_found_for_its_lifetime_sinks_by_a_queue() {
        let mut page = Page::default();
        (0..4).for_each(|_| page.seen(true, false, LIFETIME));
        assert_eq!(page.queue(), 3);
        (1..LIFETIME).for_each(|_| page.seen(false, false, LIFETIME));
        assert_eq!(page.queue(), 3);
        page.seen(false, false, LIFETIME);
        assert_eq!(page.queue(), 2);
    }
}
