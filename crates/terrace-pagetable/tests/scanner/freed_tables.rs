//! Tables that the guest frees and reuses for data between two reads of one pass: no word of the data
//! may change, even where it looks like entries.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its numbers are small"
)]

use std::cell::Cell;

use crate::common::{Snapshot, load, paging, request, snapshot, store};
use terrace_pagetable::entry::{ACCESSED, DIRTY, LARGE, PRESENT, USER, WRITABLE};
use terrace_pagetable::{Guard, GuestTables, Scanner, SimulatedMemory, Table};
use terrace_proto::{Gfn, Rearm, ScanAnswer};

const FRAMES: u64 = 4_096;
const USED: u64 = PRESENT | USER | WRITABLE | ACCESSED;
/// A page of the guest's that no table points to, but data does.
pub const BYSTANDER: u64 = 9;

/// Does something each time a table is looked up: the entry above was read just before.
pub struct Meddling<'a, F> {
    pub memory: &'a SimulatedMemory,
    pub meddle: F,
}

impl<F: Fn(Gfn)> GuestTables for Meddling<'_, F> {
    fn frames(&self) -> u64 {
        self.memory.frames()
    }

    fn table(&self, frame: Gfn) -> Option<&Table> {
        (self.meddle)(frame);
        self.memory.table(frame)
    }
}

/// Tables in frames 1 (top) to 4, two entries each that lead on; frame 5 is beside frame 4, 6 beside 3.
pub fn guest(link: u64) -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(FRAMES);
    for frame in (1..=6).chain([BYSTANDER]) {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for (table, index, child) in [(1, 0, 2), (2, 0, 3), (2, 1, 6), (3, 0, 4), (3, 1, 5)] {
        store(&memory, table, index, child << 12 | link);
    }
    for table in [4, 5] {
        for index in 0..512 {
            store(&memory, table, index, (100 + index as u64) << 12 | USED);
        }
    }
    store(&memory, 6, 0, 512 << 12 | USED | LARGE);
    fill_with_data(&memory, BYSTANDER);
    memory
}

/// Words that any walk takes for entries, at whatever level.
pub fn fill_with_data(memory: &SimulatedMemory, frame: u64) {
    for index in 0..512 {
        let word = match index % 3 {
            0 => BYSTANDER << 12 | USED | DIRTY,
            1 => (200 + index as u64) << 12 | USED,
            _ => 1024 << 12 | USED | LARGE,
        };
        store(memory, frame, index, word);
    }
}

/// Scans while the guest takes the entry in table `cut` away and reuses `freed` as soon as the scan looks up table
/// `at`. Returns the words in memory right after that.
fn scan_cutting(
    memory: &SimulatedMemory,
    at: u64,
    cut: u64,
    freed: &[u64],
    prune: bool,
) -> (ScanAnswer, Snapshot) {
    let after = Cell::new(None);
    let meddle = |frame| {
        let first = after.take();
        if frame != Gfn(at) || first.is_some() {
            return after.set(first);
        }
        store(memory, cut, 0, 0);
        freed
            .iter()
            .for_each(|frame| fill_with_data(memory, *frame));
        after.set(Some(snapshot(memory)));
    };
    let guest = Meddling { memory, meddle };
    let request = request(prune, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&guest, paging(4, 1), &[Gfn(1)], &request);
    (answer, after.take().unwrap())
}

#[test]
fn a_table_reused_for_data_under_the_scan_keeps_every_word() {
    for link in [USED, USED & !ACCESSED] {
        for (cut, freed) in [(1, vec![2, 3, 4, 5, 6]), (2, vec![3, 4, 5]), (3, vec![4])] {
            for at in cut + 1..=4 {
                let memory = guest(link);
                let (answer, then) = scan_cutting(&memory, at, cut, &freed, false);
                let now = snapshot(&memory);
                for frame in freed.iter().chain([&BYSTANDER]) {
                    assert_eq!(
                        now[frame], then[frame],
                        "table {frame}; table {cut} was cut when {at} was looked up"
                    );
                }
                assert!(answer.stats.lost_races > 0);
                assert_eq!(load(&memory, cut, 0), 0);
            }
        }
    }
}

#[test]
fn no_bit_is_set_again_in_a_table_that_was_freed_meanwhile() {
    let memory = guest(USED);
    let cleared = 4 << 12 | USED & !ACCESSED;
    let meddle = |frame| {
        // The entry of table 4 is cleared and its neighbour's table is looked up.
        if frame == Gfn(5) {
            store(&memory, 2, 0, 0);
            fill_with_data(&memory, 3);
            store(&memory, 3, 0, cleared);
        }
    };
    let guest = Meddling {
        memory: &memory,
        meddle,
    };
    let request = request(false, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&guest, paging(4, 1), &[Gfn(1)], &request);
    assert_eq!(load(&memory, 3, 0), cleared);
    assert!(answer.stats.lost_races > 0);
}

#[test]
fn what_a_reused_table_says_is_not_taken_for_accesses() {
    let memory = guest(USED & !ACCESSED);
    let (answer, _) = scan_cutting(&memory, 3, 1, &[2, 3, 4, 5, 6], false);
    assert_eq!((answer.known.count(), answer.accessed.count()), (0, 0));
    assert_eq!(answer.stats.leaves, 0);
}

#[test]
fn the_neighbours_of_a_freed_table_are_scanned_all_the_same() {
    let memory = guest(USED);
    let (answer, _) = scan_cutting(&memory, 4, 3, &[4], false);
    assert_eq!(load(&memory, 5, 7) & ACCESSED, 0);
    assert_eq!(load(&memory, 6, 0) & ACCESSED, 0);
    assert_eq!((answer.stats.lost_races, answer.stats.cleared), (1, 513));
}

#[test]
fn the_next_pruned_scan_comes_by_where_one_was_stopped() {
    let memory = guest(USED);
    // Level 2 table 3 goes while its leaf table is looked up; the guest puts another there at once.
    let (answer, _) = scan_cutting(&memory, 4, 2, &[3, 4, 5], true);
    assert!(answer.stats.lost_races > 0);
    store(&memory, 2, 0, 3 << 12 | USED);
    fill_with_data(&memory, 4);
    store(&memory, 3, 0, 4 << 12 | USED);
    for index in 1..512 {
        store(&memory, 3, index, 0);
    }
    let request = request(true, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&memory, paging(4, 1), &[Gfn(1)], &request);
    assert!(answer.accessed.get(201), "a page of the new table");
}

/// Frames 1 and 11 are top-level tables; the second leads to tables 12, 13 and 14.
fn two_processes() -> SimulatedMemory {
    let mut memory = guest(USED);
    for frame in 11..=14 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for frame in 11..14 {
        store(&memory, frame, 0, (frame + 1) << 12 | USED);
        store(&memory, frame, 1, BYSTANDER << 12 | USED);
    }
    store(&memory, 14, 0, 300 << 12 | USED);
    memory
}

fn scan_both(memory: &SimulatedMemory, is_live: impl Fn(Gfn) -> bool) -> ScanAnswer {
    let roots = [Gfn(1), Gfn(11)];
    let request = request(false, Rearm::All);
    Scanner::new(FRAMES).scan_checked(memory, paging(4, 1), &roots, &request, is_live)
}

/// A guard that runs out of time at the question that `left` counts down to, and keeps the words in memory at that
/// moment.
struct Late<'a> {
    memory: &'a SimulatedMemory,
    left: Cell<u32>,
    then: &'a Cell<Option<Snapshot>>,
}

impl Guard for Late<'_> {
    fn is_live(&self, _: Gfn) -> bool {
        true
    }

    fn is_in_time(&self) -> bool {
        let left = self.left.get();
        if left == 1 {
            self.then.set(Some(snapshot(self.memory)));
        }
        self.left.set(left.saturating_sub(1));
        left > 1
    }

    fn is_linux(&self) -> bool {
        false
    }
}

/// A guard that believes every root, of a guest that is Linux.
struct Linux;

impl Guard for Linux {
    fn is_live(&self, _: Gfn) -> bool {
        true
    }

    fn is_in_time(&self) -> bool {
        true
    }

    fn is_linux(&self) -> bool {
        true
    }
}

/// A page that was a top-level table keeps its kernel half where the kernel gives it out again without zeroing it, as
/// for a pipe. A process that writes the first half makes a root of it that leads to data of others.
#[test]
fn data_that_a_forged_root_names_as_tables_keeps_every_word() {
    const LINK: u64 = PRESENT | USER | WRITABLE;
    // Numbers, text, pointers of the kernel, entries of the kernel: some word of a page of data is no entry for users.
    for foreign in [
        1,
        0x2073_6920_7369_6861,
        0xffff_8881_0234_5679,
        4 << 12 | 0x63,
    ] {
        for level in 1..4_u64 {
            let memory = two_processes();
            // Root 11 leads to 12, 13 and 14; one of them is a page with that word.
            let data = 15 - level;
            (11..14).for_each(|table| store(&memory, table, 1, 0));
            store(&memory, data, 400, foreign);
            if level > 1 {
                store(&memory, data, 1, 14 << 12 | LINK);
            }
            let before = snapshot(&memory);
            let request = request(false, Rearm::All);
            let answer = Scanner::new(FRAMES).scan_checked(
                &memory,
                paging(4, 1),
                &[Gfn(11)],
                &request,
                Linux,
            );
            assert_eq!(
                snapshot(&memory)[&data],
                before[&data],
                "level {level}, {foreign:#x}"
            );
            assert!(answer.stats.lost_races > 0 && !answer.known.get(300));
        }
    }
    let memory = two_processes();
    let request = request(false, Rearm::All);
    for roots in [[Gfn(1)], [Gfn(11)]] {
        (11..14).for_each(|table| store(&memory, table, 1, 0));
        let answer =
            Scanner::new(FRAMES).scan_checked(&memory, paging(4, 1), &roots, &request, Linux);
        assert!(answer.known.count() > 0 && answer.stats.cleared > 0);
    }
}

/// The guest starts anew in the meantime, and every table is data.
#[test]
fn nothing_is_written_once_a_walk_took_too_long() {
    for questions in 1..20 {
        let memory = two_processes();
        // Some A bits stay, so that those above are set again.
        store(&memory, 4, 3, 7);
        let then = Cell::new(None);
        let late = Late {
            memory: &memory,
            left: Cell::new(questions),
            then: &then,
        };
        let request = request(false, Rearm::All);
        let roots = [Gfn(1), Gfn(11)];
        Scanner::new(FRAMES).scan_checked(&memory, paging(4, 1), &roots, &request, late);
        match then.take() {
            Some(then) => assert_eq!(snapshot(&memory), then, "{questions} questions"),
            None => assert!(questions > 8, "the walk asks before each table"),
        }
    }
}

#[test]
fn a_root_that_ends_while_another_is_walked_keeps_every_word() {
    let memory = two_processes();
    let before = snapshot(&memory);
    let answer = scan_both(&memory, |frame| {
        // It ends while the first is walked, and is asked for right before it would be.
        assert!(frame == Gfn(1) || load(&memory, 4, 7) & ACCESSED == 0);
        frame == Gfn(1)
    });
    let now = snapshot(&memory);
    for frame in 9..=14 {
        assert_eq!(now.get(&frame), before.get(&frame), "table {frame}");
    }
    assert_eq!((answer.stats.roots, answer.stats.lost_races), (1, 1));
}

#[test]
fn a_root_that_ends_before_a_descent_keeps_every_word() {
    let memory = two_processes();
    let (before, asked) = (snapshot(&memory), Cell::new(0));
    let answer = scan_both(&memory, |frame| {
        if frame != Gfn(11) {
            return true;
        }
        asked.set(asked.get() + 1);
        asked.get() == 1
    });
    let now = snapshot(&memory);
    for frame in 9..=14 {
        assert_eq!(now.get(&frame), before.get(&frame), "table {frame}");
    }
    assert_eq!((answer.stats.roots, answer.stats.lost_races), (2, 1));
    assert_eq!(asked.get(), 2, "the walk stops at the first answer of no");
}
