//! The choice of one of many items, of which number 0 is the most popular.

use super::Context;
use super::draw::{Chance, Places, Random, part, to_f64, to_u64};
use super::head::{Grouping, Head, power_integral};
use crate::base::number::multiply_high;

/// A law by which items are chosen.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Law {
    /// All items alike.
    Uniform,
    /// A share of the accesses for a hot share of the items; the other accesses are uniform over all items.
    Hotspot { hot: f64, hot_access: f64 },
    /// A weight of 1 / (k + 1)^exponent for item k of the full-size machine; the head says how the hottest
    /// are accessed here.
    Zipf { exponent: f64, head: Head },
    /// A bell around the middle item, whose standard deviation is a share of all items.
    Gauss { sigma: f64 },
}

impl Law {
    /// The places of so many items.
    pub(super) fn places(&self, context: &Context, items: u64, seed: u64) -> Places {
        match self {
            Self::Zipf { head, .. } if head.is_even(context) => Places::even(items, seed),
            _ => Places::random(items, seed),
        }
    }
}

/// The items to choose from. The law is that of the full-size machine's items: `scale` neighbours are one item here,
/// so that a share of memory has the same share of the accesses at each scale; the hottest of Zipf's law take turns.
#[derive(Clone)]
pub(super) struct Items {
    count: u64,
    chooser: Chooser,
}

#[derive(Clone)]
enum Chooser {
    Uniform,
    Hotspot { hot: u64, chance: Chance },
    Zipf { zipf: Zipf, grouping: Grouping },
    Gauss { sigma: f64 },
}

impl Items {
    /// `count` items at `scale`.
    pub(super) fn new(count: u64, scale: u64, law: &Law) -> Self {
        let chooser = match *law {
            Law::Uniform => Chooser::Uniform,
            Law::Hotspot { hot, hot_access } => Chooser::Hotspot {
                hot: part(count, hot),
                chance: Chance::new(hot_access),
            },
            Law::Zipf { exponent, head } => Chooser::Zipf {
                zipf: Zipf::new(count.saturating_mul(scale), exponent),
                grouping: Grouping::new(count, scale, exponent, head),
            },
            Law::Gauss { sigma } => Chooser::Gauss { sigma },
        };
        Self { count, chooser }
    }

    pub(super) fn choose(&mut self, random: &mut Random) -> u64 {
        match &mut self.chooser {
            Chooser::Uniform => random.below(self.count),
            Chooser::Hotspot { hot, chance } => {
                let hot = if random.happens(*chance) {
                    *hot
                } else {
                    self.count
                };
                random.below(hot)
            }
            Chooser::Zipf { zipf, grouping } => grouping.item(zipf.draw(random)),
            Chooser::Gauss { sigma } => {
                to_u64(gauss(random, *sigma) * to_f64(self.count)).min(self.count - 1)
            }
        }
    }
}

/// Draws a place from 0 to 1, normally distributed around the middle; a place outside is drawn again (Marsaglia's
/// polar method).
fn gauss(random: &mut Random, sigma: f64) -> f64 {
    loop {
        let (u, v) = (2.0 * random.unit() - 1.0, 2.0 * random.unit() - 1.0);
        let s = u * u + v * v;
        if s <= 0.0 || s >= 1.0 {
            continue;
        }
        let place = 0.5 + sigma * u * (-2.0 * libm::log(s) / s).sqrt();
        if (0.0..1.0).contains(&place) {
            return place;
        }
    }
}

/// Zipf's law by rejection-inversion (W. Hörmann and G. Derflinger, "Rejection-inversion to generate
/// variates from monotone discrete distributions", 1996): exact, and no table.
#[derive(Clone)]
struct Zipf {
    items: u64,
    exponent: f64,
    /// Ends of the range that is inverted.
    low: f64,
    high: f64,
    /// The distance below an item within which points need no test.
    sure: f64,
}

impl Zipf {
    fn new(items: u64, exponent: f64) -> Self {
        let mut zipf = Self {
            items,
            exponent,
            low: 0.0,
            high: 0.0,
            sure: 0.0,
        };
        zipf.low = zipf.integral(1.5) - 1.0;
        zipf.high = zipf.integral(to_f64(items) + 0.5);
        zipf.sure = 2.0 - zipf.inverse(zipf.integral(2.5) - zipf.weight(2.0));
        zipf
    }

    fn draw(&self, random: &mut Random) -> u64 {
        loop {
            let u = self.high + random.unit() * (self.low - self.high);
            let x = self.inverse(u);
            let item = to_u64(x + 0.5).clamp(1, self.items);
            let k = to_f64(item);
            if k - x <= self.sure || u >= self.integral(k + 0.5) - self.weight(k) {
                return item - 1;
            }
        }
    }

    fn weight(&self, x: f64) -> f64 {
        libm::exp(-self.exponent * libm::log(x))
    }

    /// The integral of the weight, from 1 to `x`.
    fn integral(&self, x: f64) -> f64 {
        power_integral(x, self.exponent)
    }

    /// The inverse of [`Self::integral`].
    fn inverse(&self, u: f64) -> f64 {
        let t = ((1.0 - self.exponent) * u).max(-1.0);
        let factor = if t.abs() < 1e-8 {
            1.0 - t / 2.0
        } else {
            libm::log1p(t) / t
        };
        libm::exp(factor * u)
    }
}

/// The number that is as far in `0..whole` as `place` is in 2^64.
pub(super) fn at(place: u64, whole: u64) -> u64 {
    multiply_high(place, whole)
}
