//! A VM's rhythm: how its policy divides time into windows and rounds.
//!
//! Responsible for: windows, their length, and when rounds come. It leaves to others: what a round does
//! ([`super::round`]).
//!
//! Under hot lists a window is a sub-epoch and a round an epoch: the next one begins when the last one ended.

use std::time::Duration;

use terrace_proto::PageSize;

use super::vm::Vm;
use crate::config::EngineConfig;
use crate::policy::{Estimate, Policy};

/// The division of a VM's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rhythm {
    /// Windows in a round.
    pub windows: u8,
    /// Usual length of a window.
    pub window: Duration,
    /// From one period tick to the next.
    pub period: Duration,
    /// Most periods that are skipped in a row.
    pub skips: u8,
    /// A round begins when the last one ended.
    pub back_to_back: bool,
}

impl Rhythm {
    /// The rhythm of a policy, for RAM in units of this size.
    pub fn new(policy: Policy, unit: PageSize, config: &EngineConfig) -> Self {
        if policy.estimate == Estimate::HotLists {
            return Self {
                windows: policy.lists.sub_epochs,
                window: Duration::from_millis(policy.lists.sub_epoch_ms),
                period: Duration::from_millis(policy.lists.epoch_ms()),
                skips: 0,
                back_to_back: true,
            };
        }
        let period_ms = match unit {
            PageSize::Base => config.period_ms,
            PageSize::Huge => config.huge_period_ms,
        };
        Self {
            windows: config.windows,
            window: Duration::from_millis(config.window_ms),
            period: Duration::from_millis(period_ms),
            skips: config.quiet_counter_max,
            back_to_back: false,
        }
    }
}

impl Vm {
    /// The VM's own.
    pub fn rhythm(&self, config: &EngineConfig) -> Rhythm {
        Rhythm::new(self.policy, self.pages.ram().unit(), config)
    }

    /// Whether its pages are on lists, which outlive a round.
    pub fn has_lists(&self) -> bool {
        self.policy.estimate == Estimate::HotLists
    }
}
