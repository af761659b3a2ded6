//! The locations of a guest's RAM: in the hypervisor's memory and in files.
//!
//! Responsible for: joining QEMU's own memory tree (RAM above 4 GiB is not at file offset = guest
//! address) with the process's mappings and descriptors; saying why a VM cannot be scanned and which
//! option would change that. It leaves to others: mapping the files (`worker`), asking where pages
//! are (`placement`).
//!
//! QEMU's answers are untrusted: what overlaps, does not fit its mapping or is absurd is an error.

mod anonymous;
mod build;
mod guest_nodes;
mod layout;
mod procfs;
mod resident;
mod unscannable;
mod watch;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use terrace_proto::worker::FileRange;
use terrace_proto::{Gfn, Gpa, Hva, PAGE_SIZE, RamRange};

use crate::ReadError;
use crate::qemu::QemuError;

pub(crate) use anonymous::{AnonymousMapping, MappingsFile, anonymous_mappings};
pub(crate) use build::{Present, present_by_backend, read_guest_addresses, read_guest_memory};
pub(crate) use guest_nodes::guest_nodes;
pub use layout::Layout;
pub(crate) use resident::resident_ram;
pub use unscannable::Unscannable;
pub use watch::{MapDoubt, MapWatch};

/// Highest end of guest RAM that is believed: bitmaps over it have to fit in memory.
const MAX_GPA: u64 = 16 << 40;

/// A run of guest RAM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First guest physical address; whole pages.
    pub gpa: Gpa,
    /// Bytes; whole pages.
    pub len: u64,
    /// The address in the hypervisor's memory.
    pub hva: Hva,
    /// Index of the file that backs the run; means nothing in a map without files.
    pub file_index: u32,
    /// The offset in that file, bytes.
    pub file_offset: u64,
    /// The hypervisor maps it shared (`MAP_SHARED`), so that another process, our worker above all, can have the same
    /// pages by right. Private pages that another process maps too are not the VM's alone: merged by KSM, or of a
    /// template file.
    pub shared: bool,
}

/// A guest's RAM and the files behind it.
///
/// Invariant: ranges are ascending, do not overlap, are made of whole pages, and end below 16 TiB.
#[derive(Debug)]
pub struct GuestMemory {
    ranges: Vec<Range>,
    files: Vec<OwnedFd>,
    /// The layout that the map was built from; `None` if it was made from parts.
    layout: Option<Layout>,
}

/// A memory map that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum MemoryMapError {
    /// The RAM is there, but not for others to read.
    #[error(transparent)]
    Unscannable(#[from] Unscannable),
    /// QEMU did not say.
    #[error(transparent)]
    Qemu(#[from] QemuError),
    /// procfs did not say.
    #[error("{0}: reading another user's process takes CAP_SYS_PTRACE")]
    Read(#[from] ReadError),
    /// QEMU's answers contradict each other.
    #[error("QEMU's memory map makes no sense: {0}")]
    Inconsistent(String),
}

impl GuestMemory {
    /// A map of which the parts are known.
    ///
    /// # Errors
    /// If the ranges are not whole pages, ascending and apart, end above 16 TiB, or name a file that
    /// is not there.
    pub fn new(ranges: Vec<Range>, files: Vec<OwnedFd>) -> Result<Self, MemoryMapError> {
        check(&ranges)?;
        let no_file = |r: &&Range| (r.file_index as usize) >= files.len();
        match ranges.iter().find(no_file) {
            Some(range) => impossible(range),
            None => Ok(Self {
                ranges,
                files,
                layout: None,
            }),
        }
    }

    /// A map of RAM that only the hypervisor sees: good for watching and moving it, not for scans.
    ///
    /// # Errors
    /// As [`GuestMemory::new`].
    pub fn without_files(ranges: Vec<Range>) -> Result<Self, MemoryMapError> {
        check(&ranges)?;
        Ok(Self {
            ranges,
            files: Vec::new(),
            layout: None,
        })
    }

    /// The same, with what it was read from.
    fn read_by(self, layout: Layout) -> Self {
        Self {
            layout: Some(layout),
            ..self
        }
    }

    /// The layout that the map was built from, for a later comparison ([`MapWatch`]); `None` if it was made from
    /// parts.
    #[must_use]
    pub fn layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    /// The runs, ascending.
    #[must_use]
    pub fn ranges(&self) -> &[Range] {
        &self.ranges
    }

    /// The files, in the order of [`Range::file_index`].
    #[must_use]
    pub fn files(&self) -> Vec<BorrowedFd<'_>> {
        self.files.iter().map(AsFd::as_fd).collect()
    }

    /// RAM as the engine wants it.
    #[must_use]
    pub fn ram(&self) -> Vec<RamRange> {
        let range = |r: &Range| RamRange {
            start: r.gpa.gfn(),
            pages: r.len / PAGE_SIZE,
        };
        self.ranges.iter().map(range).collect()
    }

    /// One more than the highest guest page number.
    #[must_use]
    pub fn span_pages(&self) -> u64 {
        let end = |r: &Range| (r.gpa.0 + r.len) / PAGE_SIZE;
        self.ranges.last().map_or(0, end)
    }

    /// RAM as the worker wants it.
    #[must_use]
    pub fn file_ranges(&self) -> Vec<FileRange> {
        let range = |r: &Range| FileRange {
            gpa: r.gpa,
            len: r.len,
            file: r.file_index,
            offset: r.file_offset,
        };
        self.ranges.iter().map(range).collect()
    }

    /// The address of a guest page in the hypervisor's memory; `None` outside of RAM.
    #[must_use]
    pub fn hva(&self, gfn: Gfn) -> Option<Hva> {
        let gpa = gfn.0.checked_mul(PAGE_SIZE)?;
        let above = self.ranges.partition_point(|r| r.gpa.0 <= gpa);
        let range = self.ranges[..above].last()?;
        let at = gpa - range.gpa.0;
        (at < range.len).then(|| Hva(range.hva.0 + at))
    }

    /// Whether all RAM that the hypervisor has among these addresses is mapped shared, and any is.
    #[must_use]
    pub fn is_shared(&self, start: u64, end: u64) -> bool {
        let there = |r: &&Range| r.hva.0 < end && start < r.hva.0 + r.len;
        let mut there = self.ranges.iter().filter(there).peekable();
        there.peek().is_some() && there.all(|r| r.shared)
    }

    /// Whether 2 MiB blocks of the guest are 2 MiB blocks of host memory and of the file, so that the
    /// host can back them with huge pages (all but what is too short to hold one).
    #[must_use]
    pub fn is_huge_aligned(&self) -> bool {
        const HUGE: u64 = 2 << 20;
        self.ranges.iter().filter(|r| r.len >= 2 * HUGE).all(|r| {
            let of_file = self.files.is_empty() || r.file_offset % HUGE == r.gpa.0 % HUGE;
            r.hva.0 % HUGE == r.gpa.0 % HUGE && of_file
        })
    }
}

fn check(ranges: &[Range]) -> Result<(), MemoryMapError> {
    let mut end = 0;
    for range in ranges {
        let whole = [range.gpa.0, range.len, range.hva.0, range.file_offset];
        let next = range.gpa.0.checked_add(range.len).filter(|e| *e <= MAX_GPA);
        let good = range.len > 0
            && range.gpa.0 >= end
            && whole.iter().all(|n| n.is_multiple_of(PAGE_SIZE))
            && range.hva.0.checked_add(range.len).is_some();
        match next.filter(|_| good) {
            Some(next) => end = next,
            None => return impossible(range),
        }
    }
    Ok(())
}

fn impossible<T>(range: &Range) -> Result<T, MemoryMapError> {
    Err(MemoryMapError::Inconsistent(format!(
        "the run of RAM at {} cannot be",
        range.gpa
    )))
}

#[cfg(test)]
impl GuestMemory {
    /// A map without files, for tests of what only needs addresses.
    pub(crate) fn of_ranges(ranges: Vec<Range>) -> Self {
        Self::without_files(ranges).expect("a test's ranges are good")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_found_on_both_sides_of_the_hole() {
        let range = |gpa: u64, len, hva| Range {
            gpa: Gpa(gpa),
            len,
            hva: Hva(hva),
            file_index: 0,
            file_offset: 0,
            shared: true,
        };
        let memory = GuestMemory::of_ranges(vec![
            range(0, 0x3000, 0x70_0000),
            range(1 << 32, 0x1000, 0x90_0000),
        ]);
        assert_eq!(memory.hva(Gfn(2)), Some(Hva(0x70_2000)));
        assert_eq!(memory.hva(Gfn(1 << 20)), Some(Hva(0x90_0000)));
        for hole in [3, (1 << 20) - 1, (1 << 20) + 1, u64::MAX] {
            assert_eq!(memory.hva(Gfn(hole)), None);
        }
        assert_eq!(memory.span_pages(), (1 << 20) + 1);
        assert_eq!(memory.ram()[1].start, Gfn(1 << 20));
        assert_eq!(GuestMemory::of_ranges(vec![]).span_pages(), 0);
    }
}
