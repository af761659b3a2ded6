//! Tests of traces as loads: the accesses that are simulated, their addresses, and the passing of time.

use std::collections::{BTreeSet, VecDeque};
use std::io::Cursor;
use std::path::Path;

use proptest::prelude::*;

use crate::base::access::{Access, Source};
use crate::base::load::Context;

use super::super::{Cache, Loaded, OnBroken, Op, Reader, Record, Tally, Tenths, TraceSpec, load};
use super::{any_record, record, records};

fn lackey(records: &[Record]) -> Vec<u8> {
    let mut writer = super::super::Writer::new(Vec::new(), super::super::Target::Lackey);
    for record in records {
        writer.write(record).expect("a record");
    }
    writer.finish().expect("a trace").0
}

pub(super) fn loaded(records: &[Record], cache: Option<u64>) -> Loaded {
    let bytes = Box::new(Cursor::new(lackey(records)));
    let reader = Reader::from_bytes("t", bytes, None, OnBroken::Stop).expect("a trace");
    load(reader, cache).expect("a load")
}

/// A trace in a file of its own, and its folder.
pub(super) fn in_file(records: &[Record]) -> (tempfile::TempDir, TraceSpec) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("t.trace"), lackey(records)).expect("a file");
    (folder, TraceSpec::new("t.trace".into()))
}

pub(super) fn context(folder: &Path, vcpus: u32) -> Context<'_> {
    Context {
        scale: 1,
        seed: 1,
        vm: "vm",
        vcpus,
        is_cached: false,
        folder,
    }
}

pub(super) fn drained(source: &mut dyn Source, batch: usize) -> Vec<Access> {
    let mut all = Vec::new();
    let mut batch = vec![Access::default(); batch];
    loop {
        let got = source.fill(0, &mut batch);
        if got == 0 {
            return all;
        }
        all.extend(&batch[..got]);
    }
}

#[test]
fn touched_regions_of_2_mib_lie_densely_in_order_of_address() {
    let accesses = loaded(
        &[
            record(Op::Load, 0x7fff_ffff_f040, 8),
            record(Op::Store, 0x5555_5540_3000, 8),
            record(Op::Modify, 0x5555_5560_0080, 8),
            record(Op::Load, 0x5555_5540_3fff, 1),
        ],
        None,
    );
    assert_eq!(accesses.pages, 3 * 512);
    let expected = [
        Access::new(2 * 512 + 511, 1, false),
        Access::new(3, 0, true),
        Access::new(512, 2, true),
        Access::new(3, 63, false),
    ];
    assert_eq!(accesses.accesses(), expected);
}

#[test]
fn a_record_that_spans_lines_is_one_access_for_each() {
    let accesses = loaded(&[record(Op::Store, 0x20_0ffc, 72)], None);
    let expected = [
        Access::new(0, 63, true),
        Access::new(1, 0, true),
        Access::new(1, 1, true),
    ];
    assert_eq!((accesses.accesses(), accesses.pages), (&expected[..], 512));
}

#[test]
fn a_cache_hit_gives_no_access_and_a_missed_store_is_a_write() {
    let accesses = loaded(
        &[
            record(Op::Store, 0, 8),
            record(Op::Load, 8, 8),
            record(Op::Load, 0x40, 8),
            record(Op::Store, 0x40, 8),
        ],
        Some(1024),
    );
    let expected = [Access::new(0, 0, true), Access::new(0, 1, false)];
    assert_eq!(accesses.accesses(), expected);
    assert_eq!(accesses.records, 4);
}

#[test]
fn a_cache_has_a_size_in_bounds() {
    for bytes in [0, 1000, 1025, (1 << 30) + 1024, u64::MAX] {
        assert!(Cache::new(bytes).is_err(), "{bytes}");
    }
    assert!(Cache::new(1024).is_ok() && Cache::new(1 << 30).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn the_cache_is_least_recently_used_in_each_set(
        lines in prop::collection::vec(0_u64..120, 0..400),
        sets in 1_u64..4,
    ) {
        let mut cache = Cache::new(sets * 1024).expect("a cache");
        let mut naive = vec![VecDeque::new(); 4];
        for line in lines {
            let set = &mut naive[usize::try_from(line % sets).unwrap()];
            let before = set.len();
            set.retain(|l| *l != line);
            let missed = set.len() == before;
            set.push_front(line);
            set.truncate(16);
            prop_assert_eq!(cache.misses(line), missed);
        }
    }

    #[test]
    fn a_load_keeps_lines_writes_and_neighbourhood(
        records in prop::collection::vec(any_record(), 1..60),
    ) {
        let accesses = loaded(&records, None);
        let naive: Vec<(u64, bool)> = records
            .iter()
            .flat_map(|r| (r.addr / 64..=(r.addr + u64::from(r.bytes) - 1) / 64).map(|l| (l, r.writes())))
            .collect();
        prop_assert_eq!(accesses.accesses().len(), naive.len());
        let regions: BTreeSet<u64> = naive.iter().map(|(line, _)| line >> 15).collect();
        prop_assert_eq!(accesses.pages, regions.len() as u64 * 512);
        for (access, (line, writes)) in accesses.accesses().iter().zip(naive) {
            let region = regions.range(..line >> 15).count() as u64;
            let expected = Access::new(region * 512 + (line >> 6) % 512, line % 64, writes);
            prop_assert_eq!(*access, expected);
        }
    }
}

#[test]
fn the_first_vcpu_plays_the_trace_and_the_others_end_at_once() {
    let trace: Vec<Record> = (0..2500).map(|n| record(Op::Load, n * 64, 8)).collect();
    let (folder, mut spec) = in_file(&trace);
    spec.repeat = 3;
    let once = loaded(&trace, None);
    let mut sources = spec.sources(&context(folder.path(), 3)).expect("sources");
    assert_eq!(sources.len(), 3);
    for batch in [1, 700, 5000] {
        let played = drained(&mut *sources[0].fork(), batch);
        assert_eq!(played, once.accesses().repeat(3), "{batch}");
    }
    assert_eq!(drained(&mut *sources[1], 10), []);
    assert_eq!(spec.pages(folder.path()).expect("pages"), 512);
}

#[test]
fn a_fork_goes_on_where_its_source_is() {
    let trace: Vec<Record> = (0..50).map(|n| record(Op::Load, n * 64, 8)).collect();
    let (folder, spec) = in_file(&trace);
    let mut source = spec
        .sources(&context(folder.path(), 1))
        .expect("a source")
        .remove(0);
    let mut batch = [Access::default(); 20];
    assert_eq!(source.fill(0, &mut batch), 20);
    let mut fork = source.fork();
    assert_eq!(
        drained(&mut *fork, 7),
        loaded(&trace, None).accesses()[20..]
    );
    assert_eq!(drained(&mut *source, 7).len(), 30);
}

#[test]
fn the_time_of_records_that_the_cache_holds_passes() {
    let hot = record(Op::Load, 0, 8);
    let cold = |n: u64| record(Op::Load, (1 + n) * 64, 8);
    // 1,024 misses of one record each (the first two are the hot line's and the first cold one), then
    // 1,023 misses with four records each.
    let mut trace = vec![hot];
    trace.extend((0..1023).map(cold));
    for n in 1023..2046 {
        trace.extend([cold(n), cold(n), cold(n), cold(n)]);
    }
    let (folder, mut spec) = in_file(&trace);
    spec.cache = Some(bytesize::ByteSize::kib(64));
    (spec.accesses_per_record, spec.compute_ns) = (50, 0.5);
    let mut source = spec
        .sources(&context(folder.path(), 1))
        .expect("a source")
        .remove(0);
    let mut batch = vec![Access::default(); 4096];
    assert_eq!(source.fill(0, &mut batch), 1024);
    assert_eq!(source.pace().compute_ns, 25.0);
    assert_eq!(source.fill(0, &mut batch), 1023);
    assert_eq!(source.pace().compute_ns, 100.0);
    assert_eq!(source.pace().parallelism, 1.0);
}

/// Whether a trace's accesses come before the last-level cache.
fn is_before_cache(change: impl FnOnce(&mut TraceSpec)) -> bool {
    let (folder, mut spec) = in_file(&[record(Op::Load, 0, 8)]);
    change(&mut spec);
    let sources = spec.sources(&context(folder.path(), 1));
    sources.expect("a source")[0].pace().before_cache
}

#[test]
fn whole_traces_come_before_the_cache_and_others_after() {
    assert!(is_before_cache(|_| {}));
    assert!(!is_before_cache(|spec| spec.before_cache = Some(false)));
    let cache = Some(bytesize::ByteSize::kib(64));
    assert!(!is_before_cache(|spec| spec.cache = cache));
    assert!(!is_before_cache(|spec| spec.accesses_per_record = 50));
    assert!(is_before_cache(|spec| {
        (spec.accesses_per_record, spec.before_cache) = (50, Some(true));
    }));
    use super::super::Format;
    let whole = Format::ALL.map(Format::records_all);
    assert_eq!(whole, [true, false, true, false]);
}

#[test]
fn a_trace_is_not_filtered_twice() {
    let mut spec = TraceSpec::new("a".into());
    (spec.cache, spec.before_cache) = (Some(bytesize::ByteSize::kib(64)), Some(true));
    let error = spec.check().expect_err("it is refused").to_string();
    assert!(
        error.contains("before_cache") && error.contains("cache"),
        "{error}"
    );
}

#[test]
fn a_spec_is_read_from_a_scenario_and_unknown_keys_are_refused() {
    let spec: TraceSpec = toml::from_str(
        "file = 'a.trace.zst'\nformat = 'lackey'\naccesses_per_record = 50\ncompute_ns = 0.5\n\
         cache = '1MiB'\nrepeat = 2\ninflate = 16\nplayers = 4\non_broken = 'skip'",
    )
    .expect("a spec");
    let mut expected = TraceSpec::new("a.trace.zst".into());
    expected.format = Some(super::super::Format::Lackey);
    (expected.accesses_per_record, expected.compute_ns) = (50, 0.5);
    (expected.cache, expected.repeat) = (Some(bytesize::ByteSize::mib(1)), 2);
    (expected.inflate, expected.players) = (16, 4);
    expected.on_broken = OnBroken::Skip;
    assert_eq!(spec, expected);
    assert_eq!(
        toml::from_str::<TraceSpec>("file = 'a'").expect("a spec"),
        TraceSpec::new("a".into())
    );
    for wrong in [
        "file = 'a'\nshared = 1",
        "repeat = 1",
        "file = 'a'\nformat = 'x'",
    ] {
        assert!(toml::from_str::<TraceSpec>(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn parameters_without_meaning_are_refused_by_name() {
    for (key, text) in [
        ("repeat = 0", "repeat = 0"),
        ("inflate = 0", "inflate = 0"),
        ("players = 0", "players = 0"),
        ("accesses_per_record = 0", "accesses_per_record = 0"),
        ("compute_ns = NaN", "compute_ns = nan"),
        ("compute_ns = -1", "compute_ns = -1.0"),
        ("compute_ns = inf", "compute_ns = inf"),
        (
            "compute_ns = 1000 x accesses_per_record",
            "compute_ns = 1e3\naccesses_per_record = 4_000_000_000",
        ),
        ("cache = 1000 B", "cache = '1000B'"),
    ] {
        let spec: TraceSpec = toml::from_str(&format!("file = 'a'\n{text}")).expect("a spec");
        let error = spec.check().expect_err(key).to_string();
        assert!(error.starts_with(&format!("trace: {key}: ")), "{error}");
        assert!(error.contains("expected"), "{error}");
    }
}

#[test]
fn clones_of_a_spec_read_the_file_once() {
    let (folder, spec) = in_file(&[record(Op::Load, 0, 8)]);
    let first = spec.loaded(folder.path()).expect("a trace");
    let mut clone = spec.clone();
    assert!(std::sync::Arc::ptr_eq(
        &first,
        &clone.loaded(folder.path()).expect("a trace")
    ));
    clone.cache = Some(bytesize::ByteSize::kib(1));
    assert!(!std::sync::Arc::ptr_eq(
        &first,
        &clone.loaded(folder.path()).expect("a trace")
    ));
    let elsewhere = Path::new("/nonexistent");
    assert!(clone.pages(elsewhere).is_err());
}

#[test]
fn a_tally_counts_what_the_records_touch() {
    let trace = [
        record(Op::Load, 0x1000, 8),
        record(Op::Store, 0x1ffc, 8),
        record(Op::Modify, 0x40_0000, 4),
        record(Op::Load, 0x1000, 8),
    ];
    let bytes = lackey(&trace);
    assert_eq!(records(&bytes), trace);
    let mut reader = Reader::from_bytes("t", Box::new(Cursor::new(bytes)), None, OnBroken::Stop)
        .expect("a trace");
    let (mut tally, mut tenths) = (Tally::new("t".into()), Tenths::new("t".into(), 4));
    while let Some(record) = reader.next_record().expect("a record") {
        tally.add(&record).expect("room");
        tenths.add(&record).expect("room");
    }
    let s = tally.summary(&reader, tenths.finish());
    assert_eq!((s.records, s.loads, s.stores, s.modifies), (4, 2, 1, 1));
    assert_eq!(
        (s.touched_pages, s.touched_bytes, s.touched_regions),
        (2, 8192, 2)
    );
    assert_eq!((s.written_pages, s.single_pages, s.crossing), (2, 1, 1));
    assert_eq!(s.hottest_page, 0.75);
    assert_eq!(s.tenths, [1, 0, 1, 0, 0, 1, 0, 1, 0, 0]);
    let shares: Vec<(u64, f64)> = s.hottest.iter().map(|h| (h.pages, h.share)).collect();
    assert_eq!(shares[..2], [(1, 0.75), (1, 0.75)]);
    assert_eq!(shares[6], (2, 1.0));
    assert_eq!((s.without_16_share, s.without_16[6].pages), (0.0, 0));
}
