//! The benchmark of dividing memory by dynamic programming.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng as _, SeedableRng as _};
use terrace_core::share::{UnitCosts, least_cost};

use crate::measured::{Measured, timed};

/// Number of VMs.
const VMS: usize = 128;
/// Units of 256 MiB in 4 TiB.
const UNITS: u32 = 1 << 14;
/// Units of each VM's floor: 6 GiB, a fifth of its part.
const FLOOR: u32 = 24;
/// Units from a VM's floor to its ceiling.
const RANGE: usize = 256;
/// All costs of all VMs: what the rule `dp` divides lost time into.
const ALL_COSTS: u64 = 1 << 30;
const NS_PER_MS: f64 = 1e6;

/// `dp_ms`: 128 VMs share 4 TiB in units of 256 MiB, each within 256 units above its floor; the baseline is the textbook
/// loop on the same bounds. ms per division.
///
/// # Panics
/// The two divide differently.
#[must_use]
pub fn division() -> Measured {
    let vms = falling_costs();
    assert_eq!(least_cost(&vms, UNITS), textbook(&vms, UNITS));
    Measured::in_turns(|_| {
        let fast = timed(|| least_cost(&vms, UNITS));
        let loop_ns = timed(|| textbook(&vms, UNITS));
        (fast, loop_ns)
    })
    .per(NS_PER_MS)
}

/// Costs that fall by random steps, some of them cliffs, down to the ceiling: no VM is satisfied before.
fn falling_costs() -> Vec<UnitCosts> {
    let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
    let most_step = ALL_COSTS / (VMS * (RANGE + 1)) as u64;
    let mut of_one = || {
        let mut cost = 0;
        let mut costs = vec![cost];
        for _ in 0..RANGE {
            let draw = random.next_u64();
            // One step in 16 is 16 times as high as the others can be.
            let most = if draw % 16 == 0 {
                most_step / 2
            } else {
                most_step / 32
            };
            cost += 1 + (draw >> 32) % most;
            costs.push(cost);
        }
        costs.reverse();
        UnitCosts {
            floor: FLOOR,
            costs,
        }
    };
    (0..VMS).map(|_| of_one()).collect()
}

/// The loop as a textbook has it: the best choice is noted for each VM and each number of units.
fn textbook(vms: &[UnitCosts], units: u32) -> Vec<u32> {
    let floors: u32 = vms.iter().map(|vm| vm.floor).sum();
    let spare = (units - floors) as usize;
    let mut row = vec![0_u64; spare + 1];
    let mut choices = Vec::with_capacity(vms.len());
    for vm in vms {
        let mut after = vec![u64::MAX; spare + 1];
        let mut choice = vec![0_u32; spare + 1];
        for j in 0..=spare {
            for (steps, cost) in (0..).zip(&vm.costs) {
                if steps as usize > j {
                    break;
                }
                let sum = row[j - steps as usize] + cost;
                if sum < after[j] {
                    after[j] = sum;
                    choice[j] = steps;
                }
            }
        }
        row = after;
        choices.push(choice);
    }
    let mut left = spare;
    let mut divided: Vec<u32> = Vec::with_capacity(vms.len());
    for (vm, choice) in vms.iter().zip(&choices).rev() {
        divided.push(vm.floor + choice[left]);
        left -= choice[left] as usize;
    }
    divided.reverse();
    divided
}
