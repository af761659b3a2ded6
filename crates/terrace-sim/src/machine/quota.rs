//! The host memory that a VM may have.

use super::TIERS;

/// The limits of a VM in each tier, in units of its second stage.
#[derive(Clone, Copy, Debug)]
pub struct Quota {
    /// Units that the host can still back in this quantum.
    grant: [u64; TIERS],
    /// Most units that the VM may have: the sizes of its nodes, if its own kernel places pages.
    limit: [u64; TIERS],
    /// Units held beside the VM's pages: shadow copies.
    shadows: [u64; TIERS],
    /// Units that the guest's kernel has free, with host memory behind them; they count as held.
    idle: [u64; TIERS],
}

impl Default for Quota {
    fn default() -> Self {
        Self {
            grant: [0; TIERS],
            limit: [u64::MAX; TIERS],
            shadows: [0; TIERS],
            idle: [0; TIERS],
        }
    }
}

impl Quota {
    /// Units that the host can still back in this quantum.
    #[must_use]
    pub fn granted(&self) -> &[u64; TIERS] {
        &self.grant
    }

    /// Sets how many units the host can back in this quantum.
    pub fn grant(&mut self, units: [u64; TIERS]) {
        self.grant = units;
    }

    /// Limits the VM to so many units of each tier; tiers behind the last one given keep their limits.
    pub fn limit_to(&mut self, units: &[u64]) {
        self.limit[..units.len()].copy_from_slice(units);
    }

    /// Units that the guest's kernel has free, with host memory behind them.
    #[must_use]
    pub fn idle(&self) -> &[u64; TIERS] {
        &self.idle
    }

    /// Counts so many more units that the guest's kernel has free, with host memory behind them; negative: fewer.
    pub fn idles(&mut self, tier: usize, units: i64) {
        self.idle[tier] = self.idle[tier].saturating_add_signed(units);
    }

    /// Takes so many units of a tier from the grant, if the host has as many; returns whether it has.
    pub fn take_of(&mut self, tier: usize, units: u64) -> bool {
        let left = self.grant[tier].checked_sub(units);
        self.grant[tier] = left.unwrap_or(self.grant[tier]);
        left.is_some()
    }

    /// Units held beside the VM's pages: shadow copies.
    #[must_use]
    pub fn shadows(&self) -> &[u64; TIERS] {
        &self.shadows
    }

    /// Keeps so many more units of a tier beside the VM's pages; negative: frees so many again.
    pub fn keep(&mut self, tier: usize, units: i64) {
        self.shadows[tier] = self.shadows[tier].saturating_add_signed(units);
        self.grant[tier] = self.grant[tier].saturating_add_signed(units.saturating_neg());
    }

    /// Units that still fit below the limit of a tier in which the VM's pages hold `held`.
    #[must_use]
    pub fn room(&self, tier: usize, held: u64) -> u64 {
        self.limit[tier].saturating_sub(held + self.shadows[tier])
    }

    /// Whether `held` units of the VM's pages are more than the limit of a tier.
    #[must_use]
    pub fn is_over(&self, tier: usize, held: u64) -> bool {
        held + self.shadows[tier] > self.limit[tier]
    }

    /// Adjusts the grants after units changed tier: the old tier gains them, the new one loses them.
    pub fn shift(&mut self, units: u64, from: u8, to: u8) {
        let to = &mut self.grant[usize::from(to)];
        *to = to.saturating_sub(units);
        self.grant[usize::from(from)] += units;
    }

    /// Takes a unit of the first tier that has one; returns that tier. If the host has no free page, the last tier is
    /// taken: the host's own reclaim is not modelled.
    pub fn take(&mut self, last_tier: u8) -> u8 {
        let mut tiers = (0_u8..).zip(&self.grant);
        let tier = tiers.find(|(_, units)| **units > 0);
        let tier = tier.map_or(last_tier, |(tier, _)| tier);
        let grant = &mut self.grant[usize::from(tier)];
        *grant = grant.saturating_sub(1);
        tier
    }
}
