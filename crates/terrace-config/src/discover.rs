//! The section `[discover]`: where VMs are looked for.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Result, ensure};
use serde::Deserialize;

/// `[discover]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Discover {
    /// Folders whose sockets are tried as QMP monitors.
    pub qmp_folders: Vec<PathBuf>,
    /// Look for QEMU among the processes too.
    pub processes: bool,
    /// Time between two searches for VMs.
    #[serde(with = "humantime_serde")]
    pub every: Duration,
}

impl Default for Discover {
    fn default() -> Self {
        Self {
            qmp_folders: vec!["/run/terrace/qmp".into()],
            processes: true,
            every: Duration::from_secs(5),
        }
    }
}

impl Discover {
    pub(super) fn check(&self) -> Result<()> {
        ensure!(
            self.every >= Duration::from_millis(100),
            "discover.every is shorter than 100ms"
        );
        Ok(())
    }
}
