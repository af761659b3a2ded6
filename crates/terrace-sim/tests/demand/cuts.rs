//! The committed cuts of recorded programs.

use std::path::{Path, PathBuf};

use terrace_core::demand::CurveSource;
use terrace_sim::trace::{OnBroken, Reader, TraceDemand, Wanted};

use super::bounds::{Accesses, OF_PROGRAMS, ages, restored, sampled};

const CUTS: [&str; 4] = ["redis", "memcached", "gap-pr", "sort"];
const SMALL: u64 = 4 << 10;
const HUGE: u64 = 2 << 20;

fn cut(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/traces");
    root.join(format!("{name}.trace.zst"))
}

/// Misses at each size from 1 to the footprint, from a stack that is a list.
fn naive(accesses: &Accesses) -> Vec<u64> {
    let mut list: Vec<u32> = Vec::new();
    let mut hits = vec![0_u64; accesses.footprint as usize + 1];
    for page in &accesses.pages {
        if let Some(depth) = list.iter().rev().position(|other| other == page) {
            list.remove(list.len() - 1 - depth);
            hits[depth + 1] += 1;
        }
        list.push(*page);
    }
    let mut misses = accesses.pages.len() as u64;
    hits[1..]
        .iter()
        .map(|hits| {
            misses -= hits;
            misses
        })
        .collect()
}

#[test]
fn exact_curves_of_the_cuts_equal_a_naive_stacks() {
    for (name, page_bytes) in CUTS.iter().flat_map(|name| [(name, SMALL), (name, HUGE)]) {
        let accesses = Accesses::read(&cut(name), name, page_bytes);
        let wanted = Wanted {
            exact: true,
            ..Wanted::default()
        };
        let mut demand = TraceDemand::new(cut(name), page_bytes, wanted);
        let mut reader = Reader::open(&cut(name), None, OnBroken::Stop).expect("a cut");
        while let Some(record) = reader.next_record().expect("a record") {
            demand.add(&record).expect("room");
        }
        let [curve] = &demand.curves()[..] else {
            panic!("one curve is wanted");
        };
        assert_eq!(
            (curve.source, demand.pages()),
            (CurveSource::Exact, accesses.footprint)
        );
        let naive = naive(&accesses);
        for (pages, misses) in (1..).zip(&naive) {
            assert_eq!(
                curve.misses(pages),
                *misses,
                "{name}: {pages} pages of {page_bytes}"
            );
        }
    }
}

#[test]
fn restored_curves_of_the_cuts_are_near() {
    for name in CUTS {
        let accesses = Accesses::read(&cut(name), name, SMALL);
        restored(&accesses, accesses.footprint / 20);
    }
}

#[test]
fn sampled_curves_of_the_cuts_are_near() {
    let mut partly = 0;
    for name in CUTS {
        let accesses = Accesses::read(&cut(name), name, SMALL);
        partly += u32::from(sampled(&accesses, OF_PROGRAMS) > 0);
    }
    assert_eq!(partly, 3, "redis fits into the sample, the others do not");
}

#[test]
fn ages_of_the_cuts_are_between_the_moved_curves() {
    for name in CUTS {
        let accesses = Accesses::read(&cut(name), name, SMALL);
        for window in [200, 1_000, 5_000] {
            ages(&accesses, window);
        }
    }
}
