//! Committed records of PEBS and IBS (records/README.md: built by hand), and garbage.

#![allow(clippy::unwrap_used, reason = "test helpers outside of test functions")]

use proptest::prelude::*;
use terrace_agent::sampler::Sample;
use terrace_agent::sampler::pmu::{Access, Counters, Intake, Layout, Recipe, SampleKind, Wanted};
use terrace_core::ranges::{Params, Range, RangeTree};
use terrace_sys::HostRoot;
use terrace_sys::perf::{EventAttr, Fields};

const PEBS: &[u8] = include_bytes!("records/pebs.bin");
const IBS: &[u8] = include_bytes!("records/ibs.bin");
const WATCHED: u32 = 4242;

/// Recipes as a machine with the PMU gets them, read from a tree that shows it.
fn recipe(kind: SampleKind) -> Recipe {
    let dir = tempfile::tempdir().unwrap();
    let device = if kind == SampleKind::Pebs {
        "cpu"
    } else {
        "ibs_op"
    };
    for (file, text) in [
        ("type", "4"),
        ("caps/max_precise", "3"),
        ("format/event", "config:0-7"),
        ("format/umask", "config:8-15"),
        ("format/ldlat", "config1:0-15"),
        ("format/cnt_ctl", "config:19"),
        ("events/mem-loads", "event=0xcd,umask=0x1,ldlat=3"),
    ] {
        let folder = dir.path().join("sys/bus/event_source/devices").join(device);
        let path = folder.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let root = HostRoot::new(dir.path());
    match kind {
        SampleKind::Pebs => Recipe::pebs(&root).unwrap(),
        _ => Recipe::ibs(&root).unwrap(),
    }
}

fn taken(bytes: &[u8], layout: &Layout) -> (Vec<Sample>, Counters) {
    let mut intake = Intake::default();
    intake.watch([WATCHED, 7].into_iter());
    let mut samples = Vec::new();
    intake.take(bytes, layout, &mut |sample| samples.push(sample));
    (samples, intake.counters())
}

fn pages(samples: &[Sample]) -> Vec<u64> {
    let one = |sample: &Sample| {
        assert_eq!((sample.pid, sample.accesses), (WATCHED, 1));
        assert_eq!(sample.range.pages(), 1);
        sample.range.start
    };
    samples.iter().map(one).collect()
}

#[test]
fn records_of_pebs_become_the_pages_that_were_accessed() {
    let layout = Layout::new(&recipe(SampleKind::Pebs), &[0x11, 0x22]);
    let (samples, counters) = taken(PEBS, &layout);
    let expected = [0x7_f3a1_2345, 0x7_f3a1_2345, 0x5_5555_5560, 0x7_ffe0_0001];
    assert_eq!(pages(&samples), expected);
    let expected = Counters {
        loads: 2,
        stores: 2,
        foreign: 2,
        kernel: 1,
        no_address: 1,
        lost: 20,
        throttled: 1,
        ..Counters::default()
    };
    assert_eq!(counters, expected);
    assert_eq!(counters.samples(), 4);
    // A sample that bears no id of ours is none of ours.
    let (samples, counters) = taken(PEBS, &Layout::new(&recipe(SampleKind::Pebs), &[0x11, 0x23]));
    assert_eq!((samples.len(), counters.malformed), (2, 2));
}

#[test]
fn ibs_records_become_pages_that_missed_the_near_caches() {
    let layout = Layout::new(&recipe(SampleKind::Ibs), &[0x33]);
    let (samples, counters) = taken(IBS, &layout);
    let near = 0x7_f3a1_2345;
    let expected: Vec<u64> = [0, 3, 4, 5, 6, 7, 8].map(|page| near + page).to_vec();
    assert_eq!(pages(&samples), expected);
    let expected = Counters {
        loads: 5,
        stores: 2,
        cached: 2,
        no_address: 2,
        kernel: 1,
        foreign: 2,
        ..Counters::default()
    };
    assert_eq!(counters, expected);
}

#[test]
fn committed_records_lead_the_tree_to_the_right_leaf() {
    let seeds = [
        Range {
            start: 0x5_5555_5000,
            end: 0x5_5555_6000,
        },
        Range {
            start: 0x7_f3a1_2000,
            end: 0x7_f3a1_3000,
        },
    ];
    for (kind, bytes, ids, count) in [
        (SampleKind::Pebs, PEBS, &[0x11, 0x22][..], 2),
        (SampleKind::Ibs, IBS, &[0x33], 7),
    ] {
        let mut tree = RangeTree::new(Params::paper(1), &seeds);
        let layout = Layout::new(&recipe(kind), ids);
        for sample in taken(bytes, &layout).0 {
            tree.count(sample.range.start);
        }
        let hottest = tree.leaves().max_by_key(|leaf| leaf.count).unwrap();
        assert_eq!((hottest.range, hottest.count), (seeds[1], count));
    }
}

#[test]
fn records_cut_anywhere_lose_only_what_was_cut() {
    let layout = Layout::new(&recipe(SampleKind::Pebs), &[0x11, 0x22]);
    let (whole, _) = taken(PEBS, &layout);
    for cut in 0..PEBS.len() {
        let (samples, counters) = taken(&PEBS[..cut], &layout);
        assert_eq!(samples[..], whole[..samples.len()]);
        // The records are 32 bytes long up to 192, then 24 and 16, then 32 again.
        let between = [192, 216].contains(&cut) || (cut <= 192 && cut % 32 == 0);
        let between = between || (cut >= 232 && (cut - 232) % 32 == 0);
        assert_eq!(counters.malformed, u64::from(!between), "{cut}");
    }
}

fn any_layout() -> impl Strategy<Value = Layout> {
    let fields = [
        Fields::IDENTIFIER,
        Fields::TID,
        Fields::ADDRESS,
        Fields::DATA_SOURCE,
    ];
    let kinds = prop_oneof![
        Just(SampleKind::Pebs),
        Just(SampleKind::Ibs),
        Just(SampleKind::PageFaults)
    ];
    (kinds, proptest::sample::subsequence(fields.to_vec(), 0..=4)).prop_map(|(kind, fields)| {
        let fields = fields.into_iter().fold(Fields::default(), Fields::and);
        let attr = EventAttr {
            fields,
            ..EventAttr::default()
        };
        let wanted = Wanted {
            attr,
            access: Access::Load,
            leader: None,
        };
        let recipe = Recipe {
            kind,
            events: vec![wanted],
            cpus: None,
            microarchitecture: String::new(),
        };
        Layout::new(&recipe, &[0x11])
    })
}

proptest! {
    #[test]
    fn garbage_is_counted_and_never_a_sample_of_somebody_else(
        base in prop_oneof![Just(PEBS), Just(IBS), Just(&[][..])],
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..32),
        tail in proptest::collection::vec(any::<u8>(), 0..256),
        layout in any_layout(),
    ) {
        let mut bytes = base.to_vec();
        for (at, value) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
        }
        bytes.extend(tail);
        let (samples, counters) = taken(&bytes, &layout);
        prop_assert!(samples.iter().all(|sample| [WATCHED, 7].contains(&sample.pid)));
        let user_page = |s: &Sample| s.range.pages() == 1 && s.range.end <= 1 << 44;
        prop_assert!(samples.iter().all(user_page));
        prop_assert_eq!(counters.samples(), samples.len() as u64);
        let left_out = counters.foreign + counters.kernel + counters.no_address + counters.cached;
        let records = counters.samples() + left_out + counters.malformed + counters.throttled;
        prop_assert!(records <= bytes.len() as u64 / 8 + 1, "each record is counted at most once");
    }
}
