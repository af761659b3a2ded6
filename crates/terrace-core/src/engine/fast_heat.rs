//! A VM's memory by heat, by its ranking and by how often it accesses memory.
//!
//! A ranking says which pages of one VM are hotter than others of the same VM. Between VMs it says little: a page that
//! is touched once in a window counts as one that is touched a million times. So the heat of a VM's pages is its
//! ranking's shares of the accesses that really reach memory, if they are counted.

use std::sync::Arc;

use terrace_proto::{MemoryTraffic, Tick};

use crate::estimate::{DEGREES, Histogram};
use crate::share::Heat;

/// How often a VM accesses memory.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Traffic {
    last: Option<(Tick, u64)>,
    per_s: Option<u64>,
}

impl Traffic {
    /// Takes in a count.
    pub fn seen(&mut self, now: Tick, seen: MemoryTraffic) {
        let before = self.last.replace((now, seen.accesses));
        let Some((at, count)) = before else {
            return;
        };
        let more = u128::from(seen.accesses.saturating_sub(count)) * 1_000_000_000;
        let rate = more.checked_div(u128::from(now.0.saturating_sub(at.0)));
        self.per_s = rate
            .and_then(|rate| u64::try_from(rate).ok())
            .or(self.per_s);
    }

    /// A VM's memory by heat, the hottest first. `unit`: bytes of one unit. Without counts a visit counts as one access
    /// a second.
    pub fn heat(&self, histogram: &Histogram, unit: u64) -> Arc<[Heat]> {
        let groups = (1..DEGREES).rev().filter_map(|degree| {
            let units = histogram.known_with(degree);
            (units > 0).then_some((units, u128::from(units) * degree as u128))
        });
        let groups: Vec<(u64, u128)> = groups.collect();
        let all: u128 = groups.iter().map(|(_, visits)| visits).sum();
        let accesses = |visits: u128| match self.per_s {
            Some(rate) => visits * u128::from(rate) / all.max(1),
            None => visits,
        };
        let heat = groups.into_iter().map(|(units, visits)| Heat {
            bytes: units * unit,
            accesses_per_s: u64::try_from(accesses(visits)).unwrap_or(u64::MAX),
        });
        heat.collect()
    }
}
