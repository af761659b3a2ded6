//! The whole traces, of which `tests/traces/` has cuts, against the figures stated when they were recorded, and their
//! miss-ratio curves against the exact ones. They are
//! too large to be committed: `TERRACE_TRACES` names their folder. Without that the test is listed as ignored, with
//! the reason; it is never counted as passed.

use std::path::Path;
use std::process::ExitCode;

use terrace_core::demand::{Curve, CurveSource, DEFAULT_SAMPLED_PAGES, Difference};
use terrace_proto::PAGE_SIZE;
use terrace_sim::trace::{Format, OnBroken, Reader, Summary, Tally, TraceDemand, Wanted};

/// A test on a folder with the whole traces.
type Test = fn(&Path);

const TESTS: [(&str, Test); 2] = [
    (
        "the_whole_traces_hold_what_their_recording_stated",
        statements,
    ),
    ("the_whole_traces_curves_are_near_the_exact_ones", curves),
];
const FOLDER: &str = "TERRACE_TRACES";

/// The stated figures of a trace: shares in per cent with one decimal.
struct Stated {
    name: &'static str,
    records: u64,
    touched_pages: u64,
    written_pages: u64,
    single_pages: u64,
    regions: u64,
    stores: f64,
    hottest_page: f64,
    hottest_1_10_20: [f64; 3],
    without_16: f64,
    without_16_10_20_50: [f64; 3],
}

const STATED: [Stated; 4] = [
    Stated {
        name: "redis",
        records: 4_859_204,
        touched_pages: 30_649,
        written_pages: 10_531,
        single_pages: 2_182,
        regions: 109,
        stores: 31.1,
        hottest_page: 31.3,
        hottest_1_10_20: [91.4, 94.0, 95.7],
        without_16: 33.5,
        without_16_10_20_50: [82.0, 87.1, 96.0],
    },
    Stated {
        name: "memcached",
        records: 3_872_959,
        touched_pages: 39_131,
        written_pages: 18_413,
        single_pages: 2_498,
        regions: 115,
        stores: 36.2,
        hottest_page: 18.0,
        hottest_1_10_20: [75.4, 82.7, 88.1],
        without_16: 32.3,
        without_16_10_20_50: [46.3, 63.3, 90.2],
    },
    Stated {
        name: "gap-pr",
        records: 4_000_000,
        touched_pages: 17_175,
        written_pages: 1_027,
        single_pages: 1,
        regions: 37,
        stores: 4.8,
        hottest_page: 4.2,
        hottest_1_10_20: [24.1, 56.9, 63.3],
        without_16: 91.5,
        without_16_10_20_50: [53.0, 59.9, 76.7],
    },
    Stated {
        name: "sort",
        records: 4_902_322,
        touched_pages: 22_629,
        written_pages: 22_580,
        single_pages: 17,
        regions: 49,
        stores: 32.9,
        hottest_page: 43.6,
        hottest_1_10_20: [65.7, 74.9, 79.6],
        without_16: 38.2,
        without_16_10_20_50: [34.4, 46.7, 69.2],
    },
];

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|word| word == "--list") {
        for (name, _) in TESTS {
            println!("{name}: test");
        }
        return ExitCode::SUCCESS;
    }
    let filtered = |name: &str| {
        args.iter()
            .any(|word| !word.starts_with('-') && !name.contains(word.as_str()))
    };
    for (name, test) in TESTS.iter().filter(|(name, _)| !filtered(name)) {
        let Some(folder) = std::env::var_os(FOLDER) else {
            println!("test {name} ... ignored, {FOLDER} names no folder with the whole traces");
            continue;
        };
        test(folder.as_ref());
        println!("test {name} ... ok");
    }
    ExitCode::SUCCESS
}

fn statements(folder: &Path) {
    for stated in &STATED {
        compare(stated, &summary(folder, stated.name));
    }
}

/// Restored behind a hot set of 5 % of the touched pages: within 2 points from twice that on. Sampled, for ten choices of
/// pages, from 5 % of the touched pages on: within 1 point in the mean, and 2 with 5 % of the size to either side.
fn curves(folder: &Path) {
    /// Points of a hundred, in parts of a billion.
    const POINT: u64 = 10_000_000;
    for stated in &STATED {
        let name = stated.name;
        let touched = u32::try_from(stated.touched_pages).expect("few pages");
        let (exact, others) = all_curves(folder, stated);
        for curve in others {
            let is_sampled = curve.source == CurveSource::Sampled;
            let from = if is_sampled {
                touched / 20
            } else {
                touched / 20 * 2
            };
            let off = Difference::between(&exact, &curve, from..=touched, 0);
            let moved = Difference::between(&exact, &curve, from..=touched, 5);
            println!("{name}: {} {off:?}", curve.source.name());
            if !is_sampled {
                let hot_set = touched / 20;
                let at = Difference::between(&exact, &curve, hot_set..=hot_set, 0);
                let points = at.worst_ppb as f64 / POINT as f64;
                println!("{name}: {points:.2} points at the hot set of {hot_set} pages");
            }
            assert!(off.sizes >= 20 && off.mean_ppb <= POINT, "{name}: {off:?}");
            let worst = if is_sampled { moved } else { off };
            assert!(worst.worst_ppb <= 2 * POINT, "{name}: {worst:?}");
        }
    }
}

/// The exact curve, the restored one and ten sampled ones.
fn all_curves(folder: &Path, stated: &Stated) -> (Curve, Vec<Curve>) {
    let file = folder.join(format!("{}.trace.zst", stated.name));
    let hot_set = u32::try_from(stated.touched_pages / 20).expect("few pages");
    let wanted = |seed| Wanted {
        exact: seed == 0,
        hot_set: (seed == 0).then_some(hot_set),
        sampled: Some((DEFAULT_SAMPLED_PAGES, seed)),
    };
    let new = |seed| TraceDemand::new(file.clone(), PAGE_SIZE, wanted(seed));
    let mut demands: Vec<TraceDemand> = (0..10).map(new).collect();
    let mut reader = Reader::open(&file, None, OnBroken::Stop).expect("a trace");
    while let Some(record) = reader.next_record().expect("a record") {
        for demand in &mut demands {
            demand.add(&record).expect("room");
        }
    }
    let mut curves: Vec<Curve> = demands.iter().flat_map(TraceDemand::curves).collect();
    assert_eq!(curves.len(), 12);
    (curves.remove(0), curves)
}

fn summary(folder: &Path, name: &str) -> Summary {
    let file = folder.join(format!("{name}.trace.zst"));
    let mut reader = Reader::open(&file, None, OnBroken::Stop).expect("a trace");
    let mut tally = Tally::new(file);
    while let Some(record) = reader.next_record().expect("a record") {
        tally.add(&record).expect("room");
    }
    tally.summary(&reader, Vec::new())
}

fn compare(stated: &Stated, s: &Summary) {
    let name = stated.name;
    assert_eq!(s.format, Format::Lackey, "{name}");
    let counts = [
        (s.records, stated.records),
        (s.touched_pages, stated.touched_pages),
        (s.written_pages, stated.written_pages),
        (s.single_pages, stated.single_pages),
        (s.touched_regions, stated.regions),
        (s.skipped, 0),
    ];
    for (found, stated) in counts {
        assert_eq!(found, stated, "{name}");
    }
    let part = |shares: &[terrace_sim::trace::Share], percent| {
        let share = shares.iter().find(|share| share.percent == percent);
        share.expect("a share").share
    };
    let mut shares = vec![
        (s.stores as f64 / s.records as f64, stated.stores),
        (s.hottest_page, stated.hottest_page),
        (s.without_16_share, stated.without_16),
    ];
    for (percent, stated) in [1, 10, 20].into_iter().zip(stated.hottest_1_10_20) {
        shares.push((part(&s.hottest, percent), stated));
    }
    for (percent, stated) in [10, 20, 50].into_iter().zip(stated.without_16_10_20_50) {
        shares.push((part(&s.without_16, percent), stated));
    }
    for (found, stated) in shares {
        // One digit was stated, and the number of pages rounded in another way.
        assert!(
            (found * 100.0 - stated).abs() < 0.11,
            "{name}: {found} against {stated} %"
        );
    }
}
