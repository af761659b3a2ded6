//! A kernel half as Linux makes it, in simulated memory: for tests and the benchmark.

use std::sync::atomic::Ordering::Relaxed;

use terrace_proto::Gfn;

use crate::entry::{LARGE, PRESENT, WRITABLE};
use crate::memory::GuestTables;
use crate::paging::Paging;
use crate::simulated::SimulatedMemory;

/// Flags of an entry that leads to a table, not for users.
const LINK: u64 = PRESENT | WRITABLE | 0x60;

/// A kernel: where its direct map is, and what its tables take.
#[derive(Clone, Copy, Debug)]
pub struct Kernel {
    /// Virtual address of guest page 0, a multiple of 1 GiB.
    pub base: u64,
    /// GiB of RAM that the direct map covers.
    pub gib: u64,
    /// Leaves of 1 GiB after the first GiB, as a processor with them has; else of 2 MiB.
    pub giant: bool,
}

impl Kernel {
    /// Maps the kernel into the kernel half of `root`, a table, as Linux does on a PC: pages for the first 2 MiB,
    /// leaves of 2 MiB in the rest of the first GiB, and a table for another region at the end. Tables are taken from
    /// `frames`.
    ///
    /// # Panics
    /// If there are no frames for its tables.
    pub fn map(
        self,
        memory: &mut SimulatedMemory,
        paging: Paging,
        root: Gfn,
        frames: &mut dyn Iterator<Item = Gfn>,
    ) {
        for gib in 0..self.gib {
            let at = self.base + (gib << 30);
            let giant = table_of(memory, paging, root, at, 3, frames);
            let pa = gib << 30;
            if self.giant && gib > 0 {
                set(memory, giant, index(at, 3), pa | LINK | LARGE);
                continue;
            }
            let huge = table_of(memory, paging, root, at, 2, frames);
            for i in 0..512_u64 {
                let pa = pa + (i << 21);
                if pa == 0 {
                    let base = table_of(memory, paging, root, at, 1, frames);
                    (0..512_u64).for_each(|p| set(memory, base, p, p << 12 | LINK));
                } else {
                    set(memory, huge, i, pa | LINK | LARGE);
                }
            }
        }
        // The kernel's text and modules.
        table_of(memory, paging, root, 0xffff_ffff_8000_0000, 2, frames);
    }
}

/// The table of `level` that maps the virtual address `at`, made with those above it if there is none.
fn table_of(
    memory: &mut SimulatedMemory,
    paging: Paging,
    root: Gfn,
    at: u64,
    level: u8,
    frames: &mut dyn Iterator<Item = Gfn>,
) -> Gfn {
    let mut frame = root;
    for level in (level + 1..=paging.levels()).rev() {
        let slot = index(at, level);
        let entry = word(memory, frame, slot);
        frame = if entry & PRESENT == 0 {
            let below = frames.next().expect("a frame for a table");
            memory.add_table(below).expect("a free frame");
            set(memory, frame, slot, below.gpa().0 | LINK);
            below
        } else {
            Gfn((entry & crate::entry::ADDRESS) >> 12)
        };
    }
    frame
}

fn index(at: u64, level: u8) -> u64 {
    at >> (12 + 9 * (level - 1)) & 511
}

fn slot_of(memory: &SimulatedMemory, frame: Gfn, index: u64) -> &std::sync::atomic::AtomicU64 {
    let index = usize::try_from(index).expect("an index");
    &memory.table(frame).expect("a table")[index]
}

fn word(memory: &SimulatedMemory, frame: Gfn, index: u64) -> u64 {
    slot_of(memory, frame, index).load(Relaxed)
}

fn set(memory: &SimulatedMemory, frame: Gfn, index: u64, value: u64) {
    slot_of(memory, frame, index).store(value, Relaxed);
}
