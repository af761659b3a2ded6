//! The folder under which `/proc` and `/sys` are found.

use std::io;
use std::path::{Path, PathBuf};

use crate::opener;

/// A file of the host that could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// The file is not in the kernel's format.
    #[error("{}: {what}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The fault in it, in words.
        what: String,
    },
}

impl ReadError {
    /// Whether the file is simply not there.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// The folder that has `/proc` and `/sys`: `/`, or a tree that a test made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl Default for HostRoot {
    fn default() -> Self {
        Self::new("/")
    }
}

impl HostRoot {
    /// The root at a path.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A path below the root; `relative` has no leading slash.
    #[must_use]
    pub fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.0.join(relative)
    }

    /// The folder of procfs.
    #[must_use]
    pub fn proc(&self) -> PathBuf {
        self.join("proc")
    }

    /// A file of procfs about one process.
    #[must_use]
    pub fn process(&self, pid: u32, name: &str) -> PathBuf {
        self.join(format!("proc/{pid}/{name}"))
    }

    /// A file's text; bytes that are no UTF-8 are replaced.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn read(&self, relative: impl AsRef<Path>) -> Result<String, ReadError> {
        read(&self.join(relative))
    }
}

/// A file's text; bytes that are no UTF-8 are replaced.
pub(crate) fn read(path: &Path) -> Result<String, ReadError> {
    match opener::read(path) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(source) => Err(ReadError::Io {
            path: path.into(),
            source,
        }),
    }
}

/// Error for a file whose content makes no sense.
pub(crate) fn malformed(path: PathBuf, what: impl Into<String>) -> ReadError {
    ReadError::Format {
        path,
        what: what.into(),
    }
}
