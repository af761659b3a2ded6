//! Guest RAM that the host has mapped.
//!
//! The guest writes to these pages while they are read, so they are only ever handed out as atomics.

use std::ptr::NonNull;

use terrace_proto::{Gfn, Gpa, PAGE_SHIFT, PAGE_SIZE};

use crate::memory::{GuestTables, Table};

/// One run of guest RAM in this process's address space.
#[derive(Clone, Copy, Debug)]
pub struct MappedRange {
    /// First guest physical address of the range.
    pub start: Gpa,
    /// Length of the range, bytes.
    pub len: u64,
    /// Address at which this process has the range mapped.
    pub host: NonNull<u8>,
}

/// The reason why ranges are no guest memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapRangeError {
    /// An address or length is no multiple of the page size.
    #[error("the RAM range at {0} is not made of whole pages")]
    Unaligned(Gpa),
    /// The range ends beyond the highest possible guest physical address.
    #[error("the RAM range at {0} ends beyond 52-bit addresses")]
    TooHigh(Gpa),
    /// The range begins inside the one before it.
    #[error("the RAM range at {0} overlaps the one below it")]
    Overlap(Gpa),
}

#[derive(Clone, Copy, Debug)]
struct Run {
    first: u64,
    pages: u64,
    host: NonNull<Table>,
}

/// Guest RAM through the host's mappings of it; see [`MappedMemory::new`].
#[derive(Debug)]
pub struct MappedMemory {
    /// The ranges, ascending, not overlapping.
    runs: Vec<Run>,
    frames: u64,
}

// SAFETY: the pointers are to shared memory that outlives the value (promised to `new`), and all
// access through them is atomic, so which thread does it makes no difference.
unsafe impl Send for MappedMemory {}
// SAFETY: as above; `&self` methods only hand out references to atomics.
unsafe impl Sync for MappedMemory {}

impl MappedMemory {
    /// Takes mappings of guest RAM, in any order.
    ///
    /// # Errors
    /// If a range is not made of whole pages, is too high, or overlaps another.
    ///
    /// # Safety
    /// For as long as the value lives:
    /// - each range's `len` bytes from `host` stay mapped readable and writable, and reading them
    ///   raises no signal (the file behind them is not truncated);
    /// - this process touches them by atomic access of aligned 8-byte words only. The guest and the
    ///   hypervisor, being other processes, may write to them at any time.
    pub unsafe fn new(ranges: &[MappedRange]) -> Result<Self, MapRangeError> {
        let mut runs = ranges.iter().map(run).collect::<Result<Vec<_>, _>>()?;
        runs.retain(|r| r.pages > 0);
        runs.sort_by_key(|r| r.first);
        if let Some(pair) = runs
            .windows(2)
            .find(|pair| pair[0].first + pair[0].pages > pair[1].first)
        {
            return Err(MapRangeError::Overlap(Gfn(pair[1].first).gpa()));
        }
        let frames = runs.last().map_or(0, |r| r.first + r.pages);
        Ok(Self { runs, frames })
    }
}

fn run(range: &MappedRange) -> Result<Run, MapRangeError> {
    let host = range.host.cast::<Table>();
    let whole = |n: u64| n.is_multiple_of(PAGE_SIZE);
    let host_offset = range.host.addr().get() as u64;
    if !(whole(range.start.0) && whole(range.len) && whole(host_offset)) {
        return Err(MapRangeError::Unaligned(range.start));
    }
    match range.start.0.checked_add(range.len) {
        Some(end) if end <= 1 << 52 => Ok(Run {
            first: range.start.0 >> PAGE_SHIFT,
            pages: range.len >> PAGE_SHIFT,
            host,
        }),
        _ => Err(MapRangeError::TooHigh(range.start)),
    }
}

impl GuestTables for MappedMemory {
    fn frames(&self) -> u64 {
        self.frames
    }

    fn table(&self, frame: Gfn) -> Option<&Table> {
        let above = self.runs.partition_point(|r| r.first <= frame.0);
        let run = self.runs[..above].last()?;
        let page = frame.0 - run.first;
        if page >= run.pages {
            return None;
        }
        let page = usize::try_from(page).ok()?;
        // SAFETY: `page` is inside the run, whose pages are mapped, aligned and accessed atomically
        // for as long as `self` lives (promised to `new`).
        Some(unsafe { run.host.add(page).as_ref() })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;
    use crate::simulated::aligned_pages;

    fn range(start: u64, len: u64, host: NonNull<u8>) -> MappedRange {
        MappedRange {
            start: Gpa(start),
            len,
            host,
        }
    }

    #[test]
    fn frames_are_found_on_both_sides_of_a_hole() {
        let pages = aligned_pages(3);
        let host = NonNull::from(&pages[0]).cast::<u8>();
        // SAFETY: page 1 of 3 begins 4096 bytes in.
        let second = unsafe { host.add(4096) };
        // SAFETY: the pages live to the end of the test and are accessed as atomics.
        let memory = unsafe {
            MappedMemory::new(&[range(1 << 32, 8192, second), range(0x1000, 4096, host)])
        }
        .unwrap();
        assert_eq!(memory.frames(), (1 << 20) + 2);
        memory.table(Gfn(1)).unwrap()[0].store(11, Relaxed);
        memory.table(Gfn((1 << 20) + 1)).unwrap()[511].store(33, Relaxed);
        assert_eq!(pages[0].0[0].load(Relaxed), 11);
        assert_eq!(pages[2].0[511].load(Relaxed), 33);
        for hole in [0, 2, (1 << 20) - 1, (1 << 20) + 2, u64::MAX] {
            assert!(memory.table(Gfn(hole)).is_none());
        }
    }

    #[test]
    fn ranges_that_are_no_ram_are_refused() {
        let pages = aligned_pages(2);
        let host = NonNull::from(&pages[0]).cast::<u8>();
        // SAFETY: as above; refused ranges are never accessed.
        let error = |ranges: &[MappedRange]| unsafe { MappedMemory::new(ranges) }.unwrap_err();
        assert_eq!(
            error(&[range(0, 8192, host), range(4096, 4096, host)]),
            MapRangeError::Overlap(Gpa(4096))
        );
        assert_eq!(
            error(&[range(0, 100, host)]),
            MapRangeError::Unaligned(Gpa(0))
        );
        let top = (1 << 52) - 4096;
        assert_eq!(
            error(&[range(top, 8192, host)]),
            MapRangeError::TooHigh(Gpa(top))
        );
    }
}
