//! A tier's guest memory: from guest addresses to its pages and back, and which entries of a guest are admitted.

use crate::abi::{Entry, PAGE_BYTES};
use crate::config::TierConfig;

/// Pages of a tier, numbered from 0 over its ranges, with the address of the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Guest physical address of its first byte.
    pub gpa: u64,
    /// Number of its first page in the tier.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
}

impl Run {
    /// Length, bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.pages * PAGE_BYTES
    }
}

/// Why an entry is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum EntryRefusal {
    /// An order that is not offered, or bits that mean nothing.
    Order,
    /// Not aligned to its size.
    Alignment,
    /// Not in one range of the tier.
    Outside,
    /// Not in one region of the hypervisor, or smaller than the pages that back it.
    Backing,
    /// In the balloon already (inflate) or not in it (deflate).
    Duplicate,
    /// The kernel gave nothing back.
    Punch,
}

/// How an entry becomes a run of a tier.
pub type Admit = fn(&TierMap, u32, Entry) -> Result<Run, EntryRefusal>;

/// The ranges of a tier with the numbers of their pages.
#[derive(Clone, Debug)]
pub struct TierMap {
    /// Ascending; `first` counts on from range to range.
    ranges: Vec<Run>,
}

impl TierMap {
    /// The map of a tier.
    #[must_use]
    pub fn new(tier: &TierConfig) -> Self {
        let mut first = 0;
        let mut range = |gpa, len: u64| {
            let pages = len / PAGE_BYTES;
            let run = Run { gpa, first, pages };
            first += pages;
            run
        };
        let ranges = tier.ranges.iter().map(|r| range(r.start, r.len)).collect();
        Self { ranges }
    }

    /// The tier's ranges, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Run] {
        &self.ranges
    }

    /// The run of `pages` pages at `gpa`, if one range holds all of it.
    #[must_use]
    pub fn find(&self, gpa: u64, pages: u64) -> Option<Run> {
        let after = self.ranges.partition_point(|range| range.gpa <= gpa);
        let range = self.ranges.get(after.checked_sub(1)?)?;
        let skipped = (gpa - range.gpa) / PAGE_BYTES;
        let end = skipped.checked_add(pages)?;
        (end <= range.pages).then_some(Run {
            gpa,
            first: range.first + skipped,
            pages,
        })
    }
}

/// Admits an entry of an offered order (`orders`: one bit each), aligned to it, and in the tier as a whole.
///
/// # Errors
/// If one of these does not hold; the error is the first of them.
pub fn admit(tier: &TierMap, orders: u32, entry: Entry) -> Result<Run, EntryRefusal> {
    let order = entry.order();
    if order > 31 || orders >> order & 1 == 0 || entry.has_unknown_bits() {
        return Err(EntryRefusal::Order);
    }
    let pages = 1_u64 << order;
    if !entry.gpa().is_multiple_of(pages * PAGE_BYTES) {
        return Err(EntryRefusal::Alignment);
    }
    tier.find(entry.gpa(), pages).ok_or(EntryRefusal::Outside)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::GpaRange;

    const MIB: u64 = 1 << 20;

    fn map() -> TierMap {
        let range = |start, len| GpaRange { start, len };
        TierMap::new(&TierConfig {
            node: 0,
            host_node: None,
            ranges: vec![
                range(MIB, 3 * MIB),
                range(8 * MIB, 4 * MIB),
                range(20 * MIB, MIB),
            ],
        })
    }

    #[test]
    fn pages_are_numbered_over_all_ranges() {
        let run = map().find(8 * MIB + 4096, 2).unwrap();
        assert_eq!((run.first, run.pages, run.bytes()), (769, 2, 8192));
        for outside in [0, MIB - 4096, 4 * MIB, 12 * MIB, !4095] {
            assert_eq!(map().find(outside, 1), None, "{outside:#x}");
        }
        assert_eq!(map().find(4 * MIB - 4096, 2), None);
        assert_eq!(map().find(MIB, u64::MAX), None);
    }

    #[test]
    fn only_aligned_offered_blocks_within_the_tier_are_admitted() {
        let try_it = |gpa, order| admit(&map(), 0x201, Entry::new(gpa, order)).map(|run| run.first);
        assert_eq!(try_it(MIB, 0), Ok(0));
        assert_eq!(try_it(2 * MIB, 9), Ok(256));
        assert_eq!(try_it(10 * MIB, 9), Ok(1280));
        assert_eq!(try_it(MIB, 9), Err(EntryRefusal::Alignment));
        assert_eq!(try_it(0, 9), Err(EntryRefusal::Outside));
        assert_eq!(try_it(20 * MIB, 0), Ok(1792));
        let ends_outside = try_it(20 * MIB, 9);
        assert_eq!(ends_outside, Err(EntryRefusal::Outside));
        assert_eq!(try_it(2 * MIB, 10), Err(EntryRefusal::Order));
        assert_eq!(try_it(MIB, 63), Err(EntryRefusal::Order));
        assert_eq!(
            admit(&map(), 1, Entry(MIB | 0x40)),
            Err(EntryRefusal::Order)
        );
        assert_eq!(
            admit(&map(), 1, Entry::new(2 * MIB, 9)),
            Err(EntryRefusal::Order)
        );
    }
}
