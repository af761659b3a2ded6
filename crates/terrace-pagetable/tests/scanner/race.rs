//! A guest that frees table pages, reuses them for data and makes tables of them again while it is
//! scanned, as a storm of forks does: no word of data may ever change.
//!
//! The guarantee of compare-exchange of whole entries: a word that does not look like a present user entry with A set
//! at the moment of the write is never altered, and one that does can lose A alone.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use crate::common::{paging, request};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_pagetable::entry::{ACCESSED, DIRTY, PRESENT, SAVED_DIRTY, USER, WRITABLE};
use terrace_pagetable::{GuestTables, Scanner, SimulatedMemory};
use terrace_proto::{Gfn, Rearm};

const FRAMES: u64 = 4_096;
const USED: u64 = PRESENT | USER | WRITABLE | ACCESSED;
/// Frame of the table that comes and goes.
const REUSED: Gfn = Gfn(4);

fn guest() -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(FRAMES);
    for frame in 1..=4 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for frame in 1..=2 {
        slot(&memory, Gfn(frame), 0).store((frame + 1) << 12 | USED, SeqCst);
    }
    memory
}

fn slot(memory: &SimulatedMemory, frame: Gfn, index: usize) -> &AtomicU64 {
    &memory.table(frame).unwrap()[index]
}

/// Scans in one thread for as long as `guest` runs in another.
fn scan_while(memory: &SimulatedMemory, guest: impl FnOnce() + Send) -> u64 {
    std::thread::scope(|threads| {
        let guest = threads.spawn(guest);
        let mut scanner = Scanner::new(FRAMES);
        let (mut cleared, mut prune) = (0, true);
        while !guest.is_finished() {
            prune = !prune;
            let request = request(prune, Rearm::All);
            let answer = scanner.scan(memory, paging(4, 1), &[Gfn(1)], &request);
            cleared += answer.stats.cleared;
        }
        cleared
    })
}

fn for_a_while(mut turn: impl FnMut()) {
    let end = Instant::now() + Duration::from_millis(800);
    while Instant::now() < end {
        turn();
    }
}

#[test]
fn data_in_a_reused_table_page_is_never_altered() {
    let memory = guest();
    let link = slot(&memory, Gfn(3), 0);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(5);
    let cleared = scan_while(&memory, || {
        for_a_while(|| {
            for index in 0..512 {
                slot(&memory, REUSED, index).store((100 + index as u64) << 12 | USED, SeqCst);
            }
            link.store(REUSED.gpa().0 | USED, SeqCst);
            std::thread::yield_now();
            link.store(0, SeqCst);
            // Data: anything that no processor would take for a present user entry.
            let data: Vec<_> = (0..512)
                .map(|_| {
                    (random.next_u64() | ACCESSED)
                        & !if random.next_u64() & 1 == 0 {
                            PRESENT
                        } else {
                            USER
                        }
                })
                .collect();
            for (index, word) in data.iter().enumerate() {
                slot(&memory, REUSED, index).store(*word, SeqCst);
            }
            std::thread::yield_now();
            for (index, word) in data.iter().enumerate() {
                assert_eq!(slot(&memory, REUSED, index).load(SeqCst), *word);
            }
        });
    });
    assert!(cleared > 0, "the scan never met the table");
}

#[test]
fn entries_exchanged_under_a_scan_lose_only_the_accessed_bit() {
    let memory = guest();
    slot(&memory, Gfn(3), 0).store(REUSED.gpa().0 | USED, SeqCst);
    let mut random = Xoshiro256PlusPlus::seed_from_u64(6);
    let mut written = vec![0; 512];
    let cleared = scan_while(&memory, || {
        for_a_while(|| {
            for (index, last) in written.iter_mut().enumerate() {
                let word = match random.next_u64() % 3 {
                    0 => random.next_u64(),
                    _ => (random.next_u64() % FRAMES) << 12 | USED,
                };
                let found = slot(&memory, REUSED, index).swap(word, SeqCst);
                let user = *last & (PRESENT | USER) == PRESENT | USER;
                let may_lose = if user { ACCESSED } else { 0 };
                assert!(
                    found == *last || found == *last & !may_lose,
                    "{last:#x} became {found:#x}"
                );
                *last = word;
            }
        });
    });
    assert!(cleared > 0, "the scan never met the entries");
}

#[test]
fn links_exchanged_under_a_scan_change_only_the_accessed_bit() {
    let memory = guest();
    for index in 0..8 {
        slot(&memory, REUSED, index).store(99 << 12 | USED, SeqCst);
    }
    let mut last = 0;
    let link = slot(&memory, Gfn(3), 0);
    let links = [
        0,
        REUSED.gpa().0 | USED,
        REUSED.gpa().0 | USED & !ACCESSED,
        3 << 12 | USED,
    ];
    scan_while(&memory, || {
        for_a_while(|| {
            for word in links {
                let found = link.swap(word, SeqCst);
                let user = last & (PRESENT | USER) == PRESENT | USER;
                let may_change = if user { ACCESSED } else { 0 };
                assert_eq!(found & !may_change, last & !may_change);
                last = word;
                slot(&memory, REUSED, 5).fetch_or(ACCESSED, SeqCst);
            }
        });
    });
}

/// Pages of the guest whose entries the next test works on.
const PAGES: usize = 64;

/// A guest that rewrites, write-protects and cleans pages as MADV_FREE does, while D is moved aside: an
/// entry is dirty from a write to the kernel's next cleaning, and each write is told by some scan.
#[test]
fn a_dirty_bit_is_never_lost() {
    const ARMED: u64 = PRESENT | USER | WRITABLE;
    let memory = guest();
    slot(&memory, Gfn(3), 0).store(REUSED.gpa().0 | USED, SeqCst);
    let entry = |page: usize| slot(&memory, REUSED, page);
    let frame = |page: usize| 100 + page as u64;
    for page in 0..PAGES {
        entry(page).store(frame(page) << 12 | ARMED, SeqCst);
    }
    let counters = || (0..PAGES).map(|_| AtomicU64::new(0)).collect::<Vec<_>>();
    // How often a page's writes were reported; and one more than that before its last write.
    let (reported, due) = (counters(), counters());
    let mut scanner = Scanner::new(FRAMES);
    scanner.tell_writes(true);
    let mut scan = || {
        let request = request(false, Rearm::All);
        let answer = scanner.scan(&memory, paging(4, 1), &[Gfn(1)], &request);
        let written = answer.written.unwrap();
        for (page, reported) in reported.iter().enumerate() {
            reported.fetch_add(u64::from(written.get(frame(page))), SeqCst);
        }
    };
    std::thread::scope(|threads| {
        let guest = threads.spawn(|| {
            let mut random = Xoshiro256PlusPlus::seed_from_u64(7);
            for_a_while(|| {
                let page = usize::try_from(random.next_u64() % PAGES as u64).unwrap();
                // The processor's write, which the kernel must find in the entry whatever a scan did.
                due[page].store(reported[page].load(SeqCst) + 1, SeqCst);
                entry(page).fetch_or(ACCESSED | DIRTY, SeqCst);
                let now = entry(page).load(SeqCst);
                assert!(now & (DIRTY | SAVED_DIRTY) != 0, "{now:#x} lost its write");
                if random.next_u64() % 4 == 0 {
                    // What Linux does to write-protect an entry: take it out, move D, put it back.
                    let taken = entry(page).swap(0, SeqCst);
                    assert!(
                        taken & (DIRTY | SAVED_DIRTY) != 0,
                        "{taken:#x} lost its write"
                    );
                    let protected = taken & !(WRITABLE | DIRTY) | SAVED_DIRTY;
                    entry(page).store(protected, SeqCst);
                    std::thread::yield_now();
                    let found = entry(page).swap(frame(page) << 12 | ARMED, SeqCst);
                    assert_eq!(
                        found | ACCESSED,
                        protected | ACCESSED,
                        "changed while protected"
                    );
                    // This write may be cleaned away before any scan saw it.
                    due[page].store(0, SeqCst);
                }
            });
        });
        while !guest.is_finished() {
            scan();
        }
    });
    scan();
    for (page, (reported, due)) in reported.iter().zip(&due).enumerate() {
        assert!(
            reported.load(SeqCst) >= due.load(SeqCst),
            "page {page}: its last write was not reported"
        );
    }
    let all: u64 = reported.iter().map(|reported| reported.load(SeqCst)).sum();
    assert!(all > 0, "the scan never met a write");
}
