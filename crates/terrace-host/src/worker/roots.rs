//! Which top-level tables a scan starts from.
//!
//! Tables found earlier are only walked again while they still look like top-level tables: a page that
//! was freed and reused holds data, and clearing accessed bits there would change it. What they are
//! compared with are kernel halves taken from registers, which cannot be data. With page-table
//! isolation a virtual CPU shows one of two kinds of table at a time, so halves seen earlier stay valid
//! references.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use terrace_pagetable::{GuestTables, Table};
use terrace_proto::Gfn;

/// Accessed and dirty, which differ between tables.
const ACCESSED_DIRTY: u64 = 0x60;
const PRESENT: u64 = 1;
/// Kernel halves that are remembered: two kinds of table, and what changed in them lately.
const HALVES: usize = 8;

type KernelHalf = [u64; 256];

/// Top-level tables of one guest, from one scan to the next.
#[derive(Debug, Default)]
pub(super) struct Roots {
    halves: VecDeque<Box<KernelHalf>>,
    found: Vec<Gfn>,
}

impl Roots {
    /// Remembers what a table in use looks like.
    pub(super) fn learn(&mut self, memory: &impl GuestTables, in_use: Gfn) {
        let Some(half) = memory.table(in_use).map(kernel_half) else {
            return;
        };
        let maps_kernel = half.iter().any(|entry| entry & PRESENT != 0);
        if maps_kernel && !self.halves.iter().any(|known| **known == half) {
            self.halves.truncate(HALVES - 1);
            self.halves.push_front(Box::new(half));
        }
    }

    /// Takes the outcome of a search.
    pub(super) fn replace(&mut self, found: Vec<Gfn>) {
        self.found = found;
    }

    /// Those in use and those found that are still alive, ascending, each once. Dead ones are
    /// forgotten.
    pub(super) fn live(&mut self, memory: &impl GuestTables, in_use: &[Gfn]) -> Vec<Gfn> {
        let halves = &self.halves;
        self.found.retain(|frame| {
            memory.table(*frame).is_some_and(|table| {
                let half = kernel_half(table);
                maps_users(table) && halves.iter().any(|known| **known == half)
            })
        });
        let mut roots = self.found.clone();
        roots.extend_from_slice(in_use);
        roots.sort_unstable();
        roots.dedup();
        roots
    }
}

fn kernel_half(table: &Table) -> KernelHalf {
    std::array::from_fn(|i| table[256 + i].load(Ordering::Relaxed) & !ACCESSED_DIRTY)
}

fn maps_users(table: &Table) -> bool {
    let present = |entry: u64| entry & PRESENT != 0;
    table[..256]
        .iter()
        .any(|entry| present(entry.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use terrace_pagetable::SimulatedMemory;

    use super::*;

    fn set(memory: &SimulatedMemory, frame: u64, index: usize, value: u64) {
        memory.table(Gfn(frame)).unwrap()[index].store(value, Ordering::Relaxed);
    }

    /// Tables 1 and 2 of one kind, 3 of another.
    fn guest() -> SimulatedMemory {
        let mut memory = SimulatedMemory::new(8);
        for frame in 1..4 {
            memory.add_table(Gfn(frame)).unwrap();
            set(&memory, frame, 0, 0x5067);
        }
        set(&memory, 1, 511, 0x6063);
        set(&memory, 2, 511, 0x6003);
        set(&memory, 3, 508, 0x7063);
        memory
    }

    #[test]
    fn a_table_that_became_data_is_forgotten() {
        let memory = guest();
        let mut roots = Roots::default();
        roots.learn(&memory, Gfn(1));
        roots.replace(vec![Gfn(1), Gfn(2)]);
        assert_eq!(roots.live(&memory, &[Gfn(1)]), [Gfn(1), Gfn(2)]);
        set(&memory, 2, 300, 0xdead_beef);
        assert_eq!(roots.live(&memory, &[Gfn(1)]), [Gfn(1)]);
        set(&memory, 2, 300, 0);
        assert_eq!(roots.live(&memory, &[Gfn(1)]), [Gfn(1)]);
    }

    #[test]
    fn tables_of_an_ended_process_are_forgotten() {
        let memory = guest();
        let mut roots = Roots::default();
        roots.learn(&memory, Gfn(1));
        roots.replace(vec![Gfn(2)]);
        set(&memory, 2, 0, 0);
        assert_eq!(roots.live(&memory, &[]), []);
    }

    #[test]
    fn both_kinds_of_page_table_isolation_stay_alive() {
        let memory = guest();
        let mut roots = Roots::default();
        roots.learn(&memory, Gfn(1));
        roots.learn(&memory, Gfn(3));
        roots.replace(vec![Gfn(1), Gfn(2)]);
        assert_eq!(roots.live(&memory, &[Gfn(3)]), [Gfn(1), Gfn(2), Gfn(3)]);
    }

    #[test]
    fn what_maps_no_kernel_or_is_no_ram_is_no_reference() {
        let memory = guest();
        let mut roots = Roots::default();
        set(&memory, 3, 508, 0);
        roots.learn(&memory, Gfn(3));
        roots.learn(&memory, Gfn(7));
        roots.learn(&memory, Gfn(1 << 40));
        roots.replace(vec![Gfn(3)]);
        assert_eq!(roots.live(&memory, &[]), []);
    }
}
