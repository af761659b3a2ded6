//! Parameters of resizing: how often providers are queried, and how long they may take.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Parameters of resizing VMs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProvisionConfig {
    /// Time between two queries while targets are not met, ms.
    pub under_way_ms: u64,
    /// Time between two queries otherwise, ms.
    pub idle_ms: u64,
    /// The same of a VM whose memory is balanced, ms.
    pub balanced_ms: u64,
    /// Greatest age of the host's verdict on a tier's memory, ms.
    pub verify_ms: u64,
    /// Time that a query or an order may take before that is reported, ms.
    pub patience_ms: u64,
    /// Time that a driver may take to learn its targets, ms.
    pub driver_ms: u64,
    /// The least size that a HyperFlex guest's first tier may be ordered to have, bytes: below 64 MiB no Linux lives,
    /// and a number so small is more likely a wrong unit.
    pub least_first_tier_bytes: u64,
    /// Memory that huge pages are made of in a second for one VM whose balloon gave some back, bytes; 0: none. None, as in
    /// logs from before there was any.
    pub collapse_bytes_per_s: u64,
}

impl Default for ProvisionConfig {
    fn default() -> Self {
        Self {
            under_way_ms: 1_000,
            idle_ms: 5_000,
            balanced_ms: 2_000,
            verify_ms: 10_000,
            patience_ms: 3_000,
            driver_ms: 30_000,
            least_first_tier_bytes: 64 << 20,
            collapse_bytes_per_s: 0,
        }
    }
}

impl ProvisionConfig {
    /// Time between two queries while targets are not met.
    #[must_use]
    pub fn under_way(&self) -> Duration {
        Duration::from_millis(self.under_way_ms)
    }

    /// Time between two queries otherwise.
    #[must_use]
    pub fn idle(&self) -> Duration {
        Duration::from_millis(self.idle_ms)
    }

    /// Time between two queries of a VM whose memory is balanced.
    #[must_use]
    pub fn balanced(&self) -> Duration {
        Duration::from_millis(self.balanced_ms)
    }

    /// Greatest age of the host's verdict on a tier's memory.
    #[must_use]
    pub fn verify(&self) -> Duration {
        Duration::from_millis(self.verify_ms)
    }

    /// Time that a query or an order may take.
    #[must_use]
    pub fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }

    /// Time that a driver may take to learn its targets.
    #[must_use]
    pub fn driver(&self) -> Duration {
        Duration::from_millis(self.driver_ms)
    }
}
