//! The known locations of a process's pages, by 2 MiB block.
//!
//! Asking the kernel about every page of a large process each epoch would cost more than it saves, so
//! answers are stored and asked for anew a few at a time. Pages to be moved are always surveyed
//! first; what a move did, its own answer shows. 32 bytes per 2 MiB.

use super::plan::Held;
use super::tree::Range;

/// Two to the power of this and one more are the most epochs that an extent is left alone.
const MAX_REST: u8 = 9;

/// The part of a mapping that is in one 2 MiB block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First virtual page.
    pub start: u64,
    /// Number of pages.
    pub pages: u16,
    /// Pages in fast memory.
    pub fast: u16,
    /// Pages elsewhere.
    pub slow: u16,
    /// Epoch in which the kernel was asked, 0: never.
    pub seen: u32,
    /// How often in a row most of its pages could not be moved.
    fails: u8,
    /// Epoch until which it is left alone because of that.
    rests_until: u32,
}

impl Extent {
    /// The extent's pages as a range.
    #[must_use]
    pub fn range(&self) -> Range {
        Range {
            start: self.start,
            end: self.start + u64::from(self.pages),
        }
    }

    /// Whether its pages could not be moved lately: they are pinned or in use.
    #[must_use]
    pub fn rests(&self, epoch: u32) -> bool {
        self.rests_until > epoch
    }
}

/// All of one process, ascending.
#[derive(Clone, Debug)]
pub struct Extents {
    all: Vec<Extent>,
    /// Pages of a block.
    block: u64,
    /// The position at which the survey continues.
    next: usize,
    /// How many were never surveyed.
    unseen: usize,
}

impl Extents {
    /// None yet, of blocks of so many pages.
    #[must_use]
    pub fn new(block: u16) -> Self {
        Self {
            all: Vec::new(),
            block: u64::from(block.max(1)),
            next: 0,
            unseen: 0,
        }
    }

    /// Pages of a whole block.
    #[must_use]
    pub fn pages_each(&self) -> u64 {
        self.block
    }

    /// Follows the mappings: what is still there stays known. Blocks beyond `most` are left out.
    pub fn follow(&mut self, mapped: &[Range], most: usize) {
        let block = self.block;
        let mut known = std::mem::take(&mut self.all).into_iter().peekable();
        let fresh = mapped
            .iter()
            .flat_map(|range| blocks(*range, block))
            .take(most);
        self.all = fresh
            .map(|(start, pages)| {
                while known.next_if(|old| old.start < start).is_some() {}
                let same = known.next_if(|old| old.start == start && old.pages == pages);
                same.unwrap_or(Extent {
                    start,
                    pages,
                    fast: 0,
                    slow: 0,
                    seen: 0,
                    fails: 0,
                    rests_until: 0,
                })
            })
            .collect();
        self.next = self.next.min(self.all.len());
        self.unseen = self.all.iter().filter(|extent| extent.seen == 0).count();
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Pages of a range that exist and can be moved, as far as is known.
    #[must_use]
    pub fn held(&self, range: Range, epoch: u32) -> Held {
        let mut held = Held::default();
        let of = &self.all[self.within(range)];
        for extent in of.iter().filter(|extent| !extent.rests(epoch)) {
            held.fast += u64::from(extent.fast);
            held.slow += u64::from(extent.slow);
        }
        held
    }

    /// All pages that exist, as far as is known.
    #[must_use]
    pub fn total(&self) -> Held {
        let mut held = Held::default();
        for extent in &self.all {
            held.fast += u64::from(extent.fast);
            held.slow += u64::from(extent.slow);
        }
        held
    }

    /// Places of the extents that begin in a range.
    #[must_use]
    pub fn within(&self, range: Range) -> std::ops::Range<usize> {
        let at = |page: u64| self.all.partition_point(|extent| extent.start < page);
        let start = at(range.start);
        start..at(range.end).max(start)
    }

    /// The extents that begin in a range.
    pub fn begin_in(&self, range: Range) -> impl Iterator<Item = Extent> + '_ {
        self.all[self.within(range)].iter().copied()
    }

    /// The place of the extent that a page is in.
    #[must_use]
    pub fn place_of(&self, page: u64) -> Option<usize> {
        let at = self.all.partition_point(|extent| extent.start <= page);
        let at = at.checked_sub(1)?;
        (page < self.all.get(at)?.range().end).then_some(at)
    }

    /// The extent at a place.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<Extent> {
        self.all.get(at).copied()
    }

    /// The place to survey next: those never seen first, then one after the other. None if all was
    /// surveyed in this epoch.
    #[must_use]
    pub fn stale(&mut self, epoch: u32) -> Option<usize> {
        let len = self.all.len();
        if self.unseen > 0 {
            let unseen = |at: &usize| self.all[*at].seen == 0;
            let at = (self.next..len)
                .find(unseen)
                .or_else(|| (0..len).find(unseen))?;
            self.next = at + 1;
            return Some(at);
        }
        if self.next >= len {
            self.next = 0;
        }
        // Pages to be moved in this epoch were surveyed already.
        let due = |at: &usize| self.all[*at].seen < epoch;
        let at = (self.next..len)
            .find(due)
            .or_else(|| (0..self.next).find(due))?;
        self.next = at + 1;
        Some(at)
    }

    /// Keeps what the kernel said.
    pub fn saw(&mut self, at: usize, fast: u16, slow: u16, epoch: u32) {
        if let Some(extent) = self.all.get_mut(at) {
            self.unseen -= usize::from(extent.seen == 0);
            (extent.fast, extent.slow) = (fast, slow);
            extent.seen = epoch.max(1);
        }
    }

    /// Counts a piece that is in another tier now, or in none.
    pub fn moved(&mut self, page: u64, pages: u16, was_fast: bool, is_fast: Option<bool>) {
        let Some(extent) = self.place_of(page).and_then(|at| self.all.get_mut(at)) else {
            return;
        };
        let from = if was_fast {
            &mut extent.fast
        } else {
            &mut extent.slow
        };
        *from = from.saturating_sub(pages);
        match is_fast {
            Some(true) => extent.fast = extent.fast.saturating_add(pages),
            Some(false) => extent.slow = extent.slow.saturating_add(pages),
            None => {}
        }
    }

    /// Of the pages of an extent that should be moved, some could not: if most could not, it is left alone,
    /// longer each time, at most for about ten minutes of 500 ms.
    pub fn tried(&mut self, at: usize, tried: usize, failed: usize, epoch: u32) {
        let Some(extent) = self.all.get_mut(at) else {
            return;
        };
        if failed * 2 > tried {
            extent.fails = extent.fails.saturating_add(1).min(MAX_REST);
            extent.rests_until = epoch.saturating_add(2 << extent.fails);
        } else {
            extent.fails = 0;
        }
    }

    /// Whether some were never surveyed.
    #[must_use]
    pub fn any_unseen(&self) -> bool {
        self.unseen > 0
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.all.capacity() * size_of::<Extent>()
    }
}

fn blocks(range: Range, block: u64) -> impl Iterator<Item = (u64, u16)> {
    let mut at = range.start;
    std::iter::from_fn(move || {
        let end = (at / block + 1).saturating_mul(block).min(range.end);
        let pages = u16::try_from(end.checked_sub(at)?)
            .ok()
            .filter(|n| *n > 0)?;
        let start = at;
        at = end;
        Some((start, pages))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    #[test]
    fn mappings_are_cut_at_blocks_and_what_stays_is_remembered() {
        let mut extents = Extents::new(512);
        extents.follow(&[range(100, 1100), range(2000, 2010)], 100);
        let cut: Vec<_> = extents.all.iter().map(|e| (e.start, e.pages)).collect();
        assert_eq!(cut, [(100, 412), (512, 512), (1024, 76), (2000, 10)]);
        extents.saw(1, 500, 12, 3);
        extents.follow(&[range(100, 1600)], 100);
        assert_eq!(
            extents.held(range(0, 4096), 1),
            Held {
                fast: 500,
                slow: 12
            }
        );
        let cut: Vec<_> = extents.all.iter().map(|e| (e.start, e.seen)).collect();
        assert_eq!(cut, [(100, 0), (512, 3), (1024, 0), (1536, 0)]);
        extents.follow(&[range(100, 1600)], 2);
        assert_eq!(extents.len(), 2);
    }

    #[test]
    fn what_was_never_seen_is_looked_at_first_then_all_in_turn() {
        let mut extents = Extents::new(512);
        extents.follow(&[range(0, 4 * 512)], 100);
        let mut survey = |epoch| {
            let at = extents.stale(epoch)?;
            extents.saw(at, 1, 0, epoch);
            Some(at)
        };
        let first: Vec<_> = (0..4).map(|_| survey(1)).collect();
        assert_eq!(first, [Some(0), Some(1), Some(2), Some(3)]);
        assert_eq!(survey(1), None);
        assert_eq!((survey(2), survey(2)), (Some(0), Some(1)));
        // Pages to be moved were surveyed already.
        extents.saw(2, 1, 0, 2);
        assert_eq!(extents.stale(2), Some(3));
        extents.saw(3, 1, 0, 2);
        assert_eq!(extents.stale(2), None);
        extents.follow(&[range(0, 5 * 512)], 100);
        assert_eq!(extents.stale(2), Some(4));
        assert!(extents.any_unseen());
        assert!(Extents::new(512).stale(1).is_none());
    }

    #[test]
    fn what_cannot_be_moved_is_left_alone_longer_each_time() {
        let mut extents = Extents::new(512);
        extents.follow(&[range(0, 1024)], 100);
        extents.saw(0, 10, 20, 1);
        extents.saw(1, 1, 2, 1);
        let held = |extents: &Extents, epoch| extents.held(range(0, 1024), epoch);
        extents.tried(0, 20, 11, 5);
        assert_eq!(held(&extents, 8), Held { fast: 1, slow: 2 });
        assert_eq!(held(&extents, 9), Held { fast: 11, slow: 22 });
        extents.tried(0, 20, 20, 9);
        assert!(extents.get(0).unwrap().rests(16) && !extents.get(0).unwrap().rests(17));
        extents.tried(0, 20, 3, 17);
        extents.tried(0, 20, 20, 18);
        assert!(!extents.get(0).unwrap().rests(22), "counted anew");
        assert_eq!(extents.total(), Held { fast: 11, slow: 22 });
    }

    #[test]
    fn a_range_holds_what_begins_in_it() {
        let mut extents = Extents::new(512);
        extents.follow(&[range(0, 2048)], 100);
        for at in 0..4 {
            extents.saw(at, 10, 20, 1);
        }
        assert_eq!(
            extents.held(range(512, 1536), 1),
            Held { fast: 20, slow: 40 }
        );
        assert_eq!(extents.held(range(4096, 9999), 1), Held::default());
    }
}
