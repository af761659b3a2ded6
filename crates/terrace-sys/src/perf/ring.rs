//! The ring that the kernel writes records into.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Event;
use crate::{SharedMapping, SysError};

/// Offsets in `struct perf_event_mmap_page`, the page before the data.
mod control {
    pub const DATA_HEAD: usize = 0x400;
    pub const DATA_TAIL: usize = 0x408;
    pub const DATA_OFFSET: usize = 0x410;
    pub const DATA_SIZE: usize = 0x418;
}

/// The reason why a ring could not be made.
#[derive(Debug, thiserror::Error)]
pub enum RingError {
    /// The requested size is not allowed.
    #[error("a ring of {0} pages: the kernel wants a power of two, up to 65,536")]
    Pages(u32),
    /// The kernel refused the mapping. `EPERM`: more memory than an unprivileged user may lock.
    #[error(
        "{0}; a ring is locked memory: raise kernel.perf_event_mlock_kb or take fewer pages per CPU"
    )]
    Map(#[from] SysError),
    /// The kernel reports its data elsewhere.
    #[error("a ring of {expected} bytes: the kernel speaks of {found} at offset {offset}")]
    Layout {
        /// The size that was asked for, bytes.
        expected: usize,
        /// The size that the kernel reports, bytes.
        found: u64,
        /// The offset that the kernel reports, bytes.
        offset: u64,
    },
}

/// An event's ring. The kernel leaves records out when the ring is full and reports their number later
/// ([`super::Record::Lost`]); records that were not drained yet are never overwritten.
#[derive(Debug)]
pub struct Ring {
    mapping: SharedMapping,
    /// Size of the control page before the data.
    page_bytes: usize,
    /// Size of the data, a power of two.
    data_bytes: usize,
    tail: u64,
}

impl Ring {
    /// Gives an event a ring of so many pages for data.
    ///
    /// # Errors
    /// If the kernel refuses the mapping, or if the number is no power of two.
    pub fn new(event: &Event, pages: u32) -> Result<Self, RingError> {
        if !pages.is_power_of_two() || pages > 65_536 {
            return Err(RingError::Pages(pages));
        }
        let page_bytes = page_bytes();
        let data_bytes = usize::try_from(pages).unwrap_or(0) * page_bytes;
        let mapping = SharedMapping::new(event.as_fd(), 0, page_bytes + data_bytes)?;
        let mut ring = Self {
            mapping,
            page_bytes,
            data_bytes,
            tail: 0,
        };
        let word = |at| ring.word(at).load(Ordering::Relaxed);
        let (offset, found) = (word(control::DATA_OFFSET), word(control::DATA_SIZE));
        if offset != page_bytes as u64 || found != data_bytes as u64 {
            return Err(RingError::Layout {
                expected: data_bytes,
                found,
                offset,
            });
        }
        ring.tail = ring.word(control::DATA_TAIL).load(Ordering::Relaxed);
        Ok(ring)
    }

    /// Bytes of memory that the ring takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.mapping.len()
    }

    /// Appends the records that wait to `into` and frees their room at once, at most a ring's worth. Returns their
    /// number of bytes, or `None` if the kernel's position made no sense and all was passed over.
    pub fn drain(&mut self, into: &mut Vec<u8>) -> Option<usize> {
        // Acquire: what the kernel wrote before it moved its position is visible behind this.
        let head = self.word(control::DATA_HEAD).load(Ordering::Acquire);
        let waiting = usize::try_from(head.wrapping_sub(self.tail)).unwrap_or(usize::MAX);
        let sane = waiting <= self.data_bytes;
        if sane {
            self.copy(waiting, into);
        }
        self.tail = head;
        // Release: the kernel reuses the room only after the copy is done.
        self.word(control::DATA_TAIL).store(head, Ordering::Release);
        sane.then_some(waiting)
    }

    /// Copies `len` bytes from the tail on, which may go round the end.
    fn copy(&self, len: usize, into: &mut Vec<u8>) {
        let mask = self.data_bytes - 1;
        // Only the bits below the ring's size matter.
        #[allow(clippy::cast_possible_truncation)]
        let start = self.tail as usize & mask;
        let first = len.min(self.data_bytes - start);
        into.reserve(len);
        for (offset, part) in [(start, first), (0, len - first)] {
            let filled = into.len();
            // SAFETY: `offset + part` is within the data, which lies behind the control page in the mapping;
            // `into` has room for `len` bytes. The kernel does not write between tail and head.
            unsafe {
                let from = self.mapping.as_ptr().add(self.page_bytes + offset);
                std::ptr::copy_nonoverlapping(from, into.as_mut_ptr().add(filled), part);
                into.set_len(filled + part);
            }
        }
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the control page is 4 KiB or more, mapped as long as `self`, and the offsets are multiples of
        // eight; kernel and we access these words atomically.
        unsafe { AtomicU64::from_ptr(self.mapping.as_ptr().add(offset).cast()) }
    }
}

fn page_bytes() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}
