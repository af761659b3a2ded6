//! Tests of inflated traces, and of traces that several vCPUs play.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use proptest::prelude::*;

use super::super::{Op, Record, TraceSpec};
use super::loading::{context, drained, in_file, loaded};
use super::{any_record, record};
use crate::base::access::{Access, Source};
use crate::base::load::Context;

const REGION: u64 = 2 << 20;

/// A trace that touches so many regions, some lines of each, more than a block in all.
fn trace(regions: u64) -> Vec<Record> {
    let touch = |n: u64| {
        let op = if n.is_multiple_of(3) {
            Op::Store
        } else {
            Op::Load
        };
        record(op, n % regions * REGION + n * 64 % 8192, 8)
    };
    (0..1500).map(touch).collect()
}

fn first(spec: &TraceSpec, context: &Context) -> Box<dyn Source> {
    spec.sources(context).expect("sources").remove(0)
}

/// The accesses of vCPU 0 that plays the trace to so many copies.
fn inflated(records: &[Record], inflate: u32, seed: u64) -> Vec<Access> {
    let (folder, mut spec) = in_file(records);
    spec.inflate = inflate;
    let context = Context {
        seed,
        ..context(folder.path(), 1)
    };
    drained(&mut *first(&spec, &context), 64)
}

/// For each recorded access those to its copies: 1,024 accesses are played to one copy after another.
fn copies_of(recorded: &[Access], played: &[Access], each: usize) -> Vec<(Access, Vec<Access>)> {
    let mut found = Vec::new();
    let mut rest = played;
    for block in recorded.chunks(1024) {
        let (now, later) = rest.split_at(block.len() * each);
        rest = later;
        for (at, recorded) in block.iter().enumerate() {
            let copies = now.iter().skip(at).step_by(block.len());
            found.push((*recorded, copies.copied().collect()));
        }
    }
    found
}

/// The 2 MiB regions of the accesses.
fn regions_of(accesses: &[Access]) -> Vec<u64> {
    accesses.iter().map(|access| access.page() / 512).collect()
}

#[test]
fn a_trace_inflated_by_1_is_the_trace() {
    let trace = trace(7);
    let once = loaded(&trace, None);
    let (folder, mut spec) = in_file(&trace);
    spec.inflate = 1;
    assert_eq!(spec.pages(folder.path()).expect("pages"), once.pages);
    for seed in [1, 2] {
        assert_eq!(inflated(&trace, 1, seed), once.accesses());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Each access is played once to each copy of its page; a copy keeps line, kind and location in its 2 MiB,
    /// and copies of different regions share no region.
    #[test]
    fn each_access_goes_to_every_copy_of_its_page(
        records in prop::collection::vec(any_record(), 1..40),
        inflate in 2_u32..9,
        seed in 0_u64..1000,
    ) {
        let once = loaded(&records, None);
        let played = inflated(&records, inflate, seed);
        let each = usize::try_from(inflate).expect("small");
        prop_assert_eq!(played.len(), once.accesses().len() * each);
        let mut places: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for (recorded, copies) in copies_of(once.accesses(), &played, each) {
            let regions = regions_of(&copies);
            let earlier = places.entry(recorded.page() / 512).or_insert_with(|| regions.clone());
            prop_assert_eq!(&*earlier, &regions);
            for copy in copies {
                prop_assert_eq!(copy.page() % 512, recorded.page() % 512);
                prop_assert_eq!(copy.line(), recorded.line());
                prop_assert_eq!(copy.is_write(), recorded.is_write());
            }
        }
        let all: Vec<u64> = places.values().flatten().copied().collect();
        let regions = once.pages / 512 * u64::from(inflate);
        let distinct: BTreeSet<u64> = all.iter().copied().collect();
        prop_assert_eq!(distinct.len(), all.len());
        prop_assert!(all.iter().all(|place| *place < regions));
    }
}

#[test]
fn no_copy_lies_beside_another_of_its_region() {
    for regions in [2, 3, 7, 109] {
        let trace = trace(regions);
        let once = loaded(&trace, None);
        for seed in 0..20 {
            let played = inflated(&trace, 16, seed);
            for (recorded, copies) in copies_of(once.accesses(), &played, 16) {
                let mut places = regions_of(&copies);
                places.sort_unstable();
                let apart = places.windows(2).all(|pair| pair[1] - pair[0] > 1);
                assert!(apart, "{regions} regions, {recorded:?}: {places:?}");
            }
        }
    }
}

#[test]
fn the_seed_and_the_vm_choose_where_copies_lie() {
    let trace = trace(20);
    assert_eq!(inflated(&trace, 4, 1), inflated(&trace, 4, 1));
    let of = |seed: u64| -> Vec<u64> {
        let played = inflated(&trace, 4, seed);
        played.iter().map(|access| access.page()).collect()
    };
    let (one, other) = (of(1), of(2));
    let same = one.iter().zip(&other).filter(|(a, b)| a == b).count();
    assert!(same * 5 < one.len(), "{same} of {} alike", one.len());
    let (folder, mut spec) = in_file(&trace);
    spec.inflate = 4;
    let elsewhere = Context {
        vm: "other",
        ..context(folder.path(), 1)
    };
    assert_ne!(
        drained(&mut *first(&spec, &elsewhere), 64),
        inflated(&trace, 4, 1)
    );
}

#[test]
fn an_inflated_trace_repeats_and_does_not_depend_on_batches() {
    let (folder, mut spec) = in_file(&trace(5));
    (spec.inflate, spec.repeat) = (3, 2);
    let context = context(folder.path(), 1);
    let source = first(&spec, &context);
    let whole = drained(&mut *source.fork(), 64);
    assert_eq!(whole.len(), 1500 * 3 * 2);
    assert_eq!(whole[..4500], whole[4500..]);
    for batch in [1, 2, 7, 5000] {
        assert_eq!(drained(&mut *source.fork(), batch), whole, "{batch}");
    }
}

#[test]
fn a_fork_goes_on_in_the_middle_of_copies() {
    let (folder, mut spec) = in_file(&trace(5));
    (spec.inflate, spec.players) = (8, 2);
    let context = context(folder.path(), 2);
    for mut source in spec.sources(&context).expect("sources") {
        let whole = drained(&mut *source.fork(), 64);
        // In the third copy of the first block.
        let mut given = 0;
        while given < 2100 {
            given += source.fill(0, &mut [Access::default(); 13]);
        }
        assert_eq!(drained(&mut *source.fork(), 5), whole[given..]);
        assert_eq!(drained(&mut *source, 64), whole[given..]);
    }
}

#[test]
fn each_copy_costs_the_time_of_its_record() {
    let (folder, mut spec) = in_file(&trace(5));
    (spec.inflate, spec.accesses_per_record) = (8, 50);
    spec.compute_ns = 0.5;
    let context = context(folder.path(), 1);
    let mut source = first(&spec, &context);
    let mut batch = [Access::default(); 64];
    let mut computed = 0.0;
    loop {
        let filled = u32::try_from(source.fill(0, &mut batch)).expect("small");
        if filled == 0 {
            break;
        }
        computed += source.pace().compute_ns * f64::from(filled);
    }
    assert_eq!(computed, 1500.0 * 8.0 * 25.0);
}

/// vCPU v begins at v/N of the trace, goes round it, and plays each access `repeat` times.
#[test]
fn players_begin_apart_and_each_plays_the_whole_trace() {
    let trace = trace(5);
    let once = loaded(&trace, None);
    let (folder, mut spec) = in_file(&trace);
    (spec.players, spec.repeat) = (4, 3);
    let context = context(folder.path(), 6);
    let mut sources = spec.sources(&context).expect("sources");
    assert_eq!(sources.len(), 6);
    for (vcpu, source) in sources.iter_mut().take(4).enumerate() {
        let mut expected = once.accesses().to_vec();
        expected.rotate_left(1500 * vcpu / 4);
        assert_eq!(drained(&mut **source, 64), expected.repeat(3), "{vcpu}");
    }
    for source in &mut sources[4..] {
        assert_eq!(drained(&mut **source, 64), []);
    }
}

#[test]
fn inflated_players_share_the_copies() {
    let trace = trace(5);
    let (folder, mut spec) = in_file(&trace);
    (spec.players, spec.inflate) = (3, 4);
    let context = context(folder.path(), 3);
    // Each copy of the five regions is a stretch of its own.
    let to = |accesses: &[Access], copy: u64| -> Vec<Access> {
        let mut accesses = accesses.to_vec();
        accesses.retain(|access| access.page() / (5 * 512) == copy);
        accesses
    };
    let alone = inflated(&trace, 4, 1);
    let sources = spec.sources(&context).expect("sources");
    for (vcpu, mut source) in sources.into_iter().enumerate() {
        let played = drained(&mut *source, 64);
        assert_eq!(played.len(), 6000);
        for copy in 0..4 {
            let mut expected = to(&alone, copy);
            expected.rotate_left(500 * vcpu);
            assert_eq!(to(&played, copy), expected, "{vcpu} {copy}");
        }
    }
}

#[test]
fn more_players_than_accesses_all_play() {
    let (folder, mut spec) = in_file(&trace(1)[..2]);
    spec.players = 5;
    for mut source in spec.sources(&context(folder.path(), 5)).expect("sources") {
        assert_eq!(drained(&mut *source, 64).len(), 2);
    }
}

#[test]
fn more_players_than_vcpus_are_refused_with_both_numbers() {
    let (folder, mut spec) = in_file(&trace(1));
    spec.players = 5;
    let error = spec.sources(&context(folder.path(), 4)).map(|_| ());
    let error = error.expect_err("too many").to_string();
    assert!(error.starts_with("trace: players = 5: "), "{error}");
    assert!(error.contains("at most 4, "), "{error}");
}

#[test]
fn copies_beyond_what_can_be_simulated_are_refused() {
    let (folder, mut spec) = in_file(&trace(2));
    // Two regions of 2 MiB; 1 TiB is the most.
    spec.inflate = 1 << 18;
    let pages = |spec: &TraceSpec, folder: &Path| spec.pages(folder);
    assert_eq!(pages(&spec, folder.path()).expect("room"), 1 << 28);
    spec.inflate += 1;
    let error = pages(&spec, folder.path()).expect_err("too many");
    let error = error.to_string();
    assert!(error.starts_with("trace: inflate = 262145: "), "{error}");
    assert!(error.contains("at most 262144: "), "{error}");
    assert!(
        error.contains("4.0 MiB") && error.contains("1.0 TiB"),
        "{error}"
    );
    assert!(spec.sources(&context(folder.path(), 1)).is_err());
}
