//! The head of Zipf's law on a scaled machine: the simulated items that the hottest full-size items are.
//!
//! Responsible for: which simulated item a full-size item is (`docs/decisions/0022-zipf-at-scale.md`). It leaves to
//! others: the draw of a full-size item ([`super::keys`]).
//!
//! A simulated item stands for `scale` neighbours of the full-size ranking, so the first one stands for all of the
//! hottest, and a run depends on where that one lies. Behind a cache, which takes the accesses to the very hottest, it is
//! enough that items lie evenly over memory ([`super::draw::Places`]). Without one the first few items take turns: at each
//! moment a share of memory has its share of the accesses, and over some thousand accesses these items are accessed
//! alike. To a cache a turn would bring lines that it does not hold.

use serde::Deserialize;

use super::Context;
use super::draw::to_f64;

/// The treatment of the hottest items at scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Head {
    /// The first few simulated items take turns, so that none of them is much hotter than one of full size.
    Spread,
    /// The first simulated item stands for the hottest full-size items all the time.
    Merged,
    /// The same, and items of any rank lie evenly over memory.
    Even,
}

impl Head {
    /// The treatment that is usual: it depends on whether a cache takes the accesses to the hottest items.
    pub(super) fn usual(context: &Context) -> Self {
        if context.is_cached {
            Self::Even
        } else {
            Self::Spread
        }
    }

    /// Whether items lie evenly over memory. At full size they lie anywhere.
    pub(super) fn is_even(self, context: &Context) -> bool {
        self == Self::Even && context.scale > 1
    }
}

/// One of so many simulated items may take turns: the hottest hundredth of memory keeps its share of the accesses.
const ITEMS_PER_TURNER: u64 = 100;

/// The root of the [`ScaledLaw::unevenness`] that the scale may add. At most half of it, half a point, is added to
/// the standard deviation of a hit ratio.
const ADDED_ROOT: f64 = 0.01;

/// Draws of a turn. After each, one item enters the hottest few and one leaves, which is one miss more in a TLB.
const TURN_DRAWS: u64 = 256;

/// The simulated items that full-size ranks are, from draw to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grouping {
    scale: u64,
    /// Number of the first items, which take turns.
    turners: u64,
    /// The first of these in the present turn.
    hottest: u64,
    /// Draws of the present turn.
    draws: u64,
}

impl Grouping {
    /// The grouping of `scale` times `count` ranks.
    pub(super) fn new(count: u64, scale: u64, exponent: f64, head: Head) -> Self {
        let turners = match head {
            Head::Spread => turners(count, scale, exponent),
            Head::Merged | Head::Even => 1,
        };
        Self {
            scale,
            turners,
            hottest: 0,
            draws: 0,
        }
    }

    /// The simulated item of the full-size rank that was drawn.
    pub(super) fn item(&mut self, rank: u64) -> u64 {
        let item = rank / self.scale;
        if self.draws == TURN_DRAWS {
            self.draws = 0;
            self.hottest = (self.hottest + 1) % self.turners;
        }
        self.draws += 1;
        if item < self.turners {
            (item + self.hottest) % self.turners
        } else {
            item
        }
    }
}

/// The least number of simulated items that take turns such that the items are hardly less even than those of the
/// full-size law; at most a hundredth of them.
fn turners(count: u64, scale: u64, exponent: f64) -> u64 {
    let law = ScaledLaw::new(count, scale, exponent);
    let root = law.full_unevenness().max(0.0).sqrt() + ADDED_ROOT;
    let allowed = root * root;
    let (mut low, mut high) = (1, (count / ITEMS_PER_TURNER).max(1));
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

    /// An upper bound of the unevenness of the simulated items of which the first `turners` are accessed alike; close,
    /// as a test shows.
    fn unevenness(&self, turners: u64) -> f64 {
        let items = self.count.saturating_mul(self.scale);
        let ranks = turners.saturating_mul(self.scale);
        let first = power_sum(1.0, ranks, self.exponent);
        let head = first * first / to_f64(turners);
        // The square of a sum is at most the number of its terms times the sum of their squares.
        let squares = power_sum(to_f64(ranks) + 1.0, items - ranks, 2.0 * self.exponent);
        let tail = to_f64(self.scale) * squares;
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
        let group = usize::try_from(scale).expect("small");
        let mut shares: Vec<f64> = full.chunks(group).map(|group| group.iter().sum()).collect();
        let turners = usize::try_from(grouping.turners).expect("small");
        let first: f64 = shares[..turners].iter().sum();
        shares[..turners].fill(first / to_f64(grouping.turners));
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

    #[test]
    fn the_hottest_item_is_not_much_hotter_than_at_full_size() {
        each_case(|exponent, scale, full, scaled| {
            let turners = turners(RANKS / scale, scale, exponent);
            assert!(scaled[0] <= full[0].max(1.0 / to_f64(turners)));
            // The first of full size alone makes the unevenness that is allowed.
            if turners < RANKS / scale / ITEMS_PER_TURNER {
                let most = exact_unevenness(full).sqrt() + ADDED_ROOT + 1.0 / to_f64(RANKS / scale);
                assert!(scaled[0] <= most, "exponent {exponent}, scale {scale}");
            }
        });
    }

    #[test]
    fn no_items_are_much_less_even_than_at_full_size() {
        each_case(|exponent, scale, full, scaled| {
            let count = RANKS / scale;
            let law = ScaledLaw::new(count, scale, exponent);
            let full = exact_unevenness(full);
            assert!((law.full_unevenness() - full).abs() < 0.002 * full);
            let turners = turners(count, scale, exponent);
            let (exact, bound) = (exact_unevenness(scaled), law.unevenness(turners));
            assert!(
                exact < 1.001 * bound && bound < 1.1 * exact,
                "{exact} and {bound}"
            );
            let allowed = full.sqrt() + ADDED_ROOT;
            // A hundredth of the items is too little where many ranks of middling heat are one item.
            let is_most = turners == count / ITEMS_PER_TURNER;
            let allowed = if is_most { 2.0 * allowed } else { allowed };
            assert!(
                exact.sqrt() < allowed,
                "exponent {exponent}, scale {scale}: {} above {allowed}",
                exact.sqrt()
            );
        });
    }

    #[test]
    fn the_fewest_items_that_suffice_take_turns() {
        for exponent in EXPONENTS {
            for scale in SCALES {
                let count = (1 << 30) / scale;
                let law = ScaledLaw::new(count, scale, exponent);
                let turners = turners(count, scale, exponent);
                assert!(turners <= count / ITEMS_PER_TURNER, "{turners} of {count}");
                let root = law.full_unevenness().sqrt() + ADDED_ROOT;
                if turners > 1 {
                    assert!(
                        law.unevenness(turners - 1) > root * root,
                        "{turners} of {count}"
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
                // A scale of 256 leaves few items for turns, and a permutation keeps some of them neighbours.
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
            let mut grouping = Grouping::new(RANKS, 1, 0.99, head);
            assert!((0..RANKS).all(|rank| grouping.item(rank) == rank));
        }
    }

    #[test]
    fn items_of_the_head_have_each_place_for_a_turn() {
        let mut grouping = Grouping::new(5000, 7, 0.99, Head::Spread);
        let turners = grouping.turners;
        assert!(turners > 1);
        let mut draws = vec![0; usize::try_from(turners).expect("small")];
        for draw in 0..turners * TURN_DRAWS {
            let item = grouping.item(7 * 3 + 6);
            assert_eq!(item, (3 + draw / TURN_DRAWS) % turners);
            draws[usize::try_from(item).expect("small")] += 1;
        }
        assert!(draws.iter().all(|draws| *draws == TURN_DRAWS));
        assert_eq!(grouping.item(7 * turners), turners);
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
