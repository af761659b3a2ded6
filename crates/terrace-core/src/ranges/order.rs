//! The order of ranges in a ranking: the most accesses per page first, the newer first if these are equal, then in the
//! order given.
//!
//! Responsible for: sorting small keys instead of leaves, which takes a fraction of the time. If 64 bits hold all that
//! decides, a key is one number. It leaves to others: what is ranked ([`super::plan`]).

use std::cmp::Reverse;

use super::tree::Leaf;

/// Places of the leaves in the order of the ranking.
pub(super) fn order(leaves: &[(u32, Leaf)]) -> Vec<usize> {
    short_keys(leaves).unwrap_or_else(|| long_keys(leaves))
}

/// Accesses per page, rounded down to a multiple of 2^-`fraction`; `fraction` is at most 32.
fn rounded(leaf: &Leaf, fraction: u32) -> u64 {
    (u64::from(leaf.count) << fraction) / leaf.range.pages().max(1)
}

/// Bits of a number.
fn bits(number: u64) -> u32 {
    u64::BITS - number.leading_zeros()
}

/// The order by keys of 64 bits: accesses per page, age and place. None if they are too many bits, or if pages are so many
/// that rounding may hide a difference.
fn short_keys(leaves: &[(u32, Leaf)]) -> Option<Vec<usize>> {
    let (mut most, mut newest, mut oldest) = (0, 0, u32::MAX);
    for (_, leaf) in leaves {
        most = leaf.range.pages().max(most);
        newest = leaf.created.max(newest);
        oldest = leaf.created.min(oldest);
    }
    // Fractions that differ at all differ by one over the product of their pages at least: by a multiple, or more.
    let fraction = 2 * bits(most);
    if fraction > 32 {
        return None;
    }
    let place_bits = bits(leaves.len() as u64);
    let low_bits = place_bits + bits(newest.saturating_sub(oldest).into());
    if low_bits >= u64::BITS {
        return None;
    }
    let (mut keys, mut highest) = (Vec::with_capacity(leaves.len()), 0);
    for (at, (_, leaf)) in (0_u64..).zip(leaves) {
        let accesses = rounded(leaf, fraction);
        highest = accesses.max(highest);
        let age = u64::from(newest - leaf.created) << place_bits | at;
        // Ascending: the fewer accesses, the greater.
        keys.push(!accesses << low_bits | age);
    }
    if low_bits + bits(highest) > u64::BITS {
        return None;
    }
    keys.sort_unstable();
    let place = |key| usize::try_from(key & ((1 << place_bits) - 1)).ok();
    keys.into_iter().map(place).collect()
}

/// The order by keys of several numbers; leaves that differ by less than the rounding are compared once more.
fn long_keys(leaves: &[(u32, Leaf)]) -> Vec<usize> {
    let key = |(at, (_, leaf)): (usize, &(u32, Leaf))| {
        let age = u64::from(u32::MAX - leaf.created);
        (u64::MAX - rounded(leaf, 32), age, at)
    };
    let mut keys: Vec<_> = leaves.iter().enumerate().map(key).collect();
    keys.sort_unstable();
    for same in keys.chunk_by_mut(|a, b| a.0 == b.0) {
        same.sort_by(|(.., a), (.., b)| {
            let (a, b) = (&leaves[*a].1, &leaves[*b].1);
            let per_page = |leaf: &Leaf, other: &Leaf| {
                u128::from(leaf.count) * u128::from(other.range.pages())
            };
            per_page(b, a)
                .cmp(&per_page(a, b))
                .then(Reverse(a.created).cmp(&Reverse(b.created)))
        });
    }
    keys.into_iter().map(|(.., at)| at).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::ranges::Range;

    /// The order, pair by pair.
    fn naive(leaves: &[(u32, Leaf)]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..leaves.len()).collect();
        order.sort_by(|a, b| {
            let (a, b) = (&leaves[*a].1, &leaves[*b].1);
            let x = u128::from(a.count) * u128::from(b.range.pages());
            let y = u128::from(b.count) * u128::from(a.range.pages());
            y.cmp(&x).then(b.created.cmp(&a.created))
        });
        order
    }

    /// Few counts and sizes, so that many leaves are equal or nearly so; or any.
    fn leaf(pages: impl Strategy<Value = u64>) -> impl Strategy<Value = (u32, Leaf)> {
        let count = prop_oneof![8 => 0_u32..6, 1 => any::<u32>(), 1 => Just(u32::MAX)];
        let created = prop_oneof![8 => 0_u32..4, 1 => any::<u32>()];
        (count, created, pages).prop_map(|(count, created, pages)| {
            let range = Range {
                start: 0,
                end: pages,
            };
            let accessed = created;
            let leaf = Leaf {
                range,
                count,
                created,
                accessed,
            };
            (1, leaf)
        })
    }

    fn small() -> impl Strategy<Value = u64> {
        prop_oneof![1_u64..6, 510_u64..514, Just(4096), Just((1 << 16) - 1)]
    }

    fn any_size() -> impl Strategy<Value = u64> {
        prop_oneof![
            1_u64..6,
            Just(1 << 16),
            (1_u64 << 40) - 3..1 << 40,
            1..u64::MAX
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        #[test]
        fn small_ranges_are_in_the_order_of_a_plain_sort(leaves in prop::collection::vec(leaf(small()), 0..80)) {
            prop_assert_eq!(order(&leaves), naive(&leaves));
            prop_assert_eq!(long_keys(&leaves), naive(&leaves));
            if let Some(short) = short_keys(&leaves) {
                prop_assert_eq!(short, naive(&leaves));
            }
        }

        #[test]
        fn ranges_of_any_size_are_in_the_order_of_a_plain_sort(leaves in prop::collection::vec(leaf(any_size()), 0..80)) {
            prop_assert_eq!(order(&leaves), naive(&leaves));
        }
    }

    #[test]
    fn a_usual_tree_needs_short_keys_only() {
        let range = |pages| Range {
            start: 0,
            end: pages,
        };
        let leaf = |count, created, pages| {
            let accessed = created;
            (
                1,
                Leaf {
                    range: range(pages),
                    count,
                    created,
                    accessed,
                },
            )
        };
        let usual = [leaf(3, 0, 512), leaf(700, 90_000, 4096), leaf(0, 5, 1024)];
        assert_eq!(short_keys(&usual), Some(vec![1, 0, 2]));
        let (large, old) = (leaf(3, 0, 1 << 16), leaf(u32::MAX, u32::MAX, 3));
        assert_eq!(short_keys(&[usual[0], large]), None);
        assert_eq!(short_keys(&[usual[0], old]), None);
        assert_eq!(short_keys(&[leaf(3, 0, 40_000), old]), None);
    }
}
