//! The error of a system call.

use std::io;

/// A system call that failed.
#[derive(Debug, thiserror::Error)]
#[error("{call} on {what}: {source}")]
pub struct SysError {
    /// Name of the call.
    pub call: &'static str,
    /// The object of the call, such as a path.
    pub what: String,
    /// The kernel's answer.
    #[source]
    pub source: io::Error,
}

impl SysError {
    /// The error that the calling thread's last system call left.
    pub(crate) fn last(call: &'static str, what: impl Into<String>) -> Self {
        Self {
            call,
            what: what.into(),
            source: io::Error::last_os_error(),
        }
    }

    /// The kernel's error number; 0 if there is none.
    #[must_use]
    pub fn errno(&self) -> i32 {
        self.source.raw_os_error().unwrap_or(0)
    }
}
