//! The parameters of tracking a VM's demand.

use serde::{Deserialize, Serialize};

use super::{DEFAULT_HOT_SET_PERCENT, DEFAULT_TRACKING_PERCENT, PAPER_HOT_SET, PhaseConfig};
use crate::error::ConfigError;

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
    /// Largest hot set of one that resizes itself, as a share of the memory in use, percent: 50 (our estimate). 1 to 100;
    /// above 50 all of the curve may be a guess, as it is below twice the hot set.
    pub max_hot_set_percent: u32,
    /// Whether the hot set follows the number of accesses between two faults (HPMBS §2.4); otherwise it keeps its first
    /// size. On.
    pub resize_hot_set: bool,
    /// Share of a VM's time that tracking may take where the hot set cannot grow, percent; above it tracking rests in
    /// between: 5 (our estimate). 1 to 100; at 100 it never rests.
    pub max_tracking_percent: u32,
    /// Page walks in 0.1 s below which a VM shows no phase: 5000 (HPMBS §4.1).
    pub least_walks: u64,
    /// Windows of 0.1 s of a mean of walks, and means that it is compared with: 20 (our estimate). 1 to [`super::MAX_WINDOWS`].
    pub phase_windows: u64,
    /// Thousandths of the means before, below which a mean begins a phase: 800 (our estimate). 0 to 999.
    pub phase_lower_milli: u64,
    /// Thousandths of the means before, above which a mean begins a phase: 1250 (our estimate). 1001 to 1,000,000.
    pub phase_upper_milli: u64,
}

impl Default for DemandConfig {
    fn default() -> Self {
        let phases = PhaseConfig::default();
        Self {
            track: Track::default(),
            hot_set_pages: PAPER_HOT_SET,
            max_hot_set_percent: DEFAULT_HOT_SET_PERCENT,
            resize_hot_set: true,
            max_tracking_percent: DEFAULT_TRACKING_PERCENT,
            least_walks: phases.least_walks,
            phase_windows: phases.windows,
            phase_lower_milli: phases.lower,
            phase_upper_milli: phases.upper,
        }
    }
}

impl DemandConfig {
    /// What makes a phase.
    ///
    /// # Errors
    /// As [`PhaseConfig::checked`].
    pub fn phases(&self) -> Result<PhaseConfig, ConfigError> {
        let phases = PhaseConfig {
            windows: self.phase_windows,
            least_walks: self.least_walks,
            lower: self.phase_lower_milli,
            upper: self.phase_upper_milli,
        };
        phases.checked()
    }

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
