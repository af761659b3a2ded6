//! The parameters of tracking a VM's demand.

use serde::{Deserialize, Serialize};

use super::{DEFAULT_TRACKING_PERCENT, PAPER_HOT_SET, PhaseConfig};

/// When a VM's accesses are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Track {
    /// From a change of phase that finds a VM short of memory, until all VMs are in a stable phase (HPMBS §4.1).
    #[default]
    Auto,
    /// All the time: to measure.
    Always,
}

/// The parameters of tracking by protection faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DemandConfig {
    /// When a VM's accesses are tracked.
    pub track: Track,
    /// Pages of 2 MiB in the first hot set: 250 (HPMBS §2.4). 1 to 2^24.
    pub hot_set_pages: u32,
    /// Whether the hot set follows the number of accesses between two faults (HPMBS §2.4); otherwise it keeps its first
    /// size. On.
    pub resize_hot_set: bool,
    /// Share of a VM's time that tracking may take where the hot set cannot grow, percent; above it tracking rests in
    /// between: 5 (our estimate). 1 to 100; at 100 it never rests.
    pub max_tracking_percent: u32,
    /// Page walks in 0.1 s below which a VM shows no phase: 5000 (HPMBS §4.1).
    pub least_walks: u64,
}

impl Default for DemandConfig {
    fn default() -> Self {
        Self {
            track: Track::default(),
            hot_set_pages: PAPER_HOT_SET,
            resize_hot_set: true,
            max_tracking_percent: DEFAULT_TRACKING_PERCENT,
            least_walks: PhaseConfig::default().least_walks,
        }
    }
}

impl DemandConfig {
    /// The parameters on a machine whose sizes and counts by the clock are divided by `scale`. The accesses between two
    /// faults stay: a hot set that is that much smaller in a memory that is that much smaller lets as many accesses
    /// fault, of as many.
    #[must_use]
    pub fn scaled(self, scale: u64) -> Self {
        let pages = u64::from(self.hot_set_pages) / scale.max(1);
        Self {
            hot_set_pages: u32::try_from(pages).unwrap_or(u32::MAX).max(1),
            least_walks: self.least_walks / scale.max(1),
            ..self
        }
    }
}
