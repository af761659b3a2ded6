//! How much memory a VM used in the last second, by the accesses that were tracked (HPMBS §2.5).
//!
//! Distances are those of tracked accesses alone. With the short ones restored, 99 % of all distances would always lie
//! under 20 pages, and every VM would want 40 MiB.

/// Memory that a VM used in a second, pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkingSet {
    /// Tracked accesses of the second.
    pub tracked: u64,
    /// Pages that were tracked in the second, and those that could not be because they were in the hot set.
    pub footprint: u64,
    /// Pages that 95 % of the tracked reuses need.
    pub most_95: u64,
    /// Pages that 99 % of the tracked reuses need: the paper's measure of demand.
    pub most_99: u64,
    /// Pages that all tracked reuses need.
    pub all: u64,
}

impl WorkingSet {
    /// Pages that the VM wants: those that 99 % of the tracked reuses need. If none was tracked, all reuses were in the
    /// hot set, and which of its pages they need is not known: then its footprint.
    #[must_use]
    pub fn wanted(&self) -> u64 {
        match self.all {
            0 => self.footprint,
            _ => self.most_99,
        }
    }
}

/// The tracked accesses of a VM in the second that runs.
#[derive(Clone, Debug, Default)]
pub struct WorkingSets {
    /// Reuses of the second by distance.
    reuses: Vec<u64>,
    /// The second in which each page was seen last, counted from 1.
    seen: Vec<u32>,
    second: u32,
    running: WorkingSet,
}

impl WorkingSets {
    /// The first second of a VM that has so many pages. Pages beyond them are not counted.
    #[must_use]
    pub fn new(pages: u32) -> Self {
        Self {
            reuses: Vec::new(),
            seen: vec![0; pages as usize],
            second: 1,
            running: WorkingSet::default(),
        }
    }

    /// Counts a tracked access of a page at a distance; `None`: the page is new.
    pub fn track(&mut self, page: u32, distance: Option<u32>) {
        let Some(seen) = self.seen.get_mut(page as usize) else {
            return;
        };
        self.running.tracked += 1;
        self.running.footprint += u64::from(*seen != self.second);
        *seen = self.second;
        let at = distance.unwrap_or(0) as usize;
        if distance.is_none() || at >= self.seen.len() {
            return;
        }
        if at >= self.reuses.len() {
            self.reuses.resize(at + 1, 0);
        }
        self.reuses[at] += 1;
    }

    /// Ends the second; returns what was used in it. `hot`: the pages in the hot set now, which the next second cannot
    /// track.
    pub fn end_second(&mut self, hot: impl Iterator<Item = u32>) -> WorkingSet {
        let all: u64 = self.reuses.iter().sum();
        let ended = WorkingSet {
            most_95: self.pages_for(all, 95),
            most_99: self.pages_for(all, 99),
            all: self.pages_for(all, 100),
            ..self.running
        };
        self.reuses.clear();
        self.running = WorkingSet::default();
        self.second += 1;
        for page in hot {
            if let Some(seen) = self.seen.get_mut(page as usize) {
                *seen = self.second;
                self.running.footprint += 1;
            }
        }
        ended
    }

    /// Pages that so many percent of all reuses need; 0 if there were none. A reuse at distance d needs d + 1 pages.
    fn pages_for(&self, all: u64, percent: u64) -> u64 {
        let wanted = (all * percent).div_ceil(100);
        let mut served = 0;
        for (pages, reuses) in (1..).zip(&self.reuses) {
            served += reuses;
            if wanted > 0 && served >= wanted {
                return pages;
            }
        }
        0
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.reuses.capacity() * 8 + self.seen.capacity() * 4
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_those_that_so_many_reuses_need() {
        let mut sets = WorkingSets::new(2000);
        for page in 0..1000 {
            sets.track(page, None);
        }
        for (page, distance) in (0..1000).zip(0..) {
            sets.track(page, Some(distance));
        }
        let set = sets.end_second(0..0);
        assert_eq!((set.tracked, set.footprint), (2000, 1000));
        assert_eq!([set.most_95, set.most_99, set.all], [950, 990, 1000]);
        assert_eq!(sets.end_second(0..0), WorkingSet::default());
    }

    #[test]
    fn a_vm_whose_reuses_are_all_in_the_hot_set_wants_its_footprint() {
        let mut sets = WorkingSets::new(100);
        sets.end_second(10..30);
        let set = sets.end_second(0..0);
        assert_eq!((set.most_99, set.wanted()), (0, 20));
        sets.track(50, Some(25));
        assert_eq!(sets.end_second(0..0).wanted(), 26);
    }

    #[test]
    fn pages_of_the_hot_set_count_once() {
        let mut sets = WorkingSets::new(100);
        sets.end_second(10..30);
        for page in 20..40 {
            sets.track(page, Some(50));
        }
        let set = sets.end_second(0..0);
        assert_eq!((set.footprint, set.most_99), (30, 51));
    }

    #[test]
    fn pages_and_distances_beyond_the_vm_are_not_counted() {
        let mut sets = WorkingSets::new(4);
        sets.track(4, Some(1));
        sets.track(1, Some(u32::MAX));
        let set = sets.end_second([9, 3].into_iter());
        assert_eq!((set.tracked, set.footprint, set.all), (1, 1, 0));
        assert!(sets.heap_bytes() < 1000);
    }
}
