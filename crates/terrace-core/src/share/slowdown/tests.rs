use proptest::prelude::*;

use super::*;
use crate::share::{Heat, in_proportion};

/// Lost time that falls evenly to nothing.
fn slope(bytes: u64, lost_ns: u64) -> Loss {
    let group = Heat {
        bytes,
        accesses_per_s: lost_ns,
    };
    Loss::of_heat(&[group], 1)
}

/// All of it is needed at once.
fn cliff(bytes: u64, lost_ns: u64) -> Loss {
    let group = |bytes, accesses_per_s| Heat {
        bytes,
        accesses_per_s,
    };
    Loss::of_heat(&[group(bytes - 1, 0), group(1, lost_ns)], 1)
}

fn need(loss: &Loss) -> FairNeed<'_> {
    FairNeed {
        weight: 1000,
        floor_bytes: 10,
        ceiling_bytes: 1000,
        size_bytes: 100,
        loss: Some(loss),
        useful_ns: 1000,
        max_slowdown: None,
    }
}

fn sizes(needs: &[FairNeed<'_>], bytes: u64) -> Vec<u64> {
    least_slowdown(needs, bytes).unwrap().sizes
}

#[test]
fn all_are_equally_slow() {
    let (steep, even) = (slope(100, 1000), slope(100, 500));
    let needs = [need(&steep), need(&even)];
    // 1 + 1000 * (1 - 60 / 100) / 1000 = 1 + 500 * (1 - 20 / 100) / 1000.
    assert_eq!(sizes(&needs, 80), [60, 20]);
    let slowdowns = [needs[0].slowdown_ppm(60), needs[1].slowdown_ppm(20)];
    assert_eq!(slowdowns, [Some(1_400_000); 2]);
    let heavy = FairNeed {
        weight: 2000,
        ..needs[1]
    };
    assert_eq!(sizes(&[needs[0], heavy], 80), [40, 40]);
    assert_eq!(sizes(&needs, 500), [100, 100], "more saves nothing");
    assert!(sizes(&[], 5).is_empty());
}

#[test]
fn one_that_cannot_be_helped_does_not_hold_up_the_others() {
    let (far, steep, even) = (cliff(500, 9000), slope(100, 1000), slope(100, 500));
    let needs = [need(&far), need(&steep), need(&even)];
    assert_eq!(sizes(&needs, 90), [10, 60, 20]);
    let capped = FairNeed {
        ceiling_bytes: 50,
        ..needs[1]
    };
    assert_eq!(sizes(&[capped, needs[2]], 130), [50, 80]);
    assert_eq!(sizes(&[capped, needs[2]], 200), [50, 100]);
}

#[test]
fn who_cannot_keep_a_bound_is_named() {
    let (steep, even) = (slope(100, 1000), slope(100, 500));
    let bounded = |loss, max_slowdown, weight| FairNeed {
        max_slowdown: Some(max_slowdown),
        weight,
        ..need(loss)
    };
    // 90 bytes for 1.1 of the first one, 50 for 1.25 of the second one.
    let needs = [bounded(&steep, 1100, 1000), bounded(&even, 1250, 1000)];
    let fair = |needs: &[FairNeed<'_>], bytes| {
        let fair = least_slowdown(needs, bytes).unwrap();
        (fair.sizes, fair.beyond)
    };
    assert_eq!(fair(&needs, 140), (vec![90, 50], vec![]));
    assert_eq!(fair(&needs, 139), (vec![90, 49], vec![1]));
    let heavier = [needs[0], bounded(&even, 1250, 2000)];
    assert_eq!(fair(&heavier, 80), (vec![30, 50], vec![0]));
    let capped = FairNeed {
        ceiling_bytes: 60,
        ..needs[0]
    };
    assert_eq!(fair(&[capped, needs[1]], 500), (vec![60, 100], vec![0]));
}

#[test]
fn a_vm_of_which_nothing_is_known_keeps_what_it_has() {
    let steep = slope(200, 1000);
    let unknown = FairNeed {
        loss: None,
        max_slowdown: Some(1000),
        ..need(&steep)
    };
    let needs = [need(&steep), unknown];
    assert_eq!(sizes(&needs, 250), [150, 100]);
    assert_eq!(sizes(&needs, 90), [10, 80]);
    assert!(least_slowdown(&needs, 90).unwrap().beyond.is_empty());
    let mut given = sizes(&needs, 500);
    assert_eq!(given, [200, 100]);
    in_proportion(&mut given, &[1000, 130], &[2, 1], 200);
    assert_eq!(given, [370, 130]);
}

#[test]
fn floors_that_exceed_the_memory_are_refused() {
    let steep = slope(200, 1000);
    let refused = least_slowdown(&[need(&steep); 3], 29).unwrap_err();
    let sum = FloorsExceed {
        floors: 30,
        host: 29,
    };
    assert_eq!(refused, sum);
}

/// The weighted slowdown above 1, parts of a million, rounded up.
fn excess(need: &FairNeed<'_>, bytes: u64) -> u128 {
    let loss = need.loss.unwrap();
    let lost = u128::from(loss.at(bytes) - loss.unavoidable_ns());
    (lost * u128::from(need.weight) * 1000).div_ceil(u128::from(need.useful_ns))
}

/// The smallest largest one, by trying all sizes.
fn brute(needs: &[FairNeed<'_>], left: u64) -> u128 {
    let Some((need, others)) = needs.split_first() else {
        return 0;
    };
    let floors: u64 = others.iter().map(|n| n.floor_bytes).sum();
    (need.floor_bytes..=need.ceiling_bytes.min(left - floors))
        .map(|bytes| excess(need, bytes).max(brute(others, left - bytes)))
        .min()
        .unwrap_or(0)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_division_has_a_smaller_largest_slowdown(
        vms in prop::collection::vec(
            (
                1..4000_u32,
                (0..4_u64, 0..15_u64, 1..500_u64),
                prop::collection::vec((1..5_u64, 0..100_u64), 0..4),
            ),
            1..4,
        ),
        spare in 0..20_u64,
    ) {
        let losses: Vec<Loss> = vms
            .iter()
            .map(|(_, _, heat)| {
                let heat: Vec<Heat> = heat
                    .iter()
                    .map(|(bytes, accesses_per_s)| Heat { bytes: *bytes, accesses_per_s: *accesses_per_s })
                    .collect();
                Loss::of_heat(&heat, 2)
            })
            .collect();
        let needs: Vec<FairNeed<'_>> = vms
            .iter()
            .zip(&losses)
            .map(|((weight, (floor_bytes, range, useful_ns), _), loss)| FairNeed {
                weight: *weight,
                floor_bytes: *floor_bytes,
                ceiling_bytes: floor_bytes + range,
                useful_ns: *useful_ns,
                ..need(loss)
            })
            .collect();
        let bytes = spare + needs.iter().map(|n| n.floor_bytes).sum::<u64>();
        let sizes = sizes(&needs, bytes);
        let worst = needs.iter().zip(&sizes).map(|(n, s)| excess(n, *s)).max();
        prop_assert_eq!(worst.unwrap_or(0), brute(&needs, bytes));
    }

    #[test]
    fn any_numbers_keep_floors_ceilings_and_the_sum(
        vms in prop::collection::vec(
            (
                any::<[u32; 2]>(),
                any::<[u64; 4]>(),
                prop::collection::vec(any::<[u64; 2]>(), 0..4),
            ),
            0..6,
        ),
        bytes in any::<u64>(),
        bits in 0..60_u32,
    ) {
        let losses: Vec<Loss> = vms
            .iter()
            .map(|(_, _, heat)| {
                let heat: Vec<Heat> = heat
                    .iter()
                    .map(|h| Heat { bytes: h[0] >> bits, accesses_per_s: h[1] >> (bits / 3) })
                    .collect();
                Loss::of_heat(&heat, 100)
            })
            .collect();
        let needs: Vec<FairNeed<'_>> = vms
            .iter()
            .zip(&losses)
            .map(|((small, large, heat), loss)| FairNeed {
                weight: small[0],
                floor_bytes: large[0] >> bits,
                ceiling_bytes: large[1] >> (bits / 2),
                size_bytes: large[2] >> bits,
                loss: (!heat.is_empty()).then_some(loss),
                useful_ns: large[3] >> bits,
                max_slowdown: (small[1] % 2 == 0).then_some(small[1]),
            })
            .collect();
        let Ok(fair) = least_slowdown(&needs, bytes) else {
            let floors: u128 = needs.iter().map(|n| u128::from(n.floor_bytes)).sum();
            prop_assert!(floors > u128::from(bytes));
            return Ok(());
        };
        prop_assert!(fair.sizes.iter().map(|s| u128::from(*s)).sum::<u128>() <= u128::from(bytes));
        for (vm, (size, need)) in fair.sizes.iter().zip(&needs).enumerate() {
            prop_assert!((need.floor_bytes..=need.most_bytes()).contains(size));
            prop_assert_eq!(fair.beyond.contains(&vm), need.is_beyond(*size));
        }
    }
}
