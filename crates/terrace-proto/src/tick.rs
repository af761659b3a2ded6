//! Time as the engine sees it: a number that its caller hands in.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Nanoseconds since an origin that the caller chose (live: the daemon's start on `CLOCK_MONOTONIC`;
/// in the simulator: the start of the run).
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Tick(pub u64);

impl Tick {
    /// This tick plus a duration; saturates at the end of time (584 years).
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// Time from `earlier` to this tick, zero if `earlier` is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}
