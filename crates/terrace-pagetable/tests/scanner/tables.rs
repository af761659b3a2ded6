//! The page tables that passes name: faults that they must not have.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its numbers are small"
)]

use std::cell::Cell;

use terrace_pagetable::entry::{ACCESSED, LARGE};
use terrace_pagetable::{Scanner, SimulatedMemory};
use terrace_proto::{Gfn, Rearm, TableFrame};

use crate::common::{load, paging, request, snapshot, store};
use crate::faults::{USED, guest};

const FRAMES: u64 = 4_096;

fn scanner() -> Scanner {
    let mut scanner = Scanner::new(FRAMES);
    scanner.name_tables(true);
    scanner
}

fn named(memory: &SimulatedMemory) -> Vec<(u32, u8, u16)> {
    let mut scanner = scanner();
    scanner.scan(
        memory,
        paging(4, 1),
        &[Gfn(1)],
        &request(false, Rearm::None),
    );
    let tables = scanner.take_tables();
    tables
        .iter()
        .map(|t| (t.frame, t.level, t.accessed))
        .collect()
}

#[test]
fn each_table_above_accessed_leaves_is_named_with_their_number() {
    let memory = guest(4);
    for at in 7..10 {
        store(&memory, 4, at, (90 + at as u64) << 12 | USED);
    }
    store(&memory, 4, 20, 99 << 12 | USED & !ACCESSED);
    store(&memory, 3, 9, 512 << 12 | USED | LARGE);
    assert_eq!(named(&memory), [(1, 4, 4), (2, 3, 4), (3, 2, 4), (4, 1, 3)]);
}

#[test]
fn tables_whose_leaves_nobody_accessed_are_not_named() {
    let memory = guest(4);
    store(&memory, 4, 7, 99 << 12 | USED & !ACCESSED);
    assert_eq!(named(&memory), []);
}

#[test]
fn a_table_at_many_levels_and_in_a_loop_is_named_once() {
    let mut memory = guest(4);
    memory.add_table(Gfn(5)).unwrap();
    // Frame 2 is a table of each level, and its own; frame 5 is a leaf table of it, and of frame 3.
    for at in 1..100 {
        store(&memory, 2, at, 2 << 12 | USED);
        store(&memory, 3, at, 2 << 12 | USED);
    }
    store(&memory, 3, 200, 5 << 12 | USED);
    store(&memory, 2, 200, 5 << 12 | USED);
    store(&memory, 5, 0, 77 << 12 | USED);
    let named = named(&memory);
    let frames: Vec<_> = named.iter().map(|t| t.0).collect();
    assert_eq!(frames, [1, 2, 3, 5]);
}

#[test]
fn of_a_guest_that_is_all_tables_as_many_are_named_as_fit() {
    let mut memory = SimulatedMemory::new(FRAMES);
    for frame in 1..1_200 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    store(&memory, 1, 0, 2 << 12 | USED);
    store(&memory, 2, 0, 3 << 12 | USED);
    store(&memory, 2, 1, 4 << 12 | USED);
    for leaf in 5..1_000 {
        let (at, index) = (3 + (leaf - 5) / 512, ((leaf - 5) % 512) as usize);
        store(&memory, at, index, leaf << 12 | USED);
        // The more leaves, the higher the frame.
        for i in 0..leaf / 4 {
            store(&memory, leaf, i as usize, 3_000 << 12 | USED);
        }
    }
    let before = snapshot(&memory);
    let named = named(&memory);
    assert_eq!(named.len(), TableFrame::most(FRAMES));
    assert!(
        named.iter().filter(|t| t.1 == 1).all(|t| t.0 > 960),
        "{named:?}"
    );
    assert_eq!(snapshot(&memory), before, "to name tables writes nothing");
}

#[test]
fn a_table_freed_in_the_middle_of_the_pass_is_not_named() {
    let mut memory = guest(4);
    memory.add_table(Gfn(5)).unwrap();
    store(&memory, 4, 7, 99 << 12 | USED);
    store(&memory, 2, 1, 5 << 12 | USED);
    let asked = Cell::new(0);
    // The root is asked for before each of its subtrees; then the guest takes the first one out.
    let guard = |_: Gfn| {
        asked.set(asked.get() + 1);
        true
    };
    let mut scanner = scanner();
    let all = request(false, Rearm::None);
    scanner.scan_checked(&memory, paging(4, 1), &[Gfn(1)], &all, guard);
    assert_eq!(scanner.take_tables().len(), 4);
    let frees = |_: Gfn| {
        store(&memory, 2, 0, load(&memory, 2, 0) & !1);
        true
    };
    scanner.scan_checked(&memory, paging(4, 1), &[Gfn(1)], &all, frees);
    assert_eq!(scanner.take_tables(), [], "nothing below it was seen");
    assert!(asked.get() > 0);
}

#[test]
fn passes_that_are_not_to_name_tables_name_none() {
    let memory = guest(4);
    store(&memory, 4, 7, 99 << 12 | USED);
    let mut scanner = scanner();
    let all = request(false, Rearm::All);
    scanner.scan(&memory, paging(4, 1), &[Gfn(1)], &all);
    scanner.name_tables(false);
    assert_eq!(scanner.take_tables(), []);
    scanner.scan(&memory, paging(4, 1), &[Gfn(1)], &all);
    assert_eq!(scanner.take_tables(), []);
}
