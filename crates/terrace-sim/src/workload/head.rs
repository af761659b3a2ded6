//! The head of Zipf's law on a scaled machine: the full-size items that each simulated item stands for.
//!
//! Responsible for: which of them stand together, and for how many of the hottest items that differs from
//! neighbourhood (`docs/decisions/0022-zipf-at-scale.md`). It leaves to others: the draw of a full-size item
//! ([`super::keys`]).
//!
//! A simulated item stands for `scale` full-size items. With neighbours of the ranking together, the first one
//! stands for all of the hottest, and a run depends on where that one lies. So the hottest ranks are dealt like cards
//! to the first few simulated items: one hot item each, and a share of the less hot.

use serde::Deserialize;

use super::draw::to_f64;

/// The grouping of the hottest items at scale.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Head {
    /// The hottest items dealt to the first simulated ones, so that none of these has many of them.
    #[default]
    Spread,
    /// Neighbours together, the hottest ones too.
    Merged,
}

/// One of so many simulated items may be dealt to: the hottest hundredth of memory keeps its share of the accesses.
const ITEMS_PER_DEALT: u64 = 100;

/// The root of the [`ScaledLaw::unevenness`] that the scale may add. At most half of it, half a point, is added to
/// the standard deviation of a hit ratio.
const ADDED_ROOT: f64 = 0.01;

/// The simulated items that full-size ranks stand for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grouping {
    scale: u64,
    /// Number of simulated items that the first ranks are dealt to.
    dealt: u64,
    /// Number of ranks that are dealt.
    dealt_ranks: u64,
}

impl Grouping {
    /// The grouping of `scale` times `count` ranks.
    pub(super) fn new(count: u64, scale: u64, exponent: f64, head: Head) -> Self {
        let dealt = match head {
            Head::Spread => dealt(count, scale, exponent),
            Head::Merged => 1,
        };
        Self {
            scale,
            dealt,
            dealt_ranks: dealt.saturating_mul(scale),
        }
    }

    /// The simulated item of a full-size rank.
    pub(super) fn item(self, rank: u64) -> u64 {
        if rank < self.dealt_ranks {
            rank % self.dealt
        } else {
            rank / self.scale
        }
    }
}

/// The least number of simulated items to deal to such that the items are hardly less even than those of the
/// full-size law; at most a hundredth of them.
fn dealt(count: u64, scale: u64, exponent: f64) -> u64 {
    let law = ScaledLaw::new(count, scale, exponent);
    let root = law.full_unevenness().max(0.0).sqrt() + ADDED_ROOT;
    let allowed = root * root;
    let (mut low, mut high) = (1, (count / ITEMS_PER_DEALT).max(1));
    while low < high {
        let middle = low + (high - low) / 2;
        if law.unevenness(middle) <= allowed {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

/// A law of a full-size machine, at a scale. The unevenness of n items with the shares p of the accesses is
/// Σ (p - 1/n)². If a share f of the items is fast, and chance says which, then the hit ratio's variance is
/// f (1 - f) n / (n - 1) times that, however many items share a page.
struct ScaledLaw {
    count: u64,
    scale: u64,
    exponent: f64,
    /// Sum of the weights of all full-size items.
    weights: f64,
}

impl ScaledLaw {
    fn new(count: u64, scale: u64, exponent: f64) -> Self {
        Self {
            count,
            scale,
            exponent,
            weights: power_sum(1.0, count.saturating_mul(scale), exponent),
        }
    }

    /// The unevenness of the full-size items.
    fn full_unevenness(&self) -> f64 {
        let items = self.count.saturating_mul(self.scale);
        let squares = power_sum(1.0, items, 2.0 * self.exponent);
        squares / (self.weights * self.weights) - 1.0 / to_f64(items)
    }

    /// An upper bound of the unevenness of the simulated items with the first ranks dealt to `dealt` of them; close,
    /// as a test shows.
    fn unevenness(&self, dealt: u64) -> f64 {
        let (count, items) = (to_f64(dealt), self.count.saturating_mul(self.scale));
        let ranks = dealt.saturating_mul(self.scale);
        // Each of these items has one of the first ranks, and no more of the others than the first item has.
        let first = power_sum(1.0, dealt, self.exponent);
        let others = power_sum(count + 1.0, ranks - dealt, self.exponent);
        let most_others = libm::pow(count, -self.exponent)
            * power_sum(1.0 + 1.0 / count, self.scale - 1, self.exponent);
        let head =
            power_sum(1.0, dealt, 2.0 * self.exponent) + most_others * (2.0 * first + others);
        // The square of a sum is at most the number of its terms times the sum of their squares.
        let tail =
            to_f64(self.scale) * power_sum(to_f64(ranks) + 1.0, items - ranks, 2.0 * self.exponent);
        (head + tail) / (self.weights * self.weights) - 1.0 / to_f64(self.count)
    }
}

/// Terms of a [`power_sum`] that are added one by one, before the integral stands for the others.
const EXACT_TERMS: u64 = 16;

/// The sum of x^-exponent for the `terms` numbers `start`, `start + 1` and so on, to a thousandth or to 10^-15: the
/// first terms, and the integral of the others by the midpoint rule.
fn power_sum(start: f64, terms: u64, exponent: f64) -> f64 {
    let exact = terms.min(EXACT_TERMS);
    let sum: f64 = (0..exact)
        .map(|term| libm::pow(start + to_f64(term), -exponent))
        .sum();
    let (low, high) = (to_f64(exact) - 0.5, to_f64(terms) - 0.5);
    sum + power_integral(start + high, exponent) - power_integral(start + low, exponent)
}

/// The integral of x^-exponent from 1 to `x`; it is continuous at exponent 1.
pub(super) fn power_integral(x: f64, exponent: f64) -> f64 {
    let log = libm::log(x);
    let t = (1.0 - exponent) * log;
    let factor = if t.abs() < 1e-8 {
        1.0 + t / 2.0
    } else {
        libm::expm1(t) / t
    };
    factor * log
}

#[cfg(test)]
mod tests {
    use super::super::draw::Permutation;
    use super::*;

    const RANKS: u64 = 1 << 20;
    const EXPONENTS: [f64; 5] = [0.5, 0.8, 0.99, 1.1, 1.5];
    const SCALES: [u64; 5] = [1, 4, 16, 64, 256];

    /// Shares of the accesses of all full-size items.
    fn full_shares(exponent: f64) -> Vec<f64> {
        let weights = (1..=RANKS).map(|rank| libm::pow(to_f64(rank), -exponent));
        let weights: Vec<f64> = weights.collect();
        let sum: f64 = weights.iter().sum();
        weights.iter().map(|weight| weight / sum).collect()
    }

    /// Shares of the accesses of all simulated items, by their numbers.
    fn shares(full: &[f64], scale: u64, grouping: Grouping) -> Vec<f64> {
        let mut shares = vec![0.0; full.len() / usize::try_from(scale).expect("small")];
        for (rank, share) in (0..).zip(full) {
            shares[usize::try_from(grouping.item(rank)).expect("small")] += share;
        }
        shares
    }

    fn exact_unevenness(shares: &[f64]) -> f64 {
        let count = to_f64(u64::try_from(shares.len()).expect("small"));
        let squares = shares.iter().map(|share| share * share);
        squares.sum::<f64>() - 1.0 / count
    }

    fn each_case(mut check: impl FnMut(f64, u64, &[f64], &[f64])) {
        for exponent in EXPONENTS {
            let full = full_shares(exponent);
            for scale in SCALES {
                let grouping = Grouping::new(RANKS / scale, scale, exponent, Head::Spread);
                check(exponent, scale, &full, &shares(&full, scale, grouping));
            }
        }
    }

    #[test]
    fn shares_of_memory_have_the_accesses_of_the_full_size_law() {
        each_case(|exponent, scale, full, scaled| {
            let mut hottest_first = scaled.to_vec();
            hottest_first.sort_by(|a, b| b.total_cmp(a));
            for percent in [1, 5, 20, 50] {
                let items = scaled.len() * percent / 100;
                let ranks = items * usize::try_from(scale).expect("small");
                let expected: f64 = full[..ranks].iter().sum();
                let share: f64 = hottest_first[..items].iter().sum();
                assert!(
                    (share - expected).abs() < 0.01,
                    "{percent} %, exponent {exponent}, scale {scale}: {share}, not {expected}"
                );
            }
        });
    }

    /// None of the other ranks of the first item weighs more than the mean of the ranks between it and the one before.
    #[test]
    fn the_hottest_item_has_one_hot_rank_and_its_part_of_the_others() {
        each_case(|exponent, scale, full, scaled| {
            let dealt = dealt(RANKS / scale, scale, exponent);
            let most = full[0] + (1.0 - full[0]) / to_f64(dealt);
            assert!(
                scaled[0] <= most,
                "exponent {exponent}, scale {scale}: {} above {most}",
                scaled[0]
            );
        });
    }

    #[test]
    fn no_items_are_much_less_even_than_at_full_size() {
        each_case(|exponent, scale, full, scaled| {
            let count = RANKS / scale;
            let law = ScaledLaw::new(count, scale, exponent);
            let full = exact_unevenness(full);
            assert!((law.full_unevenness() - full).abs() < 0.002 * full);
            let dealt = dealt(count, scale, exponent);
            let (exact, bound) = (exact_unevenness(scaled), law.unevenness(dealt));
            assert!(
                exact < 1.001 * bound && bound < 1.1 * exact,
                "{exact} and {bound}"
            );
            let allowed = full.sqrt() + ADDED_ROOT;
            // A hundredth of the items is too little where many ranks of middling heat are one item.
            let is_most = dealt == count / ITEMS_PER_DEALT;
            let allowed = if is_most { 2.0 * allowed } else { allowed };
            assert!(
                exact.sqrt() < allowed,
                "exponent {exponent}, scale {scale}: {} above {allowed}",
                exact.sqrt()
            );
        });
    }

    #[test]
    fn the_fewest_items_that_suffice_are_dealt_to() {
        for exponent in EXPONENTS {
            for scale in SCALES {
                let count = (1 << 30) / scale;
                let law = ScaledLaw::new(count, scale, exponent);
                let dealt = dealt(count, scale, exponent);
                assert!(dealt <= count / ITEMS_PER_DEALT, "{dealt} of {count}");
                let root = law.full_unevenness().sqrt() + ADDED_ROOT;
                if dealt > 1 {
                    assert!(
                        law.unevenness(dealt - 1) > root * root,
                        "{dealt} of {count}"
                    );
                }
            }
        }
    }

    /// Deviation of the hit ratio over seeds, and its mean, with the items of a random quarter of memory in fast.
    fn hits_of_a_random_quarter(shares: &[f64]) -> (f64, f64) {
        const SEEDS: u32 = 200;
        let count = u64::try_from(shares.len()).expect("small");
        let hits = |seed: u32| -> f64 {
            let places = Permutation::new(count, seed.into());
            let is_fast = |item: &(u64, f64)| places.apply(item.0) < count / 4;
            let items = (0..).zip(shares.iter().copied());
            items.filter(is_fast).map(|(_, share)| share).sum()
        };
        let hits: Vec<f64> = (0..SEEDS).map(hits).collect();
        let mean = hits.iter().sum::<f64>() / f64::from(SEEDS);
        let squares = hits.iter().map(|hit| (hit - mean) * (hit - mean));
        ((squares.sum::<f64>() / f64::from(SEEDS)).sqrt(), mean)
    }

    #[test]
    fn hits_of_seeds_vary_about_as_they_do_at_full_size() {
        for exponent in [0.99, 1.1] {
            let full = full_shares(exponent);
            // The root of a quarter times three quarters.
            let at_full_size = 0.433 * exact_unevenness(&full).sqrt();
            for scale in [64, 256] {
                let of = |head| {
                    let grouping = Grouping::new(RANKS / scale, scale, exponent, head);
                    hits_of_a_random_quarter(&shares(&full, scale, grouping))
                };
                let (spread, mean) = of(Head::Spread);
                let (merged, _) = of(Head::Merged);
                assert!((mean - 0.25).abs() < 0.01, "{mean}");
                // A scale of 256 leaves few items to deal to, and a permutation keeps some of them neighbours.
                let times = if scale == 64 { 1.4 } else { 1.75 };
                assert!(
                    spread < times * at_full_size,
                    "{spread}, not {at_full_size}"
                );
                assert!(merged > 2.5 * at_full_size, "{merged}, not {at_full_size}");
            }
        }
    }

    #[test]
    fn full_size_ranks_are_their_own_items() {
        for head in [Head::Spread, Head::Merged] {
            let grouping = Grouping::new(RANKS, 1, 0.99, head);
            assert!((0..RANKS).all(|rank| grouping.item(rank) == rank));
        }
    }

    #[test]
    fn every_item_stands_for_as_many_ranks_as_the_scale() {
        for head in [Head::Spread, Head::Merged] {
            let grouping = Grouping::new(5000, 7, 0.99, head);
            let mut ranks = vec![0; 5000];
            for rank in 0..35_000 {
                ranks[usize::try_from(grouping.item(rank)).expect("small")] += 1;
            }
            assert!(ranks.iter().all(|ranks| *ranks == 7), "{head:?}");
        }
    }

    #[test]
    fn power_sums_are_those_of_their_terms() {
        for exponent in [0.2, 0.5, 1.0, 2.0, 20.0] {
            for (start, terms) in [(1.0, 0), (1.0, 5), (1.0, 17), (1.5, 1000), (300.0, 9000)] {
                let term = |term: u64| libm::pow(start + to_f64(term), -exponent);
                let expected: f64 = (0..terms).map(term).sum();
                let sum = power_sum(start, terms, exponent);
                assert!(
                    (sum - expected).abs() <= 0.001 * expected + 1e-15,
                    "{sum}, not {expected}"
                );
            }
        }
    }
}
