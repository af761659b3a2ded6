//! Draws: numbers below a bound, chances, and permutations that need no memory.

use std::sync::Arc;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::Rng;

use super::Context;
use crate::base::access::Access;
use crate::base::number::multiply_high;
use crate::base::random::{Purpose, mix, stream};

/// A stream of random numbers.
#[derive(Clone)]
pub(super) struct Random(Xoshiro256PlusPlus);

impl Random {
    pub(super) fn new(context: &Context, vcpu: u32, purpose: Purpose) -> Self {
        Self(stream(context.seed, context.vm, vcpu, purpose))
    }

    /// Draws 64 random bits.
    pub(super) fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Draws a number below `bound`, the high half of a product: the relative error of each number's chance is at
    /// most `bound / 2^64`.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        multiply_high(self.bits(), bound)
    }

    /// Draws a number from 0 to less than 1, in steps of 2^-53.
    pub(super) fn unit(&mut self) -> f64 {
        to_f64(self.bits() >> 11) / 9_007_199_254_740_992.0
    }

    /// Draws whether a chance comes true.
    pub(super) fn happens(&mut self, chance: Chance) -> bool {
        self.bits() >> 1 < chance.0
    }
}

/// A probability, exact to 2^-63.
#[derive(Clone, Copy)]
pub(super) struct Chance(u64);

impl Chance {
    pub(super) fn new(share: f64) -> Self {
        Self(to_u64(share * 9_223_372_036_854_775_808.0))
    }
}

/// The draw of the accesses that write: one draw decides two of them, each to 2^-32.
#[derive(Clone)]
pub(super) struct Writes {
    random: Random,
    /// The share of writes, of 2^32.
    chance: u64,
    /// The unused half of a draw.
    spare: Option<u64>,
}

impl Writes {
    pub(super) fn new(context: &Context, vcpu: u32, share: f64) -> Self {
        Self {
            random: Random::new(context, vcpu, Purpose::Writes),
            chance: to_u64(share * to_f64(Self::ALL) + 0.5),
            spare: None,
        }
    }

    const ALL: u64 = 1 << 32;

    /// Whether the next access writes; if that is certain, nothing is drawn.
    pub(super) fn draw(&mut self) -> bool {
        if self.chance == 0 || self.chance == Self::ALL {
            return self.chance > 0;
        }
        let bits = match self.spare.take() {
            Some(bits) => bits,
            None => {
                let bits = self.random.bits();
                self.spare = Some(bits >> 32);
                bits & (Self::ALL - 1)
            }
        };
        bits < self.chance
    }
}

/// A seeded permutation of the numbers below `items`. They lie in a grid of 2^`bits` columns that is a little larger
/// than `items`. Each column is rotated, then the columns of each row are swapped; numbers outside of `items` go
/// round again, so that this is a permutation for every count. One number per column is stored, about the square root
/// of `items`.
#[derive(Clone, Debug)]
pub(super) struct Permutation {
    items: u64,
    rows: u64,
    bits: u32,
    swap: u64,
    turns: Arc<[u32]>,
}

impl Permutation {
    /// A permutation of fewer than 2^48 items, at least one.
    pub(super) fn new(items: u64, seed: u64) -> Self {
        let bits = (65 - items.saturating_sub(1).leading_zeros()) / 2;
        let bits = bits.max(1);
        let rows = items.div_ceil(1 << bits);
        let turn = |column: u64| {
            let turn = multiply_high(mix(mix(!seed) ^ column), rows);
            u32::try_from(turn).unwrap_or(0)
        };
        Self {
            items,
            rows,
            bits,
            swap: mix(seed),
            turns: (0..1 << bits).map(turn).collect(),
        }
    }

    pub(super) fn apply(&self, item: u64) -> u64 {
        let mut item = item;
        loop {
            item = self.round(item);
            if item < self.items {
                return item;
            }
        }
    }

    /// The item that [`Permutation::apply`] puts at a place.
    pub(super) fn invert(&self, place: u64) -> u64 {
        let mut item = place;
        loop {
            item = self.round_back(item);
            if item < self.items {
                return item;
            }
        }
    }

    fn round(&self, item: u64) -> u64 {
        let (row, column) = (item >> self.bits, item & ((1 << self.bits) - 1));
        let turn = usize::try_from(column).map_or(0, |column| self.turns[column]);
        let row = row + u64::from(turn);
        let row = row.min(row.wrapping_sub(self.rows));
        row << self.bits | column ^ self.swap_of(row)
    }

    /// The item that [`Permutation::round`] turns into this one.
    fn round_back(&self, item: u64) -> u64 {
        let (row, column) = (item >> self.bits, item & ((1 << self.bits) - 1));
        let column = column ^ self.swap_of(row);
        let turn = usize::try_from(column).map_or(0, |column| self.turns[column]);
        let row = row.wrapping_sub(u64::from(turn));
        row.min(row.wrapping_add(self.rows)) << self.bits | column
    }

    /// The columns' swap in a row: the golden ratio's bits spread neighbouring rows over all columns.
    fn swap_of(&self, row: u64) -> u64 {
        let swap = (row ^ self.swap).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        swap >> (64 - self.bits)
    }
}

/// The places of items that are numbered by their heat.
#[derive(Clone, Debug)]
pub(super) enum Places {
    /// Each lies anywhere.
    Random(Permutation),
    /// Items of neighbouring ranks lie far from each other: item k at `start` + k × `step`, round and round, where
    /// `step` is the golden part of all places. Each stretch of memory has its share of the items of every heat.
    Even {
        /// Number of places.
        items: u64,
        /// Distance from an item to the next; it has no divisor in common with the number of places.
        step: u64,
        /// Place of the first item.
        start: u64,
    },
}

impl Places {
    /// Places anywhere.
    pub(super) fn random(items: u64, seed: u64) -> Self {
        Self::Random(Permutation::new(items, seed))
    }

    /// The items' own order.
    pub(super) fn in_order(items: u64) -> Self {
        Self::Even {
            items,
            step: 1,
            start: 0,
        }
    }

    /// Even places.
    pub(super) fn even(items: u64, seed: u64) -> Self {
        let golden = multiply_high(items, GOLDEN).max(1);
        let step = (golden..).find(|step| gcd(*step, items) == 1);
        Self::Even {
            items,
            step: step.unwrap_or(1) % items.max(1),
            start: multiply_high(mix(seed), items),
        }
    }

    /// The place of an item.
    pub(super) fn of(&self, item: u64) -> u64 {
        match self {
            Self::Random(permutation) => permutation.apply(item),
            Self::Even { items, step, start } => match item.checked_mul(*step) {
                Some(product) => product.wrapping_add(*start) % items,
                None => round(item, *step, *start, *items),
            },
        }
    }
}

/// The golden part of 2^64.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// The place of an item whose product with the step has more than 64 bits.
#[cold]
fn round(item: u64, step: u64, start: u64, items: u64) -> u64 {
    let place = u128::from(item) * u128::from(step) + u128::from(start);
    u64::try_from(place % u128::from(items)).unwrap_or(0)
}

fn gcd(a: u64, b: u64) -> u64 {
    let (mut a, mut b) = (a, b);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The `f64` nearest to a whole number.
pub(super) fn to_f64(x: u64) -> f64 {
    let [a, b, c, d, e, f, g, h] = x.to_le_bytes();
    let low = u32::from_le_bytes([a, b, c, d]);
    let high = u32::from_le_bytes([e, f, g, h]);
    f64::from(high) * 4_294_967_296.0 + f64::from(low)
}

/// The whole part of `x`; 0 below 1. `x` is below 2^64.
pub(super) fn to_u64(x: f64) -> u64 {
    const FRACTION_BITS: u64 = 52;
    if !(1.0..18_446_744_073_709_551_616.0).contains(&x) {
        return 0;
    }
    let exponent = (x.to_bits() >> FRACTION_BITS) - 1023;
    let digits = x.to_bits() & ((1 << FRACTION_BITS) - 1) | 1 << FRACTION_BITS;
    if exponent >= FRACTION_BITS {
        digits << (exponent - FRACTION_BITS)
    } else {
        digits >> (FRACTION_BITS - exponent)
    }
}

/// A `share` of `whole`, to the nearest number, at least 1 and at most all.
pub(super) fn part(whole: u64, share: f64) -> u64 {
    to_u64(to_f64(whole) * share + 0.5).clamp(1, whole)
}

/// The access to a line, counted from the start of the load's memory.
pub(super) fn access(line: u64, write: bool) -> Access {
    Access::new(line >> 6, line & 63, write)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permutations_of_any_count_hit_every_item_once() {
        for items in [1, 2, 3, 5, 64, 1000, 1023, 1025, 65_537] {
            let permutation = Permutation::new(items, 7);
            let mut hit: Vec<u64> = (0..items).map(|i| permutation.apply(i)).collect();
            hit.sort_unstable();
            assert_eq!(hit, (0..items).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_permutation_can_be_turned_back() {
        for items in [1, 2, 3, 63, 64, 1000, 4097] {
            let permutation = Permutation::new(items, 5);
            for item in 0..items {
                assert_eq!(permutation.invert(permutation.apply(item)), item);
            }
        }
    }

    #[test]
    fn even_places_give_each_stretch_its_share_of_hot_items() {
        for items in [1_u64, 2, 3, 5, 64, 1000, 1023, 65_536, 65_537] {
            let places = Places::even(items, 7);
            let mut hit: Vec<u64> = (0..items).map(|i| places.of(i)).collect();
            for count in [items / 100, items / 10, items / 3] {
                let first = &hit[..usize::try_from(count).expect("small")];
                for (from, to) in [(0, items / 4), (items / 2, items)] {
                    let found = first.iter().filter(|p| (from..to).contains(*p)).count();
                    let due = to_f64(count) * to_f64(to - from) / to_f64(items.max(1));
                    let off = (to_f64(found as u64) - due).abs();
                    assert!(off < 5.0, "{off} of {count} of {items}");
                }
            }
            hit.sort_unstable();
            assert_eq!(hit, (0..items).collect::<Vec<_>>());
        }
    }

    #[test]
    fn products_of_more_than_64_bits_give_places_too() {
        let items = (1 << 40) + 1;
        let places = Places::even(items, 7);
        let Places::Even { step, start, .. } = places else {
            panic!("even");
        };
        let item = items - 1;
        // The last item is one step before the first.
        assert_eq!((places.of(item) + step) % items, start);
    }

    #[test]
    fn permutations_of_other_seeds_differ() {
        let of = |seed| {
            let permutation = Permutation::new(1000, seed);
            (0..1000).map(|i| permutation.apply(i)).collect::<Vec<_>>()
        };
        let same = of(1).iter().zip(of(2)).filter(|(a, b)| **a == *b).count();
        assert!(same < 12, "{same} of 1000 in the same place");
    }

    /// As a random tenth would be: neither even (as strides are) nor in clumps.
    #[test]
    fn a_scattered_tenth_is_spread_over_huge_pages_as_by_chance() {
        let per_region = 512;
        for regions in [300_u32, 1000, 2048] {
            let items = u64::from(regions) * per_region;
            let permutation = Permutation::new(items, 3);
            let mut counts = vec![0_u32; usize::try_from(regions).expect("small")];
            for item in 0..items / 10 {
                let region = usize::try_from(permutation.apply(item) / per_region).expect("small");
                counts[region] += 1;
            }
            let squares = counts.iter().map(|count| {
                let off = f64::from(*count) - 51.2;
                off * off
            });
            let variance = squares.sum::<f64>() / f64::from(regions);
            let ratio = variance / (512.0 * 0.1 * 0.9);
            // Five deviations of a variance.
            let bound = 5.0 * (2.0 / f64::from(regions)).sqrt();
            assert!((ratio - 1.0).abs() < bound, "{ratio} of {regions} regions");
        }
    }

    #[test]
    fn whole_numbers_pass_through_floating_point() {
        for x in [0, 1, 2, 63, 4096, 1 << 40, (1 << 53) - 1, 1 << 63] {
            assert_eq!(to_u64(to_f64(x)), x);
        }
        assert_eq!(to_u64(2.999), 2);
        assert_eq!(to_u64(0.999), 0);
        assert_eq!(part(10, 0.25), 3);
        assert_eq!(part(10, 0.001), 1);
    }
}
