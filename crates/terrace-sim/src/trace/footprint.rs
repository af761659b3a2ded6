//! What a trace touches: one value for each 4 KiB page of each 2 MiB region that it comes near.

use std::collections::HashMap;

/// Most aligned 2 MiB regions that a trace may touch: 256 GiB.
pub const MAX_REGIONS: u64 = 1 << 17;
/// 4 KiB pages in a region.
pub(super) const REGION_PAGES: u64 = 512;
const VALUES: usize = 512;

/// More than [`MAX_REGIONS`] were touched.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct TooManyRegions;

/// A value for each page.
#[derive(Debug)]
pub(super) struct Pages<T> {
    index: HashMap<u64, usize>,
    regions: Vec<Box<[T; VALUES]>>,
    /// Region that was asked for last, and its place: traces stay where they are for a while.
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

    /// Number of regions that were asked for.
    pub(super) fn regions(&self) -> u64 {
        self.regions.len() as u64
    }

    /// All values of all regions, in no telling order.
    pub(super) fn values(&self) -> impl Iterator<Item = T> {
        self.regions
            .iter()
            .flat_map(|region| region.iter().copied())
    }
}
