//! The record of bits and samples: how well either predicts, and how many misses a touch stands for.
//!
//! Responsible for: the weights of both, from a round's samples against what was expected of them before. It leaves to
//! others: the averages that the weights are for.
//!
//! If units have μ samples on average, chance alone makes their squared differences from μ add up to their number.
//! What bits' differences add up to beyond that is what bits do not know: of that follows for how long they count
//! ([`Evidence::bits_ns`]). What the averages by both leave beyond it is what samples vary by themselves: a sample counts for so
//! much less ([`Evidence::one`]). Samples of pages that bits never found touched are nobody's: a source with many of them is not
//! believed.

use super::{ONE, watched_ns};

/// The prior: misses that a touch stands for, 256ths.
const MISSES: u64 = 16 << 8;
/// Bounds of them: a 16th, and 4,096.
const MISSES_RANGE: (u64, u64) = (1 << 4, 1 << 20);
/// Units of which more samples were expected in a round say little of the others: loads come in bursts.
const MOST_EXPECTED: u64 = 16 * ONE;
/// The longest time that bits count for, ns.
const MOST_BITS_NS: u128 = 600_000_000_000;
/// Before anything is learned bits count for so many rounds' samples.
const PRIOR_ROUNDS: u64 = 2;
/// Older findings count less by one in so many in each round.
const FADING: i128 = 16;
/// Averages over so many times a round's samples say how much samples vary.
const SETTLED: u64 = 64;
/// Most that samples vary by, as multiple of chance.
const MOST_VARIANCE: u64 = 64;

/// The squared differences of samples from what was expected, in 4,096ths.
#[derive(Clone, Copy, Debug, Default)]
struct Difference {
    found: u64,
    expected: u64,
    squares: u64,
    /// Squares of what was expected.
    of_expected: u64,
}

impl Difference {
    #[inline]
    fn add(&mut self, found: u64, expected: u64) {
        if expected > MOST_EXPECTED {
            return;
        }
        // A unit has less than 2^16 samples, so squares stay below 2^44.
        let off = found.abs_diff(expected);
        self.found += found;
        self.expected += expected;
        self.squares = self.squares.saturating_add(off * off / ONE);
        self.of_expected = self.of_expected.saturating_add(expected * expected / ONE);
    }

    /// Beyond chance.
    fn beyond(&self) -> i128 {
        i128::from(self.squares) - i128::from(self.found)
    }
}

/// A round's samples, over all known units.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    samples: u64,
    /// Of units that bits never found touched.
    unseen: u64,
    /// Rates by bits.
    touches: u128,
    bits: Difference,
    both: Difference,
}

impl Tally {
    /// Adds a unit: its samples, what was expected of it by bits and by both, and its rate by bits.
    #[inline]
    pub fn add(&mut self, found: u64, expected: (u64, u64), touches: u64, unseen: bool) {
        self.samples += found;
        self.unseen += if unseen { found } else { 0 };
        self.touches += u128::from(touches);
        self.bits.add(found, expected.0);
        self.both.add(found, expected.1);
    }
}

/// Findings so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Evidence {
    /// Misses that a touch stands for, 256ths; 0: nothing is known.
    misses: u64,
    /// Samples, and those that one miss for each touch would have given.
    samples: (i128, i128),
    /// Samples of units that bits never found touched, and all.
    unseen: (i128, i128),
    /// Of bits: what they would leave if they counted for a ns, what they left, and its error by chance.
    bits: (i128, i128, i128),
    /// Of both: samples, and what they left beyond chance.
    both: (i128, i128),
    rounds: u64,
}

/// Adds to a sum of which older parts fade.
fn fade(sum: &mut i128, by: i128, add: i128) {
    *sum = *sum - *sum / by + add;
}

fn clamped(n: i128, most: u64) -> u64 {
    u64::try_from(n.max(0)).unwrap_or(u64::MAX).min(most)
}

impl Evidence {
    /// Whether nothing is known of misses.
    pub fn is_new(&self) -> bool {
        self.misses == 0
    }

    /// Begins by the first samples: so many, in so much time for each miss (ns, 256ths), of units with so many touches in all.
    pub fn begin(&mut self, samples: u64, touches: u128, exposure: u64) {
        let expected = expected(touches, exposure);
        if samples > 0 && expected > 0 {
            self.misses = misses(i128::from(samples * ONE), expected);
        }
    }

    /// Misses that a touch stands for, if that is known.
    pub fn misses(&self) -> Option<u64> {
        let known = self.misses > 0 && self.is_believed();
        known.then(|| ((self.misses + 128) >> 8).max(1))
    }

    /// The same in 256ths, a prior if it is not known.
    pub fn misses_256ths(&self) -> u64 {
        match self.misses {
            0 => MISSES,
            known => known,
        }
    }

    /// Whether most samples are of units that are touched.
    pub fn is_believed(&self) -> bool {
        2 * self.unseen.0 <= self.unseen.1
    }

    /// The weight of a sample, 4,096ths of one.
    pub fn one(&self) -> u64 {
        let (found, beyond) = self.both;
        match found {
            ..=0 => ONE,
            _ => {
                let all = found + beyond.max(0);
                let one = found * i128::from(ONE) / all;
                clamped(one, ONE).max(ONE / MOST_VARIANCE)
            }
        }
    }

    /// For how long bits count, ns, if the round's samples are over so much time.
    pub fn bits_ns(&self, round_ns: u64) -> u64 {
        let (of_a_ns, left, error) = self.bits;
        if self.rounds < 2 || of_a_ns <= 0 {
            return (round_ns * PRIOR_ROUNDS).clamp(1_000_000, 1 << 50);
        }
        let ns = of_a_ns / left.max(error).max(1);
        clamped(ns, u64::MAX).clamp(1_000_000, u64::try_from(MOST_BITS_NS).unwrap_or(u64::MAX))
    }

    /// Learns from a round whose samples were taken in so much time for each miss, over `round_ns`, against averages over `behind_ns`.
    pub fn learn(&mut self, tally: &Tally, exposure: u64, round_ns: u64, behind_ns: u64) {
        if exposure == 0 {
            return;
        }
        self.learn_misses(tally, exposure);
        self.hear_again(tally);
        self.rounds += 1;
        if self.rounds < 2 {
            // Nothing was expected before.
            return;
        }
        let bits = tally.bits;
        let of_a_ns = i128::from(bits.expected) * i128::from(round_ns);
        let error = 2 * u128::from(bits.of_expected) * u128::from(ONE);
        let error = i128::try_from(error.isqrt()).unwrap_or(0);
        fade(&mut self.bits.0, FADING, of_a_ns);
        fade(&mut self.bits.1, FADING, bits.beyond());
        // Errors of rounds add up by their squares: a fourth of their sum is about that of sixteen rounds.
        fade(&mut self.bits.2, FADING, error / 4);
        if behind_ns < round_ns.saturating_mul(SETTLED) {
            // Their own error by chance is the larger one.
            return;
        }
        let both = tally.both;
        let error = 2 * u128::from(both.of_expected) * u128::from(ONE);
        let error = i128::try_from(error.isqrt()).unwrap_or(0);
        // Averages have their own error by chance.
        let own = i128::from(both.expected) * i128::from(round_ns) / i128::from(behind_ns.max(1));
        fade(&mut self.both.0, FADING, both.found.into());
        fade(&mut self.both.1, FADING, both.beyond() - own - error / 4);
    }

    /// Forgets all but whether the source is believed.
    pub fn forget(&mut self) {
        *self = Self {
            unseen: self.unseen,
            ..Self::default()
        };
    }

    /// Learns of a round only whether it was of units that are touched.
    pub fn hear_again(&mut self, tally: &Tally) {
        fade(&mut self.unseen.0, FADING, tally.unseen.into());
        fade(&mut self.unseen.1, FADING, tally.samples.into());
    }

    fn learn_misses(&mut self, tally: &Tally, exposure: u64) {
        fade(&mut self.samples.0, 64, tally.samples.into());
        fade(&mut self.samples.1, 64, expected(tally.touches, exposure));
        if self.samples.0 > 0 && self.samples.1 > 0 {
            self.misses = misses(self.samples.0, self.samples.1);
        }
    }
}

fn misses(samples: i128, expected: i128) -> u64 {
    let (least, most) = MISSES_RANGE;
    clamped((samples << 8) / expected, most).max(least)
}

/// Samples that units of so many touches in all give in so much time for a miss, if each touch is one miss; 4,096ths.
fn expected(touches: u128, exposure: u64) -> i128 {
    // The time at 256 misses for 256 touches.
    let ns = u128::from(watched_ns(256, exposure));
    let count = (touches >> 8).saturating_mul(ns) / 1_000_000_000;
    i128::try_from(count).unwrap_or(i128::MAX >> 16)
}
