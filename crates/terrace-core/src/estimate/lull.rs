//! A VM whose load as a whole has fallen.
//!
//! Responsible for: how far all touches of the last rounds lie below what long averages let expect. It leaves to others: what follows for
//! the VM's size ([`crate::engine`]).
//!
//! A page's long average falls over minutes, because a page is silent by chance now and then. All pages together are not: what an idle VM had in fast memory
//! can go to its neighbours before each of its pages has proved idle.

use super::rates::{Seen, rate_at};
use super::scale::{Rate, rate_of_fine};
use crate::pages::Pages;

/// A load that is as usual.
const USUAL: u64 = 1 << 16;
/// The most that a burst counts for.
const MOST: u64 = 4 * USUAL;
/// Steps of the scale in an octave.
const OCTAVE: u32 = 8;
/// Units that say it.
const SAMPLE: usize = 4096;
/// The time after which a round is half of what is known, ns.
const HALF_NS: u64 = 8_000_000_000;

/// The touches of the last rounds, as a part of what long averages let expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lull {
    /// Over [`USUAL`].
    load: u64,
}

impl Default for Lull {
    fn default() -> Self {
        Self { load: USUAL }
    }
}

impl Lull {
    /// Takes a round in, whose counts are not in the averages yet.
    pub(super) fn take(&mut self, pages: &Pages, rates: &[Rate], seen: Seen) {
        let step = (pages.units() / SAMPLE).max(1) | 1;
        let counts = pages.reads.iter().zip(&pages.writes);
        let (mut now, mut then) = (0_u128, 0_u128);
        for (long, (reads, writes)) in pages.long.iter().zip(counts).step_by(step) {
            let usual = rate_of_fine(*long);
            let found = rate_at(rates, seen, *reads, *writes);
            // A page found in every window is touched at least so often.
            let is_full = u16::from(*reads) + u16::from(*writes) >= u16::from(seen.windows);
            now += u128::from(if is_full { found.max(usual) } else { found });
            then += u128::from(usual);
        }
        if then == 0 {
            self.load = USUAL;
            return;
        }
        // A load that comes in bursts is as usual in the mean.
        let said = (now << 16) / then;
        let said = u64::try_from(said).unwrap_or(MOST).min(MOST);
        let part = (seen.since_ns << 8) / (seen.since_ns + HALF_NS);
        self.load = (self.load * (256 - part) + said * part) >> 8;
    }

    /// The steps of the scale by which the load lies below the usual one; whole octaves only.
    pub(crate) fn steps(self) -> u8 {
        let octaves = match self.load.checked_ilog2() {
            Some(log) => USUAL.ilog2().saturating_sub(log + 1),
            None => u8::MAX.into(),
        };
        u8::try_from(octaves.saturating_mul(OCTAVE)).unwrap_or(u8::MAX)
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::PageSize;

    use super::*;
    use crate::track::tests::pages;

    /// The steps after rounds, eight seconds apart, in which so many of a hundred pages are touched in each window, as usually all are.
    fn after(touched: &[usize]) -> u8 {
        let mut p = pages(PageSize::Base, 100);
        p.have_rates();
        p.long.fill(100 << 8);
        let usual = rate_of_fine(100 << 8);
        let seen = Seen {
            windows: 1,
            window_ns: 1,
            since_ns: HALF_NS,
        };
        let mut lull = Lull::default();
        for touched in touched {
            p.reads.fill(0);
            p.reads[..*touched].fill(1);
            lull.take(&p, &[0, usual, usual, usual], seen);
        }
        lull.steps()
    }

    /// Rates are by reads and writes: with one window, a read is the third of four.
    #[test]
    fn a_load_that_falls_is_known_within_rounds() {
        assert_eq!(after(&[]), 0);
        assert_eq!(after(&[100; 5]), 0);
        assert_eq!(after(&[60; 20]), 0, "less than an octave");
        assert_eq!(after(&[0]), 0, "one silent round may be chance");
        assert_eq!(after(&[0; 4]), 24);
        assert_eq!(after(&[0; 40]), u8::MAX);
        assert_eq!(after(&[0, 0, 0, 0, 100]), 0);
    }

    #[test]
    fn bursts_of_a_load_that_is_as_usual_in_the_mean_are_no_lull() {
        let mut p = pages(PageSize::Base, 100);
        p.have_rates();
        p.long.fill(100 << 8);
        let usual = rate_of_fine(100 << 8);
        let mut lull = Lull::default();
        for round in 0..100 {
            let seen = Seen {
                windows: 1,
                window_ns: 1,
                since_ns: HALF_NS / 8,
            };
            p.reads.fill(u8::from(round % 3 == 0));
            lull.take(&p, &[0, 0, 3 * usual, 0], seen);
            assert_eq!(lull.steps(), 0, "{round}");
        }
    }
}
