//! A guest's page tables: real x86-64 tables in simulated guest RAM.
//!
//! The tables lie in the first frames, the load's memory behind them, in the order of its pages (unless
//! swapping reuses frames). The live scanner walks the tables from their root; the machine, which would
//! spend most of its time on that, goes to the table of a page directly.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use terrace_pagetable::entry::{ACCESSED, ADDRESS, DIRTY, LARGE, PRESENT, USER, WRITABLE};
use terrace_pagetable::{GuestTables, Leaf, LeafSize, MapError, Paging, SimulatedMemory};
use terrace_proto::{Gfn, PageBitmap, PageSize, PagingRegisters, Vpn};

use crate::base::number::{index, low, to_usize};

/// First virtual page of the load's memory: 1 GiB, so that tables begin with it.
const BASE: u64 = 1 << 18;

/// Frame of the root table.
const ROOT: u32 = 1;

/// A software bit of an entry: the page is on the swap device. The entry is not present, so the processor faults.
const SWAPPED: u64 = 1 << 11;

/// A software bit of an entry that keeps its frame but is not present: Linux's `_PAGE_PROTNONE`.
const PROTECTED: u64 = 1 << 8;

/// A level of the guest's tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    /// Level 1: 4 KiB leaves.
    Leaf,
    /// Level 2: 2 MiB leaves, or links to level 1.
    Pde,
    /// Level 3.
    Pdpte,
}

/// The memory of leaves that were taken out.
#[derive(Clone, Debug, Default)]
pub struct Released {
    /// The first frame of each leaf.
    pub frames: Vec<u32>,
    /// Leaves that were on the swap device.
    pub swapped: u64,
}

/// The guest's page tables and RAM.
#[derive(Debug)]
pub struct Guest {
    memory: SimulatedMemory,
    paging: Paging,
    /// The tables in the order of the addresses that they map: level 1, 2 and 3.
    tables: [Vec<At>; 3],
    page: PageSize,
    pages: u64,
    first_data: u32,
    /// The 2 MiB leaves that are split; `None` if they cannot be split.
    split: Option<PageBitmap>,
    /// Number of programs that ended, with all their memory.
    ended: u64,
    /// Frames beyond the load's memory.
    spare: Range<u32>,
}

/// The location of a table.
#[derive(Clone, Copy, Debug)]
struct At {
    frame: u32,
    /// The table's place in simulated memory, found without a look at its frame; [`At::NOWHERE`]: it is kept for a leaf
    /// that may be split.
    place: u32,
}

impl At {
    const NOWHERE: u32 = u32::MAX;
}

/// The bits of a leaf that an access sets.
#[inline]
fn marks(dirty: bool) -> u64 {
    if dirty { ACCESSED | DIRTY } else { ACCESSED }
}

impl Guest {
    /// The tables of a guest whose load has so many 4 KiB pages; as many as fit into `data_frames` are mapped, in
    /// order.
    ///
    /// # Errors
    /// If the pages need more tables than there is space for: never, by the way tables are counted.
    pub fn new(pages: u64, page: PageSize, data_frames: u64) -> Result<Self, MapError> {
        Self::build(pages, page, data_frames, false)
    }

    /// The tables of a guest of 4 KiB leaves that has so many blocks of 2 MiB beyond its load's memory.
    ///
    /// # Errors
    /// As [`Guest::new`].
    pub fn with_spare(pages: u64, blocks: u64) -> Result<Self, MapError> {
        let mut guest = Self::new(pages, PageSize::Base, pages)?;
        let first = guest.frames().next_multiple_of(512);
        guest.add_spare(first, blocks * 512);
        Ok(guest)
    }

    /// Adds so many frames beyond the load's memory, right behind it.
    #[must_use]
    pub fn and_spare(mut self, frames: u64) -> Self {
        self.add_spare(self.frames(), frames);
        self
    }

    fn add_spare(&mut self, first: u64, frames: u64) {
        let end = first + frames;
        self.memory.grow(end);
        self.spare = low(first)..low(end);
    }

    /// The tables of a guest of 2 MiB leaves that can be split: as Linux does, it keeps a table for each.
    ///
    /// # Errors
    /// As [`Guest::new`].
    pub fn splittable(pages: u64, data_frames: u64) -> Result<Self, MapError> {
        Self::build(pages, PageSize::Huge, data_frames, true)
    }

    fn build(pages: u64, page: PageSize, data_frames: u64, splits: bool) -> Result<Self, MapError> {
        let blocks = pages.div_ceil(512);
        let gigas = blocks.div_ceil(512);
        let uppers = (gigas + 1).div_ceil(512);
        let small = if page == PageSize::Base || splits {
            blocks
        } else {
            0
        };
        // Frame 0 stays unused, as in real guests; one root.
        let tables = 2 + small + gigas + uppers;
        let first_data = tables.next_multiple_of(512);
        let data = match page {
            PageSize::Base => data_frames.min(pages),
            PageSize::Huge => data_frames.min(pages).next_multiple_of(512),
        };
        let mut memory = SimulatedMemory::new(first_data + data);
        memory.reserve_tables(to_usize(tables - 1));
        memory.add_table(Gfn(1))?;
        let paging = Paging::from_registers(PagingRegisters {
            cr0: 1 << 31 | 1,
            cr3: 1 << 12,
            cr4: 1 << 5,
            efer: 1 << 10,
        })
        .map_err(|_| MapError::BadTableFrame(Gfn(1)))?;
        let mut guest = Self {
            memory,
            paging,
            tables: [Vec::new(), Vec::new(), Vec::new()],
            page,
            pages,
            first_data: low(first_data),
            split: splits.then(|| PageBitmap::new(blocks)),
            ended: 0,
            spare: 0..0,
        };
        let next = guest.map_all(blocks, data_frames)?;
        if splits {
            let place = At::NOWHERE;
            let places = (low(next)..).map(|frame| At { frame, place });
            guest.tables[0] = places.take(to_usize(blocks)).collect();
        }
        Ok(guest)
    }

    /// Maps the load's memory and makes the tables for it; returns the next free frame.
    fn map_all(&mut self, blocks: u64, data_frames: u64) -> Result<u64, MapError> {
        let size = match self.page {
            PageSize::Base => LeafSize::Base,
            PageSize::Huge => LeafSize::Huge,
        };
        let flags = WRITABLE | USER | PRESENT;
        let mut next = 2;
        for block in 0..blocks {
            let mut made = Vec::new();
            let mut new_table = || {
                let frame = Gfn(next);
                next += 1;
                made.push(frame);
                Some(frame)
            };
            // What a block's first leaf needs of tables is made with it, from the top down.
            let leaf = Leaf {
                frame: Gfn(u64::from(self.first_data) + block * 512),
                size,
                entry: flags,
            };
            self.memory
                .map(self.paging, Vpn(BASE + block * 512), leaf, &mut new_table)?;
            let lowest = if self.page == PageSize::Base { 0 } else { 1 };
            for (level, frame) in (lowest..).zip(made.into_iter().rev()) {
                let place = self.memory.place(frame).unwrap_or(At::NOWHERE);
                let frame = low(frame.0);
                self.tables[level].push(At { frame, place });
            }
        }
        match self.page {
            PageSize::Base => {
                for page in 0..self.pages {
                    let entry = if page < data_frames {
                        Gfn(u64::from(self.first_data) + page).gpa().0 | flags
                    } else {
                        0
                    };
                    if let Some(slot) = self.slot(Level::Leaf, low(page)) {
                        slot.store(entry, Ordering::Relaxed);
                    }
                }
            }
            // There are no frames behind the others: a guest that frees them would give them to a program.
            PageSize::Huge => {
                for block in data_frames.div_ceil(512)..blocks {
                    if let Some(slot) = self.slot(Level::Pde, low(block * 512)) {
                        slot.store(0, Ordering::Relaxed);
                    }
                }
            }
        }
        Ok(next)
    }

    /// Splits the 2 MiB leaf around a page into 4 KiB leaves; returns whether it did.
    pub fn split(&mut self, page: u32) -> bool {
        let block = u64::from(page >> 9);
        if !self.huge() || self.split.as_ref().is_none_or(|split| split.get(block)) {
            return false;
        }
        let first = page & !511;
        let entry = self.entry(Level::Pde, page);
        let Some(frame) = Self::frame_of(entry, first) else {
            return false;
        };
        let at = &mut self.tables[0][index(page >> 9)];
        let table = Gfn(u64::from(at.frame));
        if self.memory.add_table(table).is_err() {
            return false;
        }
        at.place = self.memory.place(table).unwrap_or(At::NOWHERE);
        let flags = entry & !(ADDRESS | LARGE);
        for at in 0..512 {
            if let Some(slot) = self.slot(Level::Leaf, first + at) {
                let to = Gfn(u64::from(frame + at)).gpa().0;
                slot.store(to | flags, Ordering::Relaxed);
            }
        }
        if let Some(slot) = self.slot(Level::Pde, page) {
            let flags = WRITABLE | USER | PRESENT | ACCESSED;
            slot.store(table.gpa().0 | flags, Ordering::Relaxed);
        }
        if let Some(split) = &mut self.split {
            split.set(block);
        }
        true
    }

    /// Number of 4 KiB pages of the load.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Whether the guest's leaves are of 2 MiB, or were before any was split.
    #[must_use]
    pub fn huge(&self) -> bool {
        self.page == PageSize::Huge
    }

    /// Number of frames of guest RAM.
    #[must_use]
    pub fn frames(&self) -> u64 {
        GuestTables::frames(&self.memory)
    }

    /// Number of frames that tables take, the unused first one included.
    #[must_use]
    pub fn table_frames(&self) -> u32 {
        let tables: usize = self.tables.iter().map(Vec::len).sum();
        low(tables as u64) + 2
    }

    /// First frame of the load's memory; tables lie before it.
    #[must_use]
    pub fn first_data(&self) -> u32 {
        self.first_data
    }

    /// The memory and paging mode that a scanner reads.
    #[must_use]
    pub fn memory(&self) -> (&SimulatedMemory, Paging) {
        (&self.memory, self.paging)
    }

    /// The table that holds a page's entry of a level, and the entry's place in it.
    #[inline]
    fn locate(&self, level: Level, page: u32) -> (At, usize) {
        match level {
            Level::Leaf => (self.tables[0][index(page >> 9)], index(page & 511)),
            Level::Pde => (self.tables[1][index(page >> 18)], index(page >> 9 & 511)),
            // The load begins in the second entry: at 1 GiB.
            Level::Pdpte => {
                let giga = (page >> 18) + 1;
                (self.tables[2][index(giga >> 9)], index(giga & 511))
            }
        }
    }

    #[inline]
    fn slot(&self, level: Level, page: u32) -> Option<&AtomicU64> {
        let (table, at) = self.locate(level, page);
        self.memory.at(table.place).map(|table| &table[at])
    }

    /// The level of a page's leaf. `PLAIN`: leaves are of 4 KiB, and always were.
    #[must_use]
    #[inline]
    pub fn level_as<const PLAIN: bool>(&self, page: u32) -> Level {
        if PLAIN {
            return Level::Leaf;
        }
        self.leaf_level(page)
    }

    /// The level of a page's leaf.
    #[must_use]
    #[inline]
    pub fn leaf_level(&self, page: u32) -> Level {
        match &self.split {
            _ if !self.huge() => Level::Leaf,
            Some(split) if split.get(u64::from(page >> 9)) => Level::Leaf,
            _ => Level::Pde,
        }
    }

    /// The frame of the table that holds a page's entry of a level.
    #[must_use]
    #[inline]
    pub fn table_frame(&self, level: Level, page: u32) -> u32 {
        self.locate(level, page).0.frame
    }

    /// The frames of the tables on the way to a page, from the root down; the table that the guest keeps for a 2 MiB
    /// leaf that it may split among them.
    pub fn tables_above(&self, page: u32) -> impl Iterator<Item = u32> {
        let [leaf, pde, pdpte] = [Level::Leaf, Level::Pde, Level::Pdpte];
        let lowest = (!self.tables[0].is_empty()).then_some(leaf);
        let levels = [pdpte, pde].into_iter().chain(lowest);
        let root = std::iter::once(ROOT);
        root.chain(levels.map(move |level| self.table_frame(level, page)))
    }

    /// The line of the table that holds a page's entry of a level.
    #[must_use]
    pub fn table_line(&self, level: Level, page: u32) -> u64 {
        self.locate(level, page).1 as u64 / 8
    }

    /// Reads a page's entry of a level; 0 if there is none.
    #[must_use]
    #[inline]
    pub fn entry(&self, level: Level, page: u32) -> u64 {
        self.slot(level, page)
            .map_or(0, |slot| slot.load(Ordering::Relaxed))
    }

    /// Whether an entry has A, and D for a write.
    #[must_use]
    #[inline]
    pub fn is_marked(entry: u64, dirty: bool) -> bool {
        let wanted = marks(dirty);
        entry & wanted == wanted
    }

    /// Sets A, and D for a write in a leaf, as the processor does; returns whether a bit was set that was clear.
    #[inline]
    pub fn mark(&self, level: Level, page: u32, dirty: bool) -> bool {
        let wanted = marks(dirty);
        let Some(slot) = self.slot(level, page) else {
            return false;
        };
        let entry = slot.load(Ordering::Relaxed);
        let news = entry & wanted != wanted;
        if news {
            slot.store(entry | wanted, Ordering::Relaxed);
        }
        news
    }

    /// The frame behind a leaf entry, for one of its 4 KiB pages; `None` if it is not mapped.
    #[must_use]
    #[inline]
    pub fn frame_of(entry: u64, page: u32) -> Option<u32> {
        Self::frame_as::<false>(entry, page)
    }

    /// The frame behind a leaf entry, as [`Guest::frame_of`] gives it. `PLAIN`: the entry is of 4 KiB.
    #[must_use]
    #[inline]
    pub fn frame_as<const PLAIN: bool>(entry: u64, page: u32) -> Option<u32> {
        if entry & PRESENT == 0 {
            return None;
        }
        let frame = low((entry & ADDRESS) >> 12);
        Some(if !PLAIN && entry & LARGE != 0 {
            (frame & !511) | page & 511
        } else {
            frame
        })
    }

    /// The frame of a page; `None` if it is not mapped.
    #[must_use]
    pub fn frame(&self, page: u32) -> Option<u32> {
        Self::frame_of(self.entry(self.leaf_level(page), page), page)
    }

    /// Frames beyond the load's memory.
    #[must_use]
    pub fn spare(&self) -> Range<u32> {
        self.spare.clone()
    }

    /// Gives a mapped page of 4 KiB another frame; its entry stays as it is otherwise.
    pub fn remap(&mut self, page: u32, frame: u32) {
        if let Some(slot) = self.slot(Level::Leaf, page) {
            let rest = slot.load(Ordering::Relaxed) & !ADDRESS;
            slot.store(Gfn(u64::from(frame)).gpa().0 | rest, Ordering::Relaxed);
        }
    }

    /// Takes the leaf around a page out to the swap device; returns the leaf's frame, which is free then.
    pub fn swap_out(&mut self, page: u32) -> Option<u32> {
        let frame = self.frame(page)? - page % low(self.pages_per_leaf());
        self.slot(self.leaf_level(page), page)?
            .store(SWAPPED, Ordering::Relaxed);
        Some(frame)
    }

    /// Whether a page is on the swap device. (A page that is neither there nor mapped was never touched.)
    #[must_use]
    pub fn is_swapped(&self, page: u32) -> bool {
        self.entry(self.leaf_level(page), page) == SWAPPED
    }

    /// Maps the leaf around a page to a frame: the first of 512 if the leaf is of 2 MiB.
    pub fn map(&mut self, page: u32, frame: u32) {
        let leaf = self.leaf_level(page);
        let large = if leaf == Level::Leaf { 0 } else { LARGE };
        let entry = Gfn(u64::from(frame)).gpa().0 | WRITABLE | USER | PRESENT | ACCESSED | large;
        if let Some(slot) = self.slot(leaf, page) {
            slot.store(entry, Ordering::Relaxed);
        }
    }

    /// Takes the leaves of the pages from `first` on out, as the end of their program does: no page is mapped or on
    /// the swap device then.
    pub fn release(&mut self, first: u32) -> Released {
        let mut released = Released::default();
        let step = if self.huge() { 512 } else { 1 };
        let pages = low(self.pages);
        for page in (first.next_multiple_of(step)..pages).step_by(index(step)) {
            released.swapped += u64::from(self.is_swapped(page));
            released.frames.extend(self.frame(page));
            if let Some(slot) = self.slot(self.leaf_level(page), page) {
                slot.store(0, Ordering::Relaxed);
            }
        }
        released
    }

    /// Number of programs of the load that ended: only the next one may run.
    #[must_use]
    #[inline]
    pub fn ended_programs(&self) -> u64 {
        self.ended
    }

    /// Lets the program run before which so many ended.
    pub fn begin_program(&mut self, ended: u64) {
        self.ended = ended;
    }

    /// 4 KiB pages of a leaf, before any was split.
    #[must_use]
    pub fn pages_per_leaf(&self) -> u64 {
        if self.huge() { 512 } else { 1 }
    }

    /// Clears A of a page's leaf and returns whether it was set, as the guest's own reclaim does.
    pub fn age(&self, page: u32) -> bool {
        let Some(slot) = self.slot(self.leaf_level(page), page) else {
            return false;
        };
        let entry = slot.load(Ordering::Relaxed);
        slot.store(entry & !ACCESSED, Ordering::Relaxed);
        entry & ACCESSED != 0
    }

    /// Whether A of a page's leaf is set.
    #[must_use]
    pub fn accessed(&self, page: u32) -> bool {
        self.entry(self.leaf_level(page), page) & ACCESSED != 0
    }

    /// Takes the present bit from a page's leaf, as the kernel does for a hinting fault: the entry keeps its frame.
    pub fn protect(&self, page: u32) {
        if let Some(slot) = self.slot(self.leaf_level(page), page) {
            let entry = slot.load(Ordering::Relaxed);
            if entry & PRESENT != 0 {
                slot.store(entry & !PRESENT | PROTECTED, Ordering::Relaxed);
            }
        }
    }

    /// Gives the present bit back to a page's leaf.
    pub fn unprotect(&self, page: u32) {
        if let Some(slot) = self.slot(self.leaf_level(page), page) {
            let entry = slot.load(Ordering::Relaxed);
            if entry & PROTECTED != 0 {
                slot.store(entry & !PROTECTED | PRESENT, Ordering::Relaxed);
            }
        }
    }

    /// Bytes on the heap: tables, and the index that finds them.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let index: usize = self.tables.iter().map(Vec::capacity).sum();
        (self.memory.heap_bytes() + index * size_of::<At>()) as u64
    }
}
