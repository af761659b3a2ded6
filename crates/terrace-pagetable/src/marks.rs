//! The notes that a pass takes of pages: sets over all of a VM's pages for a pass over all, and room that is emptied into a list for a pass over
//! a part.

use terrace_proto::{PageBitmap, PartCell};

use crate::bits::{Bits, position};
use crate::vectors::fetch;

/// The receiver of what leaves say.
pub(crate) trait Marks {
    /// Whether a mark's place is as a rule not in the processor's caches.
    const ARE_FAR: bool;

    /// Asks the processor for the place of the marks of 64 pages from `first`.
    fn expect(&self, first: u64);

    /// Whether it is asked for what was written.
    fn tells_writes(&self) -> bool;

    /// Leaves of 4 KiB map those of 64 pages from `first` that are in `mapped`; the other masks are parts of it.
    fn add_pages(&mut self, first: u64, mapped: u64, accessed: u64, written: u64);

    /// A larger leaf maps `count` blocks of 2 MiB from `first`.
    fn add_blocks(&mut self, first: u64, count: u64, accessed: bool, written: bool);
}

/// One bit per page for leaves of 4 KiB, and one per 2 MiB block for larger ones, each of which speaks for all its
/// pages.
#[derive(Debug)]
pub(crate) struct LeafBits {
    pages: Bits,
    blocks: Bits,
}

impl LeafBits {
    /// Of a VM with so many guest pages, of which nothing is said.
    pub(crate) fn new(frames: u64) -> Self {
        Self {
            pages: Bits::new(frames),
            blocks: Bits::new(frames.div_ceil(512)),
        }
    }

    pub(crate) fn clear(&mut self) {
        self.pages.clear();
        self.blocks.clear();
    }

    /// The blocks that larger leaves say it of.
    pub(crate) fn blocks(&self) -> PageBitmap {
        self.blocks.clone().into_bitmap()
    }

    /// All pages that it is said of.
    pub(crate) fn all(&self) -> PageBitmap {
        let mut pages = self.pages.clone();
        pages.add_blocks(&self.blocks);
        pages.into_bitmap()
    }

    /// The same, of bits that are needed no more.
    pub(crate) fn into_all(mut self) -> PageBitmap {
        self.pages.add_blocks(&self.blocks);
        self.pages.into_bitmap()
    }
}

/// The marks of a pass over all tables.
pub(crate) struct WholeMarks<'a> {
    pub(crate) mapped: &'a mut LeafBits,
    pub(crate) accessed: LeafBits,
    /// `None` unless D tells writes.
    pub(crate) written: Option<LeafBits>,
}

impl Marks for WholeMarks<'_> {
    // A pass over all comes by each place several times.
    const ARE_FAR: bool = false;

    fn expect(&self, _: u64) {}

    #[inline]
    fn tells_writes(&self) -> bool {
        self.written.is_some()
    }

    #[inline]
    fn add_pages(&mut self, first: u64, mapped: u64, accessed: u64, written: u64) {
        self.mapped.pages.add_window(first, mapped);
        self.accessed.pages.add_window(first, accessed);
        if let Some(writes) = &mut self.written {
            writes.pages.add_window(first, written);
        }
    }

    fn add_blocks(&mut self, first: u64, count: u64, accessed: bool, written: bool) {
        self.mapped.blocks.add_range(first, count);
        if accessed {
            self.accessed.blocks.add_range(first, count);
        }
        if let Some(writes) = &mut self.written
            && written
        {
            writes.blocks.add_range(first, count);
        }
    }
}

/// Room for the marks of a pass over a part, of which such a pass fills a little. Empty between passes, and emptied by walking over
/// what was filled: to clear it or to copy it whole would cost more than the pass.
#[derive(Debug)]
pub(crate) struct PartMarks {
    /// Of 64 pages each: the mapped and the accessed ones. Side by side, since runs lie anywhere, and each is one more miss of the
    /// processor's cache.
    cells: Vec<[u64; 2]>,
    /// The written ones; empty unless D tells writes.
    written: Vec<u64>,
    /// Cells of which anything was noted.
    filled: Bits,
    /// Blocks of 2 MiB that larger leaves map.
    huge: HugeBits,
}

/// Blocks of 2 MiB that larger leaves speak for. Their pages are noted once, at the end, however many leaves map them: a guest can
/// make ever so many leaves of 1 GiB, of 4,096 cells each.
#[derive(Debug)]
struct HugeBits {
    mapped: Bits,
    accessed: Bits,
    written: Bits,
}

impl PartMarks {
    /// Of a VM with so many guest pages, of which nothing is noted.
    pub(crate) fn new(frames: u64) -> Self {
        // A spare one, since 64 bits can be added at the last page.
        let cells = frames.div_ceil(64) + 1;
        Self {
            cells: vec![[0; 2]; position(cells)],
            written: Vec::new(),
            filled: Bits::new(cells),
            huge: HugeBits::new(frames.div_ceil(512)),
        }
    }

    /// Makes the room take written pages, or none.
    pub(crate) fn tell_writes(&mut self, on: bool) {
        self.written
            .resize(if on { self.cells.len() } else { 0 }, 0);
    }

    #[inline]
    fn note_pages(&mut self, first: u64, mapped: u64, accessed: u64, written: u64) {
        let (at, shift) = (position(first / 64), first % 64);
        // Two shifts, because one of 64 places does not exist.
        let high = |mask: u64| mask >> 1 >> (63 - shift);
        let Some([low_cell, high_cell]) = self.cells.get_mut(at..at.saturating_add(2)) else {
            return;
        };
        low_cell[0] |= mapped << shift;
        low_cell[1] |= accessed << shift;
        high_cell[0] |= high(mapped);
        high_cell[1] |= high(accessed);
        if written != 0
            && let Some([low_word, high_word]) = self.written.get_mut(at..at.saturating_add(2))
        {
            *low_word |= written << shift;
            *high_word |= high(written);
        }
        self.filled
            .add_window(first / 64, 1 | u64::from(shift != 0) << 1);
    }

    /// Empties the room.
    pub(crate) fn take(&mut self) -> Found {
        let huge = self.take_huge();
        let count = self.filled.count();
        let mut found = Found {
            cells: Vec::with_capacity(count),
            written: (!self.written.is_empty()).then(|| Vec::with_capacity(count)),
            huge,
        };
        self.filled.take_each(|at| {
            let slot = self.cells.get_mut(position(at)).map(std::mem::take);
            let [mapped, accessed] = slot.unwrap_or_default();
            let written = self.written.get_mut(position(at)).map(std::mem::take);
            if mapped == 0 {
                return;
            }
            found.cells.push(PartCell {
                at: number(at),
                mapped,
                accessed,
            });
            if let Some(list) = &mut found.written {
                list.push(written.unwrap_or(0));
            }
        });
        found
    }

    /// The blocks that larger leaves map, whose pages are noted as cells.
    fn take_huge(&mut self) -> Vec<u32> {
        let mut blocks = Vec::new();
        self.huge
            .mapped
            .take_each(|block| blocks.push(number(block)));
        let all = |on: bool| if on { u64::MAX } else { 0 };
        for block in blocks.iter().map(|block| u64::from(*block)) {
            let accessed = all(self.huge.accessed.take(block));
            let written = all(self.huge.written.take(block));
            for cell in block * 8..block * 8 + 8 {
                self.note_pages(cell * 64, u64::MAX, accessed, written);
            }
        }
        blocks
    }
}

impl HugeBits {
    fn new(blocks: u64) -> Self {
        Self {
            mapped: Bits::new(blocks),
            accessed: Bits::new(blocks),
            written: Bits::new(blocks),
        }
    }
}

/// The marks of a pass over a part, in ascending order of pages.
pub(crate) struct Found {
    pub(crate) cells: Vec<PartCell>,
    /// For each of `cells`; `None` unless D tells writes.
    pub(crate) written: Option<Vec<u64>>,
    /// Blocks of 2 MiB that larger leaves map.
    pub(crate) huge: Vec<u32>,
}

/// A cell's or a block's number: a VM has less than 2^37 pages, or its frames could not be addressed.
fn number(n: u64) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

impl Marks for &mut PartMarks {
    const ARE_FAR: bool = true;

    #[inline]
    fn expect(&self, first: u64) {
        if let Some(cell) = self.cells.get(position(first / 64)) {
            fetch(cell);
        }
    }

    #[inline]
    fn tells_writes(&self) -> bool {
        !self.written.is_empty()
    }

    #[inline]
    fn add_pages(&mut self, first: u64, mapped: u64, accessed: u64, written: u64) {
        self.note_pages(first, mapped, accessed, written);
    }

    fn add_blocks(&mut self, first: u64, count: u64, accessed: bool, written: bool) {
        self.huge.mapped.add_range(first, count);
        if accessed {
            self.huge.accessed.add_range(first, count);
        }
        if written && self.tells_writes() {
            self.huge.written.add_range(first, count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A guest can make leaves of 1 GiB in every entry of every table.
    #[test]
    fn leaves_of_1_gib_cost_no_cell_before_the_end() {
        let mut room = PartMarks::new(1 << 18);
        room.tell_writes(true);
        for accessed in [false, true, false] {
            (&mut room).add_blocks(0, 512, accessed, false);
            assert_eq!(room.filled.count(), 0);
        }
        (&mut room).add_blocks(3, 1, false, true);
        let found = room.take();
        assert_eq!((found.cells.len(), found.huge.len()), (4_096, 512));
        assert!(found.cells.iter().all(|cell| cell.accessed == u64::MAX));
        let written = found.written.unwrap_or_default();
        let full = (0..).zip(&written).filter(|(_, word)| **word != 0);
        assert!(full.map(|(cell, _)| cell).eq(24..32));
        // Nothing is left for the next pass.
        (&mut room).add_blocks(511, 1, false, false);
        let found = room.take();
        assert_eq!((found.cells.len(), found.huge), (8, vec![511]));
        assert!(found.cells.iter().all(|cell| cell.accessed == 0));
    }
}
