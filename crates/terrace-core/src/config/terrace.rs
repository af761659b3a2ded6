//! Parameters of the policy `terrace`.

use serde::{Deserialize, Serialize};

use super::{MAX_MS, within};
use crate::error::ConfigError;

/// Parameters of the policy `terrace`. Each of its parts can be switched off; what is left works without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TerraceConfig {
    /// Windows become as long as they tell most of the pages at the fast tier's border: yes. Otherwise they are `window_ms` long.
    pub fit_windows: bool,
    /// The time that moves are expected to save decides how soon the next round comes, how many windows it has, and how many samples are
    /// taken: yes. Otherwise rounds come a second apart, or as far apart as the CPU budget wants.
    pub pace: bool,
    /// Chance is taken out of rates before moves are decided: yes.
    pub likely: bool,
    /// The long average of a page whose load has changed begins anew: yes.
    pub begin_anew: bool,
    /// Samples are believed as far as they agree: yes.
    pub samples: bool,
    /// Time back to which a page's recent average goes, ms: 4 s (our choice). 100 to 60,000.
    pub recent_ms: u64,
    /// The same of the long one, ms: 10 min (our choice). From `recent_ms` to a day.
    pub long_ms: u64,
    /// Misses that a touch stands for while no source of misses has told: 16 (our estimate). 1 to 10,000.
    pub misses_per_touch: u32,
    /// Time that a miss in a slower tier takes longer, ns: 200 (our estimate). 1 to 1,000,000.
    pub miss_extra_ns: u32,
    /// Time for which a page's rate is expected to stay as it is, ms: 60 s (our estimate).
    pub stay_ms: u64,
    /// Time that a page's move takes, ns: 10 µs (our estimate). 1 to 1,000,000,000.
    pub move_ns: u32,
}

impl Default for TerraceConfig {
    fn default() -> Self {
        Self {
            fit_windows: true,
            pace: true,
            likely: true,
            begin_anew: true,
            samples: true,
            recent_ms: 4_000,
            long_ms: 600_000,
            misses_per_touch: 16,
            miss_extra_ns: 200,
            stay_ms: 60_000,
            move_ns: 10_000,
        }
    }
}

impl TerraceConfig {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        within("terrace.recent_ms", self.recent_ms, 100..=60_000)?;
        let least = self.recent_ms;
        within("terrace.long_ms", self.long_ms, least..=86_400_000)?;
        let misses = self.misses_per_touch;
        within("terrace.misses_per_touch", misses, 1..=10_000)?;
        within("terrace.miss_extra_ns", self.miss_extra_ns, 1..=1_000_000)?;
        within("terrace.stay_ms", self.stay_ms, 1..=MAX_MS)?;
        within("terrace.move_ns", self.move_ns, 1..=1_000_000_000)
    }
}
