//! Moves by benefit: two units change places if what that is expected to save exceeds what it costs.
//!
//! Responsible for: the sum, and the length of the windows that measure best. It leaves to others: rates ([`crate::estimate`]), numbers ([`super::exchange`]), and
//! when pages move ([`crate::engine`]).
//!
//! The sum: (rate of the hot unit less that of the cold one) × misses that a touch stands for × what a miss costs more in the slower tier × the time
//! for which it is expected to stay so. Rates are likely ones ([`super::likely`]): a difference that chance makes is none.
//!
//! A window tells most of a page that it finds touched half of the time. So windows are as long as that holds for the pages at the fast tier's border: ln 2 by their rate.

use std::time::Duration;

use terrace_proto::snapshot::Benefit;

use super::collect::collect;
use super::likely::Likely;
use super::ranked::rank;
use super::{ExchangeRule, PlaceStage, Proposal, Quotas, Room, Useful};
use crate::config::EngineConfig;
use crate::estimate::{
    Averages, Behind, Estimator, Histogram, PER_SECOND, Rate, Sampled, end_round, rate_of,
};
use crate::pages::Pages;

/// Bounds of a window.
const WINDOWS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(60));

/// The length of the first round's windows.
const FIRST_WINDOW: Duration = Duration::from_millis(20);

/// Percent of the colder page's likely rate that the hotter one has at least: that much of what chance makes stays in likely rates.
const CLEAR_PERCENT: u64 = 115;

/// The hotter page's rate is above the colder one's by this, too, divided by the independent touches that say as much as those behind it.
const FEW_TOUCHES: u128 = 1;

/// A touch a second for a second, in units of 2^-20 and ns.
const SECOND: u128 = PER_SECOND as u128 * 1_000_000_000;

/// The worth of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worth {
    /// Misses that a touch stands for, of a whole unit.
    misses: u64,
    /// Additional time of a miss in a slower tier, ns.
    extra_ns: u64,
    /// The time for which a page's rate is expected to stay as it is, ns.
    stay_ns: u64,
    /// The cost of a unit's move, ns.
    move_ns: u64,
}

/// Moves units by benefit.
#[derive(Clone, Debug)]
pub struct BenefitPlace {
    averages: Averages,
    worth: Worth,
    window: Duration,
    behind: Behind,
    /// The likely rate of each degree, since the last round's end.
    likely: Likely,
    /// The coldest degree in the first tier and the hottest one outside, as the last proposal leaves them.
    ends: (Option<u8>, Option<u8>),
    /// Whether the first tier has room then, so that a unit may come to it and none has to leave.
    has_room: bool,
    /// Averages have taken in a round since the last proposal.
    has_ended: bool,
    /// Whether windows become as long as they tell most.
    fits_windows: bool,
    /// Whether chance is taken out of rates.
    is_likely: bool,
}

impl BenefitPlace {
    /// With the parameters of a configuration.
    #[must_use]
    pub fn configured(config: &EngineConfig) -> Self {
        let keys = &config.terrace;
        let averages = Averages {
            recent_ns: keys.recent_ms * 1_000_000,
            long_ns: keys.long_ms * 1_000_000,
            weights: config.weights(),
            seed: config.random_seed,
            begin_anew: keys.begin_anew,
        };
        let worth = Worth {
            misses: keys.misses_per_touch.into(),
            extra_ns: keys.miss_extra_ns.into(),
            stay_ns: keys.stay_ms * 1_000_000,
            move_ns: keys.move_ns.into(),
        };
        Self {
            fits_windows: keys.fit_windows,
            is_likely: keys.likely,
            ..Self::new(averages, worth)
        }
    }

    fn new(averages: Averages, worth: Worth) -> Self {
        Self {
            averages,
            worth,
            window: FIRST_WINDOW,
            behind: Behind::default(),
            likely: Likely::as_seen(),
            ends: (None, None),
            has_room: false,
            has_ended: false,
            fits_windows: true,
            is_likely: true,
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
        let (cold, hot) = (self.likely.rate(cold), self.likely.rate(hot));
        let touches = u128::from(hot) * u128::from(self.behind.long_ns) / (SECOND / 100);
        let touches = touches * 256 / u128::from(self.behind.spread.max(1));
        // In hundredths of touches, so that a few of them prove little.
        let needs = u128::from(cold) * (u128::from(CLEAR_PERCENT) * touches + FEW_TOUCHES * 10_000);
        u128::from(hot) * 100 * touches > needs && self.repays(hot.saturating_sub(cold), 2)
    }

    /// Whether a difference of rates is worth so many moves, if it stays as long as expected.
    fn repays(&self, difference: Rate, moves: u64) -> bool {
        self.gain_ns(difference.into()) > u128::from(self.worth.move_ns * moves)
    }

    /// The time that a difference of rates is expected to save, ns.
    fn gain_ns(&self, difference: u128) -> u128 {
        // Keys at their bounds and all pages of a large VM are more than 128 bits hold.
        let worth = u128::from(self.worth.misses) * u128::from(self.worth.extra_ns);
        let stays = worth.saturating_mul(self.worth.stay_ns.into());
        difference.saturating_mul(stays) / SECOND
    }

    /// The time that all moves are expected to save, ns.
    fn saved_ns(&self, quotas: &Quotas, tiers: usize) -> u64 {
        let (mut up, mut down) = (0, 0);
        for from in 0..tiers {
            for to in 0..tiers {
                let rates = (0..=u8::MAX).map(|degree| {
                    let units = quotas.get(from, to, degree.into());
                    u128::from(units) * u128::from(self.likely.rate(degree))
                });
                match to.cmp(&from) {
                    std::cmp::Ordering::Less => up += rates.sum::<u128>(),
                    std::cmp::Ordering::Greater => down += rates.sum::<u128>(),
                    std::cmp::Ordering::Equal => {}
                }
            }
        }
        u64::try_from(self.gain_ns(up.saturating_sub(down))).unwrap_or(u64::MAX)
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

impl PlaceStage for BenefitPlace {
    fn end_round(&mut self, pages: &mut Pages, room: &Room, samples: &mut Option<Box<Sampled>>) {
        let misses = end_round(self.averages, (pages, samples), room.seen, &mut self.behind);
        self.worth.misses = misses.unwrap_or(self.worth.misses);
        self.has_ended = true;
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
        if std::mem::take(&mut self.has_ended) {
            self.likely = match self.is_likely {
                true => Likely::new(&histogram, ranking.threshold, &self.behind),
                false => Likely::as_seen(),
            };
            self.fit_window(ranking.threshold);
        }
        // Where there is room nothing has to leave.
        let fills = |hot: u8| self.repays(self.likely.rate(hot), 1);
        let pays = |cold: u8, hot: u8| self.pays(cold, hot);
        let quotas = Quotas::by(&histogram, tiers, room, fills, pays);
        self.ends = quotas.ends(tiers);
        self.has_room = quotas.held(0, tiers, &histogram, room) < room.fit[0];
        Proposal {
            ranking,
            saves_ns: self.saved_ns(&quotas, tiers),
            flows: collect(pages, Estimator::Rates, round, &quotas, &spans),
        }
    }

    fn forget(&mut self) {
        self.behind = Behind::default();
        self.likely = Likely::as_seen();
        (self.ends, self.has_room) = ((None, None), false);
    }

    fn window(&self) -> Option<Duration> {
        self.fits_windows.then_some(self.window)
    }

    fn useful(&self) -> Option<Useful> {
        let mut degrees = 0..=u8::MAX;
        let least = degrees.find(|d| self.repays(rate_of(*d), 1));
        Some(Useful {
            least: least.unwrap_or(u8::MAX),
            fallen: self.behind.lull.steps(),
        })
    }

    fn degree(&self, _round: u64, pages: &Pages, unit: u32) -> Option<u8> {
        let long = pages.long.get(unit as usize)?;
        Some(long.to_le_bytes()[1])
    }

    fn benefit(&self, degree: u8, is_fast: bool) -> Option<Benefit> {
        if self.behind.long_ns == 0 {
            return None;
        }
        let rate = |degree: u8| self.likely.rate(degree);
        let fills = !is_fast && self.has_room;
        let (coldest, hottest) = self.ends;
        let other = match is_fast {
            true => hottest,
            false => coldest.filter(|_| !fills),
        };
        let exchange = other.map(|other| match is_fast {
            true => (degree, other),
            false => (other, degree),
        });
        let moves = if fills { 1 } else { 2 };
        let difference = match exchange {
            Some((cold, hot)) => rate(hot).saturating_sub(rate(cold)),
            None if fills => rate(degree),
            None => 0,
        };
        Some(Benefit {
            touches_per_1000_s: per_1000_s(rate(degree)),
            other_touches_per_1000_s: other.map(|other| per_1000_s(rate(other))),
            misses_per_touch: self.worth.misses,
            miss_extra_ns: self.worth.extra_ns,
            stay_ms: self.worth.stay_ns / 1_000_000,
            saves_ns: u64::try_from(self.gain_ns(difference.into())).unwrap_or(u64::MAX),
            costs_ns: self.worth.move_ns * moves,
            pays: match exchange {
                Some((cold, hot)) => self.pays(cold, hot),
                None => fills && self.repays(difference, moves),
            },
        })
    }
}

fn per_1000_s(rate: Rate) -> u64 {
    rate * 1_000 / PER_SECOND
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
            begin_anew: true,
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
            ..BenefitPlace::new(averages, worth)
        }
    }

    #[test]
    fn keys_at_their_bounds_overflow_nothing() {
        let mut place = place(S);
        place.worth = Worth {
            misses: 1 << 32,
            extra_ns: 1_000_000,
            stay_ns: 366 * 86_400 * S,
            move_ns: 1_000_000_000,
        };
        assert!(place.gain_ns(1 << 72) > place.gain_ns(1));
        assert!(place.repays(rate_of(255), 2) && !place.repays(0, 1));
    }

    #[test]
    fn where_fast_memory_has_room_no_page_has_to_leave() {
        let mut place = place(600 * S);
        (place.ends, place.has_room) = ((Some(200), Some(120)), true);
        let sum = place.benefit(120, false).expect("windows stand behind it");
        assert_eq!((sum.other_touches_per_1000_s, sum.costs_ns), (None, 10_000));
        assert!(sum.pays && sum.saves_ns > 10_000, "{sum:?}");
        // What is there already may change places.
        assert!(!place.benefit(200, true).expect("the same").pays);
        place.has_room = false;
        let sum = place.benefit(120, false).expect("the same");
        assert!(
            !sum.pays && sum.saves_ns == 0 && sum.costs_ns == 20_000,
            "{sum:?}"
        );
        assert_eq!(
            super::BenefitPlace {
                behind: Behind::default(),
                ..place
            }
            .benefit(120, false),
            None
        );
    }

    #[test]
    fn a_tier_has_room_by_what_it_is_to_hold() {
        let histogram = Histogram::tally(
            &crate::track::tests::pages(terrace_proto::PageSize::Base, 8),
            Estimator::Uniform,
            1,
        );
        let room = Room {
            held: [5, 3, 0, 0],
            fit: [6, 8, 0, 0],
            most: 8,
            ..Room::default()
        };
        let quotas = Quotas::by(&histogram, 2, &room, |_| false, |_, _| false);
        let planned: u64 = (0..=255).map(|degree| quotas.get(0, 0, degree)).sum();
        assert_eq!(
            quotas.held(0, 2, &histogram, &room),
            5,
            "{planned} of them may move"
        );
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
}
