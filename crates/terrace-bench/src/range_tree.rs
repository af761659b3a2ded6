//! The benchmark of `hyperplace`'s range tree.

use std::hint::black_box;

use terrace_core::ranges::{Held, Params, Plan, Range, RangeTree, rank};

use crate::measured::{Cost, Measured, timed};

/// Number of the tree's leaves.
const LEAVES: usize = 1000;

/// Samples counted per run.
const SAMPLES: usize = 1 << 20;

/// `range_tree_ns_per_sample`: 1,000 leaves of several sizes, samples drawn evenly over all pages;
/// the baseline is a binary search for the sample's range. ns per sample.
#[must_use]
pub fn range_tree() -> Measured {
    let seeds: Vec<Range> = ranges();
    let mut tree = RangeTree::new(Params::paper(8), &seeds);
    let starts: Vec<u64> = seeds.iter().map(|range| range.start).collect();
    let pages = seeds.last().map_or(1, |range| range.end);
    let samples: Vec<u64> = (0..SAMPLES as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % pages)
        .collect();
    let count = |tree: &mut RangeTree| samples.iter().filter(|page| tree.count(**page)).count();
    let find = |page: &u64| starts.partition_point(|start| start <= page);
    Measured::in_turns(|_| {
        let search = timed(|| samples.iter().map(find).sum::<usize>());
        (timed(|| count(&mut tree)), search)
    })
    .per(SAMPLES as f64)
}

/// Epochs per run.
const EPOCHS: u32 = 200;

/// `range_tree_epoch_us`: split, merge, rank, plan and decay over 1,000 leaves, of which a fifth fits into
/// fast memory and half of that is there; the baseline sorts the leaves by accesses per page. µs per epoch.
#[must_use]
pub fn range_tree_epoch() -> Measured {
    let params = Params {
        most_leaves: LEAVES,
        ..Params::paper(8)
    };
    let mut tree = RangeTree::new(params, &ranges());
    let capacity = tree.leaves().map(|leaf| leaf.range.pages()).sum::<u64>() / 5;
    Measured::in_turns(|_| {
        let (mut work, mut sort) = (Cost::NONE, Cost::NONE);
        for epoch in 0..EPOCHS {
            feed(&mut tree, epoch);
            let mut keys = keys(&tree);
            sort += timed(|| keys.sort_unstable());
            work += timed(|| {
                tree.end_epoch();
                let ranked = rank([(1, &tree)], |_, range| held(range));
                black_box(Plan::new(&ranked, capacity, 0));
                tree.decay();
            });
        }
        (work, sort)
    })
    .per(f64::from(EPOCHS) * 1000.0)
}

/// The keys by which the leaves are sorted: accesses per page, then age.
fn keys(tree: &RangeTree) -> Vec<(u64, u32)> {
    let density = |count, pages| u64::from(count) * 65_536 / pages;
    tree.leaves()
        .map(|leaf| (density(leaf.count, leaf.range.pages()), leaf.created))
        .collect()
}

/// Counts accesses, most of them in a tenth of the leaves; in another tenth after some epochs.
fn feed(tree: &mut RangeTree, epoch: u32) {
    let leaves: Vec<Range> = tree.leaves().map(|leaf| leaf.range).collect();
    for (i, range) in (0_u64..).zip(leaves) {
        let mut chance = (i + (u64::from(epoch) << 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        chance = (chance ^ chance >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
        let hot = (i + u64::from(epoch) / 50).is_multiple_of(10);
        for _ in 0..chance % if hot { 200 } else { 8 } {
            tree.count(range.start);
        }
    }
}

/// The placement of a range: a tenth of all pages is in fast memory, spread over half of the ranges.
fn held(range: Range) -> Held {
    let fast = if range.start.is_multiple_of(1024) {
        range.pages() / 5
    } else {
        0
    };
    Held {
        fast,
        slow: range.pages() - fast,
    }
}

/// Adjacent ranges of 2 to 16 MiB.
fn ranges() -> Vec<Range> {
    let mut start = 0;
    let next = |i: u64| {
        let end = start + (512 << (i % 4));
        let range = Range { start, end };
        start = end;
        range
    };
    (0..).take(LEAVES).map(next).collect()
}
