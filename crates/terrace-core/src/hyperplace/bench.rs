//! What `terrace bench` measures of the range tree.

use super::plan::{Held, Plan, rank};
use super::tree::{Params, Range, RangeTree};

/// Leaves that the tree has.
const LEAVES: usize = 1000;

/// Samples counted per run.
const SAMPLES: usize = 1 << 20;

/// Nanoseconds per sample, medians of five runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerSample {
    /// Counting it in the tree.
    pub count_ns: f64,
    /// A binary search for its range.
    pub search_ns: f64,
}

/// `range_tree_ns_per_sample`: 1,000 leaves of several sizes, samples drawn evenly over all pages; `clock`
/// gives nanoseconds.
pub fn measure(clock: impl Fn() -> u64) -> PerSample {
    let seeds: Vec<Range> = ranges();
    let mut tree = RangeTree::new(Params::paper(8), &seeds);
    let starts: Vec<u64> = seeds.iter().map(|range| range.start).collect();
    let pages = seeds.last().map_or(1, |range| range.end);
    let samples: Vec<u64> = (0..SAMPLES as u64)
        .map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) % pages)
        .collect();
    let (mut count, mut search) = ([0; 5], [0; 5]);
    for i in 0..5 {
        search[i] = time(&clock, || {
            let find = |page: &u64| starts.partition_point(|start| start <= page);
            std::hint::black_box(samples.iter().map(find).sum::<usize>());
        });
        count[i] = time(&clock, || {
            let counted = samples.iter().filter(|page| tree.count(**page));
            std::hint::black_box(counted.count());
        });
    }
    PerSample {
        count_ns: median(&mut count) / SAMPLES as f64,
        search_ns: median(&mut search) / SAMPLES as f64,
    }
}

/// Epochs per run.
const EPOCHS: u32 = 200;

/// Microseconds per epoch, medians of five runs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PerEpoch {
    /// All that an epoch does with its leaves but counting and moving.
    pub work_us: f64,
    /// Sorting them by accesses per page.
    pub sort_us: f64,
}

/// `range_tree_epoch_us`: split, merge, rank, plan and decay over 1,000 leaves, of which a fifth fits into
/// fast memory and half of that is there.
pub fn measure_epoch(clock: impl Fn() -> u64) -> PerEpoch {
    let params = Params {
        most_leaves: LEAVES,
        ..Params::paper(8)
    };
    let mut tree = RangeTree::new(params, &ranges());
    let capacity = tree.leaves().map(|leaf| leaf.range.pages()).sum::<u64>() / 5;
    let (mut work, mut sort) = ([0; 5], [0; 5]);
    for run in 0..5 {
        for epoch in 0..EPOCHS {
            feed(&mut tree, epoch);
            let mut keys: Vec<(u64, u32)> = tree
                .leaves()
                .map(|leaf| {
                    (
                        u64::from(leaf.count) * 65_536 / leaf.range.pages(),
                        leaf.created,
                    )
                })
                .collect();
            sort[run] += time(&clock, || {
                keys.sort_unstable();
                std::hint::black_box(&keys);
            });
            work[run] += time(&clock, || {
                tree.end_epoch();
                let ranked = rank(&[&tree]);
                let held: Vec<Held> = ranked.iter().map(|range| held(range.leaf.range)).collect();
                std::hint::black_box(Plan::new(&ranked, &held, capacity, 0));
                tree.decay();
            });
        }
    }
    let us = |runs: &mut [u64; 5]| median(runs) / f64::from(EPOCHS) / 1000.0;
    PerEpoch {
        work_us: us(&mut work),
        sort_us: us(&mut sort),
    }
}

/// A tenth of the leaves takes most of the accesses; another tenth after some epochs.
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

/// A tenth of the pages is in fast memory, spread over half of the ranges.
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

fn time(clock: &impl Fn() -> u64, run: impl FnOnce()) -> u64 {
    let start = clock();
    run();
    clock().saturating_sub(start)
}

fn median(runs: &mut [u64; 5]) -> f64 {
    runs.sort_unstable();
    runs[2] as f64
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
