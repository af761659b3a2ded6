//! What the vCPUs of one VM share: its memory in both dimensions, and what is counted.

use super::TIERS;
use super::lines::Lines;
use super::memory_mode::MemoryMode;
use super::pmu::{Pmu, Sample};
use super::second_stage::{SecondStage, bits};
use super::tables::Guest;
use super::tier::Traffic;
use crate::words::number::{float, low};

/// What is counted of a VM since the start of the run, as simulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Data reads per tier.
    pub reads: [u64; TIERS],
    /// Data writes per tier.
    pub writes: [u64; TIERS],
    /// Bytes written to each tier's medium.
    pub written_bytes: [u64; TIERS],
    /// Exits to the host.
    pub exits: u64,
    /// Those of them that a scan makes: scans go by the clock, so they are as many at any scale.
    pub scan_exits: u64,
    /// Those of them that the host makes to flush translations.
    pub flush_exits: u64,
    /// Faults that waited for the swap device.
    pub major_faults: u64,
    /// Walks of the page tables.
    pub walks: u64,
}

impl Counts {
    /// Data accesses, all tiers.
    #[must_use]
    pub fn accesses(&self) -> u64 {
        self.reads.iter().chain(&self.writes).sum()
    }

    /// Share of all accesses that the first tier served; 1 where there were none.
    #[must_use]
    pub fn fast_hit_ratio(&self) -> f64 {
        ratio(self.reads[0] + self.writes[0], self.accesses())
    }

    /// The same of writes.
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

/// Accesses by address, for pictures.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// Accesses per cell since the last look.
    pub cells: Vec<u32>,
    /// Cells per page, times 2^32.
    step: u64,
}

impl Heat {
    /// So many cells over the load's pages; none: nothing is counted.
    #[must_use]
    pub fn new(cells: usize, pages: u64) -> Self {
        Self {
            cells: vec![0; cells],
            step: ((cells as u64) << 32) / pages.max(1),
        }
    }

    #[inline]
    fn count(&mut self, page: u32) {
        let at = crate::words::number::place((u64::from(page) * self.step) >> 32);
        if let Some(cell) = self.cells.get_mut(at) {
            *cell = cell.saturating_add(1);
        }
    }
}

/// What the vCPUs of one VM share.
#[derive(Debug)]
pub struct Space {
    /// The guest's tables.
    pub guest: Guest,
    /// The second stage.
    pub second: SecondStage,
    /// Table lines in the processor's caches.
    pub lines: Lines,
    /// What went over each tier in this quantum.
    pub traffic: [Traffic; TIERS],
    /// Counts since the start.
    pub counts: Counts,
    /// Accesses by address.
    pub heat: Heat,
    /// D that the processor sets in the second stage is logged.
    pub pml: bool,
    /// Frames that full buffers gave to the host.
    pub logged: Vec<u32>,
    /// How often the guest's kernel took pages out: what was translated before is stale.
    pub shootdowns: u64,
    /// Units that the host can still back in this quantum, per tier.
    pub grant: [u64; TIERS],
    /// Most units that the VM may have per tier: its nodes' sizes, where its own kernel places pages.
    pub limit: [u64; TIERS],
    /// Units per tier that it holds beside its pages: shadow copies.
    pub kept: [u64; TIERS],
    /// What the processor's counters sample, if anything.
    pub pmu: Option<Pmu>,
    /// What full buffers of samples gave.
    pub samples: Vec<Sample>,
    /// The machine's DRAM cache while the VM's vCPUs run, if it has one.
    pub memory_mode: Option<Box<MemoryMode>>,
}

impl Space {
    /// Nobody watches, nobody manages, and the host has nothing free.
    #[must_use]
    pub fn new(guest: Guest, second: SecondStage, lines: Lines, heat: Heat) -> Self {
        Self {
            guest,
            second,
            lines,
            traffic: [Traffic::default(); TIERS],
            counts: Counts::default(),
            heat,
            pml: false,
            logged: Vec::new(),
            shootdowns: 0,
            grant: [0; TIERS],
            limit: [u64::MAX; TIERS],
            kept: [0; TIERS],
            pmu: None,
            samples: Vec::new(),
            memory_mode: None,
        }
    }

    /// Counts a data access, and what it takes from the medium.
    #[inline]
    pub fn count(&mut self, tier: usize, page: u32, write: bool, medium: Traffic) {
        let traffic = &mut self.traffic[tier];
        traffic.read += medium.read;
        if write {
            traffic.written += medium.written;
            self.counts.writes[tier] += 1;
            self.counts.written_bytes[tier] += medium.written;
        } else {
            self.counts.reads[tier] += 1;
        }
        self.heat.count(page);
    }

    /// The processor wrote to a page of the guest's tables: A and D in the second stage. Says whether D
    /// was set that was clear.
    #[inline]
    pub fn table_written(&mut self, frame: u32) -> bool {
        let unit = self.second.unit_of(frame);
        let news = self.second.get(unit) & bits::DIRTY == 0;
        self.second.raise(unit, bits::ACCESSED | bits::DIRTY);
        news
    }

    /// Units that still fit below the VM's own limit of a tier.
    #[must_use]
    pub fn below_limit(&self, tier: usize) -> u64 {
        let held = self.second.held()[tier] + self.kept[tier];
        self.limit[tier].saturating_sub(held)
    }

    /// Reads the state of a page, so that it is in the caches of the machine that simulates.
    #[must_use]
    #[inline]
    pub fn peek(&self, page: u64) -> u8 {
        let page = low(page);
        let entry = self.guest.entry(self.guest.leaf_level(page), page);
        let frame = Guest::frame_of(entry, page).unwrap_or(0);
        self.second.get(self.second.unit_of(frame))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let small = self.second.heap_bytes() + self.lines.heap_bytes() + self.heat.cells.len() * 4;
        let logged = self.logged.capacity() * size_of::<u32>();
        let sampled = self.samples.capacity() * size_of::<Sample>();
        self.guest.heap_bytes() + (small + logged + sampled) as u64
    }
}
