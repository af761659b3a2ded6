//! The fuzz bodies on stable Rust: the committed corpus (`corpus/`) and changes of it, and faults that they must find.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::path::Path;

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};

use terrace_hyperflex::abi::{Entry, PAGE_BYTES};
use terrace_hyperflex::memory::{Backing, GuestFiles};
use terrace_hyperflex::tier::{EntryRefusal, Run, TierMap, admit};
use terrace_testkit::fuzz::flex::{entries, entries_with, rings, rings_with};

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(name);
    let mut files: Vec<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    files.sort();
    assert!(files.len() >= 3, "a corpus of {name}");
    files
        .iter()
        .map(|file| std::fs::read(file).unwrap())
        .collect()
}

/// The corpus, then changes of it.
fn inputs(name: &str, count: usize) -> impl Iterator<Item = Vec<u8>> {
    let corpus = corpus(name);
    let mut random = Xoshiro256StarStar::seed_from_u64(1);
    (0..count).map(move |i| {
        let mut bytes = corpus[i % corpus.len()].clone();
        let mut draw =
            |below: usize| usize::try_from(random.next_u64() % below.max(1) as u64).unwrap();
        for _ in 0..if i < corpus.len() { 0 } else { 1 + draw(8) } {
            let at = draw(bytes.len());
            match draw(4) {
                0 => bytes.insert(at, u8::try_from(draw(256)).unwrap()),
                1 => drop(bytes.remove(at)),
                2 => bytes.extend_from_within(at..),
                _ => bytes[at] = u8::try_from(draw(256)).unwrap(),
            }
            bytes.truncate(1024);
            if bytes.is_empty() {
                bytes.push(0);
            }
        }
        bytes
    })
}

#[test]
fn no_ring_of_any_shape_does_harm() {
    for input in inputs("rings", 800) {
        assert_eq!(rings(&input), Ok(()), "{input:?}");
    }
}

#[test]
fn every_chain_of_entries_is_answered_as_the_document_says() {
    for input in inputs("entries", 300) {
        assert_eq!(entries(&input), Ok(()), "{input:?}");
    }
}

/// Frees one page more than requested.
struct OneMore(GuestFiles);

impl Backing for OneMore {
    fn region_of(&self, run: &Run) -> Option<usize> {
        self.0.region_of(run)
    }
    fn free(&self, region: usize, run: &Run) -> bool {
        let pages = run.pages + 1;
        self.0.free(region, &Run { pages, ..*run })
    }
}

/// Forgets that large pages are aligned.
fn unaligned(tier: &TierMap, orders: u32, entry: Entry) -> Result<Run, EntryRefusal> {
    match admit(tier, orders, entry) {
        Err(EntryRefusal::Alignment) => tier.find(entry.gpa(), 512).ok_or(EntryRefusal::Outside),
        other => other,
    }
}

/// Lets a tier end a page too late, in its neighbour.
fn past_the_end(tier: &TierMap, orders: u32, entry: Entry) -> Result<Run, EntryRefusal> {
    admit(tier, orders, entry).or_else(|why| {
        let before = tier
            .find(entry.gpa().wrapping_sub(PAGE_BYTES), 1)
            .ok_or(why)?;
        Ok(Run {
            gpa: entry.gpa(),
            first: before.first,
            pages: 1,
        })
    })
}

#[test]
fn planted_bugs_are_found_by_both_bodies() {
    let found = |name, run: &dyn Fn(&[u8]) -> Result<(), String>| {
        inputs(name, 300).any(|input| run(&input).is_err())
    };
    assert!(found("rings", &|input| rings_with(input, admit, OneMore)));
    assert!(found("rings", &|input| rings_with(
        input,
        past_the_end,
        |f| f
    )));
    assert!(found("entries", &|input| entries_with(
        input, admit, OneMore
    )));
    assert!(found("entries", &|input| entries_with(
        input,
        unaligned,
        |f| f
    )));
    assert!(found("entries", &|input| entries_with(
        input,
        past_the_end,
        |f| f
    )));
}
