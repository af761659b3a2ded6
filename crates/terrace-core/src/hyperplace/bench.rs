//! What `terrace bench` measures of the range tree.

use super::tree::{Params, Range, RangeTree};

/// Leaves that the tree has.
const LEAVES: u64 = 1000;

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
    let time = |run: &mut dyn FnMut()| {
        let start = clock();
        run();
        clock().saturating_sub(start)
    };
    let (mut count, mut search) = ([0; 5], [0; 5]);
    for i in 0..5 {
        search[i] = time(&mut || {
            let find = |page: &u64| starts.partition_point(|start| start <= page);
            std::hint::black_box(samples.iter().map(find).sum::<usize>());
        });
        count[i] = time(&mut || {
            let counted = samples.iter().filter(|page| tree.count(**page));
            std::hint::black_box(counted.count());
        });
    }
    let median = |runs: &mut [u64; 5]| {
        runs.sort_unstable();
        runs[2] as f64 / SAMPLES as f64
    };
    PerSample {
        count_ns: median(&mut count),
        search_ns: median(&mut search),
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
    (0..LEAVES).map(next).collect()
}
