//! The lines of page tables that are in the processor's caches.

use crate::base::number::index;

/// The table that a line of page tables belongs to; a line holds eight entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// The guest's level 1.
    GuestLeaf,
    /// The guest's level 2.
    GuestPde,
    /// The guest's level 3 and above.
    GuestUpper,
    /// The second stage's level 1.
    HostLeaf,
    /// The second stage's level 2.
    HostPde,
}

impl Table {
    fn number(self) -> u32 {
        match self {
            Self::GuestLeaf => 0,
            Self::GuestPde => 1,
            Self::GuestUpper => 2,
            Self::HostLeaf => 3,
            Self::HostPde => 4,
        }
    }
}

/// Spreads keys evenly for any size of the cache (the finalizer of `MurmurHash3`).
#[inline]
fn mix(key: u32) -> u32 {
    let key = (key ^ key >> 16).wrapping_mul(0x85eb_ca6b);
    let key = (key ^ key >> 13).wrapping_mul(0xc2b2_ae35);
    key ^ key >> 16
}

/// A direct-mapped cache of table lines, of one VM.
#[derive(Clone, Debug)]
pub struct Lines {
    tags: Vec<u32>,
    shift: u32,
}

impl Lines {
    /// An empty cache of so many bytes of lines, at least one line.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        let lines = (bytes / crate::base::access::LINE).clamp(1, 1 << 28);
        let bits = lines.ilog2();
        Self {
            tags: vec![u32::MAX; 1 << bits],
            shift: 32 - bits,
        }
    }

    /// Whether the line that holds an entry is in the cache; puts it there if it is not.
    #[inline(always)]
    pub fn touch(&mut self, table: Table, entry: u32) -> bool {
        let (key, slot) = self.locate(table, entry);
        std::mem::replace(&mut self.tags[slot], key) == key
    }

    /// Reads where the line would be, so that it is in the caches of the machine that runs the simulator.
    #[inline]
    #[must_use]
    pub(super) fn peek(&self, table: Table, entry: u32) -> u32 {
        self.tags[self.locate(table, entry).1]
    }

    /// The key of the line that holds an entry, and its slot.
    #[inline(always)]
    fn locate(&self, table: Table, entry: u32) -> (u32, usize) {
        let key = (entry >> 3) << 3 | table.number();
        let slot = u64::from(mix(key)) >> self.shift;
        (key, crate::base::number::to_usize(slot))
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.tags.capacity() * index(4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_eight_entries_and_is_evicted_by_its_alias() {
        let mut lines = Lines::new(64);
        assert!(!lines.touch(Table::GuestLeaf, 0));
        assert!(lines.touch(Table::GuestLeaf, 7));
        assert!(!lines.touch(Table::GuestLeaf, 8));
        assert!(!lines.touch(Table::GuestLeaf, 0));
        assert!(!lines.touch(Table::HostLeaf, 0), "another table's line");
    }
}
