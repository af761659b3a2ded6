//! Configuration of the daemon's confinement.

use serde::Deserialize;

/// `[security]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Security {
    /// Whether each thread's system calls are filtered.
    pub seccomp: bool,
}

impl Default for Security {
    fn default() -> Self {
        Self { seccomp: true }
    }
}
