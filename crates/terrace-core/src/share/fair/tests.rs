use proptest::prelude::*;

use super::*;
use crate::config::PoolRelease;
use crate::share::{Claim, FastLimits, divide};
use terrace_proto::TierLimit;

const OPEN: TierLimit = TierLimit {
    floor_bytes: 0,
    ceiling_bytes: u64::MAX,
};

fn part(weight: u32, floor: u64, most: u64) -> Part {
    Part {
        weight,
        floor,
        most,
    }
}

/// Sizes of VMs that have no nominal size, each with what it holds, what it shows and its weight.
fn sizes(bytes: u64, vms: &[(u64, u64, u32)]) -> Vec<u64> {
    let rights: Vec<Part> = vms.iter().map(|v| part(v.2, 0, u64::MAX)).collect();
    let claims: Vec<Claim> = vms
        .iter()
        .zip(parts(bytes, &rights))
        .map(|((held, demand, weight), right)| {
            let limits = FastLimits::of_share(right, OPEN, 75, u64::MAX);
            Claim {
                held: *held,
                demand: *demand,
                unseen: 0,
                lower: limits.lower_bytes,
                nominal: limits.nominal_bytes,
                upper: limits.upper_bytes,
                weight: *weight,
            }
        })
        .collect();
    divide(bytes, &claims, PoolRelease::OnDemand)
}

#[test]
fn entitlements_are_by_weight_beyond_the_floors() {
    let open = |weight| part(weight, 0, u64::MAX);
    assert_eq!(parts(100, &[open(1000)]), [100]);
    assert_eq!(parts(100, &[open(1000), open(3000)]), [25, 75]);
    assert_eq!(parts(100, &[part(1, 40, 200), part(1, 0, 200)]), [70, 30]);
    assert_eq!(parts(100, &[part(1, 0, 10), part(1, 0, 200)]), [10, 90]);
    assert_eq!(parts(50, &[part(1, 80, 200), part(1, 0, 200)]), [50, 0]);
    assert!(parts(100, &[]).is_empty());
}

#[test]
fn a_fully_observed_vm_borrows_unused_memory_and_returns_it() {
    const ALL: u64 = 1 << 40;
    assert_eq!(sizes(100, &[(100, ALL, 1)]), [100], "alone it may use all");
    assert_eq!(sizes(100, &[(50, ALL, 1), (10, 10, 1)]), [90, 10]);
    assert_eq!(sizes(100, &[(90, ALL, 1), (10, 30, 1)]), [70, 30]);
    assert_eq!(sizes(100, &[(90, ALL, 1), (10, 50, 1)]), [50, 50]);
    assert_eq!(sizes(100, &[(90, ALL, 1), (10, 51, 1)]), [50, 50]);
    assert_eq!(sizes(100, &[(90, ALL, 1), (10, ALL, 1)]), [50, 50]);
    assert_eq!(sizes(100, &[(90, ALL, 1), (10, 80, 3)]), [25, 75]);
    // Memory that it holds and does not use is lent but for three quarters of its right.
    assert_eq!(sizes(100, &[(50, ALL, 1), (50, 0, 1)]), [63, 37]);
}

#[test]
fn cpu_time_goes_by_weight_if_it_is_short() {
    assert_eq!(by_weight(100, &[(5, 1), (1000, 1)]), [5, 95]);
    assert_eq!(by_weight(100, &[(60, 1), (1000, 1)]), [50, 50]);
    assert_eq!(by_weight(100, &[(60, 3), (1000, 1)]), [60, 40]);
    assert_eq!(by_weight(100, &[(1000, 3), (1000, 1)]), [75, 25]);
    assert_eq!(by_weight(100, &[(10, 1), (20, 1)]), [10, 20]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Whatever the first VM shows and holds: the others get what they want up to their right, and what no VM
    /// wants is not left lying.
    #[test]
    fn no_demand_of_a_vm_takes_what_is_anothers_right(
        bytes in 0_u64..1_000_000,
        shown in any::<u64>(),
        held in 0_u64..1_000_000,
        others in prop::collection::vec((0_u64..300_000, 0_u64..600_000, 1_u32..5000), 1..6),
        weight in 1_u32..5000,
    ) {
        let mut vms = vec![(held, shown >> 16, weight)];
        vms.extend(&others);
        // No more is held than there is.
        let mut left = bytes;
        for vm in &mut vms {
            vm.0 = vm.0.min(left);
            left -= vm.0;
        }
        let got = sizes(bytes, &vms);
        let weights: u64 = vms.iter().map(|v| u64::from(v.2)).sum();
        for (vm, got) in vms.iter().zip(&got).skip(1) {
            let right = bytes * u64::from(vm.2) / weights;
            prop_assert!(*got + 1 >= vm.1.min(right), "{got} of {right}");
        }
        prop_assert!(got.iter().sum::<u64>() <= bytes);
        let wanted: u64 = vms.iter().fold(0, |sum, v| sum.saturating_add(v.1));
        if wanted >= bytes {
            prop_assert_eq!(got.iter().sum::<u64>(), bytes);
        }
    }

    #[test]
    fn no_cost_of_a_vm_takes_what_is_anothers_part(
        amount in 0_u64..1_000_000_000,
        shown in any::<u64>(),
        weight in 1_u32..5000,
        others in prop::collection::vec((0_u64..1_000_000_000, 1_u32..5000), 1..6),
    ) {
        let mut wants = vec![(shown, weight)];
        wants.extend(&others);
        let got = by_weight(amount, &wants);
        let weights: u64 = wants.iter().map(|w| u64::from(w.1)).sum();
        for ((wanted, weight), got) in wants.iter().zip(&got).skip(1) {
            let part = amount * u64::from(*weight) / weights;
            prop_assert!(*got + 1 >= (*wanted).min(part), "{got} of {part}");
        }
        let wanted: u64 = wants.iter().fold(0, |sum, w| sum.saturating_add(w.0));
        prop_assert_eq!(got.iter().sum::<u64>(), wanted.min(amount));
    }
}
