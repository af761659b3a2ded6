//! Moves by benefit: two units change places if what that is expected to save exceeds what it costs.
//!
//! Responsible for: the sum, and the length of the windows that measure best. It leaves to others: rates ([`crate::estimate`]), numbers ([`super::exchange`]), and
//! when pages move ([`crate::engine`]).
//!
//! The sum: (rate of the hot unit less that of the cold one) × misses that a touch stands for × what a miss costs more in the slower tier × the time
//! for which it is expected to stay so. A difference that chance makes is none.
//!
//! A window tells most of a page that it finds touched half of the time. So windows are as long as that holds for the pages at the fast tier's border: ln 2 by their rate.

use std::time::Duration;

use super::collect::collect;
use super::ranked::rank;
use super::{ExchangeRule, PlaceStage, Proposal, Quotas, Room};
use crate::estimate::{Averages, Behind, Estimator, Histogram, PER_SECOND, end_round, rate_of};
use crate::pages::Pages;

/// Bounds of a window.
const WINDOWS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(60));

/// Percent of the colder page's rate that the hotter one has at least: their ranks are steps of 9 percent.
const CLEAR_PERCENT: u128 = 110;

/// A touch a second for a second, in units of 2^-20 and ns.
const SECOND: u128 = PER_SECOND as u128 * 1_000_000_000;

/// The worth of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Worth {
    /// Misses that a touch stands for, of a whole unit.
    pub misses: u64,
    /// Additional time of a miss in a slower tier, ns.
    pub extra_ns: u64,
    /// The time for which a page's rate is expected to stay as it is, ns.
    pub stay_ns: u64,
    /// The cost of a unit's move, ns.
    pub move_ns: u64,
}

/// Moves units by benefit.
#[derive(Clone, Copy, Debug)]
pub struct BenefitPlace {
    averages: Averages,
    worth: Worth,
    window: Duration,
    behind: Behind,
    /// Difference of the roots of two numbers of touches that is not chance, in 16ths.
    clear_roots: u128,
}

impl BenefitPlace {
    pub(crate) fn new(averages: Averages, worth: Worth, window: Duration) -> Self {
        Self {
            averages,
            worth,
            window,
            behind: Behind::default(),
            clear_roots: clear_roots(1),
        }
    }

    fn rule(&self) -> ExchangeRule {
        ExchangeRule {
            min_hot_degree: 1,
            hysteresis: 0,
        }
    }

    /// Whether a hot unit that changes places with a cold one repays both moves.
    fn pays(&self, cold: u8, hot: u8) -> bool {
        self.is_clear(cold, hot) && self.repays(cold, hot, 2)
    }

    /// Whether the difference of two rates is not chance.
    fn is_clear(&self, cold: u8, hot: u8) -> bool {
        // Touches in the time that the averages watched, in 256ths. The root of their number varies by a half, whatever the number.
        let behind = u128::from(self.behind.long_ns);
        let touches = |degree| u128::from(rate_of(degree)) * behind / (SECOND >> 8);
        let (cold, hot) = (touches(cold), touches(hot));
        hot.isqrt() >= cold.isqrt() + self.clear_roots && hot * 100 > cold * CLEAR_PERCENT
    }

    /// Whether the difference of two rates is worth so many moves, if it stays as long as expected.
    fn repays(&self, cold: u8, hot: u8, moves: u64) -> bool {
        let difference = u128::from(rate_of(hot).saturating_sub(rate_of(cold)));
        let worth = u128::from(self.worth.misses * self.worth.extra_ns);
        let gain = difference * worth * u128::from(self.worth.stay_ns) / SECOND;
        gain > u128::from(self.worth.move_ns * moves)
    }

    /// Windows for which about half of the pages at the border are clear.
    fn fit_window(&mut self, border: u8) {
        let (least, most) = WINDOWS;
        let rate = rate_of(border);
        let wanted = match border > 1 {
            true => Duration::from_nanos(
                u64::try_from(u128::from(PER_SECOND) * 693_147_181 / u128::from(rate))
                    .unwrap_or(u64::MAX),
            ),
            false => most,
        };
        self.window = wanted
            .clamp(self.window / 2, self.window * 2)
            .clamp(least, most);
    }
}

/// The root of a number of touches varies by a half, and of so many pages the hottest and the coldest by chance are compared: each is the root of
/// twice their logarithm away. Five eighths of that are asked for: with all of it a program whose pages differ little waits for minutes, and an exchange by chance costs two moves.
fn clear_roots(pages: u64) -> u128 {
    let logarithm = u128::from(pages.max(2).ilog2()) * 693;
    (2 * logarithm * 256 / 1000).isqrt() * 5 / 8
}

impl PlaceStage for BenefitPlace {
    fn end_round(&mut self, pages: &mut Pages, room: &Room) {
        let misses = end_round(self.averages, pages, room.seen, &mut self.behind);
        self.worth.misses = misses.unwrap_or(self.worth.misses);
        let (histogram, _) = Histogram::with_spans(pages, Estimator::Rates, 0);
        let ranking = rank(&histogram, room, self.rule());
        self.clear_roots = clear_roots(ranking.known);
        self.fit_window(ranking.threshold);
    }

    fn propose(&mut self, round: u64, pages: &Pages, room: &Room) -> Proposal {
        // Rounds come about once a second: more than this in each is beyond what memory moves, and lists take memory, too.
        let most = room.most.min((pages.units() as u64 / 8).max(1024));
        let room = &Room {
            most,
            ..room.clone()
        };
        let (histogram, spans) = Histogram::with_spans(pages, Estimator::Rates, round);
        let tiers = usize::from(pages.tiers());
        let ranking = rank(&histogram, room, self.rule());
        // Where there is room nothing has to leave.
        let fills = |hot: u8| self.repays(0, hot, 1);
        let pays = |cold: u8, hot: u8| self.pays(cold, hot);
        let quotas = Quotas::by(&histogram, tiers, room, fills, pays);
        Proposal {
            ranking,
            flows: collect(pages, Estimator::Rates, round, &quotas, &spans),
        }
    }

    fn forget(&mut self) {
        self.behind = Behind::default();
    }

    fn window(&self) -> Option<Duration> {
        Some(self.window)
    }

    fn degree(&self, _round: u64, pages: &Pages, unit: u32) -> Option<u8> {
        let long = pages.long.get(unit as usize)?;
        Some(long.to_le_bytes()[1])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const S: u64 = 1_000_000_000;

    fn place(long_ns: u64) -> BenefitPlace {
        let averages = Averages {
            recent_ns: 10 * S,
            long_ns: 600 * S,
            weights: (1, 1),
            seed: 1,
        };
        let worth = Worth {
            misses: 16,
            extra_ns: 200,
            stay_ns: 60 * S,
            move_ns: 10_000,
        };
        let behind = Behind::long(long_ns);
        BenefitPlace {
            behind,
            clear_roots: clear_roots(1 << 20),
            ..BenefitPlace::new(averages, worth, Duration::from_millis(20))
        }
    }

    proptest! {
        #[test]
        fn what_pays_for_two_pages_pays_for_colder_and_hotter_ones(
            watched in 1..600 * S,
            cold in 1_u8..=255,
            hot in 0_u8..255,
        ) {
            let place = place(watched);
            if place.pays(cold, hot) {
                prop_assert!(place.pays(cold - 1, hot));
                prop_assert!(place.pays(cold, hot + 1));
                prop_assert!(hot > cold);
            }
        }

        #[test]
        fn the_window_ends_at_half_of_the_border_pages_clear(border in 2_u8..=255) {
            let mut place = place(S);
            for _ in 0..20 {
                place.fit_window(border);
            }
            let wanted = std::f64::consts::LN_2 * PER_SECOND as f64 / rate_of(border) as f64;
            let wanted = wanted.clamp(WINDOWS.0.as_secs_f64(), WINDOWS.1.as_secs_f64());
            prop_assert!((place.window.as_secs_f64() / wanted - 1.0).abs() < 0.01);
        }
    }

    #[test]
    fn a_difference_that_chance_makes_pays_nothing() {
        let pays = |watched, cold: u64, hot: u64| {
            let degree = |rate: u64| {
                (0..=255)
                    .find(|d| rate_of(*d) >= rate * PER_SECOND)
                    .unwrap()
            };
            place(watched).pays(degree(cold), degree(hot))
        };
        // Twelve touches beside none, and 14 beside 10.
        assert!(pays(S, 0, 12) && !pays(S, 10, 14));
        assert!(pays(10 * S, 10, 22), "220 beside 100");
    }
}
