//! The account of a VM's placement since the start of the run.

use terrace_proto::TierId;

use crate::base::number::float;
use crate::machine::TIERS;

/// CPU time that management spent for a VM, ps as simulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spent {
    /// Time of finding out which pages were touched, and where pages are.
    pub track: u64,
    /// Time of ranking pages.
    pub classify: u64,
    /// Time of moving pages.
    pub migrate: u64,
}

/// The cost of placing a VM's pages, and the memory that it held.
#[derive(Clone, Debug, Default)]
pub struct Account {
    /// Time that management spent.
    pub spent: Spent,
    /// 4 KiB pages moved to a faster tier, as simulated.
    promoted: u64,
    /// 4 KiB pages moved to a slower tier, as simulated.
    demoted: u64,
    /// Sum over quanta of units held per tier.
    held_sum: [u128; TIERS],
    /// Number of quanta in the sum.
    quanta: u64,
}

impl Account {
    /// 4 KiB pages moved to a faster tier, as simulated.
    #[must_use]
    pub fn promoted(&self) -> u64 {
        self.promoted
    }

    /// 4 KiB pages moved to a slower tier, as simulated.
    #[must_use]
    pub fn demoted(&self) -> u64 {
        self.demoted
    }

    /// Counts so many pages that were moved from a tier to another.
    pub fn move_pages(&mut self, pages: u64, from: usize, to: TierId) {
        if to.index() < from {
            self.promoted += pages;
        } else {
            self.demoted += pages;
        }
    }

    /// Adds the time that a mechanism spent, and the pages that it moved.
    pub fn add(&mut self, spent: Spent, promoted: u64, demoted: u64) {
        self.spent.track += spent.track;
        self.spent.classify += spent.classify;
        self.spent.migrate += spent.migrate;
        self.promoted += promoted;
        self.demoted += demoted;
    }

    /// Counts the units that were held in a quantum.
    pub fn hold(&mut self, units: [u64; TIERS]) {
        for (sum, units) in self.held_sum.iter_mut().zip(units) {
            *sum += u128::from(units);
        }
        self.quanta += 1;
    }

    /// Bytes held of a tier, mean over quanta; a unit has `unit_bytes`.
    #[must_use]
    pub fn mean_bytes(&self, tier: usize, unit_bytes: u64) -> f64 {
        let high = u64::try_from(self.held_sum[tier] >> 32).unwrap_or(u64::MAX);
        let low = u64::try_from(self.held_sum[tier] & 0xffff_ffff).unwrap_or(0);
        let sum = float(high) * 4_294_967_296.0 + float(low);
        sum * float(unit_bytes) / float(self.quanta.max(1))
    }
}
