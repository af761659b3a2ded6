//! The folder under which `/proc` and `/sys` are found.

use std::io;
use std::path::{Path, PathBuf};

use crate::opener;

/// A file of the host that could not be read or understood.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Not readable.
    #[error("{}: {source}", path.display())]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Not in the kernel's format.
    #[error("{}: {what}", path.display())]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
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

/// Where `/proc` and `/sys` are: `/`, or a tree that a test made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRoot(PathBuf);

impl Default for HostRoot {
    fn default() -> Self {
        Self::new("/")
    }
}

impl HostRoot {
    /// A tree.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// A path in it; `relative` has no leading slash.
    #[must_use]
    pub fn join(&self, relative: impl AsRef<Path>) -> PathBuf {
        self.0.join(relative)
    }

    /// Where procfs is.
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
    /// Where it cannot be read.
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
