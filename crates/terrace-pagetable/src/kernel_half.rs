//! The half of a top-level table that maps the guest's kernel: entries 256–511.
//!
//! Linux maps the same kernel into every address space, so this half is the same in all top-level tables of one
//! kind, but for A and D.

use terrace_proto::Gfn;

use crate::entry::{ACCESSED, ADDRESS, DIRTY, Entry, LARGE, PRESENT, USER, WRITABLE};
use crate::memory::{GuestTables, Table};

/// The first entry of the kernel half.
pub(crate) const FIRST: usize = 256;
/// Set by page-table isolation in the user half of the kernel's table, not in that of its partner.
const NO_EXECUTE: u64 = 1 << 63;
/// Linux's `_PAGE_NOPTISHADOW`: page-table isolation has no copy of this entry.
const NO_SHADOW: u64 = 1 << 58;
/// Linux's `_PAGE_TABLE` without A and D.
const LINK: u64 = PRESENT | WRITABLE | USER;

/// The kernel half of a top-level table, without A and D.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct KernelHalf {
    entries: [u64; 512 - FIRST],
    /// The highest present entry; it differs in nearly every page that is no top-level table.
    probe: usize,
}

impl KernelHalf {
    /// Reads the kernel half of a table. `None` if it maps nothing, as a page of zeros.
    #[must_use]
    pub fn of(table: &Table) -> Option<Self> {
        let entries = std::array::from_fn(|i| comparable(table, FIRST + i));
        let probe = entries.iter().rposition(|e| e & PRESENT != 0)?;
        Some(Self { entries, probe })
    }

    /// Whether a table has this half; ends at the first difference.
    #[must_use]
    pub fn is_in(&self, table: &Table) -> bool {
        let equal = |i: usize| comparable(table, FIRST + i) == self.entries[i];
        equal(self.probe) && (0..self.entries.len()).all(equal)
    }

    /// The entry of a top-level table at `index`. `None` below 256.
    pub(crate) fn entry(&self, index: usize) -> Option<Entry> {
        let entry = self.entries.get(index.checked_sub(FIRST)?)?;
        Some(Entry(*entry))
    }

    /// Index in the top-level table, and the table one level below, of all that is present; `None` for an entry that
    /// names no table.
    pub(crate) fn named(&self) -> impl Iterator<Item = (usize, Option<Gfn>)> + '_ {
        let present = self
            .entries
            .iter()
            .enumerate()
            .filter(|(_, e)| **e & PRESENT != 0);
        present.map(|(i, e)| (FIRST + i, (e & LARGE == 0).then(|| Entry(*e).frame())))
    }
}

fn comparable(table: &Table, index: usize) -> u64 {
    Entry::load(&table[index]).0 & !(ACCESSED | DIRTY)
}

/// Whether the user half of a top-level table is one that Linux makes, of a guest with `frames` pages, and maps
/// anything: links to tables in RAM, all with the same flags, and nothing else. A page that was a top-level table and
/// is written anew keeps its kernel half for a while; words of data in its first half show that.
#[must_use]
pub fn maps_users(table: &Table, frames: u64) -> bool {
    let mut any = false;
    for slot in &table[..FIRST] {
        let entry = Entry::load(slot).0 & !(ACCESSED | DIRTY);
        if entry == 0 {
            continue;
        }
        if entry & !(ADDRESS | NO_EXECUTE | NO_SHADOW) != LINK || Entry(entry).frame().0 >= frames {
            return false;
        }
        any = true;
    }
    any
}

/// The other one of two tables that Linux's page-table isolation keeps side by side for each process, if `frame` is
/// one of two that map the same for users.
pub(crate) fn partner<M: GuestTables>(memory: &M, frame: Gfn) -> Option<Gfn> {
    let partner = Gfn(frame.0 ^ 1);
    let (one, other) = (memory.table(frame)?, memory.table(partner)?);
    let users = |table: &Table, i: usize| comparable(table, i) & !NO_EXECUTE;
    let same = (0..FIRST).all(|i| users(one, i) == users(other, i));
    (same && maps_users(one, memory.frames())).then_some(partner)
}
