//! The division of units that costs least in all: dynamic programming (HPMBS §4.3).
//!
//! Responsible for: `Miss[i, j] = min over k of (Miss[i - 1, j - k] + PM_i[k])`, in which `j` is the *most* units
//! that the first `i` VMs have, so that no unit must be given away. It leaves to others: what a unit is and costs.
//!
//! Rows hold costs alone. A loop that also noted which `k` was best would not run in vector registers; the few
//! choices that matter are found again by walking back through the rows. Costs whose sum fits into 30 bits are added
//! in 32, four at a time on any x86-64.

use std::ops::{Add, Range};

/// Costs of a VM for each number of units.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnitCosts {
    /// The least number of units.
    pub floor: u32,
    /// The cost with `floor`, `floor + 1`, … units; the last one is the VM's ceiling. If empty, the VM has its floor.
    /// Costs above 2^62 divided by the number of VMs count as that.
    pub costs: Vec<u64>,
}

/// A number that costs are added in.
trait Cost: Copy + Ord + Add<Output = Self> + TryFrom<u64> {
    /// Zero.
    const ZERO: Self;
    /// Above all sums; twice this does not overflow.
    const BEYOND: Self;
}

impl Cost for i32 {
    const ZERO: Self = 0;
    const BEYOND: Self = 1 << 30;
}

impl Cost for u64 {
    const ZERO: Self = 0;
    const BEYOND: Self = 1 << 62;
}

/// Sizes that are computed at once, in registers.
const LANES: usize = 32;

/// Divides at most so many units: a number for each VM, from its floor to its ceiling, such that the sum of costs is
/// least. Of equal divisions it takes the one in which the last VM has fewest units, among these the one before it,
/// and so on. Floors that exceed the units are given all the same, and nothing above them.
#[must_use]
pub fn least_cost(vms: &[UnitCosts], units: u32) -> Vec<u32> {
    let most = <u64 as Cost>::BEYOND / (vms.len().max(1) as u64);
    let costs: Vec<Vec<u64>> = vms.iter().map(|vm| above_least(vm, most)).collect();
    let floors: u64 = vms.iter().map(|vm| u64::from(vm.floor)).sum();
    let spare = usize::try_from(u64::from(units).saturating_sub(floors)).unwrap_or(usize::MAX);
    // Costs may rise: the highest is not always the first.
    let highest = |costs: &Vec<u64>| costs.iter().copied().max().unwrap_or(0);
    let narrow = costs.iter().map(highest).sum::<u64>() < 1 << 30;
    let above = if narrow {
        divided::<i32>(&costs, spare)
    } else {
        divided::<u64>(&costs, spare)
    };
    let number = |steps: usize| u32::try_from(steps).unwrap_or(u32::MAX);
    vms.iter()
        .zip(above)
        .map(|(vm, steps)| vm.floor + number(steps))
        .collect()
}

/// Costs above the least one, up to the first number of units that has it: more are never chosen.
fn above_least(vm: &UnitCosts, most: u64) -> Vec<u64> {
    let costs = || vm.costs.iter().map(|cost| *cost.min(&most));
    let Some(least) = costs().min() else {
        return vec![0];
    };
    let end = costs().position(|cost| cost == least).unwrap_or(0);
    costs().take(end + 1).map(|cost| cost - least).collect()
}

/// Units above the floors.
fn divided<C: Cost>(costs: &[Vec<u64>], spare: usize) -> Vec<usize> {
    let costs: Vec<Vec<C>> = costs
        .iter()
        .map(|of| of.iter().map(|cost| narrowed(*cost)).collect())
        .collect();
    // Rows end where all VMs so far have their most: further on the last cost stays.
    let mut rows: Vec<Vec<C>> = vec![vec![C::ZERO]];
    let mut later: usize = costs.iter().map(|of| of.len() - 1).sum();
    for of in &costs {
        let before = &rows[rows.len() - 1];
        let length = (before.len() + of.len() - 1).min(spare.saturating_add(1));
        // All VMs after this one cannot take more: fewer units are never left for it and those before.
        later -= of.len() - 1;
        let row = row(before, of, spare.saturating_sub(later)..length);
        rows.push(row);
    }
    let mut chosen = vec![0; costs.len()];
    let mut left = spare;
    for (vm, of) in costs.iter().enumerate().rev() {
        let (before, row) = (&rows[vm], &rows[vm + 1]);
        let best = held(row, left);
        let steps = (0..of.len().min(left + 1))
            .find(|steps| held(before, left - steps) + of[*steps] == best)
            .unwrap_or(0);
        chosen[vm] = steps;
        left -= steps;
    }
    chosen
}

fn narrowed<C: Cost>(cost: u64) -> C {
    C::try_from(cost).unwrap_or(C::BEYOND)
}

fn held<C: Cost>(row: &[C], units: usize) -> C {
    row[units.min(row.len() - 1)]
}

/// The row after a VM with these costs; numbers of units below `wanted` may be missing (as what cannot be).
fn row<C: Cost>(before: &[C], costs: &[C], wanted: Range<usize>) -> Vec<C> {
    // Left of the row lies what cannot be, so that the loop needs no bounds; right of it its last cost.
    let left = costs.len() - 1;
    let rounded = wanted.end.div_ceil(LANES) * LANES;
    let mut padded = vec![C::BEYOND; left];
    padded.extend_from_slice(&before[..before.len().min(rounded)]);
    padded.resize(left + rounded, before[before.len() - 1]);
    // The last number alone is wanted where all VMs can have their most.
    let start = wanted.start.min(wanted.end - 1) / LANES * LANES;
    let mut row = vec![C::BEYOND; start];
    row.reserve_exact(rounded - start);
    for first in (start..rounded).step_by(LANES) {
        let mut best = [C::BEYOND; LANES];
        for (steps, cost) in costs.iter().enumerate() {
            let from = left + first - steps;
            let window = &padded[from..from + LANES];
            for (best, before) in best.iter_mut().zip(window) {
                let sum = *before + *cost;
                *best = if sum < *best { sum } else { *best };
            }
        }
        row.extend_from_slice(&best);
    }
    row.truncate(wanted.end);
    row
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn vm(floor: u32, costs: &[u64]) -> UnitCosts {
        UnitCosts {
            floor,
            costs: costs.to_vec(),
        }
    }

    /// The textbook loop, with the choice noted in it: lowest number of units on ties.
    fn textbook(vms: &[UnitCosts], units: u32) -> Vec<u32> {
        let floors: u32 = vms.iter().map(|vm| vm.floor).sum();
        let spare = units.saturating_sub(floors) as usize;
        let mut row = vec![0_u64; spare + 1];
        let mut choices = Vec::new();
        for vm in vms {
            let (before, mut choice) = (row.clone(), vec![0; spare + 1]);
            for j in 0..=spare {
                let mut best = u64::MAX;
                for k in 0..vm.costs.len().max(1).min(j + 1) {
                    let cost = before[j - k] + vm.costs.get(k).copied().unwrap_or(0);
                    if cost < best {
                        (best, choice[j]) = (cost, k);
                    }
                }
                row[j] = best;
            }
            choices.push(choice);
        }
        let (mut left, mut chosen) = (spare, Vec::new());
        for (vm, choice) in vms.iter().zip(&choices).rev() {
            chosen.push(vm.floor + u32::try_from(choice[left]).unwrap());
            left -= choice[left];
        }
        chosen.reverse();
        chosen
    }

    #[test]
    fn a_cliff_is_climbed_before_a_slope() {
        let cliff = vm(1, &[100, 100, 100, 0]);
        let slope = vm(0, &[90, 60, 30, 0]);
        assert_eq!(least_cost(&[cliff.clone(), slope.clone()], 4), [4, 0]);
        assert_eq!(least_cost(&[cliff.clone(), slope.clone()], 3), [1, 2]);
        assert_eq!(least_cost(&[slope, cliff], 5), [1, 4]);
    }

    #[test]
    fn nothing_is_given_that_saves_nothing() {
        let flat = vm(2, &[5, 5, 5]);
        assert_eq!(least_cost(&[flat.clone(), flat], 9), [2, 2]);
        assert_eq!(least_cost(&[vm(3, &[]), vm(4, &[9, 0])], 5), [3, 4]);
        assert!(least_cost(&[], 5).is_empty());
    }

    #[test]
    fn costs_without_bounds_do_not_overflow() {
        let steep = vm(0, &[u64::MAX, u64::MAX / 2, 0]);
        assert_eq!(least_cost(&vec![steep; 3], 4), [2, 2, 0]);
        let units = least_cost(&[vm(u32::MAX, &[1, 0]), vm(u32::MAX, &[1, 0])], u32::MAX);
        assert_eq!(units, [u32::MAX, u32::MAX]);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Costs that rise and fall, few and many of them equal; narrow and wide ones.
        #[test]
        fn the_division_is_that_of_the_textbook_loop(
            vms in prop::collection::vec((0..4_u32, prop::collection::vec(0..30_u64, 0..50)), 0..7),
            units in 0..160_u32,
            factor in prop::sample::select(vec![1, 1_000_003, 1 << 50]),
        ) {
            let vms: Vec<UnitCosts> = vms
                .into_iter()
                .map(|(floor, costs)| UnitCosts {
                    floor,
                    costs: costs.into_iter().map(|cost| cost * factor).collect(),
                })
                .collect();
            let divided = least_cost(&vms, units);
            prop_assert_eq!(&divided, &textbook(&vms, units));
            let floors: u32 = vms.iter().map(|vm| vm.floor).sum();
            prop_assert!(divided.iter().sum::<u32>() <= units.max(floors));
        }
    }
}
