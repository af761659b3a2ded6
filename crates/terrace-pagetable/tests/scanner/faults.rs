//! One test per fault that a scan must not have, on the smallest guest that shows it.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its numbers are small"
)]

use std::sync::atomic::Ordering::Relaxed;

use crate::common::{bitmap, load, paging, request, snapshot, store};
use terrace_pagetable::entry::{ACCESSED, DIRTY, LARGE, LARGE_PAT, PRESENT, USER, WRITABLE};
use terrace_pagetable::{GuestTables, Scanner, SimulatedMemory, Table};
use terrace_proto::{Gfn, Rearm, ScanAnswer, Vpn};

const FRAMES: u64 = 4_096;
pub const USED: u64 = PRESENT | USER | WRITABLE | ACCESSED;

/// Tables in frames 1 (top) to `levels`, each linked from entry 0 of the one above, all used.
pub fn guest(levels: u64) -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(FRAMES);
    for frame in 1..=levels {
        memory.add_table(Gfn(frame)).unwrap();
    }
    for frame in 1..levels {
        store(&memory, frame, 0, (frame + 1) << 12 | USED);
    }
    memory
}

fn scan(memory: &SimulatedMemory, prune: bool, rearm: Rearm) -> ScanAnswer {
    Scanner::new(FRAMES).scan(memory, paging(4, 1), &[Gfn(1)], &request(prune, rearm))
}

fn pages(bitmap: &terrace_proto::PageBitmap) -> Vec<u64> {
    bitmap.iter().collect()
}

#[test]
fn the_dirty_bit_is_never_cleared() {
    let memory = guest(4);
    store(&memory, 4, 7, 99 << 12 | USED | DIRTY);
    store(&memory, 2, 0, load(&memory, 2, 0) | DIRTY);
    scan(&memory, false, Rearm::All);
    assert_eq!(load(&memory, 4, 7), 99 << 12 | (USED & !ACCESSED) | DIRTY);
    assert_eq!(load(&memory, 2, 0), 3 << 12 | (USED & !ACCESSED) | DIRTY);
}

#[test]
fn a_scan_that_rearms_nothing_writes_nothing() {
    let memory = guest(4);
    store(&memory, 4, 7, 99 << 12 | USED);
    let before = snapshot(&memory);
    for prune in [false, true] {
        assert_eq!(pages(&scan(&memory, prune, Rearm::None).accessed), [99]);
        assert_eq!(snapshot(&memory), before);
    }
}

#[test]
fn the_top_level_is_neither_pruned_nor_written() {
    let memory = guest(4);
    store(&memory, 1, 0, 2 << 12 | USED & !ACCESSED);
    store(&memory, 1, 1, 2 << 12 | USED);
    store(&memory, 4, 7, 99 << 12 | USED);
    let answer = scan(&memory, true, Rearm::All);
    assert_eq!(
        (pages(&answer.accessed), answer.stats.pruned),
        (vec![99], 0)
    );
    assert_eq!(load(&memory, 1, 0), 2 << 12 | USED & !ACCESSED);
    assert_eq!(load(&memory, 1, 1), 2 << 12 | USED);
}

#[test]
fn the_kernel_half_and_kernel_entries_are_left_alone() {
    for hidden_at in 1..=4 {
        let memory = guest(4);
        store(&memory, 4, 0, 99 << 12 | USED);
        store(&memory, 1, 256, 2 << 12 | USED);
        store(&memory, hidden_at, 0, load(&memory, hidden_at, 0) & !USER);
        let before = snapshot(&memory);
        let answer = scan(&memory, false, Rearm::All);
        assert_eq!(answer.known.count(), 0, "no U at table {hidden_at}");
        assert_eq!(load(&memory, 4, 0), before[&4][0]);
    }
}

#[test]
fn a_five_level_guest_is_walked_through_five_levels() {
    let memory = guest(5);
    store(&memory, 5, 3, 99 << 12 | USED);
    let request = request(false, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&memory, paging(5, 1), &[Gfn(1)], &request);
    assert_eq!(
        (pages(&answer.accessed), answer.stats.tables),
        (vec![99], 5)
    );
    assert_eq!(load(&memory, 5, 3), 99 << 12 | USED & !ACCESSED);
}

#[test]
fn a_page_mapped_twice_is_accessed_by_either_mapping() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED & !ACCESSED);
    store(&memory, 4, 1, 99 << 12 | USED);
    store(&memory, 4, 2, 99 << 12 | USED | DIRTY);
    let answer = scan(&memory, false, Rearm::Only(bitmap(FRAMES, [99])));
    assert_eq!(
        (pages(&answer.accessed), answer.stats.cleared),
        (vec![99], 2)
    );
    assert_eq!(
        pages(&scan(&memory, false, Rearm::All).accessed),
        [0_u64; 0]
    );
}

#[test]
fn a_page_that_rested_is_found_again_by_a_pruned_scan() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED);
    let others = || Rearm::Only(bitmap(FRAMES, [98, 100]));
    for _ in 0..3 {
        assert_eq!(pages(&scan(&memory, true, others()).accessed), [99]);
    }
    assert_eq!(pages(&scan(&memory, true, Rearm::All).accessed), [99]);
    let quiet = scan(&memory, true, Rearm::All);
    assert_eq!((quiet.accessed.count(), quiet.stats.pruned), (0, 1));
}

#[test]
fn pruned_subtrees_keep_what_the_last_visit_knew() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED);
    store(&memory, 3, 1, 1_024 << 12 | USED | LARGE);
    let mut scanner = Scanner::new(FRAMES);
    let mut scan = |prune| {
        let request = request(prune, Rearm::All);
        scanner.scan(&memory, paging(4, 1), &[Gfn(1)], &request)
    };
    let (full, pruned) = (scan(false), scan(true));
    assert_eq!(pruned.stats.tables, 2);
    assert_eq!(
        (&pruned.known, &pruned.huge_leaf),
        (&full.known, &full.huge_leaf)
    );
    assert_eq!((full.known.count(), pages(&full.huge_leaf)), (513, vec![2]));
    store(&memory, 4, 0, 0);
    store(&memory, 3, 1, 0);
    let full = scan(false);
    assert_eq!((full.known.count(), full.huge_leaf.count()), (0, 0));
}

#[test]
fn a_second_link_to_a_shared_table_stays_set_until_walked() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED);
    store(&memory, 2, 1, 3 << 12 | USED);
    let mut scanner = Scanner::new(FRAMES);
    let request = request(true, Rearm::All);
    let mut scan = || scanner.scan(&memory, paging(4, 1), &[Gfn(1)], &request);
    assert_eq!(scan().stats.revisited, 1);
    // Clearing it after the table was read would lose this access to pruning.
    memory.touch(paging(4, 1), Vpn(1 << 18), false).unwrap();
    assert_eq!(pages(&scan().accessed), [99]);
    assert_eq!(scan().stats.pruned, 2);
}

#[test]
fn a_self_mapping_table_is_read_once() {
    let memory = guest(1);
    for index in 0..512 {
        store(&memory, 1, index, 1 << 12 | USED);
    }
    let answer = scan(&memory, false, Rearm::All);
    assert_eq!((answer.stats.tables, answer.stats.revisited), (1, 256));
}

#[test]
fn a_cycle_of_tables_ends() {
    let memory = guest(4);
    store(&memory, 2, 1, 2 << 12 | USED);
    store(&memory, 3, 1, 2 << 12 | USED);
    store(&memory, 3, 2, 1 << 12 | USED);
    let answer = scan(&memory, false, Rearm::All);
    assert_eq!((answer.stats.tables, answer.stats.revisited), (4, 3));
}

#[test]
fn a_large_bit_above_level_three_is_reserved() {
    for levels in [4, 5] {
        let memory = guest(levels);
        for frame in 1..=levels - 3 {
            store(&memory, frame, 0, load(&memory, frame, 0) | LARGE);
            store(&memory, frame, 1, (frame + 1) << 12 | USED);
        }
        let before = snapshot(&memory);
        let paging = paging(levels as u8, 1);
        let request = request(false, Rearm::All);
        let answer = Scanner::new(FRAMES).scan(&memory, paging, &[Gfn(1)], &request);
        assert_eq!(answer.stats.reserved, levels - 3);
        assert_eq!(answer.known.count(), 0);
        assert_eq!(load(&memory, 1, 0), before[&1][0]);
    }
}

#[test]
fn address_bits_that_the_processor_does_not_have_are_reserved() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED | 1 << 40);
    store(&memory, 3, 1, 4 << 12 | USED | 1 << 51);
    store(&memory, 3, 2, USED | LARGE | 1 << 40);
    let paging = paging(4, 1).with_physical_bits(40).unwrap();
    let request = request(false, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&memory, paging, &[Gfn(1)], &request);
    assert_eq!((answer.stats.reserved, answer.stats.out_of_ram), (3, 0));
    assert_eq!(load(&memory, 4, 0), 99 << 12 | USED | 1 << 40);
}

#[test]
fn a_misaligned_large_leaf_is_reserved_unlike_a_pat_bit() {
    let memory = guest(4);
    store(&memory, 3, 1, 513 << 12 | USED | LARGE | LARGE_PAT);
    store(&memory, 3, 2, 514 << 12 | USED | LARGE);
    store(&memory, 2, 1, 512 << 12 | USED | LARGE);
    let answer = scan(&memory, false, Rearm::All);
    assert_eq!(
        (pages(&answer.huge_leaf), answer.stats.reserved),
        (vec![1], 2)
    );
    assert!(answer.accessed.iter().eq(512..1_024));
    assert_eq!(
        load(&memory, 3, 1),
        513 << 12 | USED & !ACCESSED | LARGE | LARGE_PAT
    );
}

#[test]
fn entries_that_point_outside_of_ram_are_counted_and_left() {
    let memory = guest(4);
    for (index, frame) in [FRAMES - 2, FRAMES - 1, FRAMES, FRAMES + 1]
        .iter()
        .enumerate()
    {
        store(&memory, 4, index, frame << 12 | USED);
    }
    store(&memory, 3, 1, FRAMES << 12 | USED | LARGE);
    store(&memory, 3, 2, FRAMES << 12 | USED);
    store(&memory, 2, 1, USED | LARGE);
    let request = request(false, Rearm::All);
    let roots = [Gfn(1), Gfn(FRAMES), Gfn(u64::MAX)];
    let answer = Scanner::new(FRAMES).scan(&memory, paging(4, 1), &roots, &request);
    assert_eq!(answer.stats.out_of_ram, 7);
    assert_eq!(pages(&answer.accessed), [FRAMES - 2, FRAMES - 1]);
    assert_eq!(load(&memory, 4, 2), FRAMES << 12 | USED);
}

#[test]
fn a_giant_leaf_is_512_huge_blocks_and_accessed_throughout() {
    let frames = 3 << 18;
    let mut memory = SimulatedMemory::new(frames);
    for frame in [1, 2] {
        memory.add_table(Gfn(frame)).unwrap();
    }
    store(&memory, 1, 0, 2 << 12 | USED);
    store(&memory, 2, 5, 1 << 30 | USED | LARGE);
    let request = request(false, Rearm::Only(bitmap(frames, [(2 << 18) - 1])));
    let answer = Scanner::new(frames).scan(&memory, paging(4, 1), &[Gfn(1)], &request);
    assert!(answer.huge_leaf.iter().eq(512..1_024));
    assert_eq!(answer.accessed, answer.known);
    assert_eq!(
        (answer.accessed.count(), answer.stats.cleared),
        (1 << 18, 1)
    );
}

/// A guest that does something each time one of its tables is looked up.
struct Meddling<'a, F> {
    memory: &'a SimulatedMemory,
    meddle: F,
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

#[test]
fn a_parent_is_cleared_before_the_entries_below_it_are_read() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED);
    // When the leaf table is looked up, level 3 must be clear and an access to the page is still seen.
    let meddle = |frame| {
        if frame == Gfn(4) {
            assert_eq!(load(&memory, 2, 0) & ACCESSED, 0);
            memory.touch(paging(4, 1), Vpn(1), false);
            memory.table(Gfn(4)).unwrap()[1].store(98 << 12 | USED, Relaxed);
            memory.touch(paging(4, 1), Vpn(1), false).unwrap();
        }
    };
    let guest = Meddling {
        memory: &memory,
        meddle,
    };
    let request = request(true, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&guest, paging(4, 1), &[Gfn(1)], &request);
    assert_eq!(pages(&answer.accessed), [98, 99]);
    assert_ne!(
        load(&memory, 2, 0) & ACCESSED,
        0,
        "the access came after the clearing"
    );
}

#[test]
fn a_subtree_replaced_during_the_scan_is_left_alone_and_counted() {
    let memory = guest(4);
    store(&memory, 4, 0, 99 << 12 | USED);
    // The table in frame 4 is freed and reused for data while its parent is looked at.
    let meddle = |frame| {
        if frame == Gfn(4) {
            store(&memory, 3, 0, 5 << 12 | USED);
        }
    };
    let guest = Meddling {
        memory: &memory,
        meddle,
    };
    let request = request(true, Rearm::All);
    let answer = Scanner::new(FRAMES).scan(&guest, paging(4, 1), &[Gfn(1)], &request);
    assert_eq!((answer.stats.lost_races, answer.stats.leaves), (1, 0));
    assert_eq!(load(&memory, 3, 0), 5 << 12 | USED);
    assert_eq!(load(&memory, 4, 0), 99 << 12 | USED);
    assert_ne!(
        load(&memory, 2, 0) & ACCESSED,
        0,
        "the next pruned scan comes by"
    );
}

/// A guest that changes entries of a leaf table between the scan's reading of it and its exchanges.
struct Between<F> {
    calls: std::cell::Cell<u32>,
    change: F,
}

impl<F: Fn()> terrace_pagetable::Guard for Between<F> {
    fn is_live(&self, _: Gfn) -> bool {
        true
    }

    fn is_in_time(&self) -> bool {
        true
    }

    // Asked about each table below the top, after its entries were read.
    fn is_linux(&self) -> bool {
        self.calls.set(self.calls.get() + 1);
        if self.calls.get() == 3 {
            (self.change)();
        }
        false
    }
}

#[test]
fn a_pair_that_became_other_mappings_is_left_alone() {
    let memory = guest(4);
    let leaf = |frame: u64| frame << 12 | USED;
    (0..8).for_each(|i| store(&memory, 4, i, leaf(90 + i as u64)));
    let change = || {
        // One of a pair is another page, one was written, one is gone, one pair is data.
        store(&memory, 4, 1, leaf(77));
        store(&memory, 4, 2, leaf(92) | DIRTY);
        store(&memory, 4, 5, 0);
        store(&memory, 4, 6, leaf(60));
        store(&memory, 4, 7, leaf(61));
    };
    let guard = Between {
        calls: std::cell::Cell::new(0),
        change,
    };
    let all = request(false, Rearm::All);
    let answer = Scanner::new(FRAMES).scan_checked(&memory, paging(4, 1), &[Gfn(1)], &all, guard);
    let cleared = |frame| leaf(frame) & !ACCESSED;
    let wanted = [
        cleared(90),
        leaf(77),
        cleared(92) | DIRTY,
        cleared(93),
        cleared(94),
        0,
        leaf(60),
        leaf(61),
    ];
    let now: Vec<u64> = (0..8).map(|i| load(&memory, 4, i)).collect();
    assert_eq!(now, wanted);
    assert_eq!((answer.stats.cleared, answer.stats.lost_races), (4, 4));
}
