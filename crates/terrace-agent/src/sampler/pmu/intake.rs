//! The way from records to samples of watched processes.

use terrace_core::ranges::Range;
use terrace_sys::perf::{Fields, Record, Records, SampleRecord};

use super::recipe::{Access, Recipe, SampleKind};
use crate::sampler::Sample;

/// Bits of an address within a page.
const PAGE_SHIFT: u32 = 12;
/// Addresses with this bit are the kernel's.
const KERNEL_HALF: u64 = 1 << 63;
/// End of user addresses with five-level paging.
const USER_END: u64 = 1 << 56;

/// Bits of `union perf_mem_data_src` of `include/uapi/linux/perf_event.h`.
mod data_source {
    pub const LOAD: u64 = 0x02;
    pub const STORE: u64 = 0x04;
    pub const LEVEL_SHIFT: u32 = 5;
    pub const HIT: u64 = 0x02;
    pub const L1: u64 = 0x08;
    pub const L2: u64 = 0x20;
}

/// Counts of the records that came, and of those left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Samples handed on that were loads.
    pub loads: u64,
    /// Samples handed on that were stores.
    pub stores: u64,
    /// Samples handed on that are not known to be loads or stores.
    pub unknown: u64,
    /// Samples of processes that are not watched.
    pub foreign: u64,
    /// Samples of the kernel's own memory.
    pub kernel: u64,
    /// Samples of operations that access no memory, or whose address the PMU did not know.
    pub no_address: u64,
    /// Loads that the first or second cache served: where the page is makes no difference to them.
    pub cached: u64,
    /// Records that the kernel dropped because a ring was full, or before.
    pub lost: u64,
    /// Times that the kernel stopped an event for coming too often (`kernel.perf_event_max_sample_rate`).
    pub throttled: u64,
    /// Records that made no sense.
    pub malformed: u64,
}

impl Counters {
    /// Samples handed on.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.loads + self.stores + self.unknown
    }
}

/// The format of one ring's records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    kind: SampleKind,
    fields: Fields,
    /// The events' ids, each with the kind of access that its samples show.
    events: Vec<(u64, Access)>,
}

impl Layout {
    /// The layout of a recipe whose events were opened with these ids, in the recipe's order.
    #[must_use]
    pub fn new(recipe: &Recipe, ids: &[u64]) -> Self {
        let accesses = recipe.events.iter().map(|wanted| wanted.access);
        Self {
            kind: recipe.kind,
            fields: recipe.fields(),
            events: ids.iter().copied().zip(accesses).collect(),
        }
    }

    /// The kind of access of a sample; `None` if it accessed no memory or is of no event of ours.
    fn access(&self, sample: &SampleRecord) -> Option<Access> {
        if self.fields.has(Fields::DATA_SOURCE) {
            let source = sample.data_source;
            return match (source & data_source::LOAD, source & data_source::STORE) {
                (0, 0) => None,
                (0, _) => Some(Access::Store),
                _ => Some(Access::Load),
            };
        }
        let mut events = self.events.iter();
        if self.fields.has(Fields::IDENTIFIER) {
            events.find(|event| event.0 == sample.identifier)
        } else {
            events.next()
        }
        .map(|event| event.1)
    }
}

/// Whether the first or second cache served an access, as IBS reports it (`perf_ibs_get_mem_lvl`).
fn hit_near(source: u64) -> bool {
    let level = source >> data_source::LEVEL_SHIFT;
    level & data_source::HIT != 0 && level & (data_source::L1 | data_source::L2) != 0
}

/// Picks samples out of records.
#[derive(Clone, Debug, Default)]
pub struct Intake {
    /// The watched processes' numbers, ascending.
    watched: Vec<u32>,
    counters: Counters,
}

impl Intake {
    /// Sets the processes whose samples are wanted from now on.
    pub fn watch(&mut self, pids: impl Iterator<Item = u32>) {
        self.watched.clear();
        self.watched.extend(pids);
        self.watched.sort_unstable();
        self.watched.dedup();
    }

    /// The counts so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.watched.capacity() * size_of::<u32>()
    }

    /// Counts a ring that was passed over because its position made no sense.
    pub(super) fn count_malformed(&mut self) {
        self.counters.malformed += 1;
    }

    /// Hands on the samples in some records.
    pub fn take(&mut self, bytes: &[u8], layout: &Layout, sink: &mut dyn FnMut(Sample)) {
        for record in Records::new(bytes, layout.fields) {
            match record {
                Ok(Record::Sample(sample)) => {
                    if let Some(sample) = self.sample(&sample, layout) {
                        sink(sample);
                    }
                }
                Ok(Record::Lost(records) | Record::LostSamples(records)) => {
                    self.counters.lost = self.counters.lost.saturating_add(records);
                }
                Ok(Record::Throttled) => self.counters.throttled += 1,
                Ok(Record::Unthrottled) => {}
                Ok(Record::Other(_)) | Err(_) => self.counters.malformed += 1,
            }
        }
    }

    fn sample(&mut self, sample: &SampleRecord, layout: &Layout) -> Option<Sample> {
        let counters = &mut self.counters;
        // Most samples on a busy guest; a process that is ending has no number any more and is here, too.
        if self.watched.binary_search(&sample.pid).is_err() {
            counters.foreign += 1;
            return None;
        }
        let Some(access) = layout.access(sample) else {
            // IBS samples all operations, PEBS only those of its events.
            if layout.kind == SampleKind::Ibs {
                counters.no_address += 1;
            } else {
                counters.malformed += 1;
            }
            return None;
        };
        let left_out = match sample.address {
            0 => &mut counters.no_address,
            address if address & KERNEL_HALF != 0 => &mut counters.kernel,
            address if address >= USER_END => &mut counters.malformed,
            _ if layout.kind == SampleKind::Ibs
                && access == Access::Load
                && hit_near(sample.data_source) =>
            {
                &mut counters.cached
            }
            address => {
                match access {
                    Access::Load => counters.loads += 1,
                    Access::Store => counters.stores += 1,
                    Access::Unknown => counters.unknown += 1,
                }
                let start = address >> PAGE_SHIFT;
                return Some(Sample {
                    pid: sample.pid,
                    range: Range {
                        start,
                        end: start + 1,
                    },
                    accesses: 1,
                });
            }
        };
        *left_out += 1;
        None
    }
}
