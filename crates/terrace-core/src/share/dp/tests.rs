use proptest::prelude::*;

use super::*;
use crate::demand::{Curve, CurveSource, Observed, Point};
use crate::share::Want;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// A curve of huge pages over a second.
fn curve(accesses: u64, points: &[(u32, u64)]) -> Curve {
    let observed = Observed {
        source: CurveSource::Exact,
        page_bytes: LEAST_UNIT_BYTES,
        accesses,
        span_ns: 1_000_000_000,
        resolution_pages: 0,
        guess_below_pages: 0,
    };
    let points = points.iter();
    Curve::of(
        observed,
        points.map(|(pages, misses)| Point {
            pages: *pages,
            misses: *misses,
        }),
    )
}

fn need(size_bytes: u64, want: Want) -> Need<'static> {
    Need {
        weight: 1000,
        floor_bytes: GIB,
        ceiling_bytes: 16 * GIB,
        size_bytes,
        want,
        curve: None,
        fault_ns: 100_000,
    }
}

fn swapping(used_swap_bytes: u64) -> Want {
    Want::Swapping { used_swap_bytes }
}

fn gib(sizes: Result<Vec<u64>, FloorsExceed>) -> Vec<u64> {
    sizes
        .unwrap()
        .into_iter()
        .map(|bytes| bytes / GIB)
        .collect()
}

#[test]
fn if_all_fits_the_surplus_goes_in_proportion() {
    let needs = [
        need(4 * GIB, swapping(2 * GIB)),
        need(8 * GIB, Want::WorkingSet { bytes: 3 * GIB }),
        need(3 * GIB, Want::Same),
    ];
    assert_eq!(gib(totals(&needs, 12 * GIB)), [6, 3, 3]);
    assert_eq!(gib(totals(&needs, 16 * GIB)), [8, 4, 4]);
    // Ceilings are 16 GiB: what the first one leaves goes to the others.
    assert_eq!(gib(totals(&needs, 40 * GIB)), [16, 12, 12]);
    assert_eq!(gib(totals(&needs, 90 * GIB)), [16, 16, 16]);
    assert!(totals(&[], GIB).unwrap().is_empty());
}

#[test]
fn vms_that_swap_come_first_up_to_the_floors_of_others() {
    let idle = need(8 * GIB, Want::Same);
    assert_eq!(
        gib(totals(&[need(4 * GIB, swapping(3 * GIB)), idle], 12 * GIB)),
        [7, 5]
    );
    assert_eq!(
        gib(totals(&[need(4 * GIB, swapping(12 * GIB)), idle], 12 * GIB)),
        [11, 1]
    );
    let heavy = Need {
        weight: 3000,
        ..need(4 * GIB, swapping(12 * GIB))
    };
    let needs = [heavy, need(4 * GIB, swapping(12 * GIB)), idle];
    assert_eq!(
        gib(totals(&needs, 11 * GIB)),
        [7, 3, 1],
        "8 GiB above the floors, 3 to 1"
    );
}

#[test]
fn memory_goes_where_it_saves_most_time() {
    // 1 GiB is 512 pages. One VM loses much until it has 6 GiB, the other little and evenly.
    let cliff = curve(10_000, &[(3071, 10_000), (3072, 0)]);
    let slope = curve(1_000, &[(3072, 0)]);
    let mut needs = [need(4 * GIB, Want::WorkingSet { bytes: 6 * GIB }); 2];
    needs[0].curve = Some(&cliff);
    needs[1].curve = Some(&slope);
    assert_eq!(gib(totals(&needs, 8 * GIB)), [6, 2]);
    // Below its cliff the first one can use nothing: what no curve asks for goes by weight.
    assert_eq!(gib(totals(&needs, 6 * GIB)), [1, 5]);
    needs[1].weight = 1_000_000;
    assert_eq!(gib(totals(&needs, 8 * GIB)), [2, 6]);
}

#[test]
fn a_vm_without_a_curve_keeps_what_it_has() {
    let slope = curve(1_000_000, &[(4096, 0)]);
    let known = Need {
        curve: Some(&slope),
        ..need(4 * GIB, Want::WorkingSet { bytes: 8 * GIB })
    };
    let unknown = need(5 * GIB, Want::Same);
    assert_eq!(gib(totals(&[known, unknown], 9 * GIB)), [4, 5]);
    assert_eq!(gib(totals(&[known, unknown], 6 * GIB)), [1, 5]);
    // No other way: the floors of the others and the needs of one that swaps.
    let needs = [known, unknown, need(2 * GIB, swapping(2 * GIB))];
    assert_eq!(gib(totals(&needs, 8 * GIB)), [1, 3, 4]);
    let mut still = slope.clone();
    still.span_ns = 0;
    let timeless = Need {
        curve: Some(&still),
        ..unknown
    };
    assert_eq!(gib(totals(&[known, timeless], 9 * GIB)), [4, 5]);
}

#[test]
fn floors_that_exceed_the_host_are_refused_with_their_sum() {
    let needs = [need(GIB, Want::Same); 3];
    let refused = totals(&needs, 2 * GIB).unwrap_err();
    let sum = FloorsExceed {
        floors: 3 * GIB,
        host: 2 * GIB,
    };
    assert_eq!(refused, sum);
    assert!(refused.to_string().contains("are 3 GiB together"));
    assert_eq!(gib(totals(&needs, 3 * GIB)), [1, 1, 1]);
}

#[test]
fn units_are_few_and_their_sums_bounded() {
    let slope = curve(1_000, &[(1 << 20, 0)]);
    let loss = Loss::of_curve(&slope, 1).unwrap();
    let known = |vms: usize, ceiling_bytes| -> Vec<Known<'_>> {
        let need = Need {
            ceiling_bytes,
            ..need(GIB, Want::Same)
        };
        (0..vms)
            .filter_map(|vm| Known::new(vm, &need, &loss))
            .collect()
    };
    assert_eq!(unit_bytes(&known(1, 16 * GIB), GIB), 2 * MIB);
    assert_eq!(unit_bytes(&known(1, 16 * GIB), 33 * GIB), 4 * MIB);
    assert_eq!(unit_bytes(&known(128, 65 * GIB), 4096 * GIB), 256 * MIB);
    // 500 VMs that may have all: 2^30 sums would be exceeded by far with 16,384 units.
    let many = known(500, u64::MAX);
    let unit = unit_bytes(&many, 2048 * GIB);
    assert_eq!(unit, 2 * GIB, "1,024 units");
}

/// Sizes of three VMs, in units, and their curves.
type Vms = Vec<(u32, u64, u64, u64, Vec<u64>)>;

/// The least weighted loss by trying all sizes.
fn brute(needs: &[Need<'_>], losses: &[Loss], left: u64) -> u128 {
    let Some((need, others)) = needs.split_first() else {
        return 0;
    };
    let others_floors: u64 = others.iter().map(|n| n.floor_bytes).sum();
    (need.floor_bytes..=need.ceiling_bytes.min(left - others_floors))
        .step_by(usize::try_from(LEAST_UNIT_BYTES).unwrap())
        .map(|bytes| {
            let own = u128::from(losses[0].at(bytes)) * u128::from(need.weight);
            own + brute(others, &losses[1..], left - bytes)
        })
        .min()
        .unwrap_or(u128::MAX)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_division_of_known_vms_loses_less(
        vms in prop::collection::vec(
            (1..4_u32, 0..3_u64, 0..6_u64, 0..9_u64, prop::collection::vec(0..100_u64, 1..8)),
            1..4,
        ),
        spare in 0..12_u64,
    ) {
        let vms: Vms = vms;
        let curves: Vec<Curve> = vms
            .iter()
            .map(|(.., drops)| {
                let mut misses: u64 = drops.iter().sum();
                let accesses = misses;
                let points: Vec<(u32, u64)> = (1..)
                    .zip(drops)
                    .map(|(pages, drop)| {
                        misses -= drop;
                        (pages, misses)
                    })
                    .collect();
                curve(accesses, &points)
            })
            .collect();
        let needs: Vec<Need<'_>> = vms
            .iter()
            .zip(&curves)
            .map(|((weight, floor, range, want, _), curve)| Need {
                weight: *weight,
                floor_bytes: floor * LEAST_UNIT_BYTES,
                ceiling_bytes: (floor + range) * LEAST_UNIT_BYTES,
                size_bytes: 0,
                want: Want::WorkingSet { bytes: want * LEAST_UNIT_BYTES },
                curve: Some(curve),
                fault_ns: 7,
            })
            .collect();
        let floors: u64 = needs.iter().map(|n| n.floor_bytes).sum();
        let host = floors + spare * LEAST_UNIT_BYTES;
        let sizes = totals(&needs, host).unwrap();
        let expected: u64 = needs.iter().map(Need::expected_bytes).sum();
        if expected > host {
            let losses: Vec<Loss> = needs.iter().map(|n| n.loss().unwrap()).collect();
            let lost: u128 = losses
                .iter()
                .zip(&sizes)
                .zip(&needs)
                .map(|((loss, size), need)| u128::from(loss.at(*size)) * u128::from(need.weight))
                .sum();
            prop_assert_eq!(lost, brute(&needs, &losses, host));
        }
    }

    /// Any numbers that guests and operators can give.
    #[test]
    fn sizes_keep_floors_ceilings_and_the_sum(
        vms in prop::collection::vec(
            (
                prop::array::uniform4(any::<u64>()),
                any::<u32>(),
                0..3_u8,
                0..64_u32,
                prop::collection::vec((any::<u32>(), any::<u64>()), 0..6),
            ),
            0..8,
        ),
        host in any::<u64>(),
        host_bits in 0..64_u32,
    ) {
        let host = host >> host_bits;
        let curves: Vec<Curve> = vms
            .iter()
            .map(|(.., points)| curve(points.iter().map(|p| p.1).max().unwrap_or(9), points))
            .collect();
        let needs: Vec<Need<'_>> = vms
            .iter()
            .zip(&curves)
            .map(|((numbers, weight, want, bits, points), curve)| {
                let [floor_bytes, ceiling_bytes, size_bytes, wanted] = numbers.map(|n| n >> bits);
                Need {
                    weight: *weight,
                    floor_bytes: floor_bytes >> 3,
                    ceiling_bytes,
                    size_bytes,
                    want: match want {
                        0 => swapping(wanted),
                        1 => Want::WorkingSet { bytes: wanted },
                        _ => Want::Same,
                    },
                    curve: (points.len() > 1).then_some(curve),
                    fault_ns: u64::from(*weight) << 8,
                }
            })
            .collect();
        let floors = needs.iter().fold(0_u64, |sum, n| sum.saturating_add(n.floor_bytes));
        let Ok(sizes) = totals(&needs, host) else {
            prop_assert!(floors > host);
            return Ok(());
        };
        prop_assert!(floors <= host);
        prop_assert_eq!(sizes.len(), needs.len());
        prop_assert!(sizes.iter().map(|s| u128::from(*s)).sum::<u128>() <= u128::from(host));
        let mut all_at_most = true;
        for (size, need) in sizes.iter().zip(&needs) {
            prop_assert!((need.floor_bytes..=need.most_bytes()).contains(size));
            all_at_most &= *size == need.most_bytes();
        }
        // Nothing is left lying while somebody may have it.
        prop_assert!(all_at_most || sizes.iter().sum::<u64>() == host);
    }
}
