//! The footprint of a trace: one value for each 4 KiB page of each 2 MiB region that the trace touches.

use std::collections::HashMap;

/// Most aligned 2 MiB regions that a trace may touch: 256 GiB.
pub const MAX_REGIONS: u64 = 1 << 17;
/// 4 KiB pages in a region.
pub(super) const REGION_PAGES: u64 = 512;
const VALUES: usize = 512;

/// The error that more than [`MAX_REGIONS`] were touched.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyRegions;

/// A map from pages to values.
#[derive(Debug)]
pub(super) struct Pages<T> {
    index: HashMap<u64, usize>,
    regions: Vec<Box<[T; VALUES]>>,
    /// The region of the last request, and its index: traces stay in a region for a while.
    last: (u64, usize),
}

impl<T: Copy + Default> Pages<T> {
    pub(super) fn new() -> Self {
        Self {
            index: HashMap::new(),
            regions: Vec::new(),
            last: (u64::MAX, 0),
        }
    }

    /// The value of a page.
    pub(super) fn of(&mut self, page: u64) -> Result<&mut T, TooManyRegions> {
        let region = page / REGION_PAGES;
        if self.last.0 != region {
            let next = self.regions.len();
            let place = *self.index.entry(region).or_insert(next);
            if place == next {
                if next as u64 == MAX_REGIONS {
                    return Err(TooManyRegions);
                }
                self.regions.push(Box::new([T::default(); VALUES]));
            }
            self.last = (region, place);
        }
        // The remainder fits into any integer.
        let within = usize::try_from(page % REGION_PAGES).unwrap_or(0);
        Ok(&mut self.regions[self.last.1][within])
    }

    /// Number of regions requested so far.
    pub(super) fn regions(&self) -> u64 {
        self.regions.len() as u64
    }

    /// All values of all regions, in no particular order.
    pub(super) fn values(&self) -> impl Iterator<Item = T> {
        self.regions
            .iter()
            .flat_map(|region| region.iter().copied())
    }
}
