//! Errors outside of the guest. A fault of the guest is a counter, never an error.

use std::io;
use std::path::{Path, PathBuf};

use terrace_sys::{ListenError, SysError};

/// The device cannot be set up, or its state cannot be taken.
#[derive(Debug, thiserror::Error)]
pub enum FlexError {
    /// The description of the device makes no sense.
    #[error("{0}")]
    Config(String),
    /// A file or socket of the device.
    #[error("{}: {source}", path.display())]
    File {
        /// The file's path.
        path: PathBuf,
        /// The error of the system call.
        #[source]
        source: io::Error,
    },
    /// Memory for the state.
    #[error("the state of {pages} pages cannot be mapped: {why}")]
    Map {
        /// Pages of the VM.
        pages: u64,
        /// The reason.
        why: String,
    },
    /// A state that is of another VM, another version, or damaged.
    #[error(
        "{what}: {why}; if the VM that it belongs to is gone, remove it, otherwise start the device with the tiers \
         that it was started with before"
    )]
    State {
        /// File or blob.
        what: String,
        /// The contradiction, in words.
        why: String,
    },
    /// A request on the control socket that is refused.
    #[error("{0}")]
    Refused(String),
    /// The process could not be locked in.
    #[error("the sandbox could not be set up ({0}), and the device serves no guest without it")]
    Sandbox(String),
    /// A socket whose path is taken by another kind of file, or whose folder others may write.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A system call.
    #[error(transparent)]
    System(#[from] SysError),
    /// The vhost-user library.
    #[error("vhost-user: {0}")]
    VhostUser(String),
}

impl FlexError {
    /// An error of the file at `path`.
    pub(crate) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::File {
            path: path.to_owned(),
            source,
        }
    }
}
