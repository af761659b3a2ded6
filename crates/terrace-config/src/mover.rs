//! The section `[move]`: how pages are moved.

use anyhow::{Result, ensure};
use serde::Deserialize;

/// `[move]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mover {
    /// Threads that move pages of one VM.
    pub workers: usize,
    /// Number of tries of a busy page.
    pub attempts: u32,
}

impl Default for Mover {
    fn default() -> Self {
        Self {
            workers: 4,
            attempts: 3,
        }
    }
}

impl Mover {
    pub(super) fn check(self) -> Result<()> {
        ensure!(
            (1..=64).contains(&self.workers),
            "move.workers = {} is out of range: allowed is 1 to 64",
            self.workers
        );
        Ok(())
    }
}
