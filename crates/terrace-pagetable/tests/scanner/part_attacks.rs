//! Guests that attack passes over parts, and passes by several threads: whatever their tables are and however they change
//! meanwhile, nothing but accessed bits of entries for users changes, at every width of vectors.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_pagetable::entry::{ACCESSED, LARGE, PRESENT, USER, WRITABLE};
use terrace_pagetable::{GuestTables as _, Scanner, SimulatedMemory, Vectors};
use terrace_proto::{Gfn, Part, PartAnswer, Rearm, ScanStats};

use crate::common::{Naive, Snapshot, cases, paging, request, snapshot, store};
use crate::freed_tables::{self, BYSTANDER, Meddling, fill_with_data};
use crate::naive_walker::Case;
use crate::parts::part_request;

const USED: u64 = PRESENT | USER | WRITABLE | ACCESSED;

fn parts(seed: u64, shift: u8) -> impl Iterator<Item = Part> {
    std::iter::successors(Part::new(seed, shift, 0).ok(), |part| part.next())
}

fn scanner(frames: u64, vectors: Vectors) -> Scanner {
    let mut scanner = Scanner::new(frames);
    scanner.use_vectors(vectors);
    scanner
}

/// One pass over the part, as a request about it alone or as a thread's share.
fn pass<M: terrace_pagetable::GuestTables>(
    scanner: &mut Scanner,
    memory: &M,
    (part, is_share): (Part, bool),
    prune: bool,
) -> ScanStats {
    let (roots, paging) = ([Gfn(1)], paging(4, 1));
    if is_share {
        let request = request(prune, Rearm::All);
        scanner
            .scan_share(memory, paging, &roots, (&request, part), |_| true)
            .stats
    } else {
        let request = part_request(part, true, prune);
        scanner
            .scan_part(memory, paging, &roots, &request, |_| true)
            .stats
    }
}

/// The guest takes the entry in table `cut` away and reuses `freed` as soon as a pass over the part looks table `at` up; how many
/// races the pass lost, if it did.
fn cut_under_a_part(
    vectors: Vectors,
    part: (Part, bool),
    [at, cut]: [u64; 2],
    freed: &[u64],
) -> Option<u64> {
    let memory = freed_tables::guest(USED);
    let after: Cell<Option<Snapshot>> = Cell::new(None);
    let meddle = |frame| {
        let first = after.take();
        if frame != Gfn(at) || first.is_some() {
            return after.set(first);
        }
        store(&memory, cut, 0, 0);
        freed
            .iter()
            .for_each(|frame| fill_with_data(&memory, *frame));
        after.set(Some(snapshot(&memory)));
    };
    let guest = Meddling {
        memory: &memory,
        meddle,
    };
    let stats = pass(&mut scanner(memory.frames(), vectors), &guest, part, false);
    let then = after.take()?;
    let now = snapshot(&memory);
    for frame in freed.iter().chain([&BYSTANDER]) {
        assert_eq!(
            now[frame], then[frame],
            "{vectors:?}, {part:?}: table {frame}; {cut} was cut at {at}"
        );
    }
    Some(stats.lost_races)
}

#[test]
fn a_table_reused_for_data_under_a_part_pass_keeps_every_word() {
    let mut lost = 0;
    for vectors in Vectors::all() {
        for (cut, freed) in [(1, vec![2, 3, 4, 5, 6]), (2, vec![3, 4, 5]), (3, vec![4])] {
            for at in cut + 1..=4 {
                for part in [0, 1, 2].into_iter().flat_map(|shift| parts(9, shift)) {
                    for is_share in [false, true] {
                        let races = cut_under_a_part(vectors, (part, is_share), [at, cut], &freed);
                        lost += races.unwrap_or(0);
                    }
                }
            }
        }
    }
    assert!(lost > 100, "only {lost} tables were taken away");
}

/// Sums what the naive walker and the scanner count.
fn is_equal(case: &mut Case, naive: &mut Naive, answer: &PartAnswer, say: &str) {
    assert_eq!(answer.stats, naive.stats, "{say}");
    assert_eq!(snapshot(&case.memory), naive.entries, "{say}");
    assert!(answer.fits(case.frames), "{say}");
}

/// Self-maps, loops, tables that are data, reserved bits, frames outside of memory: part after part, byte for byte.
#[test]
fn parts_of_hostile_tables_are_the_naive_walkers_at_every_width() {
    for vectors in Vectors::all() {
        let mut changed = 0;
        for seed in 0..cases() / 40 {
            let mut case = Case::new(0x5eed_0000 + seed);
            let levels = 4 + u8::from(seed % 2 == 1);
            let bits = [36, 40, 52][usize::try_from(seed % 3).unwrap()];
            let paging = paging(levels, 0).with_physical_bits(bits).unwrap();
            let roots = [
                Gfn(0),
                Gfn(0),
                Gfn(case.frames),
                Gfn(case.below(case.tables)),
            ];
            // The first table maps itself at all levels, as a user may not.
            store(&case.memory, 0, 0, USED);
            store(&case.memory, 0, 5, 1 << 12 | USED);
            let mut scanner = scanner(case.frames, vectors);
            let mut naive = Naive::new(case.frames, paging);
            for part in parts(seed, 2) {
                let before = snapshot(&case.memory);
                naive.entries = before.clone();
                let request = part_request(part, true, seed % 4 == 0);
                naive.scan_part(&roots, &request);
                let answer = scanner.scan_part(&case.memory, paging, &roots, &request, |_| true);
                is_equal(
                    &mut case,
                    &mut naive,
                    &answer,
                    &format!("{vectors:?}, seed {seed}"),
                );
                changed += u64::from(before != naive.entries);
            }
        }
        assert!(changed > cases() / 80, "the cases say nothing");
    }
}

/// Threads side by side on tables that lead to each other at all levels, so that one thread's leaf table is another's upper one.
#[test]
fn threads_on_hostile_tables_clear_accessed_bits_alone() {
    let mut cleared = 0;
    for seed in 0..cases() / 10 {
        let case = Case::new(0x7eed_0000 + seed);
        let vectors = Vectors::all();
        let before = snapshot(&case.memory);
        let stats = std::thread::scope(|threads| {
            let (memory, vectors) = (&case.memory, &vectors);
            let running: Vec<_> = parts(0, 2)
                .enumerate()
                .map(|(i, part)| {
                    let mut scanner = scanner(case.frames, vectors[i % vectors.len()]);
                    threads.spawn(move || pass(&mut scanner, memory, (part, i % 4 != 3), false))
                })
                .collect();
            let join =
                |thread: std::thread::ScopedJoinHandle<'_, ScanStats>| thread.join().unwrap();
            running.into_iter().map(join).collect::<Vec<_>>()
        });
        cleared += stats.iter().map(|stats| stats.cleared).sum::<u64>();
        for (frame, now) in snapshot(&case.memory) {
            for (i, (old, new)) in before[&frame].iter().zip(now).enumerate() {
                let for_users = old & (PRESENT | USER) == PRESENT | USER;
                let may_lose = if for_users { ACCESSED } else { 0 };
                assert_eq!(
                    (old ^ new) & !may_lose,
                    0,
                    "seed {seed}, table {frame}, entry {i}"
                );
            }
        }
    }
    assert!(cleared > cases(), "the cases say nothing");
}

/// Leaf tables that come and go.
const REUSED: std::ops::Range<u64> = 8..40;

/// Frees a table for data, looks that no word of it changed, and makes a table of it again, until `over`.
fn reuse(memory: &SimulatedMemory, over: &AtomicBool, turns: &AtomicU64) {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(11);
    while !over.load(SeqCst) {
        let frame = REUSED.start + random.next_u64() % (REUSED.end - REUSED.start);
        let link = &memory.table(Gfn(3)).unwrap()[usize::try_from(frame).unwrap()];
        let table = memory.table(Gfn(frame)).unwrap();
        link.store(0, SeqCst);
        let data: Vec<u64> = (0..512)
            .map(|_| {
                let missing = if random.next_u64() & 1 == 0 {
                    PRESENT
                } else {
                    USER
                };
                (random.next_u64() | ACCESSED) & !missing
            })
            .collect();
        table
            .iter()
            .zip(&data)
            .for_each(|(slot, word)| slot.store(*word, SeqCst));
        std::thread::yield_now();
        for (slot, word) in table.iter().zip(&data) {
            assert_eq!(slot.load(SeqCst), *word, "data changed in table {frame}");
        }
        for (slot, page) in table.iter().zip(100..) {
            slot.store(page << 12 | USED, SeqCst);
        }
        link.store(frame << 12 | USED, SeqCst);
        turns.fetch_add(1, SeqCst);
    }
}

#[test]
fn tables_reused_under_several_threads_lose_no_word() {
    const TURNS: u64 = 500;
    let mut memory = SimulatedMemory::new(4_096);
    for frame in (1..=3).chain(REUSED) {
        memory.add_table(Gfn(frame)).unwrap();
    }
    store(&memory, 1, 0, 2 << 12 | USED);
    store(&memory, 2, 0, 3 << 12 | USED);
    let (over, turns) = (AtomicBool::new(false), AtomicU64::new(0));
    let scan = |part: Part, is_share: bool| {
        let mut scanner = Scanner::new(memory.frames());
        let mut cleared = 0;
        while !over.load(SeqCst) {
            cleared += pass(&mut scanner, &memory, (part, is_share), cleared % 2 == 1).cleared;
        }
        cleared
    };
    let cleared = std::thread::scope(|threads| {
        let (memory, over, turns, scan) = (&memory, &over, &turns, &scan);
        let guest = threads.spawn(move || reuse(memory, over, turns));
        let shares = parts(0, 1).map(|part| threads.spawn(move || scan(part, true)));
        let of_parts = parts(3, 1).map(|part| threads.spawn(move || scan(part, false)));
        let running: Vec<_> = shares.chain(of_parts).collect();
        while turns.load(SeqCst) < TURNS && !guest.is_finished() {
            std::thread::yield_now();
        }
        over.store(true, SeqCst);
        guest.join().unwrap();
        running
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .min()
    });
    assert!(cleared.unwrap() > 0, "some thread never met a table");
}

/// One leaf table that all entries above lead to, and one page that all leaves map: each is read once, in one part.
#[test]
fn a_table_that_every_entry_leads_to_is_read_once_in_all_parts() {
    let mut memory = SimulatedMemory::new(4_096);
    for frame in 1..=4 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for (table, entries) in [(1, 256), (2, 512), (3, 512)] {
        (0..entries).for_each(|entry| store(&memory, table, entry, (table + 1) << 12 | USED));
    }
    (0..512).for_each(|entry| store(&memory, 4, entry, 99 << 12 | USED));
    let mut scanner = Scanner::new(memory.frames());
    let (mut leaves, mut cleared) = (0, 0);
    for part in parts(5, 4) {
        let stats = pass(&mut scanner, &memory, (part, false), false);
        assert!(stats.tables <= 4, "a table was read twice");
        (leaves, cleared) = (leaves + stats.leaves, cleared + stats.cleared);
    }
    assert_eq!((leaves, cleared), (512, 512));
}

/// Leaves of 1 GiB, as many as the tables hold, all of the same memory: the answer is that of one.
#[test]
fn leaves_of_1_gib_without_end_are_told_once() {
    let mut memory = SimulatedMemory::new(1 << 18);
    for frame in 1..=200 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for (entry, table) in (2..=200).enumerate() {
        store(&memory, 1, entry, table << 12 | USED);
        (0..512).for_each(|leaf| store(&memory, table, leaf, USED | LARGE));
    }
    let mut scanner = Scanner::new(memory.frames());
    let request = part_request(Part::new(0, 0, 0).unwrap(), true, false);
    let mut scan = || scanner.scan_part(&memory, paging(4, 1), &[Gfn(1)], &request, |_| true);
    let first = scan();
    assert_eq!(first.stats.leaves, 199 * 512);
    assert_eq!((first.cells.len(), first.huge.len()), (4_096, 512));
    assert!(first.cells.iter().all(|cell| cell.accessed == u64::MAX));
    let second = scan();
    assert!(
        second
            .cells
            .iter()
            .all(|cell| (cell.mapped, cell.accessed) == (u64::MAX, 0))
    );
}
