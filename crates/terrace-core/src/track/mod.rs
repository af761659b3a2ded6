//! Observe: which pages a scan re-arms, and what its answer adds to the counts.
//!
//! Responsible for: turning the accessed and written bits of one window into reads and writes per
//! unit, and deciding whose accessed bit is cleared next (vTMM §3.2). It leaves to others: when a scan
//! runs ([`crate::engine`]), and how tables are walked.
//!
//! **A read or a write?** A window in which a unit was accessed and not written counts as one read; one
//! in which it was written counts as one write, and not as a read as well. If no source of writes
//! exists every visit is a read. A source may report less often than once a window: what it calls written
//! was written at least once since it spoke last, so one of the unit's visits counts as a write.

mod multi_level_queue;
mod parts;
mod plain;

pub use multi_level_queue::MultiLevelQueue;
pub(crate) use multi_level_queue::level_of;

use terrace_proto::{PageSize, PartAnswer, Rearm, ScanAnswer};

use crate::pages::Pages;
use crate::policy::Observe;

/// The tracker of one VM.
#[derive(Clone, Debug)]
pub enum Tracker {
    /// Relaxes the monitoring of hot pages.
    MultiLevelQueue(MultiLevelQueue),
    /// No filter: every page is re-armed in every window.
    Plain,
    /// Observes nothing.
    None,
}

impl Tracker {
    /// The tracker that a policy names.
    #[must_use]
    pub fn new(observe: Observe, max_level: u8) -> Self {
        match observe {
            Observe::GuestScan | Observe::PmlLog => {
                Self::MultiLevelQueue(MultiLevelQueue::new(max_level))
            }
            Observe::GuestScanPlain | Observe::EptScan => Self::Plain,
            Observe::ProtectionFaults | Observe::None => Self::None,
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

    /// Adds what the scan at the end of `window` found. Its written bits, if it has any, are about as many
    /// windows as `covered` has, this one included.
    pub fn record(&self, pages: &mut Pages, window: u8, answer: &ScanAnswer, covered: u8) {
        let written = answer.written.as_ref().map_or(&[][..], |w| w.words());
        let (of_this_window, of_several): (&[u64], &[u64]) = if covered > 1 {
            (&[], written)
        } else {
            (written, &[])
        };
        match self {
            Self::MultiLevelQueue(queue) => queue.record(pages, window, answer, of_this_window),
            Self::Plain => plain::record(pages, answer, of_this_window),
            Self::None => {}
        }
        if !of_several.is_empty() {
            count_one_write(pages, of_several);
        }
    }
}

impl Tracker {
    /// Adds what the pass at the end of a window of a part found, in a round of so many windows.
    pub fn record_part(&self, pages: &mut Pages, answer: &PartAnswer, windows: u8) {
        match self {
            Self::MultiLevelQueue(_) | Self::Plain => parts::record(pages, answer, windows),
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

/// Makes one read of each written unit a write. A unit that was written but never seen accessed (its
/// accessed bit was lost to a stale translation) counts as written once.
fn count_one_write(pages: &mut Pages, written: &[u64]) {
    let unit = pages.ram().unit();
    let counts = pages.reads.chunks_mut(64).zip(pages.writes.chunks_mut(64));
    for (index, (reads, writes)) in counts.enumerate() {
        let w = unit_bits(unit, written, index);
        for (i, (read, write)) in reads.iter_mut().zip(writes).enumerate() {
            let wrote = u8::from(w >> i & 1 == 1);
            *read = read.saturating_sub(wrote);
            *write = write.saturating_add(wrote);
        }
    }
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
    fn the_plain_tracker_counts_each_window_as_a_read_or_a_write() {
        let mut p = pages(PageSize::Base, 3);
        let tracker = Tracker::new(Observe::EptScan, 7);
        assert_eq!(tracker.rearm(&p, 1), Rearm::All);
        let a = answer(&[true, true, false], Some(&[false, true, false]));
        tracker.record(&mut p, 1, &a, 1);
        tracker.record(&mut p, 2, &answer(&[true; 3], None), 1);
        assert_eq!((p.reads, p.writes), (vec![2, 1, 1], vec![0, 1, 0]));
    }

    #[test]
    fn a_write_told_once_a_round_makes_one_visit_a_write() {
        for observe in [Observe::EptScan, Observe::GuestScanPlain] {
            let mut p = pages(PageSize::Base, 4);
            let tracker = Tracker::new(observe, 7);
            let seen = [true, true, false, false];
            for window in 1..8 {
                tracker.record(&mut p, window, &answer(&seen, None), 1);
            }
            // Not accessed in the last window itself, and still written in the round.
            let last = answer(&[false; 4], Some(&[true, false, true, false]));
            tracker.record(&mut p, 8, &last, 8);
            assert_eq!((p.reads, p.writes), (vec![6, 7, 0, 0], vec![1, 0, 1, 0]));
        }
    }
}
