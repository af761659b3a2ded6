//! HyperPlace's ranges: what is split, merged, ranked and exchanged.

use proptest::prelude::*;
use terrace_core::ranges::{Held, Leaf, Params, Plan, Range, RangeTree, Ranked, rank};

fn range(start: u64, end: u64) -> Range {
    Range { start, end }
}

/// One vCPU: 30 accesses are significant; a page is the smallest range.
fn small() -> Params {
    Params {
        granularity: 1,
        ..Params::paper(1)
    }
}

fn counts(tree: &RangeTree) -> Vec<(u64, u64, u32)> {
    let leaf = |leaf: Leaf| (leaf.range.start, leaf.range.end, leaf.count);
    tree.leaves().map(leaf).collect()
}

#[test]
fn a_missing_neighbour_counts_as_0_and_halves_share_the_count() {
    let mut tree = RangeTree::new(small(), &[range(0, 64)]);
    tree.count_many(5, 29);
    assert_eq!(tree.end_epoch(), 0, "29 accesses are not significant");
    tree.count_many(5, 2);
    assert_eq!(tree.end_epoch(), 1);
    assert_eq!(counts(&tree), [(0, 32, 16), (32, 64, 15)]);
    assert_eq!(tree.leaves().next().map(|leaf| leaf.created), Some(2));
}

#[test]
fn a_leaf_must_exceed_both_neighbours() {
    let seeds = [range(0, 8), range(8, 16), range(16, 24)];
    let splits = |literal, counts: [u32; 3]| {
        let mut tree = RangeTree::new(Params { literal, ..small() }, &seeds);
        for (page, accesses) in [0, 8, 16].into_iter().zip(counts) {
            tree.count_many(page, accesses);
        }
        tree.end_epoch()
    };
    assert_eq!(splits(true, [100, 100, 0]), 0);
    assert_eq!(splits(true, [100, 129, 0]), 0);
    assert_eq!(splits(true, [100, 130, 0]), 1);
    assert_eq!(splits(false, [100, 100, 100]), 0);
}

#[test]
fn halves_of_a_hot_spot_block_each_other_only_if_literal() {
    let seeds = [range(0, 8), range(8, 16), range(16, 24), range(24, 32)];
    let splits = |literal| {
        let mut tree = RangeTree::new(Params { literal, ..small() }, &seeds);
        tree.count_many(15, 100);
        tree.count_many(16, 100);
        tree.end_epoch()
    };
    assert_eq!((splits(true), splits(false)), (0, 2));
}

#[test]
fn a_smaller_neighbour_blocks_a_leaf_only_by_the_literal_rule() {
    let splits = |literal| {
        let seeds = [range(0, 64), range(64, 68)];
        let mut tree = RangeTree::new(Params { literal, ..small() }, &seeds);
        tree.count_many(63, 100);
        tree.count_many(64, 100);
        tree.end_epoch()
    };
    assert_eq!((splits(true), splits(false)), (0, 1));
}

#[test]
fn a_neighbour_beyond_a_gap_is_missing() {
    let seeds = [range(0, 8), range(100, 108)];
    let mut tree = RangeTree::new(small(), &seeds);
    tree.count_many(0, 100);
    tree.count_many(100, 100);
    assert_eq!(tree.end_epoch(), 2);
}

#[test]
fn no_part_is_smaller_than_the_granularity() {
    let params = Params {
        granularity: 512,
        ..small()
    };
    let mut tree = RangeTree::new(params, &[range(100, 100 + 1023)]);
    for _ in 0..8 {
        tree.count_many(600, 10_000);
        tree.end_epoch();
    }
    assert_eq!(tree.len(), 1, "1,023 pages do not hold two parts of 512");
    let mut tree = RangeTree::new(params, &[range(0, 2048)]);
    for _ in 0..8 {
        tree.count_many(600, 10_000);
        tree.end_epoch();
    }
    assert!(tree.leaves().all(|leaf| leaf.range.pages() >= 512));
    assert!(tree.leaves().any(|leaf| leaf.range == range(512, 1024)));
}

#[test]
fn what_nobody_accesses_for_tau_merge_splits_becomes_one_again() {
    let params = Params {
        tau_merge: 3,
        ..small()
    };
    let mut tree = RangeTree::new(params, &[range(0, 1024)]);
    for _ in 0..4 {
        tree.count_many(1, 1000);
        tree.end_epoch();
        tree.decay();
    }
    let before = tree.len();
    // The hot page goes elsewhere and elsewhere again; the first one's ranges decay.
    for page in [1000, 700, 990] {
        for _ in 0..30 {
            tree.count_many(page, 1000);
            tree.end_epoch();
            tree.decay();
        }
    }
    let first = tree.leaves().next().expect("a leaf");
    assert!(before > 3 && first.range.pages() >= 512, "{first:?}");
    assert!(tree.changes().1 > 0);
}

#[test]
fn splits_end_where_memory_for_leaves_does() {
    let params = Params {
        most_leaves: 5,
        ..small()
    };
    let mut tree = RangeTree::new(params, &[range(0, 1 << 20)]);
    for _ in 0..40 {
        tree.count_many(7, 10_000);
        tree.end_epoch();
    }
    assert_eq!(tree.len(), 5);
}

/// A tree as full as it may be is not stuck: what is cold makes room for a hot spot that moves.
#[test]
fn a_full_tree_gives_up_cold_leaves_for_a_hot_spot_that_moves() {
    let params = Params {
        most_leaves: 128,
        ..small()
    };
    let seeds: Vec<Range> = (0..128).map(|i| range(i * 64, (i + 1) * 64)).collect();
    let mut tree = RangeTree::new(params, &seeds);
    assert_eq!(tree.len(), 128);
    let hot = range(100 * 64 + 16, 100 * 64 + 24);
    for _ in 0..20 {
        for _ in 0..20 {
            for page in hot_pages(hot) {
                tree.count_many(page, 10);
            }
        }
        tree.end_epoch();
        tree.decay();
    }
    assert!(tree.len() <= 128);
    let found = tree
        .leaves()
        .find(|leaf| leaf.range.start <= hot.start && hot.start < leaf.range.end);
    let found = found.expect("the tree covers it");
    assert!(found.range.pages() < 64, "{found:?}");
}

fn hot_pages(hot: Range) -> std::ops::Range<u64> {
    hot.start..hot.end
}

/// Accesses of an epoch, drawn evenly over some pages, by a multiplicative sequence.
fn evenly(tree: &mut RangeTree, within: Range, accesses: u64, salt: u64) {
    for i in 0..accesses {
        let mut z = (i + salt * accesses).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ z >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let page = within.start + (z >> 20) % within.pages();
        assert!(tree.count(page));
    }
}

#[test]
fn a_hot_spot_is_found_within_the_halvings_and_six_epochs() {
    // 40 TiB with one spot of 64 MiB: not aligned to anything, and across borders of many sizes.
    let root = range(1 << 20, (1 << 20) + (40 << 28));
    for at in [
        (17 << 28) + 12_345,
        (20 << 28) + (1 << 20) - 8192,
        (5 << 28) + 9000,
    ] {
        is_found(root, range(at, at + 16_384));
    }
}

#[track_caller]
fn is_found(root: Range, hot: Range) {
    let mut tree = RangeTree::new(Params::paper(4), &[root]);
    let halvings = (root.pages() / hot.pages()).ilog2() + 1;
    for epoch in 0..u64::from(halvings + 6) {
        evenly(&mut tree, hot, 5_000, epoch);
        tree.end_epoch();
        tree.decay();
    }
    let inside = |leaf: &Leaf| {
        let start = leaf.range.start.max(hot.start);
        leaf.range.end.min(hot.end).saturating_sub(start)
    };
    // The pages that fit into fast memory for the spot and a quarter more.
    let mut room = hot.pages() * 5 / 4;
    let mut found = 0;
    for range in rank([(1, &tree)], |_, _| Held::default()) {
        if range.leaf.range.pages() > room {
            break;
        }
        room -= range.leaf.range.pages();
        found += inside(&range.leaf);
    }
    assert!(found * 10 >= hot.pages() * 9, "{found} of {}", hot.pages());
    assert!(tree.len() < 100, "{} leaves", tree.len());
}

/// A load over `hot`, on `fast` pages; returns how many pages each epoch exchanges.
fn exchanges(hot: &[Range], all: Range, fast: u64, epochs: u64) -> Vec<u64> {
    let mut tree = RangeTree::new(Params::paper(4), &[all]);
    let mut in_fast = vec![false; usize::try_from(all.pages()).expect("small")];
    in_fast
        .iter_mut()
        .rev()
        .take(usize::try_from(fast).expect("small"))
        .for_each(|f| *f = true);
    let mut moved = Vec::new();
    for epoch in 0..epochs {
        for part in hot {
            evenly(&mut tree, *part, 20_000 / hot.len() as u64, epoch);
        }
        tree.end_epoch();
        let span = |range: Range| {
            let at = |page| usize::try_from(page - all.start).expect("small");
            at(range.start)..at(range.end)
        };
        let ranked = rank([(1, &tree)], |_, range| {
            let fast = in_fast[span(range)].iter().filter(|f| **f).count() as u64;
            Held {
                fast,
                slow: range.pages() - fast,
            }
        });
        let plan = Plan::new(&ranked, fast, 0);
        assert_eq!(plan.promoted(), plan.demoted());
        moved.push(plan.promoted());
        for (shares, to) in [(&plan.demote, false), (&plan.promote, true)] {
            for share in shares {
                let pages = in_fast[span(ranked[share.rank].leaf.range)].iter_mut();
                let pages = pages.filter(|f| **f != to);
                let taken = pages.take(usize::try_from(share.pages).expect("small"));
                taken.for_each(|f| *f = to);
            }
        }
        tree.decay();
    }
    moved
}

#[test]
fn under_a_uniform_load_moves_die_out_and_splits_do_not_storm() {
    let all = range(0, 1 << 16);
    let moved = exchanges(&[all], all, 1 << 14, 40);
    assert!(moved[20..].iter().sum::<u64>() < 1 << 12, "{moved:?}");
    let mut tree = RangeTree::new(Params::paper(4), &[all]);
    let mut splits = |epochs: std::ops::Range<u64>| {
        let epoch = |epoch| {
            evenly(&mut tree, all, 20_000, epoch);
            let split = tree.end_epoch();
            tree.decay();
            split
        };
        epochs.map(epoch).sum::<u32>()
    };
    let (first, second) = (splits(0..50), splits(50..100));
    // As leaves get smaller, chance makes no difference between them that is significant.
    assert!(first <= 40 && second <= 10, "{first} and {second} splits");
}

/// Of 40 TiB, the last 64 GiB are accessed evenly.
#[test]
fn uniform_loads_keep_leaves_few_and_end_splits() {
    let root = range(0, 40 << 28);
    let load = range(root.end - (64 << 18), root.end);
    for rate in [500, 2_000, 20_000, 100_000] {
        let params = Params::paper(4);
        let mut tree = RangeTree::new(params, &[root]);
        let mut most = 0;
        let mut epochs = |from: u64| {
            let before = tree.changes();
            for epoch in from..from + 100 {
                evenly(&mut tree, load, rate, epoch);
                tree.end_epoch();
                tree.decay();
                most = most.max(tree.len());
            }
            let after = tree.changes();
            (after.0 - before.0, after.1 - before.1)
        };
        let (first, second) = (epochs(0), epochs(100));
        // A leaf is split with no fewer accesses than are significant, and all have those of two epochs; the
        // way down from the root takes another 24.
        let significant = u64::from(params.alpha * params.tau_split * params.vcpus);
        let bound = 24 + 2 * (2 * rate).div_ceil(significant);
        assert!(
            most as u64 <= bound,
            "{rate}: {most} leaves, {bound} at most"
        );
        let changes = second.0 + second.1;
        assert!(
            u64::from(changes) * 20 <= bound,
            "{rate}: {first:?}, then {second:?}"
        );
    }
}

#[test]
fn a_hot_range_comes_up_once_and_then_nothing_moves() {
    let all = range(0, 1 << 16);
    let hot = range(5_000, 15_000);
    let moved = exchanges(&[hot], all, 1 << 14, 40);
    assert!(moved.iter().sum::<u64>() >= 9_000, "{moved:?}");
    assert_eq!(moved[30..].iter().sum::<u64>(), 0, "{moved:?}");
}

#[test]
fn the_newer_of_two_equally_hot_ranges_goes_first() {
    let mut old = RangeTree::new(small(), &[range(0, 8)]);
    old.count_many(0, 8);
    let mut new = RangeTree::new(small(), &[range(0, 16)]);
    new.count_many(0, 32);
    new.end_epoch();
    new.decay();
    let ranked = rank([(1, &old), (2, &new)], |_, _| Held::default());
    assert_eq!(ranked[0].process, 2);
    assert_eq!(ranked[2].process, 1);
}

#[test]
fn a_range_that_does_not_fit_gives_as_many_pages_as_fit() {
    let leaf = |start, count, fast, slow| Ranked {
        process: 1,
        leaf: Leaf {
            range: range(start, start + 100),
            count,
            created: 0,
            accessed: 0,
        },
        held: Held { fast, slow },
    };
    let (hot, warm) = (leaf(0, 5000, 0, 100), leaf(100, 3000, 0, 100));
    let plan = Plan::new(&[hot, warm, leaf(200, 0, 150, 0)], 150, 0);
    let pages = |shares: &[terrace_core::ranges::Share]| -> Vec<(usize, u64)> {
        shares.iter().map(|s| (s.rank, s.pages)).collect()
    };
    assert_eq!(pages(&plan.promote), [(0, 100), (1, 50)]);
    assert_eq!(pages(&plan.demote), [(2, 150)]);
    assert_eq!(plan.fits, 1);
    let into_free = Plan::new(&[hot, warm, leaf(200, 0, 0, 9)], 150, 150);
    assert_eq!((into_free.promoted(), into_free.demoted()), (150, 0));
}

#[test]
fn a_range_without_accesses_is_never_promoted() {
    let tree = RangeTree::new(small(), &[range(0, 8)]);
    let ranked = rank([(1, &tree)], |_, _| Held { fast: 0, slow: 8 });
    assert_eq!(Plan::new(&ranked, 100, 100), Plan::default());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Against the definition: an exact comparison of fractions, then the newer, then the lower address.
    #[test]
    fn ranking_agrees_with_a_naive_one(
        leaves in prop::collection::vec((1_u64..1 << 36, 0_u32..40, any::<bool>()), 1..40),
    ) {
        let mut start = 0;
        let mut seeds = Vec::new();
        for (pages, ..) in &leaves {
            seeds.push(range(start, start + pages));
            start += pages;
        }
        let mut tree = RangeTree::new(small(), &seeds);
        for (seed, (_, accesses, _)) in seeds.iter().zip(&leaves) {
            tree.count_many(seed.start, *accesses);
        }
        // A range that goes and comes back is newer.
        tree.end_epoch();
        let survivors = seeds.iter().zip(&leaves).filter(|(_, leaf)| leaf.2);
        tree.reseed(&survivors.map(|(seed, _)| *seed).collect::<Vec<_>>());
        tree.reseed(&seeds);
        let mut naive: Vec<Leaf> = tree.leaves().collect();
        naive.sort_by(|a, b| {
            let (x, y) = (u128::from(a.count), u128::from(b.count));
            let (p, q) = (u128::from(a.range.pages()), u128::from(b.range.pages()));
            (y * p).cmp(&(x * q)).then(b.created.cmp(&a.created)).then(a.range.cmp(&b.range))
        });
        let ranked: Vec<Leaf> = rank([(1, &tree)], |_, _| Held::default())
            .iter()
            .map(|ranked| ranked.leaf)
            .collect();
        prop_assert_eq!(ranked, naive);
    }

    /// Against the definition: a count lands in the one leaf that holds its page; leaves never overlap,
    /// cover what the seeds covered, and keep all counts.
    #[test]
    fn counting_splitting_and_merging_agree_with_a_naive_tree(
        steps in prop::collection::vec((0_u64..300, 0_u32..200, any::<bool>()), 1..60),
    ) {
        let seeds = [range(10, 74), range(74, 100), range(200, 264)];
        let params = Params { tau_merge: 2, most_leaves: 20, ..small() };
        let mut tree = RangeTree::new(params, &seeds);
        let mut naive: Vec<(u64, u64, u32)> = counts(&tree);
        for (page, accesses, ends) in steps {
            let inside = naive.iter_mut().find(|(start, end, _)| (*start..*end).contains(&page));
            prop_assert_eq!(tree.count_many(page, accesses), inside.is_some());
            if let Some((.., count)) = inside {
                *count += accesses;
            }
            prop_assert_eq!(&counts(&tree), &naive);
            if ends {
                tree.end_epoch();
                let all = counts(&tree);
                let pages = |leaves: &[(u64, u64, u32)]| leaves.iter().map(|l| l.1 - l.0).sum::<u64>();
                let sum = |leaves: &[(u64, u64, u32)]| leaves.iter().map(|l| l.2).sum::<u32>();
                prop_assert_eq!((pages(&all), sum(&all)), (pages(&naive), sum(&naive)));
                prop_assert!(all.windows(2).all(|w| w[0].1 <= w[1].0));
                prop_assert!(all.len() <= 20);
                tree.decay();
                naive = counts(&tree);
            }
        }
    }
}
