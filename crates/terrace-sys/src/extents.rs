//! Extents of sparse files: which parts hold data, giving parts back, and which pages back a file.

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::SysError;

/// A run of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

/// The extents of a file that hold data, ascending, found with `SEEK_DATA` and `SEEK_HOLE`.
///
/// The file may change meanwhile: the answer is what the search met on its way. Moves the file offset.
///
/// # Errors
/// If the file cannot be sought, as a pipe. (A file system without holes answers one extent.)
pub fn data_extents(fd: BorrowedFd<'_>) -> Result<Vec<Extent>, SysError> {
    let mut extents = Vec::new();
    for_each_data_extent(fd, 0..u64::MAX, |extent| extents.push(extent))?;
    Ok(extents)
}

/// Calls `each` for the extents in `range` that hold data, one at a time: a file in many pieces needs no memory.
///
/// # Errors
/// As [`data_extents`].
pub fn for_each_data_extent(
    fd: BorrowedFd<'_>,
    range: Range<u64>,
    mut each: impl FnMut(Extent),
) -> Result<(), SysError> {
    let mut at = range.start;
    while let Some(extent) = next_data_extent(fd, at..range.end)? {
        each(extent);
        at = extent.start + extent.len;
    }
    Ok(())
}

/// The first extent in `range` that holds data, cut off at the range's end; `None` if there is no more.
///
/// # Errors
/// As [`data_extents`].
pub fn next_data_extent(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<Option<Extent>, SysError> {
    let Some(start) = first_data(fd, range.clone())? else {
        return Ok(None);
    };
    let end = seek(fd, start, libc::SEEK_HOLE)?.unwrap_or(start);
    let len = end.min(range.end).saturating_sub(start);
    Ok((len > 0).then_some(Extent { start, len }))
}

/// The first byte of data in `range`: half of [`next_data_extent`], for callers who need not know where the extent
/// ends.
///
/// # Errors
/// As [`data_extents`].
pub fn first_data(fd: BorrowedFd<'_>, range: Range<u64>) -> Result<Option<u64>, SysError> {
    if range.is_empty() {
        return Ok(None);
    }
    let start = seek(fd, range.start, libc::SEEK_DATA)?;
    Ok(start.filter(|start| *start < range.end))
}

/// Frees the memory behind `len` bytes of a file from `start`, for everybody who maps it; the bytes read as zeros
/// then. On hugetlbfs a part of a page is only zeroed: see [`backing_page_bytes`].
///
/// # Errors
/// If the file system cannot do that, if the file is sealed against writes, or if it is not open for writing.
pub fn punch_hole(fd: BorrowedFd<'_>, start: u64, len: u64) -> Result<(), SysError> {
    let offset = |n: u64| libc::off_t::try_from(n).unwrap_or(libc::off_t::MAX);
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: takes no pointers; the descriptor is borrowed, so it is open.
    let rc = unsafe { libc::fallocate(fd.as_raw_fd(), mode, offset(start), offset(len)) };
    if rc == 0 {
        return Ok(());
    }
    let what = format!("{len} bytes at {start:#x} of descriptor {}", fd.as_raw_fd());
    Err(SysError::last("fallocate(PUNCH_HOLE)", what))
}

/// A file of `len` bytes in memory that is not below any folder, empty of data.
///
/// # Errors
/// If the kernel refuses.
pub fn memory_file(name: &std::ffi::CStr, len: u64) -> Result<File, SysError> {
    memfd(name, len, 0)
}

fn memfd(name: &std::ffi::CStr, len: u64, flags: libc::c_uint) -> Result<File, SysError> {
    let flags = flags | libc::MFD_CLOEXEC;
    // SAFETY: `name` is a C string that lives during the call.
    let fd = unsafe { libc::memfd_create(name.as_ptr(), flags) };
    if fd < 0 {
        return Err(SysError::last("memfd_create", name.to_string_lossy()));
    }
    // SAFETY: the call above made this descriptor; nothing else owns it.
    let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    file.set_len(len).map_err(|source| SysError {
        call: "ftruncate",
        what: name.to_string_lossy().into_owned(),
        source,
    })?;
    Ok(file)
}

/// A file like that of [`memory_file`], of huge pages of 2 MiB; `len` is a multiple of their size. Success promises
/// no free huge pages: touching a page for which there is none raises SIGBUS.
///
/// # Errors
/// If the kernel has no such pages.
pub fn huge_memory_file(name: &std::ffi::CStr, len: u64) -> Result<File, SysError> {
    memfd(name, len, libc::MFD_HUGETLB | libc::MFD_HUGE_2MB)
}

/// Size of a file, bytes.
///
/// # Errors
/// If the descriptor has no size.
pub fn file_size(fd: BorrowedFd<'_>) -> Result<u64, SysError> {
    Ok(seek(fd, 0, libc::SEEK_END)?.unwrap_or(0))
}

/// Whether a file is on hugetlbfs.
///
/// # Errors
/// If the kernel does not say.
pub fn is_hugetlbfs(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    Ok(file_system(fd)?.f_type == libc::HUGETLBFS_MAGIC)
}

/// Whether a file is on tmpfs, as a memfd is.
///
/// # Errors
/// If the kernel does not say.
pub fn is_tmpfs(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    Ok(file_system(fd)?.f_type == libc::TMPFS_MAGIC)
}

/// The smallest part of a file that can be given back: the page size of hugetlbfs, 4 KiB elsewhere.
///
/// # Errors
/// If the kernel does not say.
pub fn backing_page_bytes(fd: BorrowedFd<'_>) -> Result<u64, SysError> {
    let info = file_system(fd)?;
    if info.f_type == libc::HUGETLBFS_MAGIC {
        Ok(u64::try_from(info.f_bsize).unwrap_or(u64::MAX))
    } else {
        Ok(4096)
    }
}

fn file_system(fd: BorrowedFd<'_>) -> Result<libc::statfs, SysError> {
    let mut info = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `info` has room for the answer; the descriptor is borrowed, so it is open.
    let rc = unsafe { libc::fstatfs(fd.as_raw_fd(), info.as_mut_ptr()) };
    if rc != 0 {
        let what = format!("descriptor {}", fd.as_raw_fd());
        return Err(SysError::last("fstatfs", what));
    }
    // SAFETY: the call succeeded, so it filled `info` in.
    Ok(unsafe { info.assume_init() })
}

/// Seeks in a file; `None` if there is no such place up to the end of the file.
fn seek(fd: BorrowedFd<'_>, at: u64, whence: libc::c_int) -> Result<Option<u64>, SysError> {
    let offset = libc::off_t::try_from(at).unwrap_or(libc::off_t::MAX);
    // SAFETY: takes no pointers; the descriptor is borrowed, so it is open.
    let found = unsafe { libc::lseek(fd.as_raw_fd(), offset, whence) };
    match u64::try_from(found) {
        Ok(found) => Ok(Some(found)),
        Err(_) => {
            let error = SysError::last("lseek", format!("descriptor {}", fd.as_raw_fd()));
            if error.errno() == libc::ENXIO {
                Ok(None)
            } else {
                Err(error)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn only_written_parts_are_data() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 << 20).unwrap();
        assert_eq!(data_extents(file.as_fd()).unwrap(), []);
        file.write_all_at(&[1; 4096], 8 << 20).unwrap();
        file.write_all_at(&[1; 4096], 32 << 20).unwrap();
        let extents = data_extents(file.as_fd()).unwrap();
        assert!(extents.iter().any(|e| e.start == 8 << 20));
        assert!(extents.iter().map(|e| e.len).sum::<u64>() < 32 << 20);
        assert_eq!(file_size(file.as_fd()).unwrap(), 64 << 20);
        assert!(!is_hugetlbfs(file.as_fd()).unwrap());
    }

    #[test]
    fn a_hole_frees_its_pages_and_no_others() {
        let file = memory_file(c"holes", 8 * 4096).unwrap();
        file.write_all_at(&[7; 8 * 4096], 0).unwrap();
        punch_hole(file.as_fd(), 2 * 4096, 3 * 4096).unwrap();
        let mut left = Vec::new();
        for_each_data_extent(file.as_fd(), 4096..7 * 4096, |e| {
            left.push((e.start, e.len));
        })
        .unwrap();
        assert_eq!(left, [(4096, 4096), (5 * 4096, 2 * 4096)]);
        assert_eq!(backing_page_bytes(file.as_fd()).unwrap(), 4096);
        assert!(is_tmpfs(file.as_fd()).unwrap());
        let mut page = [1; 4096];
        file.read_exact_at(&mut page, 2 * 4096).unwrap();
        assert_eq!(page, [0; 4096]);
        assert!(punch_hole(file.as_fd(), 0, 0).is_err());
    }

    #[test]
    fn a_pipe_has_no_extents() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let error = data_extents(reader.as_fd()).unwrap_err();
        assert_eq!(error.errno(), libc::ESPIPE);
    }
}
