//! The committed cuts of real programs' traces (`tests/traces/`).

use std::path::{Path, PathBuf};

use super::super::{Format, OnBroken, Reader, Summary, Tally, Tenths, load};

fn cut(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    root.join(format!("{name}.trace.zst"))
}

fn open(name: &str) -> Reader {
    Reader::open(&cut(name), None, OnBroken::Stop).expect("a cut")
}

fn summary(name: &str) -> Summary {
    let mut tally = Tally::new(cut(name));
    let mut reader = open(name);
    while let Some(record) = reader.next_record().expect("a record") {
        tally.add(&record).expect("room");
    }
    let mut tenths = Tenths::new(cut(name), reader.records());
    let mut again = open(name);
    while let Some(record) = again.next_record().expect("a record") {
        tenths.add(&record).expect("room");
    }
    tally.summary(&reader, tenths.finish())
}

#[test]
fn the_cuts_hold_what_their_readme_says() {
    for (name, records, stores, pages, regions, written) in [
        ("redis", 60_741, 18_988, 4_836, 108, 671),
        ("memcached", 48_412, 17_522, 9_690, 114, 882),
        ("gap-pr", 50_000, 2_326, 13_937, 37, 827),
        ("sort", 61_280, 20_252, 12_859, 49, 4_262),
    ] {
        let s = summary(name);
        assert_eq!((s.format, s.skipped, s.ignored), (Format::Lackey, 0, 0));
        assert_eq!(
            (s.records, s.stores, s.loads),
            (records, stores, records - stores)
        );
        assert_eq!((s.touched_pages, s.touched_regions), (pages, regions));
        assert_eq!(s.written_pages, written);
        let tenths: u64 = s.tenths.iter().sum();
        assert!(pages <= tenths && tenths <= 10 * pages, "{name}: {tenths}");
    }
}

/// `NAME.md` of the whole traces: 31.3, 18.0, 4.2 and 43.6 % on the hottest page; 33.5, 32.3, 91.5 and 38.2 % not on
/// the 16 hottest.
#[test]
fn the_cuts_keep_the_popularity_of_the_hottest_pages() {
    for (name, hottest, without) in [
        ("redis", 0.313, 0.335),
        ("memcached", 0.180, 0.323),
        ("gap-pr", 0.042, 0.915),
        ("sort", 0.436, 0.382),
    ] {
        let s = summary(name);
        assert!(
            (s.hottest_page - hottest).abs() < 0.005,
            "{name}: {}",
            s.hottest_page
        );
        assert!(
            (s.without_16_share - without).abs() < 0.005,
            "{name}: {}",
            s.without_16_share
        );
    }
}

/// The counts are an independent program's, which followed the definition line by line.
#[test]
fn the_cuts_are_loads_with_and_without_a_cache() {
    for (name, accesses, missed, pages) in [
        ("redis", 62_393, 8_312, 108 * 512),
        ("memcached", 49_870, 14_622, 114 * 512),
        ("gap-pr", 50_000, 38_546, 37 * 512),
        ("sort", 62_583, 24_223, 49 * 512),
    ] {
        let whole = load(open(name), None).expect("a load");
        let filtered = load(open(name), Some(1 << 20)).expect("a load");
        let counts = (whole.accesses().len(), filtered.accesses().len());
        assert_eq!(counts, (accesses, missed), "{name}");
        assert_eq!((whole.pages, filtered.pages), (pages, pages), "{name}");
    }
}
