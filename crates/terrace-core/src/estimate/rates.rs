//! Touches per second of each unit, as averages that outlive rounds.
//!
//! Responsible for: what a round's windows say of a rate, and two averages of it per unit, a byte each. It leaves to
//! others: how long windows are, and what moves ([`crate::place`]).
//!
//! A page that is touched λ times a second is found touched in a window of w seconds by the chance 1 - exp(-λw). Of n windows, k of them with a
//! touch, the rate is -ln(1 - k/n) / w; the sum of 2 / (2n - 2j - 1) for j below k is that within a few percent, and needs no logarithm. All
//! windows with a touch mean a rate of at least so much: such a page's average never falls by them.
//!
//! The recent average goes back some seconds, the long one minutes. A unit is ranked by the long one, whose noise is least; if the recent one, or a single
//! round, differs from it by more than chance explains, the unit's load has changed, and the long one begins anew from there.
//!
//! Averages are on a logarithmic scale, 8 steps an octave: the recent one is a step, a byte; the long one has 256ths of a step in a second byte, because what is rounded
//! hundreds of times adds up. What lies between two numbers becomes one of them by a seeded chance, so that small changes are right in the mean and nothing drifts.

use crate::pages::Pages;

/// Steps of an octave on the scale, and the bounds of each within it, Q16.
const STEPS: [u64; 9] = [
    65_536, 71_468, 77_936, 84_990, 92_682, 101_070, 110_218, 120_194, 131_072,
];
/// A touch a second as a [`Rate`].
pub(crate) const PER_SECOND: u64 = 1 << 20;
/// The least rate but none: once in 68 minutes.
const LEAST: u64 = 1 << 8;
/// Difference of the roots of two numbers of touches that is a change, in 16ths: six standard deviations, because each page is asked in each round.
const SURPRISE_ROOTS: u128 = 48;
/// The same for what a single round says of a page that is hotter now, and of one that is colder. Loads come in bursts, so a page falls by more than it rises by.
const RISEN_ROOTS: u128 = 56;
const FALLEN_ROOTS: u128 = 80;

/// Touches per second, in units of 2^-20.
pub(crate) type Rate = u64;

/// The rate that a byte of the scale stands for.
pub(crate) fn rate_of(degree: u8) -> Rate {
    match degree.checked_sub(1) {
        None => 0,
        Some(step) => STEPS[usize::from(step % 8)] << (step / 8) >> 8,
    }
}

/// The step for a rate; between two steps either, by a chance from 0 to 65,535 that is drawn evenly.
pub(crate) fn degree_of(rate: Rate, chance: u64) -> u8 {
    let fine = u64::from(fine_of(rate, 0));
    // The fraction of a step decides, which is near enough to that of the rate.
    let degree = (fine >> 8) + u64::from(chance < (fine & 255) << 8);
    u8::try_from(degree).unwrap_or(u8::MAX)
}

/// The rate that a long average stands for: a step, and 256ths of the way to the next one.
pub(crate) fn rate_of_fine(fine: u16) -> Rate {
    let [part, degree] = fine.to_le_bytes();
    let (from, part) = (rate_of(degree), u64::from(part));
    let to = match degree {
        u8::MAX => from,
        _ => rate_of(degree + 1),
    };
    from + (((to - from) * part) >> 8)
}

/// The long average for a rate, rounded by a chance from 0 to 65,535.
pub(crate) fn fine_of(rate: Rate, chance: u64) -> u16 {
    // In 65,536ths of a step.
    let position = match rate.checked_ilog2() {
        Some(log) if rate >= LEAST => {
            let octave = log - LEAST.ilog2();
            let within = rate << 8 >> octave;
            let step = (1..8).filter(|i| STEPS[*i] <= within).count();
            let (from, to) = (STEPS[step], STEPS[step + 1]);
            let part = ((within - from) << 16) / (to - from);
            (1 + 8 * u64::from(octave) + step as u64) << 16 | part.min(65_535)
        }
        _ => (rate << 16) / LEAST,
    };
    let fine = (position >> 8) + u64::from(chance >> 8 < position & 255);
    u16::try_from(fine).unwrap_or(u16::MAX)
}

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
}

/// The time under windows that stands behind averages, from which their errors follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct Behind {
    /// Of the recent ones, ns; what is older counts less.
    pub recent_ns: u64,
    /// Of the long ones, ns.
    pub long_ns: u64,
    /// Rounds so far.
    rounds: u64,
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

    /// Adds a round; gives its part of the recent averages and of the long ones, of 65,536.
    fn end_round(&mut self, averages: Averages, seen: Seen) -> (u64, u64) {
        let watched = seen.window_ns.saturating_mul(u64::from(seen.windows));
        let round = (watched, seen.since_ns);
        (
            take_in(&mut self.recent_ns, averages.recent_ns, round),
            take_in(&mut self.long_ns, averages.long_ns, round),
        )
    }
}

/// Adds so much time under windows, within so much time, to what an average has that goes back so far; gives the new one's part, of 65,536.
pub(super) fn take_in(behind_ns: &mut u64, back_ns: u64, (watched, since): (u64, u64)) -> u64 {
    let back = u128::from(back_ns.max(1));
    let left = u128::from(*behind_ns) * back / (back + u128::from(since));
    let all = (left + u128::from(watched)).max(1);
    *behind_ns = u64::try_from(all).unwrap_or(u64::MAX);
    u64::try_from(u128::from(watched) * 65_536 / all).unwrap_or(65_536)
}

/// One round's step of all averages.
struct Step {
    /// Rates by reads and writes of a unit.
    seen: Vec<Rate>,
    windows: usize,
    recent_part: u64,
    long_part: u64,
    /// Windows' time that stands behind the recent average, ns.
    behind_ns: u64,
    /// The same of this round alone, ns.
    watched_ns: u64,
}

impl Averages {
    /// Ends a round: takes its counts into the averages of each unit.
    pub(crate) fn end_round(self, pages: &mut Pages, seen: Seen, behind: &mut Behind) {
        if seen.windows == 0 || seen.window_ns == 0 {
            return;
        }
        // Times of weeks are those of a clock that jumped.
        let seen = Seen {
            window_ns: seen.window_ns.min(1 << 50),
            since_ns: seen.since_ns.min(1 << 50),
            ..seen
        };
        let (recent_part, long_part) = behind.end_round(self, seen);
        let step = Step {
            seen: self.rates(seen),
            windows: usize::from(seen.windows),
            recent_part,
            long_part,
            behind_ns: behind.recent_ns,
            watched_ns: seen.window_ns * u64::from(seen.windows),
        };
        behind.rounds += 1;
        let counts = pages.reads.iter().zip(&pages.writes);
        let averages = pages.queue.iter_mut().zip(&mut pages.long);
        for (unit, (counts, (recent, long))) in (0_u64..).zip(counts.zip(averages)) {
            if (*counts.0 | *counts.1 | *recent) == 0 && *long == 0 {
                continue;
            }
            let chance = chance(self.seed, behind.rounds, unit);
            step.take((*counts.0, *counts.1), recent, long, chance);
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

impl Step {
    #[inline]
    fn take(&self, (reads, writes): (u8, u8), recent: &mut u8, long: &mut u16, chance: u64) {
        let (reads, writes) = (usize::from(reads), usize::from(writes));
        let at = reads * (self.windows + 1) + writes;
        let Some(&rate) = self.seen.get(at) else {
            return;
        };
        let then = rate_of_fine(*long);
        let is_full = reads + writes >= self.windows;
        // A page found in every window is touched at least so often.
        let at_least = |old: Rate| if is_full { rate.max(old) } else { rate };
        if self.is_another(at_least(then), then) {
            *recent = degree_of(rate, chance & 0xffff);
            *long = fine_of(rate, chance >> 16 & 0xffff);
            return;
        }
        let old = rate_of(*recent);
        let now = mix(old, at_least(old), self.recent_part);
        *recent = degree_of(now, chance & 0xffff);
        let next = match self.is_surprise(now, then) {
            true => now,
            false => mix(then, at_least(then), self.long_part),
        };
        *long = fine_of(next, chance >> 16 & 0xffff);
    }

    /// Whether the round alone shows that a page's load is another one.
    #[inline]
    fn is_another(&self, now: Rate, then: Rate) -> bool {
        let (now, then) = (roots(now, self.watched_ns), roots(then, self.watched_ns));
        now > then + RISEN_ROOTS || then > now + FALLEN_ROOTS
    }

    /// Whether the averages differ by more than chance: the root of the number of touches in the time behind the recent one varies by a half.
    #[inline]
    fn is_surprise(&self, now: Rate, then: Rate) -> bool {
        roots(now, self.behind_ns).abs_diff(roots(then, self.behind_ns)) > SURPRISE_ROOTS
    }
}

/// The root of the number of touches in so much time, in 16ths.
fn roots(rate: Rate, ns: u64) -> u128 {
    let second = u128::from(PER_SECOND) * 1_000_000_000;
    (u128::from(rate) * u128::from(ns) / (second >> 8)).isqrt()
}

/// An average with a part of 65,536 of something new.
pub(super) fn mix(old: Rate, new: Rate, part: u64) -> Rate {
    (old * (65_536 - part) + new * part) >> 16
}

/// An even chance for a unit at a time.
pub(super) fn chance(seed: u64, at: u64, unit: u64) -> u64 {
    let mut x = (unit ^ at.rotate_left(32) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x >> 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::PageSize;

    use super::*;
    use crate::track::tests::pages;

    const SECOND: u64 = 1_000_000_000;
    const AVERAGES: Averages = Averages {
        recent_ns: 10 * SECOND,
        long_ns: 600 * SECOND,
        weights: (1, 1),
        seed: 1,
    };
    const SEEN: Seen = Seen {
        windows: 8,
        window_ns: SECOND / 10,
        since_ns: SECOND,
    };

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
                let drawn = chance(7, round as u64, window) & 0xffff;
                drawn as f64 / 65_536.0 > clear
            };
            p.reads[0] = u8::try_from((0..8).filter(|w| touched(*w)).count()).unwrap();
            AVERAGES.end_round(&mut p, SEEN, &mut behind);
            heard(round, p.queue[0], p.long[0]);
        }
    }

    proptest! {
        #[test]
        fn a_rate_between_two_steps_is_right_in_the_mean(rate in 0_u64..1 << 39) {
            let mean = (0..1024).map(|i| rate_of(degree_of(rate, i * 64)) as f64).sum::<f64>() / 1024.0;
            let error = (mean - rate as f64).abs();
            prop_assert!(error <= rate as f64 / 500.0 + LEAST as f64 / 500.0, "{rate}: {mean}");
        }

        #[test]
        fn every_byte_is_found_again(degree in 0_u8..=255, chance in 0_u64..65_536) {
            let fine = fine_of(rate_of(degree), chance);
            let error = rate_of_fine(fine).abs_diff(rate_of(degree));
            prop_assert!(error <= 2 + rate_of(degree) / 1_000, "{fine:x}");
        }

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

    #[test]
    fn a_page_that_was_never_touched_has_no_rate() {
        after(std::iter::repeat_n(0.0, 50), |_, recent, long| {
            assert_eq!((recent, long), (0, 0));
        });
    }
}
