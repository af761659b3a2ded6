//! A monitor's socket and every folder above it, by the file system's account.

use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use terrace_sys::opener;

/// A folder above a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// The path.
    pub path: PathBuf,
    /// The owner's user id.
    pub owner: u32,
    /// The permission bits.
    pub mode: u32,
}

/// The facts that decide whether a socket may be a monitor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SocketFacts {
    /// The real path: no link is left in it.
    pub path: PathBuf,
    /// Whether it is a socket.
    pub is_socket: bool,
    /// The owner's user id.
    pub owner: u32,
    /// The folders above it, from the nearest up to `/`.
    pub folders: Vec<Component>,
}

impl SocketFacts {
    /// Follows all links, and inspects the file at the end and every folder above.
    ///
    /// # Errors
    /// If something on the way is not there or cannot be inspected.
    pub fn read(path: &Path) -> io::Result<Self> {
        let path = opener::real_path(path)?;
        let folders = match path.parent() {
            Some(folder) => folders(folder)?,
            None => Vec::new(),
        };
        Self::below(path, folders)
    }

    /// Inspects a socket directly in folders that were inspected; the path has no link above its last part.
    ///
    /// # Errors
    /// If it is not there.
    pub(in crate::qemu) fn below(path: PathBuf, folders: Vec<Component>) -> io::Result<Self> {
        let meta = opener::link_metadata(&path)?;
        Ok(Self {
            is_socket: meta.file_type().is_socket(),
            owner: meta.uid(),
            path,
            folders,
        })
    }
}

/// A folder without links in its path, and all above it.
pub(in crate::qemu) fn folders(folder: &Path) -> io::Result<Vec<Component>> {
    let component = |folder: &Path| {
        let meta = opener::link_metadata(folder)?;
        // A link by now: a process that may write there changes it under our hands.
        if !meta.is_dir() {
            return Err(io::ErrorKind::NotADirectory.into());
        }
        Ok(Component {
            path: folder.to_owned(),
            owner: meta.uid(),
            mode: meta.mode(),
        })
    };
    folder.ancestors().map(component).collect()
}
