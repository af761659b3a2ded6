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

/// The longest window that a stage may choose where passes cost little.
const LONGEST: Duration = Duration::from_millis(500);

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
        let rates = policy.estimate == Estimate::Rates;
        let period_ms = match unit {
            PageSize::Base => config.period_ms,
            PageSize::Huge => config.huge_period_ms,
        };
        Self {
            windows: config.windows,
            window: Duration::from_millis(config.window_ms),
            period: Duration::from_millis(period_ms),
            skips: if rates { 0 } else { config.quiet_counter_max },
            back_to_back: rates,
        }
    }
}

impl Vm {
    /// The VM's own.
    pub fn rhythm(&self, config: &EngineConfig) -> Rhythm {
        let named = Rhythm::new(self.policy, self.pages.ram().unit(), config);
        let chosen = self.place.window();
        let worth = self.rounds.worth;
        let windows = chosen.map_or(named.windows, |_| worth.windows(named.windows));
        Rhythm {
            windows,
            window: chosen.map_or(named.window, |window| {
                window.min(self.longest_window(config))
            }),
            ..named
        }
    }

    /// The longest window that a stage may choose: rounds of seconds, or as long as passes cost so much CPU time that rounds have to be rare anyway. Longer ones would find more of the
    /// pages that are seldom touched, and those that have become hot no longer stand out by one round.
    fn longest_window(&self, config: &EngineConfig) -> Duration {
        let scan = self.rounds.last.as_ref().map(|round| round.scan);
        let pass_ns = scan.map_or(0, |scan| scan.cpu_ns / scan.scans.max(1));
        let affordable_ns = self.rounds.scans.one_percent_ns(pass_ns, config);
        LONGEST.max(Duration::from_nanos(affordable_ns))
    }

    /// Whether what is stored of its pages outlives a round.
    pub fn remembers(&self) -> bool {
        self.has_lists() || self.has_rates()
    }

    /// Whether its pages have rates.
    pub fn has_rates(&self) -> bool {
        self.policy.estimate == Estimate::Rates
    }

    /// Whether its pages are on lists, which outlive a round.
    pub fn has_lists(&self) -> bool {
        self.policy.estimate == Estimate::HotLists
    }
}
