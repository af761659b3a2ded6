//! Misses by samples, beside touches by accessed bits: two averages of each unit become one.
//!
//! Responsible for: the average that units are ranked by while samples come, and what it is made of. It leaves to
//! others: samples that wait for the round's end ([`list`]), and what either source has proved to predict
//! ([`evidence`]).
//!
//! Samples count misses, which is what a move is about; bits count touches, and more of them. So a unit's touches by
//! its bits are what is expected of its misses before the first sample (a gamma distribution around them), and samples are
//! counted (Poisson): the average is (touches by bits × time that they count for + samples) / (that time + time under
//! samples). The time under samples is the one in which a unit would be touched as often as it is sampled, by the misses that a touch
//! stands for, over all units. The time that bits count for is learned, and so is by how much samples vary beyond chance.
//!
//! No unit has more state for this: while samples come, its recent average is that of bits, of some 20 seconds, and
//! the long one is of both. What bits had in the long one is taken out and put in anew in each round.

mod evidence;
mod list;
mod period;

use evidence::{Evidence, Tally};
use list::List;
pub use period::SamplePeriod;

use super::rates::{Averages, Behind, FIRST_SPREAD, Seen, rate_at, take_in};
use super::scale::{Rate, degree_of, fine_of, rate_of, rate_of_fine};
use super::step::mix;
use crate::pages::{Pages, flags};

/// Time back to which the average by bits goes beside samples, ns.
const BITS_BACK_NS: u64 = 20_000_000_000;
/// The same of samples, ns.
const SAMPLES_BACK_NS: u64 = 600_000_000_000;
/// Most times as far apart as without samples that rounds become.
const MOST_APART: u64 = 8;
/// Time without a sample after which bits are alone again, ns.
const MOST_SILENT_NS: u64 = 10_000_000_000;
/// One sample; numbers of samples are multiples of a 4,096th.
const ONE: u64 = 1 << 12;
/// Difference of a round's samples from what is expected that is a change: six standard deviations, as the square of
/// a difference over the sum of both.
const SURPRISE: u64 = 18;

/// Ends a round by bits and, while some come, by samples. Gives how many misses a touch stands for, if samples showed it.
pub(crate) fn end_round(
    averages: Averages,
    (pages, samples): (&mut Pages, &mut Option<Box<Sampled>>),
    seen: Seen,
    behind: &mut Behind,
) -> Option<u64> {
    let Some(mut sampled) = samples.take() else {
        averages.end_round(pages, seen, behind);
        return None;
    };
    if !sampled.has_any() {
        averages.end_round(pages, seen, behind);
        sampled.silent_ns = sampled.silent_ns.saturating_add(seen.since_ns);
    } else if sampled.evidence.is_believed() {
        sampled.end_round(averages, pages, seen, behind);
    } else {
        sampled.watch(pages, seen, behind);
        averages.end_round(pages, seen, behind);
    }
    let misses = sampled.evidence.misses();
    if sampled.silent_ns < MOST_SILENT_NS {
        *samples = Some(sampled);
    } else {
        sampled.leave(pages, behind);
    }
    misses
}

/// The state of a VM whose misses are sampled. It does not grow with time.
#[derive(Debug)]
pub struct Sampled {
    list: List,
    evidence: Evidence,
    /// The parts of long averages.
    held: Held,
    /// Windows' time behind the averages by bits, ns.
    bits_behind_ns: u64,
    /// Time under samples for each miss that one stands for, ns in 256ths; what is older counts less.
    exposure: u64,
    rounds: u64,
    /// Samples since they were last taken out.
    heard: u64,
    /// Time since the last round with a sample, ns.
    silent_ns: u64,
}

/// The times that long averages are over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    /// For which bits count, ns.
    bits_ns: u64,
    /// Under samples, ns.
    samples_ns: u64,
}

impl Held {
    fn all_ns(self) -> u64 {
        self.bits_ns.saturating_add(self.samples_ns)
    }
}

/// Numbers of samples in a time, by rate.
#[derive(Clone, Copy)]
struct In(u128);

impl In {
    fn ns(ns: u64) -> Self {
        Self((u128::from(ns) << 24) / 1_000_000_000)
    }

    #[inline]
    fn count(self, rate: Rate) -> u64 {
        u64::try_from((u128::from(rate) * self.0) >> 32).unwrap_or(u64::MAX)
    }
}

/// Rates, by number of samples in a time.
#[derive(Clone, Copy)]
struct Over(u128);

impl Over {
    fn ns(ns: u64) -> Self {
        Self((1_000_000_000 << 40) / u128::from(ns.max(1)))
    }

    #[inline]
    fn rate(self, count: u64) -> Rate {
        let rate = (u128::from(count.min(1 << 52)) * self.0) >> 32;
        u64::try_from(rate).unwrap_or(u64::MAX).min(1 << 40)
    }
}

/// Time that so many misses for a touch (in 256ths) make of time for a miss (in 256ths), ns.
fn watched_ns(misses: u64, exposure: u64) -> u64 {
    let ns = (u128::from(misses) * u128::from(exposure)) >> 16;
    u64::try_from(ns).unwrap_or(u64::MAX).min(1 << 50)
}

/// One round's step of all averages.
struct Step {
    windows: usize,
    /// Rates of the round by reads and writes.
    seen: Vec<Rate>,
    /// Part of the round in the averages by bits, of 65,536.
    bits_part: u64,
    /// Part of older samples that still counts, of 65,536.
    samples_left: u64,
    /// The long averages were by bits alone.
    begins: bool,
    /// Weight of a sample, 4,096ths.
    one: u64,
    /// Numbers of samples: of what is held, of bits' part in it, of bits' part from now on.
    old: (In, In),
    bits: In,
    /// Expected in the round's list.
    round: In,
    all: Over,
    /// Of a unit that is another one now.
    anew: Over,
}

impl Sampled {
    pub(crate) fn new(units: usize) -> Self {
        Self {
            list: List::new(units),
            evidence: Evidence::default(),
            held: Held::default(),
            bits_behind_ns: 0,
            exposure: 0,
            rounds: 0,
            heard: 0,
            silent_ns: 0,
        }
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of::<Self>() + self.list.heap_bytes()
    }

    /// Whether some sample counts.
    fn has_any(&self) -> bool {
        self.list.exposures() != (0, 0) || self.exposure > 0
    }

    /// How many times as far apart rounds may be as without samples, because bits weigh little beside them.
    pub(crate) fn rounds_apart(&self) -> u64 {
        match self.evidence.is_believed() && self.silent_ns == 0 {
            true => (self.held.samples_ns / self.held.bits_ns.max(1) / 4).clamp(1, MOST_APART),
            false => 1,
        }
    }

    /// Takes out the number of samples since the last time.
    pub(crate) fn take_heard(&mut self) -> u64 {
        std::mem::take(&mut self.heard)
    }

    /// Takes samples in: how often each unit was sampled, and the time over which they were taken for each miss that one stands for,
    /// ns in 256ths.
    pub(crate) fn hear(&mut self, samples: Vec<(u32, u32)>, exposure: u64, long: &mut [u16]) {
        let more: u64 = samples.iter().map(|(_, n)| u64::from(*n)).sum();
        self.heard = self.heard.saturating_add(more);
        let one = self.evidence.one();
        let over = Over::ns(self.held.all_ns());
        let may_fold = self.held.samples_ns > 0;
        let mut fold = |unit: u32, n: u64, at: u64| {
            let Some(long) = long.get_mut(unit as usize) else {
                return;
            };
            let more = over.rate(n * one);
            *long = fine_of(
                rate_of_fine(*long) + more,
                chance(1, at, unit.into()) & 0xffff,
            );
        };
        self.list
            .take_in(samples, exposure, may_fold.then_some(&mut fold));
    }

    fn end_round(
        &mut self,
        averages: Averages,
        pages: &mut Pages,
        seen: Seen,
        behind: &mut Behind,
    ) {
        let Some(seen) = seen.usable() else {
            return;
        };
        let rates = averages.rates(seen);
        let (listed, folded) = self.list.exposures();
        self.silent_ns = match listed + folded {
            0 => self.silent_ns.saturating_add(seen.since_ns),
            _ => 0,
        };
        if self.evidence.is_new() {
            let of = |(reads, writes): (&u8, &u8)| rate_at(&rates, seen, *reads, *writes);
            let touches = pages.reads.iter().zip(&pages.writes).map(of);
            let touches = touches.map(u128::from).sum();
            self.evidence.begin(self.list.samples(), touches, listed);
        }
        let raw_ns = watched_ns(self.evidence.misses_256ths(), listed);
        let step = self.step(seen, rates, (listed, folded));
        let mut tally = Tally::default();
        self.take_all(averages.seed, pages, &step, (raw_ns, &mut tally));
        self.evidence
            .learn(&tally, listed, raw_ns, self.held.all_ns());
        self.rounds += 1;
        self.list.clear();
        behind.recent_ns = self.bits_behind_ns;
        // What chance alone makes stand out is taken back by bits already.
        behind.long_ns = self.held.all_ns();
        behind.spread = 256;
    }

    /// Makes averages those of bits again.
    fn leave(&mut self, pages: &mut Pages, behind: &mut Behind) {
        if self.rounds == 0 {
            return;
        }
        for (recent, long) in pages.queue.iter().zip(&mut pages.long) {
            *long = fine_of(rate_of(*recent), 0);
        }
        behind.long_ns = self.bits_behind_ns;
        behind.spread = FIRST_SPREAD;
        (self.held, self.exposure, self.bits_behind_ns) = (Held::default(), 0, 0);
        self.rounds = 0;
        self.evidence.forget();
    }

    /// Takes nothing of a source that is not believed, but whether it goes on like that. Averages are those of bits again.
    fn watch(&mut self, pages: &mut Pages, seen: Seen, behind: &mut Behind) {
        if seen.windows == 0 || seen.window_ns == 0 {
            return;
        }
        self.leave(pages, behind);
        let (listed, _) = self.list.exposures();
        self.silent_ns = if listed == 0 {
            self.silent_ns.saturating_add(seen.since_ns)
        } else {
            0
        };
        let mut tally = Tally::default();
        for (unit, n) in self.list.iter() {
            let at = unit as usize;
            let touched =
                [&pages.reads, &pages.writes, &pages.queue].map(|all| all.get(at) != Some(&0));
            let is_known = pages
                .flags
                .get(at)
                .is_some_and(|places| places & flags::KNOWN != 0);
            if is_known {
                tally.add(n * ONE, (0, 0), 0, touched == [false; 3]);
            }
        }
        self.evidence.hear_again(&tally);
        self.list.clear();
    }

    /// The round's effect on each unit's averages.
    fn step(&mut self, seen: Seen, rates: Vec<Rate>, (listed, folded): (u64, u64)) -> Step {
        let old = self.held;
        let watched = seen.window_ns.saturating_mul(u64::from(seen.windows));
        let bits_part = take_in(
            &mut self.bits_behind_ns,
            BITS_BACK_NS,
            (watched, seen.since_ns),
        );
        let left = u128::from(SAMPLES_BACK_NS) * 65_536
            / (u128::from(SAMPLES_BACK_NS) + u128::from(seen.since_ns));
        let samples_left = u64::try_from(left).unwrap_or(0);
        let one = self.evidence.one();
        let of_round = |exposure: u64| exposure / ONE * one + exposure % ONE * one / ONE;
        self.exposure = (self.exposure >> 16) * samples_left
            + (((self.exposure & 0xffff) * samples_left) >> 16)
            + of_round(listed)
            + of_round(folded);
        let misses = self.evidence.misses_256ths();
        let round_ns = watched_ns(misses, of_round(listed));
        let samples_ns = watched_ns(misses, self.exposure);
        self.held = Held {
            bits_ns: self.evidence.bits_ns(round_ns),
            samples_ns,
        };
        Step {
            windows: usize::from(seen.windows),
            seen: rates,
            bits_part,
            samples_left,
            begins: self.rounds == 0,
            one,
            old: (In::ns(old.all_ns()), In::ns(old.bits_ns)),
            bits: In::ns(self.held.bits_ns),
            round: In::ns(round_ns),
            all: Over::ns(self.held.all_ns()),
            anew: Over::ns(self.held.bits_ns.saturating_add(round_ns)),
        }
    }

    fn take_all(
        &self,
        seed: u64,
        pages: &mut Pages,
        step: &Step,
        (raw_ns, tally): (u64, &mut Tally),
    ) {
        let raw = In::ns(raw_ns);
        let mut samples = self.list.iter().peekable();
        let counts = pages.reads.iter().zip(&pages.writes);
        let averages = pages.queue.iter_mut().zip(&mut pages.long);
        let units = counts.zip(averages).zip(&pages.flags);
        for (unit, ((counts, (recent, long)), places)) in (0_u32..).zip(units) {
            let n = samples.next_if(|(sampled, _)| *sampled == unit);
            let n = n.map_or(0, |(_, n)| n);
            let touched = *counts.0 | *counts.1;
            if (touched | *recent) == 0 && *long == 0 && n == 0 {
                continue;
            }
            let old = (step.bits_before(*recent, *long), rate_of_fine(*long));
            let chance = chance(seed, self.rounds, unit.into());
            let bits = step.take((*counts.0, *counts.1, n), recent, long, chance);
            if places & flags::KNOWN != 0 {
                let unseen = touched == 0 && old.0 == 0;
                tally.add(n * ONE, (raw.count(old.0), raw.count(old.1)), bits, unseen);
            }
        }
    }
}

impl Step {
    /// A unit's rate by bits before the round.
    #[inline]
    fn bits_before(&self, recent: u8, long: u16) -> Rate {
        match self.begins {
            true => rate_of_fine(long),
            false => rate_of(recent),
        }
    }

    /// Takes a round's reads, writes and samples of a unit in; gives its rate by bits.
    #[inline]
    fn take(&self, round: (u8, u8, u64), recent: &mut u8, long: &mut u16, chance: u64) -> Rate {
        let (reads, writes, n) = (
            usize::from(round.0),
            usize::from(round.1),
            round.2 * self.one,
        );
        let at = reads * (self.windows + 1) + writes;
        let before = self.bits_before(*recent, *long);
        let Some(&rate) = self.seen.get(at) else {
            return before;
        };
        // A page found in every window is touched at least so often.
        let rate = match reads + writes >= self.windows {
            true => rate.max(before),
            false => rate,
        };
        *recent = degree_of(mix(before, rate, self.bits_part), chance & 0xffff);
        let bits = rate_of(*recent);
        let then = rate_of_fine(*long);
        let samples = match self.begins {
            true => 0,
            false => self
                .old
                .0
                .count(then)
                .saturating_sub(self.old.1.count(before)),
        };
        let samples = (u128::from(samples) * u128::from(self.samples_left)) >> 16;
        let samples = u64::try_from(samples).unwrap_or(u64::MAX);
        let by_bits = self.bits.count(bits);
        let next = match !self.begins && is_surprise(n, self.round.count(then)) {
            true => self.anew.rate(by_bits.saturating_add(n)),
            false => self
                .all
                .rate(by_bits.saturating_add(samples).saturating_add(n)),
        };
        // Sources count loads alone: what bits say of a page that is mostly written, no sample that did not come takes back.
        let next = if writes > reads {
            next.max(bits / 2)
        } else {
            next
        };
        *long = fine_of(next, chance >> 16 & 0xffff);
        bits
    }
}

/// Whether the samples of a round alone show that a unit's load is another one.
#[inline]
fn is_surprise(n: u64, expected: u64) -> bool {
    let difference = u128::from(n.abs_diff(expected));
    difference * difference > u128::from(SURPRISE * ONE) * (u128::from(n) + u128::from(expected))
}

/// An even chance of 2^32 for a unit at a time.
fn chance(seed: u64, at: u64, unit: u64) -> u64 {
    let mut x = (unit ^ at.rotate_left(32) ^ seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x >> 32
}
