//! Which parts of a sparse file hold data, and whether huge pages back it.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::SysError;

/// A run of bytes of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First byte.
    pub start: u64,
    /// Bytes.
    pub len: u64,
}

/// The extents of a file that hold data, ascending, found with `SEEK_DATA` and `SEEK_HOLE`.
///
/// The file may change meanwhile; the answer is what was met on the way. Moves the file offset.
///
/// # Errors
/// Where the file cannot be sought (a pipe, a file system without holes answers one extent).
pub fn data_extents(fd: BorrowedFd<'_>) -> Result<Vec<Extent>, SysError> {
    let mut extents = Vec::new();
    let mut at = 0;
    while let Some(start) = seek(fd, at, libc::SEEK_DATA)? {
        let end = seek(fd, start, libc::SEEK_HOLE)?.unwrap_or(start);
        if end <= start {
            break;
        }
        extents.push(Extent {
            start,
            len: end - start,
        });
        at = end;
    }
    Ok(extents)
}

/// Size of a file, bytes.
///
/// # Errors
/// Where the descriptor has no size.
pub fn file_size(fd: BorrowedFd<'_>) -> Result<u64, SysError> {
    Ok(seek(fd, 0, libc::SEEK_END)?.unwrap_or(0))
}

/// Whether a file is on hugetlbfs.
///
/// # Errors
/// Where the kernel does not say.
pub fn is_hugetlbfs(fd: BorrowedFd<'_>) -> Result<bool, SysError> {
    let mut info = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: `info` has room for the answer; the descriptor is borrowed, so it is open.
    let rc = unsafe { libc::fstatfs(fd.as_raw_fd(), info.as_mut_ptr()) };
    if rc != 0 {
        let what = format!("descriptor {}", fd.as_raw_fd());
        return Err(SysError::last("fstatfs", what));
    }
    // SAFETY: the call succeeded, so it filled `info` in.
    let kind = unsafe { info.assume_init() }.f_type;
    Ok(kind == libc::HUGETLBFS_MAGIC)
}

/// `None`: there is no such place up to the end of the file.
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
    fn a_pipe_has_no_extents() {
        let (reader, _writer) = std::io::pipe().unwrap();
        let error = data_extents(reader.as_fd()).unwrap_err();
        assert_eq!(error.errno(), libc::ESPIPE);
    }
}
