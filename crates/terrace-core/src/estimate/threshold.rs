//! The hotness threshold of an epoch (HMvisor §3.2.1, §4.3).
//!
//! Responsible for: the lowest threshold whose units fit and repay their copies. It leaves to others: what the units
//! above it do ([`super::lists`]).
//!
//! The paper tunes the threshold by experiment, and gives no rule. The rule here:
//! - *fit*: the known units above it, of all tiers, fit into the first tier;
//! - *repay*: those of slower tiers, which would be copied, are accessed at least as often in as many epochs as there
//!   are lists as a copy accesses a page. A unit needs so many epochs to reach the top list, and it is held to stay
//!   hot as long again. A visit stands for one access at least, and a copy reads 64 lines of a page. A unit of 2 MiB
//!   has 512 times as many, and its visits are held to stand for as many more.

use super::{DEGREES, Histogram};

/// Lines of a page of 4 KiB, which a copy reads one by one.
const LINES: u64 = 64;

/// The lowest threshold whose units fit into `fit` units of the first tier and repay their copies on so many lists.
/// None if even the hottest do not.
#[must_use]
pub(crate) fn lowest(counts: &Histogram, tiers: usize, fit: u64, lists: u8) -> Option<u8> {
    let (mut all, mut slow, mut visits) = (0_u64, 0_u64, 0_u64);
    let mut lowest = None;
    for count in (1..DEGREES).rev() {
        let in_slow: u64 = (1..tiers).map(|tier| counts.known_in(tier, count)).sum();
        all += counts.known_with(count);
        slow += in_slow;
        visits += in_slow * count as u64;
        if all > fit || visits.saturating_mul(lists.into()) < LINES.saturating_mul(slow) {
            break;
        }
        if all > 0 && count > 1 {
            lowest = u8::try_from(count - 1).ok();
        }
    }
    lowest
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::{Gfn, PageBitmap, PageCode, PageSize};

    use super::*;
    use crate::estimate::Estimator;
    use crate::track::tests::pages;

    /// The rule word by word, over the list of units: tier and count of each.
    fn naive(units: &[(u8, u8)], fit: u64, lists: u8) -> Option<u8> {
        let good = |threshold: u8| {
            let above = || units.iter().filter(|(_, count)| *count > threshold);
            let copied: Vec<u64> = above()
                .filter(|(tier, _)| *tier > 0)
                .map(|(_, count)| u64::from(*count))
                .collect();
            let visits: u64 = copied.iter().sum();
            above().count() as u64 <= fit
                && visits * u64::from(lists) >= LINES * copied.len() as u64
        };
        let some = |threshold: &u8| units.iter().any(|(_, count)| count > threshold);
        let from_above = (1..=254_u8).rev().take_while(|t| good(*t));
        from_above.filter(some).last()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn the_threshold_is_the_lowest_that_fits_and_repays(
            units in prop::collection::vec((0_u8..3, 0_u8..=60), 1..200),
            fit in 0_u64..220,
            lists in 1_u8..=8,
        ) {
            let mut p = pages(PageSize::Base, units.len() as u64);
            let codes: Vec<_> = units.iter().map(|(tier, _)| PageCode(*tier)).collect();
            p.place_run(Gfn(0), &codes);
            p.set_known(&PageBitmap::full(units.len() as u64));
            for (unit, (_, count)) in (0_u32..).zip(&units) {
                p.set_heat(unit, *count, 0);
            }
            // `pages` has two tiers: units of a third one are absent.
            let there: Vec<_> = units.iter().copied().filter(|(tier, _)| *tier < 2).collect();
            let counts = Histogram::tally(&p, Estimator::Counter { write: 1 }, 1);
            prop_assert_eq!(lowest(&counts, 2, fit, lists), naive(&there, fit, lists));
        }
    }
}
