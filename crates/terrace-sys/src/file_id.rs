//! The identity of the file that a path leads to, by device and inode.

use std::ffi::CString;
use std::io;
use std::mem::zeroed;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// The identity of a file while it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId {
    /// The file's device, as the kernel shows it (`st_dev`).
    pub dev: u64,
    /// The file's number on the device.
    pub inode: u64,
}

impl FileId {
    /// The identity by the numbers of a line of `/proc/PID/maps`.
    #[must_use]
    pub fn new(major: u32, minor: u32, inode: u64) -> Self {
        let dev = libc::makedev(major, minor);
        Self { dev, inode }
    }

    /// The identity of an open file.
    #[must_use]
    pub fn of(meta: &std::fs::Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self {
            dev: meta.dev(),
            inode: meta.ino(),
        }
    }

    /// The identity of the file behind a path, links followed. No server of a network file system is asked: one that
    /// hangs delays no thread.
    ///
    /// # Errors
    /// If the file does not exist or may not be inspected.
    pub fn behind(path: &Path) -> io::Result<Self> {
        let path = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: `statx` is plain old data; all zero is its empty value.
        let mut found: libc::statx = unsafe { zeroed() };
        // SAFETY: a C string that lives during the call, and a struct that is writable.
        let rc = unsafe {
            libc::statx(
                libc::AT_FDCWD,
                path.as_ptr(),
                libc::AT_STATX_DONT_SYNC,
                libc::STATX_INO,
                &raw mut found,
            )
        };
        if rc != 0 {
            return Err(io::Error::last_os_error());
        }
        let (major, minor) = (found.stx_dev_major, found.stx_dev_minor);
        Ok(Self::new(major, minor, found.stx_ino))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_an_open_file_are_one_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let id = FileId::of(&file.as_file().metadata().unwrap());
        assert_eq!(FileId::behind(file.path()).unwrap(), id);
        let gone = FileId::behind(Path::new("/proc/none")).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }
}
