//! The benchmark of GPAC's filter.

use std::collections::BTreeSet;
use std::hint::black_box;

use terrace_core::gather::{Cl, Heat, Limits, Plan, Skew};

use crate::measured::{Measured, timed};

/// Base pages: 20 GiB, the papers' guest (GPAC §5.1).
const PAGES: usize = 5 << 20;
/// Base pages of a block.
const BLOCK: usize = 512;

/// `filter_ns_per_page`: heat of each base page → hot pages of each block → the blocks to empty; a tenth of all pages is hot,
/// from few to all of a block. The baseline copies what is known of each page. ns per page.
#[must_use]
pub fn filter() -> Measured {
    let heat = heat();
    let mut copy = vec![Heat::default(); PAGES];
    let limits = Limits {
        cl: Cl::Auto { gain: 1 },
        pages: u64::MAX,
        room: u64::MAX,
    };
    Measured::in_turns(|_| {
        let copied = timed(|| {
            copy.copy_from_slice(&heat);
            black_box(&mut copy);
        });
        let filtered = timed(|| {
            let mut skew = Skew::new(PAGES as u64);
            skew.count_blocks(0, &heat);
            black_box(Plan::new(&skew, &BTreeSet::new(), limits))
        });
        (filtered, copied)
    })
    .per(PAGES as f64)
}

fn heat() -> Vec<Heat> {
    let page = |page: usize| {
        let mut chance = (page as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chance = (chance ^ chance >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        // Each tenth block is hot to the end, the others in few pages.
        let tenth = (page / BLOCK) % 10;
        let hot = chance % 100 < if tenth == 0 { 60 } else { 4 };
        let mut heat = Heat::default();
        heat.push(chance.is_multiple_of(3));
        heat.push(hot);
        heat.push(hot);
        heat
    };
    (0..PAGES).map(page).collect()
}
