//! The guest's top-level tables: the proof of the one that a register names, and the others, found by the kernel half
//! that they share with it.
//!
//! A register's CR3 is a claim: while a virtual CPU runs a nested guest hypervisors report that guest's, and by the
//! time it is read here its process may have ended. So a table counts once Linux's direct map proves it
//! ([`DirectMap`]).
//!
//! With page-table isolation each process has two top-level tables side by side, of which the one for user mode maps
//! little of the kernel and no direct map. Both lead to the same lower tables, so the kernel's stands for both.
//!
//! A page of data with the same kernel half would be taken for a top-level table by the search. To forge one, a
//! process in the guest must know the physical addresses in all its kernel's entries, which kernels with KASLR do not
//! reveal; whoever searches without it must not ([`DirectMap::is_at_default_base`]). Or it gets the page of a table
//! that was freed, not zeroed, and writes its first half only, as to a pipe: of guests without `init_on_alloc` or
//! `init_on_free` the search does not notice that.

use std::ops::Range;

use terrace_proto::Gfn;

use crate::direct_map::{DirectMap, Unproven};
use crate::kernel_half::{KernelHalf, maps_users, partner};
use crate::memory::GuestTables;
use crate::paging::Paging;

/// A top-level table of a Linux kernel that runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proven {
    /// The table; with page-table isolation the kernel's one of the two.
    pub root: Gfn,
    /// The table's kernel half.
    pub half: KernelHalf,
    /// The direct map that proves the table.
    pub map: DirectMap,
}

/// Proves the top-level table that a register names. `known` gives the direct map that was found for a kernel half
/// before, so that it need not be looked for; it is checked all the same.
///
/// # Errors
/// If neither the table nor its partner is proven: the table's own error.
pub fn prove<M: GuestTables>(
    memory: &M,
    paging: Paging,
    frame: Gfn,
    known: impl Fn(&KernelHalf) -> Option<DirectMap>,
) -> Result<Proven, Unproven> {
    let own = prove_alone(memory, paging, frame, &known);
    let Err(error) = own else {
        return own;
    };
    // Its partner has to map it and what it names, or the two are no pair.
    let by_partner = partner(memory, frame).and_then(|partner| {
        let proven = prove_alone(memory, paging, partner, &known).ok()?;
        let half = KernelHalf::of(memory.table(frame)?)?;
        let (map, kernel) = (&proven.map, &proven.half);
        let pair =
            map.maps_to_itself(memory, kernel, frame) && map.covers_tables(memory, kernel, &half);
        pair.then_some(proven)
    });
    by_partner.ok_or(error)
}

fn prove_alone<M: GuestTables>(
    memory: &M,
    paging: Paging,
    root: Gfn,
    known: &impl Fn(&KernelHalf) -> Option<DirectMap>,
) -> Result<Proven, Unproven> {
    let table = memory.table(root).ok_or(Unproven::OutOfRam(root))?;
    let half = KernelHalf::of(table).ok_or(Unproven::NoKernel(root))?;
    let map = match known(&half).filter(|map| map.covers(memory, &half, root)) {
        Some(map) => map,
        None => DirectMap::find(memory, paging, &half, root)?,
    };
    Ok(Proven { root, half, map })
}

/// The tables in `extents` whose kernel half is one of `halves` and whose user half is not empty, ascending and
/// without duplicates.
///
/// Only frames in `extents` are read. For a live guest these must be the allocated extents of the file
/// behind its RAM: reading elsewhere would allocate what the guest never touched.
pub fn find_roots<M: GuestTables>(
    memory: &M,
    extents: impl IntoIterator<Item = Range<Gfn>>,
    halves: &[&KernelHalf],
) -> Vec<Gfn> {
    let mut roots = Vec::new();
    for extent in extents {
        for frame in (extent.start.0..extent.end.0.min(memory.frames())).map(Gfn) {
            let live = memory.table(frame).is_some_and(|table| {
                halves.iter().any(|half| half.is_in(table)) && maps_users(table, memory.frames())
            });
            if live {
                roots.push(frame);
            }
        }
    }
    roots.sort_unstable();
    roots.dedup();
    roots
}

#[cfg(test)]
mod tests;
