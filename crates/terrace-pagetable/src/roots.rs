//! The guest's top-level tables, found by the half that they share.
//!
//! Every address space of a guest maps the same kernel, so entries 256–511 of all top-level tables are
//! equal but for A and D. With page-table isolation each process has two such tables, of which the one
//! for user mode maps little of the kernel: a reference taken from a virtual CPU that is in the kernel
//! finds the tables of one kind, a reference from user mode those of the other. Both kinds lead to the
//! same lower tables, so either set is complete; given references of both, the sets are merged and a
//! scan reads each lower table once.
//!
//! A page of data with the same kernel half would be taken for a top-level table. To forge one, a
//! process in the guest must know the physical addresses and flags in all its kernel's entries, which
//! kernels do not reveal; the guest's kernel can, and harms itself.

use std::ops::Range;

use terrace_proto::Gfn;

use crate::entry::{ACCESSED, DIRTY, Entry, PRESENT};
use crate::memory::{GuestTables, Table};

/// The first entry of the kernel half.
const KERNEL_HALF: usize = 256;

/// Why no top-level table can be looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RootError {
    /// The frame that CR3 names is not in RAM.
    #[error("the top-level table {0} is outside of the guest's RAM")]
    OutOfRam(Gfn),
    /// Its kernel half is empty, which every page of zeros matches.
    #[error("the top-level table {0} maps no kernel, so others cannot be recognised by it")]
    NoKernel(Gfn),
    /// Nothing to compare with.
    #[error("no virtual CPU's top-level table is known")]
    NoReference,
}

/// The kernel half of a known top-level table.
struct KernelHalf {
    entries: [u64; 512 - KERNEL_HALF],
    /// The highest present entry; it differs in nearly every page that is no top-level table.
    probe: usize,
}

impl KernelHalf {
    fn read<M: GuestTables>(memory: &M, reference: Gfn) -> Result<Self, RootError> {
        let table = memory
            .table(reference)
            .ok_or(RootError::OutOfRam(reference))?;
        let entries = std::array::from_fn(|i| comparable(table, KERNEL_HALF + i));
        let probe = entries
            .iter()
            .rposition(|e| e & PRESENT != 0)
            .ok_or(RootError::NoKernel(reference))?;
        Ok(Self { entries, probe })
    }

    fn matches(&self, table: &Table) -> bool {
        let equal = |i: usize| comparable(table, KERNEL_HALF + i) == self.entries[i];
        equal(self.probe) && (0..self.entries.len()).all(equal)
    }
}

fn comparable(table: &Table, index: usize) -> u64 {
    Entry::load(&table[index]).0 & !(ACCESSED | DIRTY)
}

fn maps_users(table: &Table) -> bool {
    table[..KERNEL_HALF]
        .iter()
        .any(|slot| Entry::load(slot).0 & PRESENT != 0)
}

/// The top-level tables in `extents` whose kernel half is that of one of the `references` (the tables
/// that virtual CPUs use now) and whose user half is not empty, ascending and without duplicates.
///
/// Only frames in `extents` are read. For a live guest these must be the allocated extents of the file
/// behind its RAM: reading elsewhere would allocate what the guest never touched.
///
/// # Errors
/// Where no reference is usable: the error of the first one.
pub fn find_roots<M: GuestTables>(
    memory: &M,
    extents: impl IntoIterator<Item = Range<Gfn>>,
    references: &[Gfn],
) -> Result<Vec<Gfn>, RootError> {
    let halves = usable(memory, references)?;
    let mut roots = Vec::new();
    for extent in extents {
        for frame in (extent.start.0..extent.end.0.min(memory.frames())).map(Gfn) {
            let live = memory.table(frame).is_some_and(|table| {
                halves.iter().any(|half| half.matches(table)) && maps_users(table)
            });
            if live {
                roots.push(frame);
            }
        }
    }
    roots.sort_unstable();
    roots.dedup();
    Ok(roots)
}

fn usable<M: GuestTables>(memory: &M, references: &[Gfn]) -> Result<Vec<KernelHalf>, RootError> {
    let mut first_error = RootError::NoReference;
    let mut halves: Vec<KernelHalf> = Vec::new();
    for (n, reference) in references.iter().enumerate() {
        match KernelHalf::read(memory, *reference) {
            // Tables of one kind have equal halves; comparing with one of them is enough.
            Ok(half) if halves.iter().any(|h| h.entries == half.entries) => {}
            Ok(half) => halves.push(half),
            Err(error) if n == 0 => first_error = error,
            Err(_) => {}
        }
    }
    if halves.is_empty() {
        Err(first_error)
    } else {
        Ok(halves)
    }
}

/// Whether `frame` still is a top-level table like `reference`, with a user half. To be asked before
/// each scan: a process may have ended and its table's page may hold anything now.
#[must_use]
pub fn is_live_root<M: GuestTables>(memory: &M, frame: Gfn, reference: Gfn) -> bool {
    KernelHalf::read(memory, reference).is_ok_and(|half| {
        memory
            .table(frame)
            .is_some_and(|table| half.matches(table) && maps_users(table))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::simulated::SimulatedMemory;

    /// Frames 3 and 9 are processes, 5 is a process that ended, 12 and 14 the user-mode tables of page-table
    /// isolation, 7 is data.
    fn guest() -> SimulatedMemory {
        let mut memory = SimulatedMemory::new(20);
        for frame in [3, 5, 7, 9, 12, 14] {
            memory.add_table(Gfn(frame)).unwrap();
        }
        let set = |frame: u64, index: usize, value: u64| {
            memory.table(Gfn(frame)).unwrap()[index].store(value, Relaxed);
        };
        for frame in [3, 5, 9] {
            set(frame, 300, 0x4063);
            set(frame, 511, 0x2063 & !if frame == 9 { ACCESSED } else { 0 });
        }
        set(7, 511, 0x2063);
        for frame in [12, 14] {
            set(frame, 508, 0x6063);
        }
        for frame in [3, 7, 9, 12, 14] {
            set(frame, 1, 0x1_0067);
        }
        memory
    }

    fn found(memory: &SimulatedMemory, references: &[u64]) -> Result<Vec<u64>, RootError> {
        let references: Vec<_> = references.iter().map(|f| Gfn(*f)).collect();
        let all = Gfn(0)..Gfn(u64::MAX);
        find_roots(memory, [all], &references).map(|f| f.iter().map(|f| f.0).collect())
    }

    #[test]
    fn live_tables_with_the_same_kernel_half_are_found() {
        assert_eq!(found(&guest(), &[3]), Ok(vec![3, 9]));
        assert_eq!(found(&guest(), &[9]), Ok(vec![3, 9]));
    }

    #[test]
    fn references_of_both_kinds_of_table_isolation_are_merged() {
        assert_eq!(found(&guest(), &[14]), Ok(vec![12, 14]));
        assert_eq!(found(&guest(), &[14, 3, 9]), Ok(vec![3, 9, 12, 14]));
    }

    #[test]
    fn frames_outside_of_the_extents_are_not_read() {
        let found = find_roots(&guest(), [Gfn(9)..Gfn(10), Gfn(13)..Gfn(99)], &[Gfn(3)]);
        assert_eq!(found, Ok(vec![Gfn(9)]));
    }

    #[test]
    fn a_reference_without_a_kernel_half_is_an_error_unless_another_has_one() {
        let mut memory = guest();
        memory.add_table(Gfn(15)).unwrap();
        assert_eq!(found(&memory, &[15]), Err(RootError::NoKernel(Gfn(15))));
        assert_eq!(found(&memory, &[99, 15]), Err(RootError::OutOfRam(Gfn(99))));
        assert_eq!(found(&memory, &[]), Err(RootError::NoReference));
        assert_eq!(found(&memory, &[15, 3]), Ok(vec![3, 9]));
    }

    #[test]
    fn a_freed_and_reused_root_is_no_longer_live() {
        let memory = guest();
        assert!(is_live_root(&memory, Gfn(9), Gfn(3)));
        memory.table(Gfn(9)).unwrap()[300].store(0x1234_5678, Relaxed);
        assert!(!is_live_root(&memory, Gfn(9), Gfn(3)));
        assert!(!is_live_root(&memory, Gfn(5), Gfn(3)), "empty user half");
        assert!(!is_live_root(&memory, Gfn(8), Gfn(3)), "no table");
    }
}
