//! Guest memory of which only the table pages have bytes.
//!
//! The simulator keeps each guest's tables here, so that the live scanner reads them; tests and
//! benches build theirs here too. Beside raw access to tables there are the three things that a
//! guest and its processor do with them: map, unmap, touch.

use std::sync::atomic::{AtomicU64, Ordering};

use terrace_proto::{Gfn, Vpn};

use crate::entry::{ACCESSED, ADDRESS, DIRTY, LARGE, LARGE_PAT, PRESENT, USER, WRITABLE};
use crate::memory::{GuestTables, Table};
use crate::paging::Paging;

/// Memory of a table, aligned as a page.
#[derive(Debug)]
#[repr(C, align(4096))]
pub(crate) struct TablePage(pub(crate) Table);

impl TablePage {
    fn empty() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }
}

/// Pages outside of any simulated memory, for tests of mappings.
#[cfg(test)]
pub(crate) fn aligned_pages(count: usize) -> Vec<TablePage> {
    (0..count).map(|_| TablePage::empty()).collect()
}

/// Size of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LeafSize {
    /// 4 KiB, in a level 1 table.
    Base,
    /// 2 MiB, in a level 2 table.
    Huge,
    /// 1 GiB, in a level 3 table.
    Giant,
}

impl LeafSize {
    /// The level of the table that holds leaves of this size.
    #[must_use]
    pub fn level(self) -> u8 {
        match self {
            Self::Base => 1,
            Self::Huge => 2,
            Self::Giant => 3,
        }
    }

    /// 4 KiB pages in one leaf.
    #[must_use]
    pub fn base_pages(self) -> u64 {
        1 << (9 * (self.level() - 1))
    }

    fn at_level(level: u8) -> Option<Self> {
        [Self::Base, Self::Huge, Self::Giant]
            .into_iter()
            .find(|s| s.level() == level)
    }
}

/// The leaf that maps a virtual page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leaf {
    /// First guest page of the leaf (not the page of the address that was asked for).
    pub frame: Gfn,
    /// The leaf's size.
    pub size: LeafSize,
    /// The leaf's entry, flags included.
    pub entry: u64,
}

/// The reason why a page cannot be mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// No frame was given for a table that is needed.
    #[error("no frame is left for a page table")]
    NoTableFrame,
    /// A frame beyond the end of memory, or one that is a table already, was given for a table.
    #[error("frame {0} cannot become a page table")]
    BadTableFrame(Gfn),
    /// A larger leaf is in the way.
    #[error("virtual page {0} is inside a larger leaf")]
    LargerLeaf(Vpn),
    /// The way down leads to a frame that is no table.
    #[error("an entry above virtual page {0} points to no table")]
    BrokenTable(Vpn),
}

/// The owner of a page that is no table now: no frame, of which there are at most 2^32 - 1.
const FREE: u32 = u32::MAX;

/// Guest memory with bytes for table pages only. A table is found by one index by frame and nothing more.
#[derive(Debug)]
pub struct SimulatedMemory {
    /// Per frame: 0, or 1 + the position in `pages`.
    slots: Vec<u32>,
    pages: Vec<TablePage>,
    /// The frame of each of `pages`; [`FREE`] if it is free.
    owners: Vec<u32>,
    free: Vec<u32>,
}

impl SimulatedMemory {
    /// Memory of `frames` guest pages (at most 2^32 - 1), none of them a table yet.
    ///
    /// # Panics
    /// If that many frames cannot be indexed.
    #[must_use]
    pub fn new(frames: u64) -> Self {
        let frames = u32::try_from(frames).expect("a simulated guest has less than 2^32 pages");
        Self {
            slots: vec![0; frames as usize],
            pages: Vec::new(),
            owners: Vec::new(),
            free: Vec::new(),
        }
    }

    /// Adds frames at the end until there are so many (at most 2^32 - 1).
    ///
    /// # Panics
    /// If that many frames cannot be indexed.
    pub fn grow(&mut self, frames: u64) {
        let frames = u32::try_from(frames).expect("a simulated guest has less than 2^32 pages");
        self.slots.resize(self.slots.len().max(frames as usize), 0);
    }

    /// Makes room for so many more tables at once.
    pub fn reserve_tables(&mut self, tables: usize) {
        self.pages.reserve_exact(tables);
        self.owners.reserve_exact(tables);
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.slots.capacity() * size_of::<u32>()
            + self.pages.capacity() * size_of::<TablePage>()
            + self.owners.capacity() * size_of::<u32>()
            + self.free.capacity() * size_of::<u32>()
    }

    /// Makes `frame` a table page, all zero.
    ///
    /// # Errors
    /// If it is beyond the end or a table already.
    pub fn add_table(&mut self, frame: Gfn) -> Result<(), MapError> {
        let number = u32::try_from(frame.0).unwrap_or(FREE);
        let slot = self
            .slots
            .get_mut(number as usize)
            .filter(|slot| **slot == 0)
            .ok_or(MapError::BadTableFrame(frame))?;
        if let Some(free) = self.free.pop() {
            self.pages[free as usize - 1] = TablePage::empty();
            self.owners[free as usize - 1] = number;
            *slot = free;
        } else {
            self.pages.push(TablePage::empty());
            self.owners.push(number);
            // No more pages than frames, and those fit.
            *slot = u32::try_from(self.pages.len()).unwrap_or(u32::MAX);
        }
        Ok(())
    }

    /// Makes `frame` an ordinary page again. Entries that point to it stay.
    pub fn remove_table(&mut self, frame: Gfn) {
        let slot = usize::try_from(frame.0)
            .ok()
            .and_then(|i| self.slots.get_mut(i));
        if let Some(slot) = slot
            && *slot != 0
        {
            self.owners[*slot as usize - 1] = FREE;
            self.free.push(std::mem::take(slot));
        }
    }

    /// The frames that are tables, in no order.
    pub fn table_frames(&self) -> impl Iterator<Item = Gfn> + '_ {
        let owners = self.owners.iter().filter(|owner| **owner != FREE);
        owners.map(|owner| Gfn(u64::from(*owner)))
    }

    /// All tables, in the order of making, including those that were removed and not made anew.
    pub fn tables_mut(&mut self) -> impl Iterator<Item = &mut Table> {
        self.pages.iter_mut().map(|page| &mut page.0)
    }

    /// The place of a table, which stays the same until the table is removed; `None` if the frame is no table.
    #[must_use]
    pub fn place(&self, frame: Gfn) -> Option<u32> {
        let slot = *self.slots.get(usize::try_from(frame.0).ok()?)?;
        slot.checked_sub(1)
    }

    /// The table at a [`SimulatedMemory::place`].
    #[must_use]
    #[inline]
    pub fn at(&self, place: u32) -> Option<&Table> {
        self.pages.get(place as usize).map(|page| &page.0)
    }

    /// Maps the virtual page `at` of the address space `paging.root()` to `leaf`, replacing what was there.
    /// `leaf.entry` gives the flags (address, size, present and user bits are added); tables on the way are made in
    /// the frames that `new_table` hands out, with their A clear, as the guest's kernel leaves them.
    ///
    /// # Errors
    /// If a table is needed and has no place, or the way down is blocked.
    pub fn map(
        &mut self,
        paging: Paging,
        at: Vpn,
        leaf: Leaf,
        new_table: &mut dyn FnMut() -> Option<Gfn>,
    ) -> Result<(), MapError> {
        let mut frame = paging.root();
        for level in (leaf.size.level() + 1..=paging.levels()).rev() {
            let slot = &self.table(frame).ok_or(MapError::BrokenTable(at))?[index(at, level)];
            let entry = slot.load(Ordering::Relaxed);
            if entry & PRESENT == 0 {
                let child = new_table().ok_or(MapError::NoTableFrame)?;
                self.add_table(child)?;
                let link = child.gpa().0 | PRESENT | WRITABLE | USER;
                self.table(frame).ok_or(MapError::BrokenTable(at))?[index(at, level)]
                    .store(link, Ordering::Relaxed);
                frame = child;
            } else if entry & LARGE != 0 {
                return Err(MapError::LargerLeaf(at));
            } else {
                frame = Gfn((entry & ADDRESS) >> 12);
            }
        }
        let size_bit = if leaf.size == LeafSize::Base {
            0
        } else {
            LARGE
        };
        let entry = leaf.entry & !ADDRESS | leaf.frame.gpa().0 | size_bit | PRESENT | USER;
        self.table(frame).ok_or(MapError::BrokenTable(at))?[index(at, leaf.size.level())]
            .store(entry, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the leaf that maps `at` and returns it. Tables stay.
    pub fn unmap(&self, paging: Paging, at: Vpn) -> Option<Leaf> {
        self.descend(paging, at, |_| {}).map(|(leaf, slot)| {
            slot.store(0, Ordering::Relaxed);
            leaf
        })
    }

    /// The leaf that maps `at`, without leaving a mark.
    #[must_use]
    pub fn lookup(&self, paging: Paging, at: Vpn) -> Option<Leaf> {
        self.descend(paging, at, |_| {}).map(|(leaf, _)| leaf)
    }

    /// Walks the tables as a processor does for a user access to `at`: sets A at every level, and D in the leaf if it
    /// is a write. `None` is a page fault (not mapped, not writable, not for users); A of the entries above it may
    /// have been set by then, as in hardware.
    pub fn touch(&self, paging: Paging, at: Vpn, write: bool) -> Option<Leaf> {
        let need = PRESENT | USER | if write { WRITABLE } else { 0 };
        let mark = ACCESSED | if write { DIRTY } else { 0 };
        let (leaf, slot) = self.descend(paging, at, |slot| {
            raise(slot, ACCESSED);
        })?;
        if leaf.entry & need != need {
            return None;
        }
        raise(slot, mark);
        Some(Leaf {
            entry: leaf.entry | mark,
            ..leaf
        })
    }

    /// Follows `at` down to its leaf; `visit` sees each non-leaf entry on the way.
    fn descend(
        &self,
        paging: Paging,
        at: Vpn,
        visit: impl Fn(&AtomicU64),
    ) -> Option<(Leaf, &AtomicU64)> {
        let mut frame = paging.root();
        let mut level = paging.levels();
        loop {
            let slot = &self.table(frame)?[index(at, level)];
            let entry = slot.load(Ordering::Relaxed);
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 1 || entry & LARGE != 0 {
                let pat = if level == 1 { 0 } else { LARGE_PAT };
                let leaf = Leaf {
                    frame: Gfn((entry & ADDRESS & !pat) >> 12),
                    size: LeafSize::at_level(level)?,
                    entry,
                };
                return Some((leaf, slot));
            }
            visit(slot);
            frame = Gfn((entry & ADDRESS) >> 12);
            level -= 1;
        }
    }
}

/// Sets bits as a processor does: in one locked operation, and only if they are not set.
fn raise(slot: &AtomicU64, bits: u64) {
    if slot.load(Ordering::Relaxed) & bits != bits {
        slot.fetch_or(bits, Ordering::Relaxed);
    }
}

fn index(at: Vpn, level: u8) -> usize {
    usize::try_from(at.0 >> (9 * (level - 1)) & 511).unwrap_or(0)
}

impl GuestTables for SimulatedMemory {
    fn frames(&self) -> u64 {
        self.slots.len() as u64
    }

    #[inline]
    fn table(&self, frame: Gfn) -> Option<&Table> {
        let slot = *self.slots.get(usize::try_from(frame.0).ok()?)?;
        self.pages
            .get((slot as usize).wrapping_sub(1))
            .map(|page| &page.0)
    }
}
