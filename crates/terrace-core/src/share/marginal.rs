//! The fast tier by marginal time saved.
//!
//! Responsible for: one size of the fast tier for each VM, such that the time that all save together, times their
//! weights, is greatest. It leaves to others: total memory, and the moves that follow.
//!
//! After the floors the fast tier goes to the group of memory with most accesses per byte, times the VM's weight, times
//! what a slow access takes longer; then to the next one, until no fast memory is left. Groups that save equally much
//! per byte share what there is by weight, so that the order of VMs decides nothing. Within a VM the hottest memory
//! comes first, so the time saved falls with each byte, and taking the greatest first is optimal. Memory that nobody
//! accesses saves nothing: what is left for it is left free, and the caller may leave it with the VM that holds it.

use std::cmp::Ordering;

use super::loss::Heat;
use super::pool::fill;

/// A VM's bounds of the fast tier, and the time that it would save there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FastNeed {
    /// The VM's weight: 1000 is one share, 0 counts as 1.
    pub weight: u32,
    /// Bytes of the fast tier that nobody takes from the VM.
    pub floor_bytes: u64,
    /// Most bytes of the fast tier that the VM may have; one below the floor counts as the floor.
    pub ceiling_bytes: u64,
    /// The VM's memory by heat, the hottest first.
    pub heat: Vec<Heat>,
    /// Time that an access to slow memory takes longer than one to fast memory, ns. More than 2^32 count as that.
    pub extra_ns: u64,
}

/// Memory of equal heat that a VM has above its floor.
#[derive(Clone, Copy)]
struct Group {
    vm: usize,
    bytes: u64,
    /// Weighted time saved per second with all of the whole group, and the bytes of the whole group.
    gain: (u128, u64),
}

/// A size of the fast tier for each VM, bytes, at most `fast_bytes` together. Floors that exceed it share it by weight.
#[must_use]
pub fn by_gain(needs: &[FastNeed], fast_bytes: u64) -> Vec<u64> {
    let weights: Vec<u32> = needs.iter().map(|need| need.weight).collect();
    let floors: Vec<u64> = needs.iter().map(|need| need.floor_bytes).collect();
    let mut sizes = vec![0; needs.len()];
    let mut left = fill(&mut sizes, &floors, &weights, fast_bytes);
    let mut groups: Vec<Group> = needs
        .iter()
        .enumerate()
        .flat_map(|(vm, need)| above_floor(vm, need))
        .collect();
    groups.sort_by(|a, b| by_density(b.gain, a.gain));
    for equal in groups.chunk_by(|a, b| by_density(a.gain, b.gain).is_eq()) {
        if left == 0 {
            break;
        }
        left = give(&mut sizes, equal, needs, left);
    }
    sizes
}

/// The groups of a VM above its floor that save time.
fn above_floor(vm: usize, need: &FastNeed) -> Vec<Group> {
    let mut heat: Vec<Heat> = need.heat.iter().copied().filter(|h| h.bytes > 0).collect();
    let density = |h: &Heat| (u128::from(h.accesses_per_s), h.bytes);
    heat.sort_by(|a, b| by_density(density(b), density(a)));
    let extra_ns = need.extra_ns.min(u64::from(u32::MAX));
    // 32 + 32 + 64 bits.
    let per_access = u128::from(need.weight.max(1)) * u128::from(extra_ns);
    let mut within = need.floor_bytes;
    let mut groups = Vec::with_capacity(heat.len());
    for group in heat {
        let held = within.min(group.bytes);
        within -= held;
        let bytes = group.bytes - held;
        let gain = per_access * u128::from(group.accesses_per_s);
        if bytes > 0 && gain > 0 {
            groups.push(Group {
                vm,
                bytes,
                gain: (gain, group.bytes),
            });
        }
    }
    groups
}

/// Gives bytes to groups that save equally much per byte, by weight; returns what is left.
fn give(sizes: &mut [u64], equal: &[Group], needs: &[FastNeed], left: u64) -> u64 {
    let mut vms: Vec<usize> = equal.iter().map(|group| group.vm).collect();
    // Groups of one VM follow each other: the sort kept their order.
    vms.dedup();
    let wanted = |vm: usize| {
        let of_vm = equal.iter().filter(|group| group.vm == vm);
        let bytes = of_vm.fold(sizes[vm], |sum, group| sum.saturating_add(group.bytes));
        bytes.min(needs[vm].ceiling_bytes)
    };
    let caps: Vec<u64> = vms.iter().map(|vm| wanted(*vm)).collect();
    let weights: Vec<u32> = vms.iter().map(|vm| needs[*vm].weight).collect();
    let mut of_vms: Vec<u64> = vms.iter().map(|vm| sizes[*vm]).collect();
    let left = fill(&mut of_vms, &caps, &weights, left);
    for (vm, size) in vms.into_iter().zip(of_vms) {
        sizes[vm] = size;
    }
    left
}

/// Compares two fractions, without rounding: the whole parts first, then the rests by cross products, which fit.
fn by_density(a: (u128, u64), b: (u128, u64)) -> Ordering {
    let parts = |(gain, bytes): (u128, u64)| (gain / u128::from(bytes), gain % u128::from(bytes));
    let ((a_whole, a_rest), (b_whole, b_rest)) = (parts(a), parts(b));
    let rests = || (a_rest * u128::from(b.1)).cmp(&(b_rest * u128::from(a.1)));
    a_whole.cmp(&b_whole).then_with(rests)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn need(heat: &[(u64, u64)]) -> FastNeed {
        let heat = heat.iter().map(|(bytes, accesses_per_s)| Heat {
            bytes: *bytes,
            accesses_per_s: *accesses_per_s,
        });
        FastNeed {
            weight: 1000,
            floor_bytes: 0,
            ceiling_bytes: u64::MAX,
            heat: heat.collect(),
            extra_ns: 100,
        }
    }

    #[test]
    fn fast_memory_goes_where_a_byte_saves_most() {
        let hot = need(&[(10, 1000), (90, 90)]);
        let warm = need(&[(40, 400), (60, 6)]);
        let needs = [hot.clone(), warm.clone()];
        assert_eq!(by_gain(&needs, 5), [5, 0]);
        assert_eq!(by_gain(&needs, 30), [10, 20]);
        assert_eq!(by_gain(&needs, 60), [20, 40]);
        let heavy = FastNeed {
            weight: 11_000,
            ..warm.clone()
        };
        assert_eq!(by_gain(&[hot.clone(), heavy], 45), [5, 40]);
        let near = FastNeed { extra_ns: 9, ..hot };
        assert_eq!(by_gain(&[near, warm], 40), [0, 40]);
    }

    #[test]
    fn floors_come_first_and_ceilings_hold() {
        let idle = FastNeed {
            floor_bytes: 20,
            ..need(&[(100, 0)])
        };
        let busy = FastNeed {
            ceiling_bytes: 50,
            ..need(&[(100, 9)])
        };
        let needs = [idle.clone(), busy];
        assert_eq!(by_gain(&needs, 60), [20, 40]);
        assert_eq!(by_gain(&needs, 90), [20, 50], "20 are left free");
        assert_eq!(by_gain(&[idle.clone(), idle], 30), [15, 15]);
        assert!(by_gain(&[], 9).is_empty());
    }

    #[test]
    fn equal_groups_share_by_weight_whatever_their_order() {
        let flat = need(&[(100, 100)]);
        let heavy = FastNeed {
            weight: 3000,
            extra_ns: 100,
            ..need(&[(300, 100)])
        };
        assert_eq!(by_gain(&[flat.clone(), flat.clone()], 80), [40, 40]);
        assert_eq!(by_gain(&[flat, heavy], 80), [20, 60]);
    }

    #[test]
    fn fractions_of_any_size_are_compared() {
        let most = (u128::MAX, u64::MAX);
        assert_eq!(
            by_density(most, (u128::MAX - 1, u64::MAX)),
            Ordering::Greater
        );
        assert_eq!(by_density((2, 3), (4, 6)), Ordering::Equal);
        assert_eq!(by_density((1, u64::MAX), (1, u64::MAX - 1)), Ordering::Less);
    }

    /// Time saved by a VM with so many bytes, times 12: groups have at most 4 bytes.
    fn saved(need: &FastNeed, bytes: u64) -> u64 {
        let (mut left, mut saved) = (bytes, 0);
        for group in &need.heat {
            let held = left.min(group.bytes);
            left -= held;
            saved += group.accesses_per_s * held * 12 / group.bytes;
        }
        saved * u64::from(need.weight) * need.extra_ns
    }

    /// The most that can be saved, by trying all sizes.
    fn brute(needs: &[FastNeed], bytes: u64) -> u64 {
        let Some((need, others)) = needs.split_first() else {
            return 0;
        };
        let floors: u64 = others.iter().map(|n| n.floor_bytes).sum();
        (need.floor_bytes..=need.ceiling_bytes.min(bytes - floors))
            .map(|own| saved(need, own) + brute(others, bytes - own))
            .max()
            .unwrap_or(0)
    }

    fn any_need() -> impl Strategy<Value = FastNeed> {
        let groups = prop::collection::vec((1..5_u64, 0..30_u64), 0..4);
        (1..4_u32, 0..3_u64, 0..9_u64, groups, 0..3_u64).prop_map(
            |(weight, floor_bytes, range, mut groups, extra_ns)| {
                groups.sort_by(|a, b| (b.1 * a.0).cmp(&(a.1 * b.0)));
                FastNeed {
                    weight,
                    floor_bytes,
                    ceiling_bytes: floor_bytes + range,
                    extra_ns,
                    ..need(&groups)
                }
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn no_division_saves_more(
            needs in prop::collection::vec(any_need(), 0..4),
            spare in 0..20_u64,
        ) {
            let bytes = spare + needs.iter().map(|n| n.floor_bytes).sum::<u64>();
            let sizes = by_gain(&needs, bytes);
            prop_assert!(sizes.iter().sum::<u64>() <= bytes);
            for (size, need) in sizes.iter().zip(&needs) {
                prop_assert!((need.floor_bytes..=need.ceiling_bytes).contains(size));
            }
            let all: u64 = needs.iter().zip(&sizes).map(|(n, s)| saved(n, *s)).sum();
            prop_assert_eq!(all, brute(&needs, bytes));
        }

        #[test]
        fn any_numbers_keep_floors_ceilings_and_the_sum(
            vms in prop::collection::vec(
                (any::<u32>(), any::<[u64; 3]>(), prop::collection::vec(any::<[u64; 2]>(), 0..4)),
                0..6,
            ),
            bytes in any::<u64>(),
            bits in 0..60_u32,
        ) {
            let needs: Vec<FastNeed> = vms
                .iter()
                .map(|(weight, numbers, heat)| FastNeed {
                    weight: *weight,
                    floor_bytes: numbers[0] >> bits,
                    ceiling_bytes: numbers[1] >> (bits / 2),
                    heat: need(&heat.iter().map(|h| (h[0] >> bits, h[1])).collect::<Vec<_>>()).heat,
                    extra_ns: numbers[2],
                })
                .collect();
            let sizes = by_gain(&needs, bytes);
            prop_assert!(sizes.iter().map(|s| u128::from(*s)).sum::<u128>() <= u128::from(bytes));
            let floors: u128 = needs.iter().map(|n| u128::from(n.floor_bytes)).sum();
            for (size, need) in sizes.iter().zip(&needs) {
                prop_assert!(*size <= need.ceiling_bytes.max(need.floor_bytes));
                prop_assert!(*size >= need.floor_bytes || floors > u128::from(bytes));
            }
        }
    }
}
