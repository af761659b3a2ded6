//! Lists of hot and of cold units (HMvisor §3.2.1).
//!
//! Responsible for: on which list each unit is, as a byte of its state, and what the end of an epoch does to it. It
//! leaves to others: which units count as hot ([`super::threshold`]), and which move ([`crate::place`]).
//!
//! A unit of a slower tier is on hot lists or on none, one of the first tier on cold lists or on none; a unit that
//! changed tier begins anew. Hot lists find units that are hot, cold lists those that are not, otherwise they are alike:
//! a unit that is found enters the first list (active); found again within the decay time it rises a list (warm,
//! hot); once that time has passed it falls by one, and off the first, even if it is found in the same epoch: two
//! accesses that far apart are what the paper demotes a page for. A rise and a fall start the time anew, as a move to
//! another list's head does. Epochs are counted, not time: a unit cannot be found twice in one, so an epoch
//! whose scans took longer lets nothing fall.

use std::ops::Range;

use super::Estimator;
use super::histogram::Rank;
use crate::pages::{BLOCK, Pages, flags};

/// The unit is on cold lists.
const COLD: u8 = 0x80;
const LEVEL_SHIFT: u32 = 3;
const LEVEL: u8 = 15;
/// Epochs since the unit was found, rose or fell.
const AGE: u8 = 7;

/// The lowest degree of a unit on the top hot list, by [`TopLists`].
pub(crate) const TOP_HOT: u8 = 129;
/// The highest degree of a unit on the top cold list.
pub(crate) const TOP_COLD: u8 = 63;
/// Units of slower tiers that are not on the top list.
const NOT_TOP: u8 = 128;

/// The rule by which units rise and fall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListRule {
    /// Lists of each kind, 1 to 15.
    pub lists: u8,
    /// Epochs within which a unit must be found again, 1 to 7.
    pub decay: u8,
}

/// The list that a unit's state byte names, from 1; 0: none.
#[must_use]
pub(crate) fn list_of(state: u8) -> u8 {
    state >> LEVEL_SHIFT & LEVEL
}

impl ListRule {
    /// A state after an epoch, of a unit that is in the first tier or not, and was hot in the epoch or not.
    fn next(self, state: u8, fast: bool, hot: bool) -> u8 {
        let kind = if fast { COLD } else { 0 };
        let state = if state & COLD == kind { state } else { 0 };
        let (list, age) = (list_of(state), state & AGE);
        let (list, age) = if list > 0 && age >= self.decay {
            (list - 1, 0)
        } else if hot != fast {
            ((list + 1).min(self.lists), 0)
        } else if list > 0 {
            (list, age + 1)
        } else {
            (0, 0)
        };
        kind | list << LEVEL_SHIFT | age
    }

    /// Ends an epoch: every unit whose count is above the threshold was hot in it. Without a threshold none is found,
    /// hot or cold, and the lists only decay.
    pub(crate) fn end_epoch(self, pages: &mut Pages, estimator: Estimator, threshold: Option<u8>) {
        // By hot and state; the tier picks the row's half by the kind that it wants.
        let mut next = [[[0_u8; 256]; 2]; 2];
        for (fast, rows) in [false, true].into_iter().zip(&mut next) {
            for (hot, row) in [false, true].into_iter().zip(rows) {
                for (state, after) in (0..=u8::MAX).zip(row) {
                    let hot = if threshold.is_none() { fast } else { hot };
                    *after = self.next(state, fast, hot);
                }
            }
        }
        let above = threshold.unwrap_or(u8::MAX);
        let tiers = pages.tiers();
        let mut counts = [0; BLOCK];
        for start in (0..pages.units()).step_by(BLOCK) {
            let units = start..(start + BLOCK).min(pages.units());
            let counts = &mut counts[..units.len()];
            let (reads, writes) = (&pages.reads[units.clone()], &pages.writes[units.clone()]);
            estimator.degrees(0, start as u64, reads, writes, counts);
            let marks = &pages.flags[units.clone()];
            let states = pages.queue[units].iter_mut().zip(marks).zip(counts);
            for ((state, marks), count) in states {
                let tier = marks & flags::TIER;
                let listed = tier < tiers && marks & flags::KNOWN != 0;
                let after = next[usize::from(tier == 0)][usize::from(*count > above)];
                *state = if listed {
                    after[usize::from(*state)]
                } else {
                    0
                };
            }
        }
    }
}

/// Ranks units by their place on the lists: those on the top hot list from [`TOP_HOT`] on, those on the top cold list
/// up to [`TOP_COLD`], each by the count of the epoch that runs, and all others between.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TopLists {
    pub lists: u8,
    pub counter: Estimator,
}

impl TopLists {
    fn degree(self, state: u8, fast: bool, count: u8) -> u8 {
        let kind_fits = (state & COLD != 0) == fast;
        let list = if kind_fits { list_of(state) } else { 0 };
        match (fast, list >= self.lists) {
            (false, true) => TOP_HOT + count / 4,
            (false, false) => NOT_TOP,
            (true, true) => count / 4,
            // Beside the top list, what must leave leaves by its list.
            (true, false) => TOP_COLD + self.lists - list,
        }
    }
}

impl Rank for TopLists {
    fn rank(self, pages: &Pages, _round: u64, units: Range<usize>, out: &mut [u8]) {
        let (reads, writes) = (&pages.reads[units.clone()], &pages.writes[units.clone()]);
        self.counter
            .degrees(0, units.start as u64, reads, writes, out);
        let states = pages.queue[units.clone()].iter().zip(&pages.flags[units]);
        for (out, (state, marks)) in out.iter_mut().zip(states) {
            *out = self.degree(*state, marks & flags::TIER == 0, *out);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use terrace_proto::{Gfn, PageBitmap, PageCode, PageSize};

    use super::*;
    use crate::track::tests::pages;

    const COUNTER: Estimator = Estimator::Counter { write: 3 };

    /// A unit as the paper tells it: its list, and the epoch of its last update.
    #[derive(Clone, Copy, Default)]
    struct Naive {
        fast: bool,
        list: u8,
        updated: u64,
    }

    impl Naive {
        fn epoch(&mut self, now: u64, rule: ListRule, fast: bool, hot: bool) {
            if self.fast != fast {
                *self = Self {
                    fast,
                    ..Self::default()
                };
            }
            let found = hot != fast;
            let is_late = now - self.updated > u64::from(rule.decay);
            match (found, self.list) {
                (false, 0) => return,
                (true, 0) => self.list = 1,
                (_, list) if is_late => self.list = list - 1,
                (true, list) => self.list = rule.lists.min(list + 1),
                (false, _) => return,
            }
            self.updated = now;
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn a_byte_follows_list_and_time_of_update(
            lists in 1_u8..=15,
            decay in 1_u8..=7,
            epochs in prop::collection::vec((any::<bool>(), 0_u8..8), 1..60),
        ) {
            let rule = ListRule { lists, decay };
            let (mut state, mut naive) = (0, Naive::default());
            let mut fast = false;
            for (now, (hot, turn)) in (1_u64..).zip(epochs) {
                fast ^= turn == 0;
                state = rule.next(state, fast, hot);
                naive.epoch(now, rule, fast, hot);
                prop_assert_eq!(list_of(state), naive.list);
                prop_assert_eq!(state & COLD != 0, fast);
            }
        }
    }

    #[test]
    fn hot_lists_hold_slow_units_and_cold_lists_fast_ones() {
        let rule = ListRule { lists: 3, decay: 2 };
        let mut p = pages(PageSize::Base, 5);
        let (fast, slow) = (PageCode(0), PageCode(1));
        p.place_run(Gfn(0), &[fast, fast, slow, slow, PageCode::ABSENT]);
        p.set_known(&PageBitmap::full(5));
        for unit in [0, 2, 4] {
            p.set_heat(unit, 0, 3);
        }
        for _ in 0..3 {
            rule.end_epoch(&mut p, COUNTER, Some(8));
        }
        let lists: Vec<_> = p.queue.iter().map(|s| list_of(*s)).collect();
        assert_eq!(lists, [0, 3, 3, 0, 0]);
        let rank = TopLists {
            lists: 3,
            counter: COUNTER,
        };
        let mut degrees = [0; 5];
        rank.rank(&p, 1, 0..5, &mut degrees);
        assert_eq!(degrees[..4], [TOP_COLD + 3, 0, TOP_HOT + 2, NOT_TOP]);
        // Without a threshold nothing is found, and both lists fall after the decay time.
        for _ in 0..3 {
            rule.end_epoch(&mut p, COUNTER, None);
        }
        let lists: Vec<_> = p.queue.iter().map(|s| list_of(*s)).collect();
        assert_eq!(lists, [0, 2, 2, 0, 0]);
    }

    #[test]
    fn a_unit_found_after_the_decay_time_falls() {
        let rule = ListRule { lists: 3, decay: 2 };
        let after = |missed| {
            let epochs = (0..2).map(|_| true).chain((0..missed).map(|_| false));
            let state = epochs.fold(0, |state, hot| rule.next(state, false, hot));
            [list_of(state), list_of(rule.next(state, false, true))]
        };
        assert_eq!([0, 1, 2].map(after), [[2, 3], [2, 3], [2, 1]]);
    }

    #[test]
    fn a_unit_at_the_threshold_is_not_above_it() {
        let rule = ListRule { lists: 1, decay: 1 };
        let mut p = pages(PageSize::Base, 2);
        p.place_run(Gfn(0), &[PageCode(1); 2]);
        p.set_known(&PageBitmap::full(2));
        p.set_heat(0, 8, 0);
        p.set_heat(1, 9, 0);
        rule.end_epoch(&mut p, COUNTER, Some(8));
        assert_eq!([list_of(p.queue[0]), list_of(p.queue[1])], [0, 1]);
    }
}
