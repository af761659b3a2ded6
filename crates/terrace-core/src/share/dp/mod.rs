//! `dp`: total memory by demand (HPMBS §4.2, §4.3).
//!
//! Responsible for: one size for each VM, from what it may have, has and wants.
//!
//! If all that VMs want fits, each gets it, and the surplus in proportion to it. Otherwise
//! 1. VMs that swap come first: they share what the floors of the others leave, by weight, up to what they want;
//! 2. VMs without a curve keep what they have, but no more than they want, as long as the floors of those with a curve
//!    allow it: nothing is taken because nothing is known. If there is too little for all of them, they share it by
//!    weight;
//! 3. VMs with a curve share the rest such that the time that all of them lose to faults, times their weights, is
//!    least ([`super::least_cost()`]);
//! 4. what no curve asks for goes to those who want more, by weight, and then to all in proportion to what they want.
//!
//! The paper counts faults and knows no VM without a curve; weights, the time of a fault and step 2 are ours. It leaves
//! to others: granularity, how fast sizes change, and whether a change is worth its cost.

use super::fair::in_proportion;
use super::least_cost::{UnitCosts, least_cost};
use super::loss::Loss;
use super::need::{FloorsExceed, Need};
use super::pool::fill;

/// The least unit of the division, bytes: a huge page.
const LEAST_UNIT_BYTES: u64 = 2 << 20;
/// The most units that memory is divided into.
const MOST_UNITS: u64 = 1 << 14;
/// Sums that the division may look at, about 0.1 s of one core: above it the unit doubles. 128 VMs that may have 256 of
/// 16,384 units each need so many.
const MOST_SUMS: u64 = 1 << 29;
/// Parts into which all lost time is divided before it is added, so that sums fit into 32 bits.
const COST_BITS: u32 = 30;

/// A size for each VM, bytes: the sum is at most `host_bytes`, and each lies from its floor to its ceiling.
///
/// # Errors
/// The floors exceed the host.
pub fn totals(needs: &[Need<'_>], host_bytes: u64) -> Result<Vec<u64>, FloorsExceed> {
    FloorsExceed::check(needs.iter().map(|n| n.floor_bytes), host_bytes)?;
    let expected: Vec<u64> = needs.iter().map(Need::expected_bytes).collect();
    let ceilings: Vec<u64> = needs.iter().map(Need::most_bytes).collect();
    let wanted = expected
        .iter()
        .map(|bytes| u128::from(*bytes))
        .sum::<u128>();
    let mut sizes = if wanted <= u128::from(host_bytes) {
        expected.clone()
    } else {
        scarce(needs, &expected, host_bytes)
    };
    let left = host_bytes - sizes.iter().sum::<u64>();
    let left = fill(&mut sizes, &expected, &weights(needs), left);
    in_proportion(&mut sizes, &ceilings, &expected, left);
    Ok(sizes)
}

fn weights(needs: &[Need<'_>]) -> Vec<u32> {
    needs.iter().map(|need| need.weight).collect()
}

/// Sizes where not all can have what they want.
fn scarce(needs: &[Need<'_>], expected: &[u64], host_bytes: u64) -> Vec<u64> {
    let weights = weights(needs);
    let losses: Vec<Option<Loss>> = needs
        .iter()
        .map(|need| {
            if need.is_swapping() {
                None
            } else {
                need.loss()
            }
        })
        .collect();
    let mut sizes: Vec<u64> = needs.iter().map(|need| need.floor_bytes).collect();
    let mut left = host_bytes - sizes.iter().sum::<u64>();
    let swapping = |i: usize| {
        if needs[i].is_swapping() {
            expected[i]
        } else {
            0
        }
    };
    let unknown = |i: usize| match (&losses[i], needs[i].is_swapping()) {
        (None, false) => expected[i].min(needs[i].size_bytes),
        _ => 0,
    };
    let caps = |of: &dyn Fn(usize) -> u64| (0..needs.len()).map(of).collect::<Vec<u64>>();
    left = fill(&mut sizes, &caps(&swapping), &weights, left);
    left = fill(&mut sizes, &caps(&unknown), &weights, left);
    let known: Vec<Known<'_>> = needs
        .iter()
        .zip(&losses)
        .enumerate()
        .filter_map(|(vm, (need, loss))| Known::new(vm, need, loss.as_ref()?))
        .collect();
    for (known, bytes) in known.iter().zip(by_curves(&known, left)) {
        sizes[known.vm] += bytes;
    }
    sizes
}

/// A VM whose lost time is known.
struct Known<'a> {
    /// Index among the VMs.
    vm: usize,
    loss: &'a Loss,
    weight: u32,
    floor_bytes: u64,
    /// Bytes above its floor that it could use.
    more_bytes: u64,
}

impl<'a> Known<'a> {
    /// `None` if the VM can use nothing above its floor.
    fn new(vm: usize, need: &Need<'_>, loss: &'a Loss) -> Option<Self> {
        let end = loss.end_bytes().min(need.most_bytes());
        let known = Self {
            vm,
            loss,
            weight: need.weight.max(1),
            floor_bytes: need.floor_bytes,
            more_bytes: end.saturating_sub(need.floor_bytes),
        };
        (known.more_bytes > 0).then_some(known)
    }

    /// Units above the floor that the VM could use; the last one may be a part.
    fn steps(&self, unit: u64, spare: u64) -> u64 {
        self.more_bytes.min(spare).div_ceil(unit).min(spare / unit)
    }

    /// Bytes above the floor with so many units.
    fn bytes(&self, units: u64, unit: u64) -> u64 {
        units.saturating_mul(unit).min(self.more_bytes)
    }

    /// Weighted lost time with 0, 1, … units above the floor.
    fn costs(&self, unit: u64, spare: u64) -> Vec<u128> {
        let cost = |units| {
            let lost = self.loss.at(self.floor_bytes + self.bytes(units, unit));
            u128::from(lost) * u128::from(self.weight)
        };
        (0..=self.steps(unit, spare)).map(cost).collect()
    }
}

/// Bytes above the floors, for each VM with a curve.
fn by_curves(known: &[Known<'_>], spare: u64) -> Vec<u64> {
    let unit = unit_bytes(known, spare);
    let costs: Vec<Vec<u128>> = known.iter().map(|vm| vm.costs(unit, spare)).collect();
    let units = u32::try_from(spare / unit).unwrap_or(u32::MAX);
    least_cost(&scaled(&costs), units)
        .into_iter()
        .zip(known)
        .map(|(units, vm)| vm.bytes(u64::from(units), unit))
        .collect()
}

/// The least multiple of a huge page that divides the memory into at most [`MOST_UNITS`] and needs at most
/// [`MOST_SUMS`].
fn unit_bytes(known: &[Known<'_>], spare: u64) -> u64 {
    let mut unit = spare
        .div_ceil(MOST_UNITS)
        .next_multiple_of(LEAST_UNIT_BYTES)
        .max(LEAST_UNIT_BYTES);
    let sums = |unit: u64| {
        let steps: u64 = known.iter().map(|vm| vm.steps(unit, spare)).sum();
        steps * (spare / unit).min(steps)
    };
    while sums(unit) > MOST_SUMS {
        unit *= 2;
    }
    unit
}

/// Costs in parts of all that could be saved together, 2^30 of them: a smaller part of it decides nothing.
fn scaled(costs: &[Vec<u128>]) -> Vec<UnitCosts> {
    let least = |costs: &Vec<u128>| costs.last().copied().unwrap_or(0);
    let saved = |costs: &Vec<u128>| costs.first().copied().unwrap_or(0) - least(costs);
    let all: u128 = costs.iter().map(saved).sum();
    let shift = (u128::BITS - all.leading_zeros()).saturating_sub(COST_BITS);
    let part = |cost: u128| u64::try_from(cost >> shift).unwrap_or(u64::MAX);
    costs
        .iter()
        .map(|of| UnitCosts {
            floor: 0,
            costs: of.iter().map(|cost| part(cost - least(of))).collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests;
