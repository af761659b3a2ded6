//! Touches per second of each unit, as averages that outlive rounds.
//!
//! Responsible for: what a round's windows say of a rate, two averages of it per unit, and how far chance bends them. It leaves to
//! others: how long windows are, and what moves ([`crate::place`]).
//!
//! A page that is touched λ times a second is found touched in a window of w seconds by the chance 1 - exp(-λw). Of n windows, k of them with a
//! touch, the rate is -ln(1 - k/n) / w; the sum of 2 / (2n - 2j - 1) for j below k is that within a few percent, and needs no logarithm. All
//! windows with a touch mean a rate of at least so much: such a page's average never falls by them.
//!
//! The recent average goes back some seconds, the long one minutes. A unit is ranked by the long one, whose noise is least; if the recent one, or a single
//! round, differs from it by more than chance explains, the unit's load has changed, and the long one begins anew from there.
//!
//! A round's step of both averages follows from the unit's counts and its averages alone, so it stands in tables ([`super::step`]).

use super::lull::Lull;
use super::scale::{PER_SECOND, Rate, rate_of_fine};
use super::step::{Step, mix};
use crate::pages::{BLOCK, Pages};

/// The spread that chance makes if touches are independent and all count the same, in 256ths: a quarter more than that of counts, because a window that was
/// touched twice counts as one that was touched once.
const INDEPENDENT: u64 = 256 * 5 / 4;
/// The spread that is assumed while one round cannot be compared with another: pages have to lie apart by more.
pub(super) const FIRST_SPREAD: u64 = 4 * 256;
/// The most that it is taken for.
const MOST_SPREAD: u64 = 16 * 256;
/// Touches for each window up to which a round tells pages apart, in 256ths.
const MOST_TOUCHES: u64 = 7 * 256 / 5;
/// Difference of the roots of two numbers of touches that chance still makes, in 16ths: four standard deviations. A page that differs by more has another load.
const ORDINARY_ROOTS: u64 = 32;
/// Rounds that a recent average goes back at least, however far apart they are. Fewer windows say of hardly any page that it has gone idle; these say it of one that
/// three of four windows found touched, not yet of one that half of them did.
const FEWEST_ROUNDS: u64 = 4;
/// Touches that say how far chance bends them, in 256ths.
const FEWEST_TOUCHES: u128 = 128 * 256;

/// Times of a round, which its counts are about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Seen {
    /// Windows.
    pub windows: u8,
    /// Mean length of a window, ns.
    pub window_ns: u64,
    /// Time since the round before ended, or the first began, ns.
    pub since_ns: u64,
}

impl Seen {
    /// The times as far as averages go by them; none if the round had no window. Times of weeks are those of a clock that jumped.
    pub(super) fn usable(self) -> Option<Self> {
        (self.windows > 0 && self.window_ns > 0).then(|| Self {
            window_ns: self.window_ns.min(1 << 50),
            since_ns: self.since_ns.min(1 << 50),
            ..self
        })
    }
}

/// How averages are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Averages {
    /// Time back to which the recent average goes, ns.
    pub recent_ns: u64,
    /// The same of the long one, ns.
    pub long_ns: u64,
    /// Weights of a read and of a write.
    pub weights: (u8, u8),
    /// Seed of the rounding.
    pub seed: u64,
    /// Whether the long average of a page whose load has changed begins anew.
    pub begin_anew: bool,
}

/// The time under windows that stands behind averages, from which their errors follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Behind {
    /// Of the recent ones, ns; what is older counts less.
    pub recent_ns: u64,
    /// Of the long ones, ns.
    pub long_ns: u64,
    /// Variance of numbers of touches by their mean, in 256ths, as rounds vary about the averages of those before: 256 for independent touches that are all
    /// counted; more where a write counts as several reads, and for loads that come in bursts.
    pub spread: u64,
    /// How far the VM's load has fallen.
    pub lull: Lull,
    /// Rounds so far.
    rounds: u64,
}

impl Default for Behind {
    fn default() -> Self {
        Self {
            recent_ns: 0,
            long_ns: 0,
            spread: FIRST_SPREAD,
            lull: Lull::default(),
            rounds: 0,
        }
    }
}

impl Behind {
    /// So much behind the long averages.
    #[cfg(test)]
    pub(crate) fn long(long_ns: u64) -> Self {
        Self {
            long_ns,
            ..Self::default()
        }
    }

    /// Adds a round, whose counts are not in the averages yet; gives its part of the recent averages and of the long ones, of 65,536.
    fn end_round(
        &mut self,
        averages: Averages,
        seen: Seen,
        (pages, rates): (&Pages, &[Rate]),
    ) -> (u64, u64) {
        let watched = seen.window_ns.saturating_mul(u64::from(seen.windows));
        let before_ns = self.long_ns;
        let recently = seen.since_ns.min(averages.recent_ns / FEWEST_ROUNDS);
        let parts = (
            take_in(&mut self.recent_ns, averages.recent_ns, (watched, recently)),
            take_in(
                &mut self.long_ns,
                averages.long_ns,
                (watched, seen.since_ns),
            ),
        );
        self.lull.take(pages, rates, seen);
        let now = spread(pages, rates, seen, before_ns, self.spread);
        let now = now.map(|now| now.clamp(INDEPENDENT, MOST_SPREAD));
        self.spread = match (self.rounds, now) {
            (0, _) => first_spread(averages, seen, pages),
            (1, Some(now)) => now,
            (_, Some(now)) => mix(self.spread, now.min(self.spread * 3 / 2), parts.1),
            // What nothing says any longer is forgotten: all pages may be as hot as windows can tell, or idle.
            (_, None) => mix(
                self.spread,
                first_spread(averages, seen, pages).min(self.spread),
                parts.1,
            ),
        };
        parts
    }
}

/// The spread of a round's numbers of touches, as they vary about long averages that do not have them yet; none if too few touches say it.
///
/// Sums are over all pages, whatever was seen of them: of pages that are picked because they look hot the next round sees less, and that would count as chance.
fn spread(pages: &Pages, rates: &[Rate], seen: Seen, before_ns: u64, usual: u64) -> Option<u64> {
    let usual = (ORDINARY_ROOTS * (usual << 8).isqrt()) >> 8;
    let watched_ns = seen.window_ns.saturating_mul(u64::from(seen.windows));
    let all_ns = u128::from(before_ns) + u128::from(watched_ns);
    // What the difference has of the round's own spread, in millionths; the rest is the average's.
    let own = u64::try_from(u128::from(before_ns) * 1_000_000 / all_ns.max(1)).ok()?;
    let most = MOST_TOUCHES * u64::from(seen.windows);
    // Some thousand pages say it.
    let step = (pages.units() / 4096).max(1) | 1;
    let counts = pages.reads.iter().zip(&pages.writes);
    let (mut sum, mut of) = (0_u128, 0_u128);
    for (long, (reads, writes)) in pages.long.iter().zip(counts).step_by(step) {
        let then = rate_of_fine(*long);
        let now = rate_at(rates, seen, *reads, *writes);
        let apart = roots(now, watched_ns).abs_diff(roots(then, watched_ns));
        let (then, now) = (touches(then, watched_ns), touches(now, watched_ns));
        if then <= most && apart < usual {
            sum += u128::from(now.abs_diff(then)).pow(2);
            of += u128::from(then);
        }
    }
    let said = of >= FEWEST_TOUCHES && before_ns > 0;
    let spread = || sum * u128::from(own) / (of * 1_000_000);
    said.then(|| u64::try_from(spread()).unwrap_or(u64::MAX))
}

/// The spread that touches' weights make, if touches are independent, and half of it more.
fn first_spread(averages: Averages, seen: Seen, pages: &Pages) -> u64 {
    let weighed = averages.rates(seen);
    let plain = Averages {
        weights: (1, 1),
        ..averages
    }
    .rates(seen);
    let counts = pages.reads.iter().zip(&pages.writes);
    let step = (pages.units() / 4096).max(1) | 1;
    let (mut squares, mut sum) = (0_u128, 0_u128);
    for (reads, writes) in counts.step_by(step) {
        let touches = u128::from(rate_at(&plain, seen, *reads, *writes)).max(1);
        let rate = u128::from(rate_at(&weighed, seen, *reads, *writes));
        squares += rate * rate / touches;
        sum += rate;
    }
    let by_weight = u64::try_from((squares << 8) / sum.max(1)).unwrap_or(u64::MAX);
    ((by_weight.max(256) * INDEPENDENT * 3 / 2) >> 8).clamp(INDEPENDENT, MOST_SPREAD)
}

/// Adds so much time under windows, within so much time, to what an average has that goes back so far; gives the new one's part, of 65,536.
pub(super) fn take_in(behind_ns: &mut u64, back_ns: u64, (watched, since): (u64, u64)) -> u64 {
    let back = u128::from(back_ns.max(1));
    let left = u128::from(*behind_ns) * back / (back + u128::from(since));
    let all = (left + u128::from(watched)).max(1);
    *behind_ns = u64::try_from(all).unwrap_or(u64::MAX);
    u64::try_from(u128::from(watched) * 65_536 / all).unwrap_or(65_536)
}

impl Averages {
    /// Ends a round: takes its counts into the averages of each unit.
    pub(crate) fn end_round(self, pages: &mut Pages, seen: Seen, behind: &mut Behind) {
        let Some(seen) = seen.usable() else {
            return;
        };
        let rates = self.rates(seen);
        let parts = behind.end_round(self, seen, (pages, &rates));
        let watched_ns = seen.window_ns * u64::from(seen.windows);
        let mut step = Step::new(
            rates,
            seen.windows,
            parts,
            self.begin_anew.then_some((behind.recent_ns, watched_ns)),
            behind.spread,
        );
        behind.rounds += 1;
        // Units draw evenly: each round begins elsewhere.
        let begun = begun(self.seed, behind.rounds);
        let counts = pages.reads.chunks(BLOCK).zip(pages.writes.chunks(BLOCK));
        let averages = pages
            .queue
            .chunks_mut(BLOCK)
            .zip(pages.long.chunks_mut(BLOCK));
        for (block, ((reads, writes), (recent, long))) in (0_u32..).zip(counts.zip(averages)) {
            let first = block.wrapping_mul(512).wrapping_add(begun);
            step.take(first, (reads, writes), (recent, long));
        }
    }

    /// Rates by reads and writes: a square of one more than the windows.
    pub(super) fn rates(self, seen: Seen) -> Vec<Rate> {
        let n = u64::from(seen.windows);
        let (read, write) = (u64::from(self.weights.0), u64::from(self.weights.1));
        let mut rates = Vec::new();
        for reads in 0..=n {
            for writes in 0..=n {
                let visits = (reads + writes).min(n);
                // Touches in a window, in units of 2^-20.
                let term = |j: u64| match n - j {
                    // Some rate that makes all windows but a half of one touched: more would be a guess.
                    1 => 7 * PER_SECOND / 10,
                    left => 2 * PER_SECOND / (2 * left - 1),
                };
                let touches: u64 = (0..visits).map(term).sum();
                let weighed = touches * (reads * read + writes * write)
                    / (reads + writes).max(1)
                    / read.max(1);
                let a_second = u128::from(weighed) * 1_000_000_000 / u128::from(seen.window_ns);
                rates.push(u64::try_from(a_second).unwrap_or(u64::MAX).min(1 << 40));
            }
        }
        rates
    }
}

/// The rate of a unit by its counts of a round.
pub(super) fn rate_at(rates: &[Rate], seen: Seen, reads: u8, writes: u8) -> Rate {
    let at = usize::from(reads) * (usize::from(seen.windows) + 1) + usize::from(writes);
    rates.get(at).copied().unwrap_or(0)
}

/// The number of touches in so much time, in 256ths.
fn touches(rate: Rate, ns: u64) -> u64 {
    let second = u128::from(PER_SECOND) * 1_000_000_000;
    let touches = u128::from(rate) * u128::from(ns) / (second >> 8);
    u64::try_from(touches).unwrap_or(u64::MAX)
}

/// The root of the number of touches in so much time, in 16ths.
pub(super) fn roots(rate: Rate, ns: u64) -> u64 {
    touches(rate, ns).isqrt()
}

/// The place in the order of chances at which a round begins.
fn begun(seed: u64, round: u64) -> u32 {
    let mut x = (round ^ seed.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    u32::try_from((x ^ x >> 32) >> 16 & 0xffff_ffff).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::PageSize;

    use super::*;
    use crate::estimate::scale::rate_of_fine;
    use crate::track::tests::pages;

    const SECOND: u64 = 1_000_000_000;
    const AVERAGES: Averages = Averages {
        recent_ns: 10 * SECOND,
        long_ns: 600 * SECOND,
        weights: (1, 1),
        seed: 1,
        begin_anew: true,
    };
    const SEEN: Seen = Seen {
        windows: 8,
        window_ns: SECOND / 10,
        since_ns: SECOND,
    };

    /// An even chance of 65,536.
    fn drawn(at: u64, unit: u64) -> u64 {
        let mut x = (unit ^ at.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x >> 48
    }

    /// Touches per second.
    fn plain(long: u16) -> f64 {
        rate_of_fine(long) as f64 / PER_SECOND as f64
    }

    /// Rounds of a page that is touched in a window by the chance that its rate in each round gives; the averages afterwards.
    fn after(rates: impl Iterator<Item = f64>, mut heard: impl FnMut(usize, u8, u16)) {
        let mut p = pages(PageSize::Base, 1);
        p.have_rates();
        let mut behind = Behind::default();
        for (round, rate) in rates.enumerate() {
            let clear = (-rate * SEEN.window_ns as f64 / SECOND as f64).exp();
            let touched = |window: u64| {
                let drawn = drawn(round as u64, window);
                drawn as f64 / 65_536.0 > clear
            };
            p.reads[0] = u8::try_from((0..8).filter(|w| touched(*w)).count()).unwrap();
            AVERAGES.end_round(&mut p, SEEN, &mut behind);
            heard(round, p.queue[0], p.long[0]);
        }
    }

    proptest! {
        #[test]
        fn no_counts_make_averages_panic(
            counts in prop::collection::vec((0_u8..=255, 0_u8..=255, 0_u8..=255, any::<u16>()), 1..50),
            seen in (0_u8..=30, prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()], any::<u64>()),
            before in any::<u64>(),
            long in any::<u64>(),
        ) {
            let mut p = pages(PageSize::Base, counts.len() as u64);
            p.have_rates();
            for (unit, (reads, writes, recent, long)) in counts.into_iter().enumerate() {
                (p.reads[unit], p.writes[unit], p.queue[unit], p.long[unit]) = (reads, writes, recent, long);
            }
            let seen = Seen { windows: seen.0, window_ns: seen.1, since_ns: seen.2 };
            let mut behind = Behind { recent_ns: before, long_ns: long, ..Behind::default() };
            AVERAGES.end_round(&mut p, seen, &mut behind);
        }
    }

    #[test]
    fn the_long_average_finds_a_steady_rate() {
        for rate in [0.05, 0.5, 3.0, 20.0] {
            let mut found = 0.0;
            after(std::iter::repeat_n(rate, 600), |_, _, long| {
                found = plain(long)
            });
            assert!((found / rate - 1.0_f64).abs() < 0.5, "{rate}: {found}");
        }
    }

    #[test]
    fn a_page_whose_load_changes_is_found_within_seconds() {
        let rates = (0..400).map(|round| if round < 300 { 0.1 } else { 20.0 });
        let mut found = None;
        after(rates, |round, _, long| {
            if plain(long) > 5.0 {
                found = found.or(Some(round));
            }
        });
        let found = found.unwrap();
        assert!((300..310).contains(&found), "{found}");
        let rates = (0..400).map(|round| if round < 300 { 20.0 } else { 0.0 });
        let mut last = 0.0;
        after(rates, |_, _, long| last = plain(long));
        assert!(last < 2.0, "{last}");
    }

    #[test]
    fn a_hot_page_that_goes_idle_is_found_by_rare_rounds() {
        // Eight seconds apart, four windows, of which three find the page touched.
        let seen = Seen {
            windows: 4,
            window_ns: SECOND / 10,
            since_ns: 8 * SECOND,
        };
        let averages = Averages {
            recent_ns: 4 * SECOND,
            ..AVERAGES
        };
        let mut p = pages(PageSize::Base, 1000);
        p.have_rates();
        let mut behind = Behind::default();
        let mut round = |p: &mut Pages, at: u64, is_busy: bool| {
            for (unit, reads) in (0..).zip(&mut p.reads) {
                let touched = |w: &u64| is_busy && drawn(at * 4 + w, unit) < 49_152;
                *reads = u8::try_from((0..4).filter(touched).count()).unwrap();
            }
            averages.end_round(p, seen, &mut behind);
        };
        (0..60).for_each(|at| round(&mut p, at, true));
        let sum = |p: &Pages| p.long.iter().map(|long| plain(*long)).sum::<f64>();
        let before = sum(&p);
        // Five minutes: by a recent average of one round they have lost half.
        (60..98).for_each(|at| round(&mut p, at, false));
        let after = sum(&p);
        assert!(after < before / 3.0, "{before} {after}");
    }

    #[test]
    fn a_spread_that_nothing_says_goes_back_to_its_first_guess() {
        let mut p = pages(PageSize::Base, 1000);
        p.have_rates();
        let mut behind = Behind {
            spread: MOST_SPREAD,
            rounds: 2,
            long_ns: SECOND,
            ..Behind::default()
        };
        // All windows find all pages touched.
        p.reads.fill(8);
        for _ in 0..1000 {
            AVERAGES.end_round(&mut p, SEEN, &mut behind);
        }
        assert!(behind.spread < 2 * INDEPENDENT, "{}", behind.spread);
    }

    #[test]
    fn one_silent_round_is_no_change() {
        let rates = (0..300).map(|round| if round == 200 { 0.0 } else { 20.0 });
        let mut least = f64::INFINITY;
        after(rates, |round, _, long| {
            if round > 100 {
                least = least.min(plain(long));
            }
        });
        assert!(least > 10.0, "{least}");
    }

    /// The spread that some rounds find of pages that are touched in a window by the chance that their rate gives.
    fn found_spread(weights: (u8, u8), rate: impl Fn(usize, u64) -> f64) -> u64 {
        let averages = Averages {
            weights,
            ..AVERAGES
        };
        let mut p = pages(PageSize::Base, 4096);
        p.have_rates();
        let mut behind = Behind::default();
        for round in 0..20 {
            for page in 0..4096 {
                let clear = (-rate(page, round) * SEEN.window_ns as f64 / SECOND as f64).exp();
                let touched = |window: &u64| {
                    drawn(round << 8 | window, page as u64) as f64 / 65_536.0 > clear
                };
                p.writes[page] = u8::try_from((0..8).filter(touched).count()).unwrap();
            }
            averages.end_round(&mut p, SEEN, &mut behind);
        }
        behind.spread
    }

    #[test]
    fn pages_that_look_hot_by_chance_do_not_make_chance_look_larger() {
        // Once in a round: of those that look twice as hot the next round sees half.
        let spread = found_spread((1, 1), |_, _| 1.25);
        assert!((INDEPENDENT..400).contains(&spread), "{spread}");
    }

    #[test]
    fn touches_that_count_three_times_spread_three_times_as_much() {
        let [one, three] = [(1, 1), (1, 3)].map(|weights| found_spread(weights, |_, _| 4.0));
        let times = three as f64 / one as f64;
        assert!((2.5..4.0).contains(&times), "{one} {three}");
    }

    #[test]
    fn a_hot_set_that_moves_is_not_chance() {
        let spread = found_spread((1, 1), |page, round| {
            let hot = if round < 10 { 0 } else { 1 };
            if page % 5 == hot { 20.0 } else { 0.2 }
        });
        assert!(spread < 1024, "{spread}");
    }

    #[test]
    fn windows_full_of_touches_mean_at_least_so_much() {
        let mut p = pages(PageSize::Base, 2);
        p.have_rates();
        p.long.copy_from_slice(&[200 << 8, 100 << 8]);
        p.queue.copy_from_slice(&[200, 100]);
        p.reads.copy_from_slice(&[8, 8]);
        let mut behind = Behind {
            recent_ns: 8 * SECOND,
            long_ns: 80 * SECOND,
            ..Behind::default()
        };
        AVERAGES.end_round(&mut p, SEEN, &mut behind);
        assert_eq!(
            p.long[0],
            200 << 8,
            "a touched window of 100 ms says nothing against 2,600 a second"
        );
        assert!(p.queue[1] > 100, "{}", p.queue[1]);
    }

    /// The spread, over that of counts, after so many rounds of a thousand pages that each window finds touched by these chances, of 65,536.
    fn spread_of(rounds: u64, chance: impl Fn(u64, u64) -> u64) -> f64 {
        let mut p = pages(PageSize::Base, 1000);
        p.have_rates();
        let mut behind = Behind::default();
        for round in 0..rounds {
            for (unit, reads) in (0..).zip(&mut p.reads) {
                let touched = |w: &u64| drawn(round * 8 + w, unit) < chance(round, unit);
                *reads = u8::try_from((0..8).filter(touched).count()).unwrap();
            }
            AVERAGES.end_round(&mut p, SEEN, &mut behind);
        }
        behind.spread as f64 / 256.0
    }

    #[test]
    fn the_spread_that_chance_makes_is_found_within_few_rounds() {
        // Half of all windows find a page touched; some pages are hotter than others.
        for rounds in [3, 5, 20] {
            let found = spread_of(rounds, |_, unit| 20_000 + 20_000 * (unit % 2));
            assert!((1.2..2.4).contains(&found), "{rounds}: {found}");
        }
    }

    #[test]
    fn bursts_spread_more_than_chance() {
        // In each second round a page is touched four times as often.
        for rounds in [4, 8, 20] {
            let found = spread_of(rounds, |round, unit| match (round + unit) % 2 {
                0 => 13_000,
                _ => 45_000,
            });
            assert!(found > 3.5, "{rounds}: {found}");
        }
    }

    #[test]
    fn a_page_that_was_never_touched_has_no_rate() {
        after(std::iter::repeat_n(0.0, 50), |_, recent, long| {
            assert_eq!((recent, long), (0, 0));
        });
    }
}
