//! Observe: which pages a scan re-arms, and what its answer adds to the counts.
//!
//! Responsible for: turning the accessed and written bits of one window into reads and writes per
//! unit, and deciding whose accessed bit is cleared next (vTMM §3.2). It leaves to others: when a scan
//! runs ([`crate::engine`]), and how tables are walked.
//!
//! **A read or a write?** A window in which a unit was accessed and not written counts as one read; one
//! in which it was written counts as one write, and not as a read as well. Where no source of writes
//! exists every visit is a read.

mod multi_level_queue;
mod plain;

pub use multi_level_queue::MultiLevelQueue;
pub(crate) use multi_level_queue::level_of;

use terrace_proto::{PageSize, Rearm, ScanAnswer};

use crate::pages::Pages;
use crate::policy::Observe;

/// The tracker of one VM.
#[derive(Clone, Debug)]
pub enum Tracker {
    /// Relaxes the monitoring of hot pages.
    MultiLevelQueue(MultiLevelQueue),
    /// No filter: every page is re-armed in every window.
    Plain,
    /// Looks at nothing.
    None,
}

impl Tracker {
    /// The tracker that a policy names.
    #[must_use]
    pub fn new(observe: Observe, max_level: u8) -> Self {
        match observe {
            Observe::GuestScan => Self::MultiLevelQueue(MultiLevelQueue::new(max_level)),
            Observe::GuestScanPlain | Observe::EptScan => Self::Plain,
            Observe::None => Self::None,
        }
    }

    /// The pages that the scan at the end of `window` re-arms; known before the scan.
    #[must_use]
    pub fn rearm(&self, pages: &Pages, window: u8) -> Rearm {
        match self {
            Self::MultiLevelQueue(queue) => queue.rearm(pages, window),
            Self::Plain => Rearm::All,
            Self::None => Rearm::None,
        }
    }

    /// Adds what the scan at the end of `window` found.
    pub fn record(&self, pages: &mut Pages, window: u8, answer: &ScanAnswer) {
        match self {
            Self::MultiLevelQueue(queue) => queue.record(pages, window, answer),
            Self::Plain => plain::record(pages, answer),
            Self::None => {}
        }
    }
}

/// The bits of units `64 * index` to `64 * index + 63`; a unit of 2 MiB has its bit set if any of its
/// 512 pages has.
fn unit_bits(unit: PageSize, words: &[u64], index: usize) -> u64 {
    match unit {
        PageSize::Base => words.get(index).copied().unwrap_or(0),
        PageSize::Huge => words
            .chunks(8)
            .skip(index * 64)
            .take(64)
            .enumerate()
            .fold(0, |bits, (i, parts)| {
                bits | u64::from(parts.iter().any(|w| *w != 0)) << i
            }),
    }
}

/// The written bits, or none where no source of writes exists.
fn written_words(answer: &ScanAnswer) -> &[u64] {
    answer.written.as_ref().map_or(&[], |w| w.words())
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;
    use terrace_proto::{Gfn, PageBitmap, RamRange, RequestId, ScanStats, Space, VmId, VmSpec};

    use super::*;
    use crate::ram::Ram;

    pub(crate) fn pages(unit: PageSize, span: u64) -> Pages {
        let spec = VmSpec {
            vm: VmId(1),
            name: "vm".into(),
            ram: vec![RamRange {
                start: Gfn(0),
                pages: span,
            }],
            unit,
            limits: Vec::new(),
            weight: 1000,
            moves: true,
        };
        Pages::new(Ram::new(&spec).unwrap(), 2)
    }

    pub(crate) fn answer(accessed: &[bool], written: Option<&[bool]>) -> ScanAnswer {
        let map = |bits: &[bool]| {
            let mut map = PageBitmap::new(bits.len() as u64);
            for (i, &on) in bits.iter().enumerate() {
                map.put(i as u64, on);
            }
            map
        };
        ScanAnswer {
            id: RequestId(1),
            space: Space::Guest(VmId(1)),
            known: PageBitmap::full(accessed.len() as u64),
            accessed: map(accessed),
            written: written.map(map),
            huge_leaf: PageBitmap::new(accessed.len().div_ceil(512) as u64),
            stats: ScanStats::default(),
        }
    }

    proptest! {
        #[test]
        fn a_huge_unit_was_visited_if_any_of_its_pages_was(
            hits in prop::collection::btree_set(0_usize..70 * 512, 0..40),
        ) {
            let mut bits = vec![false; 70 * 512];
            hits.iter().for_each(|&h| bits[h] = true);
            let a = answer(&bits, None);
            for unit in 0..70 {
                let word = unit_bits(PageSize::Huge, a.accessed.words(), unit / 64);
                let want = bits[unit * 512..(unit + 1) * 512].contains(&true);
                prop_assert_eq!(word >> (unit % 64) & 1 == 1, want);
            }
        }
    }

    #[test]
    fn the_plain_tracker_counts_every_window_once_as_a_read_or_as_a_write() {
        let mut p = pages(PageSize::Base, 3);
        let tracker = Tracker::new(Observe::EptScan, 7);
        assert_eq!(tracker.rearm(&p, 1), Rearm::All);
        let a = answer(&[true, true, false], Some(&[false, true, false]));
        tracker.record(&mut p, 1, &a);
        tracker.record(&mut p, 2, &answer(&[true; 3], None));
        assert_eq!((p.reads, p.writes), (vec![2, 1, 1], vec![0, 1, 0]));
    }
}
