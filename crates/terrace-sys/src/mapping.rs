//! A shared mapping that is unmapped when dropped.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use crate::SysError;

/// A file mapped shared, readable and writable, left out of core dumps, nothing touched beforehand.
///
/// Other processes write to it at any time (a guest, for one): access it only by atomic or raw
/// operations, never through a reference.
#[derive(Debug)]
pub struct SharedMapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to no thread; all access to it is by raw pointer.
unsafe impl Send for SharedMapping {}
// SAFETY: as above; the methods only hand out the pointer and the length.
unsafe impl Sync for SharedMapping {}

impl SharedMapping {
    /// Maps `len` bytes of a file from `offset`.
    ///
    /// # Errors
    /// If the kernel refuses (no memory, a length of zero, an offset that is no whole page). A file that is shorter
    /// than the mapping is accepted: touching what is beyond its end raises SIGBUS.
    pub fn new(fd: BorrowedFd<'_>, offset: u64, len: usize) -> Result<Self, SysError> {
        let what = || format!("{len} bytes at offset {offset:#x}");
        let offset = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
        // SAFETY: a new mapping at an address of the kernel's choice harms no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                offset,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(SysError::last("mmap", what()));
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| SysError::last("mmap", what()))?;
        let mapping = Self { start, len };
        // SAFETY: the range is exactly the mapping made above.
        let rc = unsafe { libc::madvise(start.as_ptr().cast(), len, libc::MADV_DONTDUMP) };
        if rc != 0 {
            return Err(SysError::last("madvise(MADV_DONTDUMP)", what()));
        }
        Ok(mapping)
    }

    /// Drops this process's page table entries for `len` bytes from `start`, as far as they are in the mapping. The
    /// pages stay in the file and come back when touched.
    ///
    /// # Errors
    /// If the kernel refuses: `start` is no whole page.
    pub fn forget_pages(&self, start: u64, len: u64) -> Result<(), SysError> {
        let within = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(self.len);
        let (start, end) = (within(start), within(start.saturating_add(len)));
        // SAFETY: `start` is at most the length of the mapping.
        let first = unsafe { self.start.as_ptr().add(start) };
        // SAFETY: the range is inside this mapping; it is shared, so no data is lost.
        let rc = unsafe { libc::madvise(first.cast(), end - start, libc::MADV_DONTNEED) };
        if rc == 0 {
            Ok(())
        } else {
            Err(SysError::last("madvise(MADV_DONTNEED)", "guest RAM"))
        }
    }

    /// For each page of `len` bytes from `start`, as far as they are in the mapping, whether the page cache holds it
    /// now, so that reading it takes no memory. A page that is swapped out is not held. For a file that this process
    /// may not write, the kernel reports all as held.
    ///
    /// # Errors
    /// If the kernel refuses: `start` is no whole page.
    pub fn cached_pages(&self, start: u64, len: u64) -> Result<Vec<bool>, SysError> {
        let within = |n: u64| usize::try_from(n).unwrap_or(usize::MAX).min(self.len);
        let (start, end) = (within(start), within(start.saturating_add(len)));
        let mut held = vec![0_u8; (end - start).div_ceil(4096)];
        // SAFETY: `start` is at most the length of the mapping.
        let first = unsafe { self.start.as_ptr().add(start) };
        // SAFETY: the range is inside this mapping, and there is a byte for each of its pages.
        let rc = unsafe { libc::mincore(first.cast(), end - start, held.as_mut_ptr()) };
        if rc == 0 {
            Ok(held.iter().map(|page| page & 1 == 1).collect())
        } else {
            Err(SysError::last("mincore", "guest RAM"))
        }
    }

    /// The address of the first byte.
    #[must_use]
    pub fn as_ptr(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Length in bytes; never zero.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a mapping is never empty")]
    pub fn len(&self) -> usize {
        self.len
    }
}

impl Drop for SharedMapping {
    fn drop(&mut self) {
        // SAFETY: the range is this mapping's own, and nothing outlives it that points there.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn writes_reach_the_file_and_bad_ranges_are_refused() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(8192).unwrap();
        let map = SharedMapping::new(file.as_fd(), 4096, 4096).unwrap();
        assert_eq!(map.len(), 4096);
        // SAFETY: the mapping is 4096 bytes long and backed by the file.
        unsafe { map.as_ptr().add(7).write_volatile(42) };
        let mut byte = [0];
        file.read_exact_at(&mut byte, 4096 + 7).unwrap();
        assert_eq!(byte, [42]);
        map.forget_pages(0, u64::MAX).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { map.as_ptr().add(7).read_volatile() }, 42);
        assert!(map.forget_pages(1, 4096).is_err());
        assert!(SharedMapping::new(file.as_fd(), 0, 0).is_err());
        assert!(SharedMapping::new(file.as_fd(), 7, 4096).is_err());
    }
}
