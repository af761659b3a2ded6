//! A guest with a description in this build's own types, for the inline tests; others have that of `terrace-testkit`.

use std::fs::File;
use std::ops::Deref;

use terrace_testkit::mock::Guest;
pub use terrace_testkit::mock::{Buffer, MIB, MockRing, NEXT, RING_SIZE, WRITE};

use crate::abi::queues;
use crate::config::{Config, GpaRange, Limits, TierConfig};
use crate::error::FlexError;
use crate::ring::Ring;

pub struct MockVm {
    config: Config,
    guest: Guest,
}

impl Deref for MockVm {
    type Target = Guest;

    fn deref(&self) -> &Guest {
        &self.guest
    }
}

impl MockVm {
    pub fn new(sizes: &[u64], orders: u32, limits: Limits) -> Result<Self, FlexError> {
        Self::of(Guest::new(sizes)?, orders, limits)
    }

    pub fn over(files: Vec<File>, orders: u32, limits: Limits) -> Result<Self, FlexError> {
        Self::of(Guest::over(files)?, orders, limits)
    }

    fn of(guest: Guest, orders: u32, limits: Limits) -> Result<Self, FlexError> {
        let tier = |(node, range): (u32, &terrace_testkit::mock::TierRange)| TierConfig {
            node,
            host_node: None,
            ranges: vec![GpaRange {
                start: range.start,
                len: range.len,
            }],
        };
        let tiers = (0..).zip(guest.tiers()).map(tier).collect();
        let config = Config::new(tiers, orders, limits)?;
        Ok(Self { config, guest })
    }

    /// Two tiers of 8 MiB, both page sizes, statistics every second, no limit.
    pub fn two_tiers() -> Self {
        let limits = Limits {
            total_pages: None,
            entries_per_s: None,
            statistics_s: 1,
        };
        Self::new(&[8 * MIB, 8 * MIB], 0x201, limits).unwrap()
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    pub fn rings(&self, event_idx: bool) -> (Vec<Ring>, Vec<MockRing>) {
        self.queues(queues(self.tiers().len()), event_idx)
    }
}
