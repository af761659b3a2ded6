use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use terrace_proto::PagingRegisters;

use super::*;
use crate::entry::{ACCESSED, PRESENT, USER};
use crate::linux::Kernel;
use crate::simulated::SimulatedMemory;

const RANDOM: u64 = 0xffff_9c40_4000_0000;
/// Frames: processes at 2 and 4, with page-table isolation their partners at 3 and 5; the kernel's tables from 16.
const FRAMES: u64 = 600_000;

fn paging(levels: u8) -> Paging {
    let la57 = u64::from(levels == 5) << 12;
    let registers = PagingRegisters {
        cr0: 1 << 31,
        cr3: 0,
        cr4: 1 << 5 | la57,
        efer: 1 << 10,
    };
    Paging::from_registers(registers).unwrap()
}

fn set(memory: &SimulatedMemory, frame: u64, index: usize, value: u64) {
    memory.table(Gfn(frame)).unwrap()[index].store(value, Relaxed);
}

fn word(memory: &SimulatedMemory, frame: u64, index: usize) -> u64 {
    memory.table(Gfn(frame)).unwrap()[index].load(Relaxed)
}

/// A guest with two processes and the tables of one kernel.
fn guest_of(levels: u8, kernel: Kernel) -> SimulatedMemory {
    let mut memory = SimulatedMemory::new(FRAMES);
    for frame in 2..6 {
        memory.add_table(Gfn(frame)).unwrap();
    }
    let mut frames = (16..FRAMES).map(Gfn);
    kernel.map(&mut memory, paging(levels), Gfn(2), &mut frames);
    for i in 256..512 {
        set(&memory, 4, i, word(&memory, 2, i));
    }
    set(&memory, 2, 1, 0x20_0067);
    set(&memory, 4, 1, 0x30_0067);
    memory
}

fn guest() -> SimulatedMemory {
    guest_of(4, KERNEL)
}

const KERNEL: Kernel = Kernel {
    base: RANDOM,
    gib: 2,
    giant: false,
};

fn proven(memory: &SimulatedMemory, frame: u64) -> Result<u64, Unproven> {
    prove(memory, paging(4), Gfn(frame), |_| None).map(|proven| proven.root.0)
}

/// The user-mode tables of isolation beside the two processes: the entry code alone.
fn isolate(memory: &SimulatedMemory) {
    for (kernel, user) in [(2, 3), (4, 5)] {
        let users = word(memory, kernel, 1);
        set(memory, kernel, 1, users | 1 << 63);
        set(memory, user, 1, users);
        set(memory, user, 511, word(memory, kernel, 511));
    }
}

#[test]
fn a_linux_kernel_is_proven_with_every_leaf_size_and_level() {
    for (levels, base) in [
        (4, RANDOM),
        (4, 0xffff_8880_0000_0000),
        (5, 0xff11_0000_0000_0000),
        (5, 0xff40_0000_4000_0000),
    ] {
        for giant in [false, true] {
            let memory = guest_of(
                levels,
                Kernel {
                    base,
                    gib: 2,
                    giant,
                },
            );
            let proven = prove(&memory, paging(levels), Gfn(4), |_| None).unwrap();
            let default = base.trailing_zeros() > 31;
            assert_eq!(
                (proven.root, proven.map.is_at_default_base()),
                (Gfn(4), default)
            );
        }
    }
}

#[test]
fn the_user_mode_table_is_proven_by_its_partner() {
    let memory = guest();
    isolate(&memory);
    for (frame, want) in [(2, 2), (3, 2), (4, 4), (5, 4)] {
        assert_eq!(proven(&memory, frame), Ok(want));
    }
    // They map different users: no pair.
    set(&memory, 3, 1, 0x40_0067);
    assert_eq!(proven(&memory, 3), Err(Unproven::NoDirectMap(Gfn(3))));
    // What the user-mode table names is not in the partner's map.
    set(&memory, 5, 300, 0x8fff_f063);
    assert!(proven(&memory, 5).is_err());
}

#[test]
fn a_single_leaf_that_covers_everything_proves_nothing() {
    // The word 0x81 maps the first GiB to itself, wherever it stands in a page that looks like a table.
    for word in [0x81, 0x83, 0xe3] {
        let mut memory = SimulatedMemory::new(64);
        for frame in 2..5 {
            memory.add_table(Gfn(frame)).unwrap();
        }
        set(&memory, 2, 300, 0x3063);
        set(&memory, 2, 1, 0x4067);
        set(&memory, 3, 7, word);
        assert_eq!(proven(&memory, 2), Err(Unproven::NoDirectMap(Gfn(2))));
        // Nor one of 2 MiB.
        set(&memory, 3, 7, 0x4063);
        set(&memory, 4, 0, word);
        assert_eq!(proven(&memory, 2), Err(Unproven::NoDirectMap(Gfn(2))));
    }
}

#[test]
fn every_table_of_the_kernel_half_must_be_in_the_direct_map() {
    let memory = guest();
    let table = word(&memory, 2, 511) >> 12 & 0xf_ffff;
    // The page table of guest page `table` in the direct map: the first 2 MiB are mapped page by page.
    let leaf = |frame: u64| {
        let down = |frame: u64, i: u64| {
            word(&memory, frame, usize::try_from(i).unwrap()) >> 12 & 0xf_ffff_ffff
        };
        let giant = down(2, RANDOM >> 39 & 511);
        let huge = down(giant, RANDOM >> 30 & 511);
        (down(huge, 0), usize::try_from(frame).unwrap())
    };
    for frame in [table, 2] {
        let (at, index) = leaf(frame);
        let good = word(&memory, at, index);
        for bad in [0, good ^ 1 << 12, good | USER, good & !PRESENT] {
            set(&memory, at, index, bad);
            assert!(proven(&memory, 2).is_err(), "{frame:#x}: {bad:#x}");
        }
        set(&memory, at, index, good);
        assert_eq!(proven(&memory, 2), Ok(2));
    }
}

#[test]
fn a_direct_map_that_maps_something_else_as_well_is_none() {
    let memory = guest_of(4, Kernel { gib: 1, ..KERNEL });
    let giant = word(&memory, 2, usize::try_from(RANDOM >> 39 & 511).unwrap()) >> 12 & 0xf_ffff;
    let huge = word(&memory, giant, usize::try_from(RANDOM >> 30 & 511).unwrap()) >> 12 & 0xf_ffff;
    let base = word(&memory, huge, 0) >> 12 & 0xf_ffff;
    let good = word(&memory, base, 400);
    set(&memory, base, 400, good ^ 1 << 20);
    assert!(proven(&memory, 2).is_err());
}

#[test]
fn other_systems_and_broken_halves_are_told_apart() {
    let mut memory = guest();
    memory.add_table(Gfn(9)).unwrap();
    assert_eq!(proven(&memory, 9), Err(Unproven::NoKernel(Gfn(9))));
    assert_eq!(proven(&memory, 10), Err(Unproven::OutOfRam(Gfn(10))));
    // Windows maps its top-level table into itself and has no direct map.
    set(&memory, 9, 0x1ed, 0x9063);
    assert_eq!(proven(&memory, 9), Err(Unproven::NoDirectMap(Gfn(9))));
    for bad in [0x80e3, 0x000f_ffff_ffff_f063] {
        set(&memory, 4, 300, bad);
        assert_eq!(proven(&memory, 4), Err(Unproven::NoTables(Gfn(4))));
    }
}

#[test]
fn a_known_base_is_checked_like_a_new_one() {
    let memory = guest();
    let first = prove(&memory, paging(4), Gfn(2), |_| None).unwrap();
    let known = |half: &KernelHalf| (*half == first.half).then_some(first.map);
    assert_eq!(
        prove(&memory, paging(4), Gfn(4), known).unwrap().map,
        first.map
    );
    // The table is not in the direct map: its page was given away, say.
    let giant = word(&memory, 2, usize::try_from(RANDOM >> 39 & 511).unwrap()) >> 12 & 0xf_ffff;
    set(
        &memory,
        giant,
        usize::try_from(RANDOM >> 30 & 511).unwrap(),
        0,
    );
    assert!(prove(&memory, paging(4), Gfn(4), known).is_err());
}

fn found(memory: &SimulatedMemory, extents: &[Range<Gfn>]) -> Vec<u64> {
    let half = KernelHalf::of(memory.table(Gfn(2)).unwrap()).unwrap();
    let found = find_roots(memory, extents.iter().cloned(), &[&half]);
    found.iter().map(|f| f.0).collect()
}

#[test]
fn live_tables_with_the_same_kernel_half_are_found() {
    let memory = guest();
    set(&memory, 4, 511, word(&memory, 4, 511) ^ ACCESSED);
    let all = Gfn(0)..Gfn(u64::MAX);
    assert_eq!(found(&memory, std::slice::from_ref(&all)), [2, 4]);
    set(&memory, 4, 1, 0);
    assert_eq!(
        found(&memory, std::slice::from_ref(&all)),
        [2],
        "an empty user half"
    );
}

/// A top-level table that was freed keeps its kernel half for as long as its new owner writes elsewhere.
#[test]
fn data_over_the_user_half_of_a_freed_table_is_no_table() {
    let memory = guest();
    let all = Gfn(0)..Gfn(u64::MAX);
    for data in [
        0x2020_2020_2020_2021,
        0x1067 | 1 << 52,
        0x10e7,
        0x1063,
        0xffff_8000_1234_5678,
        1,
        u64::MAX,
        FRAMES << 12 | 0x67,
    ] {
        set(&memory, 4, 77, data);
        assert_eq!(found(&memory, std::slice::from_ref(&all)), [2], "{data:#x}");
    }
    // Isolation's mark, one for no-execute, and A and D of an entry that maps nothing.
    for own in [0x1067 | 1 << 63, 0x1047 | 1 << 58, 0x60] {
        set(&memory, 4, 77, own);
        assert_eq!(
            found(&memory, std::slice::from_ref(&all)),
            [2, 4],
            "{own:#x}"
        );
    }
}

#[test]
fn frames_outside_of_the_extents_are_not_read() {
    assert_eq!(
        found(&guest(), &[Gfn(0)..Gfn(2), Gfn(3)..Gfn(FRAMES * 2)]),
        [4]
    );
}

proptest! {
    /// Pages of arbitrary words, with plenty that look like entries, prove nothing.
    #[test]
    fn data_is_never_proven(words in prop::collection::vec((2_u64..10, 0_usize..512, any::<u64>(), any::<bool>()), 1..400)) {
        let mut memory = SimulatedMemory::new(4_096);
        for frame in 2..10 {
            memory.add_table(Gfn(frame)).unwrap();
        }
        for (frame, index, value, link) in words {
            let value = if link { (value % 10) << 12 | value & 0xfff } else { value };
            set(&memory, frame, index, value);
        }
        for frame in 2..10 {
            prop_assert!(proven(&memory, frame).is_err());
        }
    }
}
