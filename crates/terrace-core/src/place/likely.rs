//! Likely rates: how hot pages of a degree are, once chance is taken out.
//!
//! Responsible for: that, from the histogram of all pages and the spread of chance. It leaves to others: what it is worth to move them
//! ([`super::benefit`]).
//!
//! Of many pages some look hot by chance alone: the hottest that were seen are not as hot as they look. How far, all pages together say. If rates differ by no more than
//! chance makes them differ, all pages are alike and none of them is worth a move; if a few stand far from the rest, they are what they seem. This is
//! empirical Bayes: the distribution of true rates is found by maximum likelihood (expectation and maximization, from the one that was seen), and a page's likely rate is the mean of
//! those that it can have.
//!
//! The root of a number of touches varies by a half, whatever the number. So the work is done on a scale of roots, where chance
//! is the same everywhere, in bins of half its deviation, around the border of the fast tier: what lies far from it goes by what it seems.
//!
//! Sums, products, quotients and roots alone: the same bits everywhere.

use crate::estimate::{Behind, DEGREES, Histogram, PER_SECOND, Rate, rate_of};

/// Bins on either side of the border.
const REACH: usize = 64;
const BINS: usize = 2 * REACH + 1;
/// Bins over which chance moves a page: four deviations.
const NEAR: usize = 8;
/// The normal distribution at so many halves of its deviation, as parts of all.
const BELL: [f64; NEAR + 1] = [
    0.199_474, 0.176_036, 0.120_986, 0.064_760, 0.026_996, 0.008_764, 0.002_216, 0.000_437,
    0.000_067,
];
/// Steps of the search. With fewer a load that touches all pages alike seems to have hotter ones; more make no difference that matters.
const SEARCH: usize = 40;
/// Root of a number of touches: the number with so much added has the same spread down to one touch.
const ANSCOMBE: f64 = 0.375;

/// A histogram on the scale of roots.
type Bins = [f64; BINS];

/// The likely rate of each degree.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Likely {
    rates: [Rate; DEGREES],
}

impl Likely {
    /// Pages are as hot as they seem.
    pub(super) fn as_seen() -> Self {
        Self { rates: seen() }
    }

    /// From all known pages of a VM, whose fast tier ends at a degree.
    pub(super) fn new(histogram: &Histogram, border: u8, behind: &Behind) -> Self {
        if behind.long_ns == 0 {
            return Self::as_seen();
        }
        let scale = Scale::new(border, behind);
        let mut pages = [0.0; BINS];
        for degree in 0..=u8::MAX {
            let count = histogram.known_with(degree.into());
            if count > 0 {
                scale.spread(degree, |bin, part| pages[bin] += part * count as f64);
            }
        }
        let means = means(&pages);
        let mut rates = seen();
        for (degree, rate) in (0..=u8::MAX).zip(&mut rates) {
            if let Some(likely) = scale.mean(degree, &means) {
                *rate = likely;
            }
        }
        // What looks hotter is no colder.
        let mut least = 0;
        for rate in &mut rates {
            least = least.max(*rate);
            *rate = least;
        }
        Self { rates }
    }

    /// The likely rate of pages of a degree.
    pub(super) fn rate(&self, degree: u8) -> Rate {
        self.rates[usize::from(degree)]
    }
}

fn seen() -> [Rate; DEGREES] {
    std::array::from_fn(|degree| rate_of(u8::try_from(degree).unwrap_or(u8::MAX)))
}

/// The places of degrees on the scale of roots.
struct Scale {
    /// Touches for a rate.
    touches: f64,
    /// Bins for a root.
    bins: f64,
    /// An addition to numbers of touches before their root is taken.
    least: f64,
    /// Place of the first bin.
    first: f64,
}

impl Scale {
    fn new(border: u8, behind: &Behind) -> Self {
        let touches = behind.long_ns as f64 / (PER_SECOND as f64 * 1e9);
        // The deviation of a root is half of that of a number by its mean; a bin is half of that.
        let spread = behind.spread as f64 / 256.0;
        let bins = 4.0 / spread.sqrt();
        let mut scale = Self {
            least: ANSCOMBE * spread,
            touches,
            bins,
            first: 0.0,
        };
        scale.first = scale.place(rate_of(border)) - REACH as f64;
        scale
    }

    /// The place of a rate, in bins from none.
    fn place(&self, rate: Rate) -> f64 {
        (rate as f64 * self.touches + self.least).sqrt() * self.bins
    }

    /// Divides a degree's pages among the bins that it covers.
    fn spread(&self, degree: u8, mut to: impl FnMut(usize, f64)) {
        let (from, until) = self.covered(degree);
        let width = until - from;
        let (first, last) = (bin(from), bin(until));
        for at in first..=last {
            let part = match (first == last, at) {
                (true, _) => 1.0,
                (_, at) if at == first => (at as f64 + 0.5 - from) / width,
                (_, at) if at == last => (until - at as f64 + 0.5) / width,
                _ => 1.0 / width,
            };
            to(at, part.clamp(0.0, 1.0));
        }
    }

    /// Bins from the first one on that a degree covers.
    fn covered(&self, degree: u8) -> (f64, f64) {
        let from = self.place(rate_of(degree)) - self.first;
        let until = match degree.checked_add(1) {
            Some(next) => self.place(rate_of(next)) - self.first,
            None => from,
        };
        let most = (BINS - 1) as f64;
        (from.clamp(0.0, most), until.clamp(0.0, most))
    }

    /// The likely rate of a degree by the likely places of bins; none if it lies where they end.
    fn mean(&self, degree: u8, means: &Bins) -> Option<Rate> {
        let (from, until) = self.covered(degree);
        if bin(from) < NEAR || bin(until) + NEAR >= BINS {
            return None;
        }
        let mut place = 0.0;
        let mut all = 0.0;
        self.spread(degree, |bin, part| {
            place += part * means[bin];
            all += part;
        });
        let root = (place / all + self.first) / self.bins;
        let touches = (root * root - self.least).max(0.0);
        // A rate has 40 bits, as every one that was seen.
        Some(whole((touches / self.touches).min(1e12)))
    }
}

fn bin(place: f64) -> usize {
    usize::try_from(whole(place + 0.5)).unwrap_or(usize::MAX)
}

/// A number without its fraction; 0 if it is below that or none.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a cast from a floating-point number saturates"
)]
fn whole(number: f64) -> u64 {
    number as u64
}

/// A distribution as chance blurs it.
fn blurred(from: &Bins) -> Bins {
    let mut to = [0.0; BINS];
    for (at, amount) in from.iter().enumerate() {
        if *amount > 0.0 {
            for (near, part) in around(at) {
                to[near] += amount * part;
            }
        }
    }
    to
}

/// The bins that chance moves a page to, with their parts. What would fall off an end stays in the last bin.
fn around(at: usize) -> impl Iterator<Item = (usize, f64)> {
    (0..=2 * NEAR).map(move |i| {
        let near = (at + i).saturating_sub(NEAR).min(BINS - 1);
        (near, BELL[i.abs_diff(NEAR)])
    })
}

/// The mean true place of what was seen in each bin.
fn means(pages: &Bins) -> Bins {
    let mut truth = *pages;
    for _ in 0..SEARCH {
        let blurred = blurred(&truth);
        let mut next = [0.0; BINS];
        for (at, amount) in truth.iter().enumerate() {
            let fits: f64 = around(at)
                .filter(|(near, _)| blurred[*near] > 0.0)
                .map(|(near, part)| part * pages[near] / blurred[near])
                .sum();
            next[at] = amount * fits;
        }
        truth = next;
    }
    let mut means = [0.0; BINS];
    for (seen, mean) in means.iter_mut().enumerate() {
        let (mut sum, mut all) = (0.0, 0.0);
        for (at, part) in around(seen) {
            sum += truth[at] * part * at as f64;
            all += truth[at] * part;
        }
        *mean = if all > 0.0 { sum / all } else { seen as f64 };
    }
    means
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::{Gfn, PageCode, PageSize, TierId};

    use super::*;
    use crate::estimate::Estimator;
    use crate::track::tests::pages;

    const SECOND: u64 = 1_000_000_000;

    /// A histogram of pages of these degrees, all known.
    fn histogram(degrees: &[u8]) -> Histogram {
        let mut p = pages(PageSize::Base, degrees.len() as u64);
        p.have_rates();
        p.place_run(
            Gfn(0),
            &vec![PageCode::new(TierId::SLOW, false); degrees.len()],
        );
        p.set_all_known();
        for (long, degree) in p.long.iter_mut().zip(degrees) {
            *long = u16::from_le_bytes([128, *degree]);
        }
        Histogram::tally(&p, Estimator::Rates, 0)
    }

    fn degree(touches: f64, behind: &Behind) -> u8 {
        let rate = touches / behind.long_ns as f64 * SECOND as f64 * PER_SECOND as f64;
        (0..=254)
            .rev()
            .find(|d| rate_of(*d) as f64 <= rate)
            .unwrap()
    }

    /// Pages that are touched so often in the mean, at times that do not depend on each other.
    fn drawn(touches: f64, count: u64, behind: &Behind) -> Vec<u8> {
        let mut at = 0_u64;
        let mut draw = || {
            at += 1;
            let x = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let x = (x ^ x >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 40;
            (x as f64 + 0.5) / f64::from(1 << 24)
        };
        let mut page = || {
            let (mut time, mut found) = (-draw().ln(), 0.0);
            while time < touches {
                found += 1.0;
                time -= draw().ln();
            }
            degree(found, behind)
        };
        (0..count).map(|_| page()).collect()
    }

    /// So much behind averages of touches that do not depend on each other.
    fn behind() -> Behind {
        let mut behind = Behind::long(100 * SECOND);
        behind.spread = 256;
        behind
    }

    fn ratio(likely: &Likely, cold: u8, hot: u8) -> f64 {
        likely.rate(hot) as f64 / likely.rate(cold) as f64
    }

    #[test]
    fn pages_that_differ_by_chance_are_alike() {
        for touches in [50.0, 200.0] {
            let behind = behind();
            let mut degrees = drawn(touches, 50_000, &behind);
            let likely = Likely::new(&histogram(&degrees), degree(touches, &behind), &behind);
            degrees.sort_unstable();
            // Of a hundred pages one is colder, and one hotter.
            let (cold, hot) = (degrees[500], degrees[49_500]);
            let seen = ratio(&Likely::as_seen(), cold, hot);
            let now = ratio(&likely, cold, hot);
            assert!(seen > 1.3 && now < 1.15, "{touches}, {seen}, {now}");
        }
    }

    #[test]
    fn a_few_pages_far_from_the_rest_are_what_they_seem() {
        let behind = behind();
        let mut degrees = drawn(100.0, 50_000, &behind);
        degrees.extend(drawn(400.0, 50, &behind));
        let border = degree(200.0, &behind);
        let likely = Likely::new(&histogram(&degrees), border, &behind);
        let now = ratio(&likely, degree(100.0, &behind), degree(400.0, &behind));
        assert!((3.0..5.0).contains(&now), "{now}");
    }

    #[test]
    fn two_kinds_of_pages_that_chance_blurs_are_told_apart_in_part() {
        let behind = behind();
        let mut degrees = drawn(25.0, 25_000, &behind);
        degrees.extend(drawn(49.0, 25_000, &behind));
        let likely = Likely::new(&histogram(&degrees), degree(36.0, &behind), &behind);
        let at = |touches| likely.rate(degree(touches, &behind)) as f64 * 100.0 / PER_SECOND as f64;
        assert!((22.0..30.0).contains(&at(20.0)), "{}", at(20.0));
        assert!((44.0..54.0).contains(&at(56.0)), "{}", at(56.0));
    }

    proptest! {
        #[test]
        fn hotter_degrees_are_no_colder(
            degrees in prop::collection::vec(0_u8..=255, 1..2000),
            border in 0_u8..=255,
            long in 0_u64..=u64::MAX,
            spread in 256_u64..=64 * 256,
        ) {
            let mut behind = Behind::long(long);
            behind.spread = spread;
            let likely = Likely::new(&histogram(&degrees), border, &behind);
            for degree in 1..=255 {
                prop_assert!(likely.rate(degree) >= likely.rate(degree - 1));
            }
        }
    }
}
