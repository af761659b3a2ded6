//! Sets of pages of which leaves say something: that they are mapped, accessed or written.

use terrace_proto::PageBitmap;

use crate::bits::Bits;

/// One bit per page for leaves of 4 KiB, and one per 2 MiB block for larger ones, each of which speaks for all its
/// pages.
#[derive(Debug)]
pub(crate) struct LeafBits {
    pub(crate) pages: Bits,
    pub(crate) blocks: Bits,
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

    /// Leaves of 4 KiB say it of those of 64 pages from `first` that are in `mask`.
    #[inline]
    pub(crate) fn add_pages(&mut self, first: u64, mask: u64) {
        self.pages.add_window(first, mask);
    }

    /// A larger leaf says it of some blocks.
    #[inline]
    pub(crate) fn add_blocks(&mut self, first: u64, count: u64) {
        self.blocks.add_range(first, count);
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
