//! The count of each page's samples (`update_base_page`, `update_huge_page`), and its cooling.

use super::histogram::{Histogram, bin};
use crate::base::number::index;
use crate::mechanisms::{Setup, Unit};

/// The weight of a sample of a 4 KiB page, so that counts compare with those of 2 MiB pages (`HPAGE_PMD_NR`).
pub(super) const WEIGHT: u32 = 512;

/// The count of a page.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    count: u32,
    /// The clock when the count was last halved.
    clock: u32,
}

/// Samples of each page, halved with each tick of the cooling clock.
#[derive(Debug)]
pub(super) struct Counts {
    pages: Vec<Page>,
    histogram: Histogram,
    /// The weight of a sample of a page that is one unit.
    weight: u32,
    /// Number of coolings so far (`cooling_clock`).
    clock: u32,
}

impl Counts {
    /// Counts of pages that are all cold.
    pub(super) fn new(setup: &Setup) -> Self {
        Self {
            pages: vec![Page::default(); index(setup.units)],
            histogram: Histogram::new(setup.units),
            weight: if setup.pages_per_unit == 1 { WEIGHT } else { 1 },
            clock: 0,
        }
    }

    /// Number of coolings so far.
    pub(super) fn coolings(&self) -> u32 {
        self.clock
    }

    /// The bin of a page.
    pub(super) fn bin_of(&self, unit: Unit) -> usize {
        bin(self.pages[index(unit)].count)
    }

    /// The lowest bin from which all pages fit into the room, and the number of units in these bins.
    pub(super) fn threshold(&self, room: u64) -> (usize, u64) {
        self.histogram.threshold(room)
    }

    /// Lets all counts be halved once more.
    pub(super) fn tick(&mut self) {
        self.clock = self.clock.wrapping_add(1);
    }

    /// Clears the histogram: each page is counted in it again when it is cooled.
    pub(super) fn recount(&mut self) {
        self.histogram.clear();
    }

    /// Whether a page has seen all coolings.
    pub(super) fn is_cooled(&self, unit: Unit) -> bool {
        self.pages[index(unit)].clock == self.clock
    }

    /// Halves the count of a page of so many units for each cooling that it has not seen, and counts it in the
    /// histogram again. Returns the number of these coolings and its present bin; `None` if there were none.
    pub(super) fn cool(&mut self, unit: Unit, units: u64) -> Option<(u32, usize)> {
        let page = &mut self.pages[index(unit)];
        let ticks = self.clock.wrapping_sub(page.clock);
        if ticks == 0 {
            return None;
        }
        page.count = page.count.checked_shr(ticks).unwrap_or(0);
        page.clock = self.clock;
        let now = bin(page.count);
        self.histogram.add(now, units);
        Some((ticks, now))
    }

    /// Counts a sample of a page of so many units; returns its bins before and after.
    pub(super) fn sample(&mut self, unit: Unit, units: u64) -> (usize, usize) {
        let page = &mut self.pages[index(unit)];
        let before = bin(page.count);
        let weight = if units == 1 { self.weight } else { 1 };
        page.count = page.count.saturating_add(weight);
        let now = bin(page.count);
        self.histogram.shift(before, now, units);
        (before, now)
    }

    /// Splits a 2 MiB page into 4 KiB parts, each with a count of its own.
    pub(super) fn split(&mut self, unit: Unit, count: impl Fn(Unit) -> u32) {
        let page = self.pages[index(unit)];
        self.histogram.remove(bin(page.count), 512);
        for part in unit..unit + 512 {
            let count = count(part);
            self.pages[index(part)] = Page { count, ..page };
            self.histogram.add(bin(count), 1);
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<Page>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_double_and_base_page_samples_count_512_fold() {
        assert_eq!([0, 1, 2, 3, 6, 7].map(bin), [0, 1, 1, 2, 2, 3]);
        assert_eq!([WEIGHT, 2 * WEIGHT, u32::MAX].map(bin), [9, 10, 15]);
    }
}
