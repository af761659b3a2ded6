//! The copies of an inflated trace: each recorded 2 MiB region stands for several, which do not lie together.
//!
//! Memory is as many stretches as there are copies. A stretch has one copy of each region, in a random order of its
//! own, so pages that shared a huge page still do, in each copy.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::footprint::REGION_PAGES;
use crate::base::access::Access;
use crate::base::number::{index, low, multiply_high, to_usize};

/// The places of the copies of all regions.
#[derive(Debug)]
pub(super) struct Copies {
    regions: usize,
    /// Copies of each region.
    each: usize,
    /// The place of each copy, counted in regions: those of a first copy of all regions, of a second one, and so on.
    places: Vec<u32>,
}

impl Copies {
    /// Places for `each` copies of so many regions, fewer than 2^32 in all. No region is beside a copy of its own, if
    /// there are two regions at least.
    pub(super) fn new(regions: u32, each: u32, random: &mut Xoshiro256PlusPlus) -> Self {
        let (count, each) = (index(regions), index(each));
        let mut places = vec![0; count * each];
        let mut order: Vec<u32> = (0..regions).collect();
        let mut place = 0;
        let mut last = None;
        for copy in 0..each {
            shuffle(&mut order, random);
            let end = order.len().saturating_sub(1);
            if order.first().copied() == last {
                order.swap(0, end);
            }
            for region in &order {
                places[copy * count + index(*region)] = place;
                place += 1;
            }
            last = order.last().copied();
        }
        Self {
            regions: count,
            each,
            places,
        }
    }

    /// Number of copies of each region.
    pub(super) fn each(&self) -> usize {
        self.each
    }

    /// The access to a copy of the recorded page.
    pub(super) fn access(&self, recorded: Access, copy: usize) -> Access {
        let region = to_usize(recorded.page() / REGION_PAGES);
        let within = recorded.page() % REGION_PAGES;
        let place = u64::from(self.places[copy * self.regions + region]);
        Access::new(
            place * REGION_PAGES + within,
            recorded.line(),
            recorded.is_write(),
        )
    }
}

/// Brings the items into a random order; each order is equally likely (Fisher and Yates).
fn shuffle(items: &mut [u32], random: &mut Xoshiro256PlusPlus) {
    for end in (1..items.len()).rev() {
        let chosen = multiply_high(random.next_u64(), end as u64 + 1);
        items.swap(end, index(low(chosen)));
    }
}
