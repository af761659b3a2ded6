//! Why named frames stay.

use serde::{Deserialize, Serialize};

/// Frames that were not moved, by the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct NotMoved {
    /// No managed process has them: page cache, the kernel's, others', free.
    pub unknown: u64,
    /// The process has another page there by now, or none.
    pub stale: u64,
    /// The kernel left them where they were, or there was no room.
    pub left: u64,
}

impl NotMoved {
    /// All of them.
    #[must_use]
    pub fn all(self) -> u64 {
        self.unknown + self.stale + self.left
    }

    /// Adds others.
    pub fn add(&mut self, more: Self) {
        self.unknown += more.unknown;
        self.stale += more.stale;
        self.left += more.left;
    }
}
