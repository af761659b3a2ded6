//! The state that the vCPUs of one VM share: its memory in both dimensions, and its counters.

use super::TIERS;
use super::caches::Caches;
use super::lines::{Lines, Table};
use super::pml::Log;
use super::pmu::Sampling;
use super::profile::Profile;
use super::quota::Quota;
use super::second_stage::{SecondStage, bits};
use super::tables::Guest;
use super::tier::Traffic;
use crate::base::access::Access;
use crate::base::number::{float, low};

/// Pages above which more than the entries of a batch is read ahead: the rest is small enough below.
const READ_FAR_PAGES: u64 = 1 << 20;

/// Counters of a VM since the start of the run, as simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Data accesses that the last-level cache served.
    pub cache_hits: u64,
    /// Data accesses that missed the last-level cache; those that come after it are no misses.
    pub cache_misses: u64,
    /// Data reads per tier.
    pub reads: [u64; TIERS],
    /// Data writes per tier.
    pub writes: [u64; TIERS],
    /// Bytes written to each tier's medium.
    pub written_bytes: [u64; TIERS],
    /// Exits to the host.
    pub exits: u64,
    /// Exits that a scan makes: scans go by the clock, so they are as many at any scale.
    pub scan_exits: u64,
    /// Exits that the host makes to flush translations.
    pub flush_exits: u64,
    /// Faults that waited for the swap device.
    pub major_faults: u64,
    /// Time that vCPUs waited for memory: major faults, and reclaim that they did themselves; ps.
    pub memory_wait: u64,
    /// 4 KiB pages read from the swap device.
    pub swapped_in: u64,
    /// 4 KiB pages written to the swap device.
    pub swapped_out: u64,
    /// Walks of the page tables.
    pub walks: u64,
}

impl Counts {
    /// Data accesses of the load.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.cache_hits + self.memory_accesses()
    }

    /// Data accesses that reached memory, all tiers.
    #[must_use]
    pub fn memory_accesses(&self) -> u64 {
        self.reads.iter().chain(&self.writes).sum()
    }

    /// Share of the accesses before the last-level cache that it served; `None` if there were none.
    #[must_use]
    pub fn cache_hit_ratio(&self) -> Option<f64> {
        let seen = self.cache_hits + self.cache_misses;
        (seen > 0).then(|| ratio(self.cache_hits, seen))
    }

    /// Share of the accesses to memory that the first tier served; 1 if there were none.
    #[must_use]
    pub fn fast_hit_ratio(&self) -> f64 {
        ratio(self.reads[0] + self.writes[0], self.memory_accesses())
    }

    /// Share of the writes to memory that the first tier served; 1 if there were none.
    #[must_use]
    pub fn fast_write_ratio(&self) -> f64 {
        ratio(self.writes[0], self.writes.iter().sum())
    }
}

fn ratio(part: u64, all: u64) -> f64 {
    if all == 0 {
        1.0
    } else {
        float(part) / float(all)
    }
}

/// Accesses to memory by address, for pictures.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// Accesses per cell since the last sample.
    pub cells: Vec<u32>,
    /// Cells per page, times 2^32.
    step: u64,
}

impl Heat {
    /// A heat map of so many cells over the load's pages; with 0 cells nothing is counted.
    #[must_use]
    pub fn new(cells: usize, pages: u64) -> Self {
        Self {
            cells: vec![0; cells],
            step: ((cells as u64) << 32) / pages.max(1),
        }
    }

    #[inline]
    fn count(&mut self, page: u32) {
        if self.cells.is_empty() {
            return;
        }
        let at = crate::base::number::to_usize((u64::from(page) * self.step) >> 32);
        if let Some(cell) = self.cells.get_mut(at) {
            *cell = cell.saturating_add(1);
        }
    }
}

/// The state that the vCPUs of one VM share.
#[derive(Debug)]
pub struct Space {
    /// The guest's page tables.
    pub guest: Guest,
    /// The second stage.
    pub second: SecondStage,
    /// Lines of page tables in the processor's caches.
    pub lines: Lines,
    /// Traffic of each tier in this quantum.
    pub traffic: [Traffic; TIERS],
    /// Counts since the start.
    pub counts: Counts,
    /// Accesses to memory by address.
    pub heat: Heat,
    /// The log of D bits that the processor sets in the second stage.
    pub pml: Log,
    /// Number of times that the guest's kernel took pages out: older translations are stale.
    pub shootdowns: u64,
    /// The limits of the VM in the host's memory.
    pub quota: Quota,
    /// The sampling by the processor's counters.
    pub sampling: Sampling,
    /// Counts of accesses by page, if a bound needs them.
    pub profile: Option<Box<Profile>>,
    /// The machine's caches while the VM's vCPUs run.
    pub caches: Caches,
}

impl Space {
    /// A VM that is neither watched nor managed, on a host that has nothing free.
    #[must_use]
    pub fn new(guest: Guest, second: SecondStage, lines: Lines, heat: Heat) -> Self {
        Self {
            guest,
            second,
            lines,
            traffic: [Traffic::default(); TIERS],
            counts: Counts::default(),
            heat,
            pml: Log::default(),
            shootdowns: 0,
            quota: Quota::default(),
            sampling: Sampling::default(),
            profile: None,
            caches: Caches::default(),
        }
    }

    /// Counts a data access that reaches memory, and its traffic on the medium.
    #[inline]
    pub fn count(&mut self, tier: usize, page: u32, write: bool, medium: Traffic) {
        let (traffic, counts) = (&mut self.traffic[tier], &mut self.counts);
        // No branch on what cannot be foreseen.
        traffic.read += medium.read;
        traffic.written += medium.written;
        counts.writes[tier] += u64::from(write);
        counts.written_bytes[tier] += medium.written;
        counts.reads[tier] += u64::from(!write);
        self.heat.count(page);
    }

    /// Sets A and D in the second stage for a page of the guest's tables that the processor wrote to. Returns whether
    /// D was clear before.
    #[inline]
    pub fn table_written(&mut self, frame: u32) -> bool {
        let unit = self.second.unit_of(frame);
        let news = self.second.get(unit) & bits::DIRTY == 0;
        self.second.raise(unit, bits::ACCESSED | bits::DIRTY);
        news
    }

    /// Whether pages are of 4 KiB in both dimensions and accesses need no more than TLBs, tables and the last-level
    /// cache: no bound counts them by page, no cache of DRAM is in their way, and no permission is taken away. It stays
    /// so while vCPUs run.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        let seen = self.profile.is_some() || self.second.permissions.is_some();
        let small = !self.guest.huge() && !self.second.huge();
        small && !seen && self.caches.memory_mode.is_none()
    }

    /// Units that still fit below the VM's own limit of a tier.
    #[must_use]
    pub fn below_limit(&self, tier: usize) -> u64 {
        self.quota.room(tier, self.second.held()[tier])
    }

    /// Units of the second stage that a leaf of the guest counts as.
    #[must_use]
    pub fn units_per_leaf(&self) -> u64 {
        (self.guest.pages_per_leaf() / self.second.pages_per_unit()).max(1)
    }

    /// Whether the VM holds more of a tier than its own limit.
    #[must_use]
    pub fn is_over_limit(&self, tier: usize) -> bool {
        self.quota.is_over(tier, self.second.held()[tier])
    }

    /// Units that the guest's kernel has free of a tier, with host memory behind them or below the VM's own limit.
    #[must_use]
    pub fn free_units(&self, tier: usize) -> u64 {
        self.quota.idle()[tier].saturating_add(self.below_limit(tier))
    }

    /// 4 KiB pages that the guest's kernel has free of a tier.
    #[must_use]
    pub fn free_pages(&self, tier: usize) -> u64 {
        self.free_units(tier)
            .saturating_mul(self.second.pages_per_unit())
    }

    /// Units that the VM holds per tier, shadow copies included.
    #[must_use]
    pub fn held(&self) -> [u64; TIERS] {
        let (held, shadows) = (self.second.held(), self.quota.shadows());
        std::array::from_fn(|tier| held[tier] + shadows[tier])
    }

    /// Reads what walks for accesses will read, so that it is in the caches of the machine that runs the simulator. Of
    /// each kind in a loop of its own: the shorter a loop, the more of its reads are in flight. No read waits for another
    /// one, so a page's frame is guessed: the one that it had at first.
    pub(super) fn read_ahead(&self, accesses: &[Access]) {
        let pages = || accesses.iter().map(|access| low(access.page()));
        let entry = |page| self.guest.entry(self.guest.leaf_level(page), page);
        std::hint::black_box(pages().fold(0, |sum, page| sum ^ entry(page)));
        if self.guest.pages() <= READ_FAR_PAGES {
            return;
        }
        let first = self.guest.first_data();
        let state = |page| self.second.peek(first + page);
        std::hint::black_box(pages().fold(0, |sum, page| sum ^ state(page)));
        let line = |page| self.lines.peek(Table::GuestLeaf, page);
        std::hint::black_box(pages().fold(0, |sum, page| sum ^ line(page)));
        let line = |page| self.lines.peek(Table::HostLeaf, first + page);
        std::hint::black_box(pages().fold(0, |sum, page| sum ^ line(page)));
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let small = self.second.heap_bytes() + self.lines.heap_bytes() + self.heat.cells.len() * 4;
        let profile = self.profile.as_ref().map_or(0, |p| p.heap_bytes());
        let seen = self.pml.heap_bytes() + self.sampling.heap_bytes() + profile;
        self.guest.heap_bytes() + (small + seen) as u64
    }
}
