//! Tests of the coverage of HyperPlace's leaves: accesses of whole ranges, mappings that come, go and grow.

use std::collections::BTreeSet;

use proptest::prelude::*;
use terrace_core::ranges::{Params, Range, RangeTree};

fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

/// One vCPU: 30 accesses are significant.
fn params(granularity: u64, most_leaves: usize) -> Params {
    Params {
        granularity,
        most_leaves,
        tau_merge: 2,
        ..Params::paper(1)
    }
}

fn leaves(tree: &RangeTree) -> Vec<(u64, u64, u32)> {
    tree.leaves()
        .map(|leaf| (leaf.range.start, leaf.range.end, leaf.count))
        .collect()
}

fn total(tree: &RangeTree) -> u64 {
    tree.leaves().map(|leaf| u64::from(leaf.count)).sum()
}

/// Page by page.
fn pages(ranges: impl IntoIterator<Item = Range>) -> BTreeSet<u64> {
    ranges.into_iter().flat_map(|r| r.start..r.end).collect()
}

fn covered(tree: &RangeTree) -> BTreeSet<u64> {
    pages(tree.leaves().map(|leaf| leaf.range))
}

#[test]
fn accesses_of_a_range_are_spread_by_what_leaves_share_with_it() {
    let mut tree = RangeTree::new(params(1, 64), &[range(0, 8), range(8, 16), range(20, 24)]);
    assert_eq!(tree.count_range(range(4, 16), 9), 9);
    assert_eq!(leaves(&tree), [(0, 8, 3), (8, 16, 6), (20, 24, 0)]);
    assert_eq!(
        tree.count_range(range(12, 28), 16),
        8,
        "8 of 16 pages are in leaves"
    );
    assert_eq!(leaves(&tree), [(0, 8, 3), (8, 16, 10), (20, 24, 4)]);
    for outside in [range(16, 20), range(24, 30), range(5, 5), range(9, 3)] {
        assert_eq!(tree.count_range(outside, 7), 0, "{outside:?}");
    }
    assert_eq!(total(&tree), 17);
}

#[test]
fn a_leaf_is_accessed_only_in_epochs_that_gave_it_a_part() {
    let mut tree = RangeTree::new(params(1, 64), &[range(0, 1), range(1, 100)]);
    tree.end_epoch();
    tree.count_range(range(0, 100), 4);
    let accessed: Vec<u32> = tree.leaves().map(|leaf| leaf.accessed).collect();
    assert_eq!(accessed, [0, 1]);
}

#[test]
fn a_mapping_that_grows_at_its_end_keeps_what_was_split() {
    let mut tree = RangeTree::new(params(8, 64), &[range(0, 64)]);
    for _ in 0..3 {
        tree.count_many(3, 1000);
        tree.end_epoch();
    }
    let before: Vec<_> = tree.leaves().collect();
    assert_eq!(before.len(), 6);
    tree.reseed(&[range(0, 128)]);
    let after: Vec<_> = tree.leaves().collect();
    assert_eq!(after[..6], before[..]);
    assert_eq!((after[6].range, after[6].count), (range(64, 128), 0));
    // A few pages at a time are no leaves of their own.
    for end in 129..=135 {
        tree.reseed(&[range(0, end)]);
        assert_eq!((tree.len(), total(&tree)), (7, 3000));
    }
    assert_eq!(covered(&tree), pages([range(0, 135)]));
}

#[test]
fn a_mapping_that_goes_takes_its_part_of_the_count_along() {
    let mut tree = RangeTree::new(params(1, 64), &[range(0, 100)]);
    tree.count_many(0, 20);
    tree.reseed(&[range(0, 25), range(75, 100)]);
    assert_eq!(leaves(&tree), [(0, 25, 5), (75, 100, 5)]);
    tree.reseed(&[range(0, 100)]);
    assert_eq!(leaves(&tree), [(0, 25, 5), (25, 75, 0), (75, 100, 5)]);
    tree.reseed(&[]);
    assert!(tree.is_empty());
    assert!(!tree.count(3));
}

#[test]
fn the_least_accessed_leaves_are_merged_beyond_the_limit() {
    let mut tree = RangeTree::new(params(1, 4), &[range(0, 10), range(10, 20), range(20, 30)]);
    for (page, accesses) in [(0, 50), (10, 1), (20, 2)] {
        tree.count_many(page, accesses);
    }
    tree.reseed(&[range(0, 30), range(40, 50), range(60, 70)]);
    assert_eq!(
        leaves(&tree),
        [(0, 10, 50), (10, 30, 3), (40, 50, 0), (60, 70, 0)]
    );
    // Of more mappings than leaves, the largest are taken.
    tree.reseed(&[
        range(0, 1),
        range(10, 30),
        range(40, 41),
        range(42, 50),
        range(60, 62),
        range(64, 70),
    ]);
    let largest = [range(10, 30), range(42, 50), range(60, 62), range(64, 70)];
    assert_eq!(covered(&tree), pages(largest));
}

#[test]
fn leaves_at_the_end_of_all_addresses_are_counted_and_split() {
    let mut tree = RangeTree::new(params(1, 16), &[range(0, u64::MAX)]);
    for _ in 0..20 {
        assert_eq!(tree.count_range(range(u64::MAX - 5, u64::MAX), 1000), 1000);
        tree.end_epoch();
    }
    tree.reseed(&[range(u64::MAX - 1, u64::MAX), range(0, 1)]);
    assert_eq!(tree.len(), 2);
}

fn some_ranges() -> impl Strategy<Value = Vec<Range>> {
    let one = (0_u64..400, 0_u64..120).prop_map(|(start, pages)| range(start, start + pages));
    prop::collection::vec(one, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn leaves_cover_the_mappings_whatever_happened_before(
        steps in prop::collection::vec((some_ranges(), 0_u64..520, 0_u32..300, any::<bool>()), 1..12),
        granularity in 0_u64..9,
    ) {
        let mut tree = RangeTree::new(params(granularity, 24), &[range(0, 256)]);
        for (seeds, page, accesses, ends) in steps {
            tree.count_many(page, accesses);
            if ends {
                tree.end_epoch();
            }
            let before = total(&tree);
            tree.reseed(&seeds);
            prop_assert_eq!(covered(&tree), pages(seeds.iter().copied()));
            let after: Vec<_> = tree.leaves().collect();
            prop_assert!(after.windows(2).all(|two| two[0].range.end <= two[1].range.start));
            prop_assert!(after.iter().all(|leaf| leaf.range.pages() > 0));
            prop_assert!(after.len() <= 24);
            prop_assert!(total(&tree) <= before);
            tree.reseed(&seeds);
            let again: Vec<_> = tree.leaves().collect();
            prop_assert_eq!(again, after);
        }
    }

    /// Against the definition: each page of the range has the same part of the accesses.
    #[test]
    fn a_range_counts_as_its_pages_do(
        seeds in some_ranges(),
        start in 0_u64..500,
        length in 1_u64..200,
        accesses in 0_u32..5000,
    ) {
        let mut tree = RangeTree::new(params(1, 24), &seeds);
        let seen = range(start, start + length);
        let counted = tree.count_range(seen, accesses);
        prop_assert_eq!(total(&tree), u64::from(counted));
        let per_page = f64::from(accesses) / length as f64;
        let within = pages([seen]);
        let inside = covered(&tree).intersection(&within).count();
        prop_assert!((f64::from(counted) - per_page * inside as f64).abs() <= 0.5 + 1e-6);
        for leaf in tree.leaves() {
            let shared = pages([leaf.range]).intersection(&within).count();
            prop_assert!((f64::from(leaf.count) - per_page * shared as f64).abs() <= 1.0 + 1e-6);
        }
        if inside as u64 == length {
            prop_assert_eq!(counted, accesses);
        }
    }
}
