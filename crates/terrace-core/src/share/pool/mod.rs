//! Dividing the pool (vTMM §3.5): a size of fast memory for each VM that shares it.
//!
//! Responsible for: one answer to "who gets how much", from what each VM holds, could use and may
//! have. It leaves to others: moving anything.
//!
//! The sizes are filled up step by step, each step for all VMs before the next one, and within a step
//! by weight: no VM gets more than the step asks for it, what it leaves goes to the others, and one that is
//! not satisfied has got in proportion to its weight.
//! 1. Nothing is taken from what a VM holds under its lower limit, nor of pages that cannot be moved.
//! 2. Each gets what it can use up to its lower limit, then
//! 3. up to its nominal size, then
//! 4. up to its upper limit.
//! 5. No other VM can use the rest. If memory is released on demand, the VM that holds it keeps it (up to its
//!    upper limit), and may have its nominal size. If it is released always, it stays in the pool.
//!
//! The paper has no step 3: there a VM that grew keeps what it uses, so one that slept while others
//! grew would not get its memory back. The paper has nothing about weights either.

mod gain;

use crate::config::PoolRelease;

pub use gain::divide_by_gain;

/// One VM at the pool. All sizes are in bytes of the first tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Claim {
    /// Bytes held.
    pub held: u64,
    /// Bytes that the VM could use: its hot set, and the bytes of unknown heat that it holds.
    pub demand: u64,
    /// Bytes held of unknown heat, which are not moved. Part of `demand`.
    pub unseen: u64,
    /// The lower limit, bytes.
    pub lower: u64,
    /// The nominal size, between the limits, bytes.
    pub nominal: u64,
    /// The upper limit, bytes.
    pub upper: u64,
    /// The weight, at least 1.
    pub weight: u32,
}

impl Claim {
    /// Bytes that are not taken from the VM.
    fn protected(&self) -> u64 {
        self.held.min(self.lower.max(self.unseen))
    }

    /// Bytes that the VM should have: what it could use within its limits. It does not shrink under its lower limit,
    /// but does not grow up to it without use.
    #[must_use]
    pub fn want(&self) -> u64 {
        self.demand.min(self.upper).max(self.protected())
    }
}

/// Divides `bytes` (what the claimants hold and what is free) between them; one size for each.
#[must_use]
pub fn divide(bytes: u64, claims: &[Claim], release: PoolRelease) -> Vec<u64> {
    let caps = |cap: fn(&Claim) -> u64| claims.iter().map(cap).collect::<Vec<u64>>();
    let mut steps = vec![
        caps(Claim::protected),
        caps(|c| c.want().min(c.lower)),
        caps(|c| c.want().min(c.nominal)),
        caps(Claim::want),
    ];
    if release == PoolRelease::OnDemand {
        steps.push(caps(|c| c.held.min(c.upper)));
        steps.push(caps(|c| c.nominal));
    }
    let weights: Vec<u32> = claims.iter().map(|c| c.weight).collect();
    let mut sizes = vec![0; claims.len()];
    let mut left = bytes;
    for cap in steps {
        left = fill(&mut sizes, &cap, &weights, left);
    }
    sizes
}

/// Fills sizes up towards their caps, by weight; gives what is left.
pub(super) fn fill<W>(sizes: &mut [u64], caps: &[u64], weights: &[W], mut left: u64) -> u64
where
    W: Copy + Into<u64>,
{
    let weight = |i: usize| u128::from(weights[i].into().max(1));
    let need = |i: usize, sizes: &[u64]| caps[i].saturating_sub(sizes[i]);
    let mut open: Vec<usize> = (0..sizes.len()).filter(|i| need(*i, sizes) > 0).collect();
    // Who needs least for its weight is satisfied first; the others share what that leaves.
    open.sort_by(|&a, &b| {
        let (a_need, b_need) = (u128::from(need(a, sizes)), u128::from(need(b, sizes)));
        (a_need * weight(b)).cmp(&(b_need * weight(a)))
    });
    let mut all: u128 = open.iter().map(|i| weight(*i)).sum();
    for i in open {
        let part = u128::from(left) * weight(i) / all;
        let got = need(i, sizes).min(u64::try_from(part).unwrap_or(u64::MAX));
        sizes[i] += got;
        left -= got;
        all -= weight(i);
    }
    left
}

#[cfg(test)]
mod tests;
