//! Passes over the hot set, with a record of every write.

use std::time::{Duration, Instant};

use crate::hotset::{self, Layout, Xorshift};
use crate::region::Region;

/// The region, its hot set and the passes over it.
pub struct Workload {
    /// Whether passes are made.
    pub running: bool,
    /// Passes since the start.
    pub passes: u64,
    /// Touches that met a page with the wrong tag.
    pub errors: u64,
    /// Pages anywhere in the region that a pass touches beside the hot ones.
    pub elsewhere: usize,
    region: Region,
    hot: Vec<u32>,
    hot_pages: usize,
    layout: Layout,
    seed: u64,
    /// Writes of earlier hot sets, per page. Passes don't touch it, so that it stays cold: the
    /// writes of the present hot set follow from the number of passes.
    earlier_writes: Vec<u64>,
    passes_of_this_hot_set: u64,
    random: Xorshift,
    /// The end of the last pass, if nothing but the pause came after it.
    passed_at: Option<Instant>,
    longest_gap: Duration,
}

impl Workload {
    /// A workload whose hot set is that share of the region's pages.
    #[must_use]
    pub fn new(region: Region, hot_percent: usize, layout: Layout, seed: u64) -> Self {
        let mut workload = Self {
            running: true,
            passes: 0,
            errors: 0,
            elsewhere: 0,
            earlier_writes: vec![0; region.pages()],
            hot_pages: region.pages() * hot_percent / 100,
            region,
            hot: Vec::new(),
            layout,
            seed,
            passes_of_this_hot_set: 0,
            random: Xorshift::new(seed),
            passed_at: None,
            longest_gap: Duration::ZERO,
        };
        workload.choose(seed);
        workload
    }

    /// Pages of the region.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.region.pages()
    }

    /// Pages that every pass touches.
    #[must_use]
    pub fn hot_pages(&self) -> usize {
        self.hot.len()
    }

    /// The layout of the hot pages.
    #[must_use]
    pub fn layout(&self) -> Layout {
        self.layout
    }

    /// The seed that picked the hot set.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Address at which the region starts.
    #[must_use]
    pub fn address(&self) -> usize {
        self.region.address()
    }

    /// The hot pages' indices in the region.
    pub fn hot_indices(&self) -> impl Iterator<Item = usize> {
        self.hot.iter().map(|page| *page as usize)
    }

    /// The indices of the hot pages that passes write to.
    pub fn written_indices(&self) -> impl Iterator<Item = usize> {
        let pages = self.hot_indices().enumerate();
        pages
            .filter(|(order, _)| is_written(*order))
            .map(|(_, page)| page)
    }

    /// Touches every hot page once; every other one is written as well as read.
    pub fn pass(&mut self) {
        for (order, page) in self.hot.iter().enumerate() {
            if !self.region.touch(*page as usize, is_written(order)) {
                self.errors += 1;
            }
        }
        self.touch_elsewhere();
        let now = Instant::now();
        if let Some(before) = self.passed_at.replace(now) {
            self.longest_gap = self.longest_gap.max(now - before);
        }
        self.passes += 1;
        self.passes_of_this_hot_set += 1;
    }

    /// The next pass does not follow the last one at once.
    pub fn interrupted(&mut self) {
        self.passed_at = None;
    }

    /// The longest time from the end of a pass to the end of the next since this was asked last.
    pub fn take_longest_gap(&mut self) -> Duration {
        std::mem::take(&mut self.longest_gap)
    }

    fn touch_elsewhere(&mut self) {
        for number in 0..self.elsewhere {
            let page = self.random.below(self.region.pages());
            let write = is_written(number);
            if !self.region.touch(page, write) {
                self.errors += 1;
            }
            self.earlier_writes[page] += u64::from(write);
        }
    }

    /// Replaces the hot set by the one that `seed` gives.
    pub fn move_hot_set(&mut self, seed: u64, layout: Layout) {
        self.settle();
        self.layout = layout;
        self.choose(seed);
    }

    /// Replaces the hot set by one of `pages` pages.
    pub fn set_hot_pages(&mut self, pages: usize) {
        self.settle();
        self.hot_pages = pages;
        self.choose(self.seed);
    }

    /// Takes the writes of this hot set into the books.
    fn settle(&mut self) {
        for (page, writes) in self.writes_of_this_hot_set() {
            self.earlier_writes[page] += writes;
        }
        self.passes_of_this_hot_set = 0;
    }

    /// Number of pages whose content is not what it should be.
    #[must_use]
    pub fn count_bad_pages(&self) -> usize {
        let mut writes = self.earlier_writes.clone();
        for (page, recent) in self.writes_of_this_hot_set() {
            writes[page] += recent;
        }
        let pages = writes.into_iter().enumerate();
        pages
            .filter(|(page, writes)| !self.region.is_intact(*page, *writes))
            .count()
    }

    fn writes_of_this_hot_set(&self) -> Vec<(usize, u64)> {
        self.written_indices()
            .map(|page| (page, self.passes_of_this_hot_set))
            .collect()
    }

    fn choose(&mut self, seed: u64) {
        self.hot = hotset::choose(self.region.pages(), self.hot_pages, seed, self.layout);
        self.seed = seed;
    }
}

fn is_written(order: usize) -> bool {
    order % 2 == 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::MappingAddress;

    #[test]
    fn writes_are_accounted_for_across_hot_sets() {
        let region = Region::new(1, false, MappingAddress::FarAway).unwrap();
        let mut workload = Workload::new(region, 50, Layout::Scattered, 1);
        for seed in 2..6 {
            workload.elsewhere = 40;
            workload.pass();
            workload.pass();
            assert_eq!(workload.count_bad_pages(), 0);
            workload.move_hot_set(seed, Layout::Scattered);
        }
        workload.set_hot_pages(10);
        assert_eq!(workload.hot_pages(), 10);
        assert_eq!((workload.passes, workload.errors), (8, 0));
        assert_eq!(workload.count_bad_pages(), 0);
        workload.passes_of_this_hot_set = 1;
        assert_eq!(workload.count_bad_pages(), workload.hot_pages() / 2);
    }
}
