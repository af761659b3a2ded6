//! Shares by weight, whatever anybody shows (docs/operating.md, "Neighbours").
//!
//! Responsible for: what each VM without a nominal size has a right to of the first tier, and dividing what
//! flows (CPU time) between those that want it. It leaves to others: what a VM gets above its right while
//! others leave it ([`super::divide`]).
//!
//! A guest can make itself appear as hot as it likes. So nothing that a guest shows goes into its right or
//! into another's: only weights, floors, ceilings and sizes of VMs do, which operators set.

use super::pool::fill;

/// A VM without a nominal size. Sizes are in bytes of the first tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The VM's weight; 0 counts as 1.
    pub weight: u32,
    /// Bytes that the VM is entitled to before all others.
    pub floor: u64,
    /// Most bytes that the VM can have: its ceiling, or its memory.
    pub most: u64,
}

/// Divides `bytes`: each gets its floor, and a part by weight of what all floors leave, up to its most. What
/// that leaves goes to the others by weight.
#[must_use]
pub fn parts(bytes: u64, of: &[Part]) -> Vec<u64> {
    let caps = |cap: fn(&Part) -> u64| of.iter().map(cap).collect::<Vec<u64>>();
    let weights: Vec<u32> = of.iter().map(|p| p.weight).collect();
    let mut sizes = vec![0; of.len()];
    let left = fill(&mut sizes, &caps(|p| p.floor), &weights, bytes);
    fill(&mut sizes, &caps(|p| p.most), &weights, left);
    sizes
}

/// Divides `amount` by weight between those that want some of it: `(wanted, weight)` of each. None gets more
/// than it wants, what it leaves goes to the others, and one that is not satisfied got in proportion to its weight.
#[must_use]
pub fn by_weight(amount: u64, wants: &[(u64, u32)]) -> Vec<u64> {
    let (caps, weights): (Vec<u64>, Vec<u32>) = wants.iter().copied().unzip();
    let mut got = vec![0; wants.len()];
    fill(&mut got, &caps, &weights, amount);
    got
}

/// Divides what is `left` in proportion to `parts`: sizes grow up to their ceilings, and what one cannot have goes to the
/// others. Returns what nobody can have.
pub fn in_proportion(sizes: &mut [u64], ceilings: &[u64], parts: &[u64], left: u64) -> u64 {
    fill(sizes, ceilings, parts, left)
}

#[cfg(test)]
mod tests;
