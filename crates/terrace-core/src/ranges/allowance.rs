//! Pages that may travel: the budget, saved up.

use std::time::Duration;

use terrace_proto::ranges::RangesBudget;
use terrace_proto::{PAGE_SIZE, Tick};

use super::Config;

/// Extents that may travel at once, however small the budget is: a huge page each way.
const MIN_BUDGET: u64 = 2;

/// Pages that may still travel.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Allowance {
    pub pages: u64,
    /// When pages were last named. They are named as often as somebody names some.
    named_at: Option<Tick>,
}

impl Allowance {
    /// Adds an epoch's budget to the rest of the last ones: at most one epoch's, or as much as a huge page takes.
    pub(super) fn save_up(&mut self, config: &Config, budget: RangesBudget) {
        self.save_for(epoch(config), config, budget);
    }

    /// The same when pages are named: the budget of the time since they were last, at most an epoch's.
    pub(super) fn save_for_named(&mut self, config: &Config, budget: RangesBudget, now: Tick) {
        let before = self.named_at.replace(now);
        let time = before.map_or(epoch(config), |before| now.since(before));
        self.save_for(time.min(epoch(config)), config, budget);
    }

    pub(super) fn spend(&mut self, pages: u64) {
        self.pages = self.pages.saturating_sub(pages);
    }

    fn save_for(&mut self, time: Duration, config: &Config, budget: RangesBudget) {
        let most = pages_of(epoch(config), budget);
        let least = MIN_BUDGET * u64::from(config.extent_pages);
        let saved = self.pages.saturating_add(pages_of(time, budget));
        self.pages = saved.min(most.max(least));
    }
}

fn epoch(config: &Config) -> Duration {
    Duration::from_millis(config.epoch_ms.into())
}

/// Pages that the budget of a time is for.
fn pages_of(time: Duration, budget: RangesBudget) -> u64 {
    let ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    budget.bytes_per_s.saturating_mul(ms) / 1000 / PAGE_SIZE
}
