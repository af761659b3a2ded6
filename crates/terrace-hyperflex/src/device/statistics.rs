//! The guest's statistics of its tiers, and when new ones are wanted.

use super::GuestStatistics;
use crate::abi::Statistic;

/// The last statistics.
pub(super) struct Statistics {
    /// The statistics of each tier.
    said: Vec<GuestStatistics>,
    /// The time at which the next ones are wanted.
    pub due_ns: Option<u64>,
}

impl Statistics {
    /// No statistics yet, of so many tiers.
    pub fn new(tiers: usize) -> Self {
        Self {
            said: vec![GuestStatistics::default(); tiers],
            due_ns: None,
        }
    }

    /// The statistics of each tier.
    pub fn said(&self) -> &[GuestStatistics] {
        &self.said
    }

    /// Takes one in; none that is not plausible: better no value than an outdated one.
    pub fn take(&mut self, said: Statistic, is_plausible: bool) {
        let tier = self.said.get_mut(said.tier);
        if let Some(slot) = tier.and_then(|tier| tier.get_mut(said.tag)) {
            *slot = is_plausible.then_some(said.value);
        }
    }

    /// Drops them all: they were another guest's.
    pub fn forget(&mut self) {
        self.said.fill(GuestStatistics::default());
        self.due_ns = None;
    }
}
