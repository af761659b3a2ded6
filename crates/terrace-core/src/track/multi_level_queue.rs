//! The multi-level queue (vTMM §3.2.2): hot pages are re-armed more and more rarely.
//!
//! Responsible for: each unit's level, when its rest ends, and which visits count. It leaves to others:
//! windows and rounds; all levels restart with each round.
//!
//! Windows of a round are numbered from 1, and the scan of window `t` is the one at its end. A unit of
//! level 0 is re-armed by every scan and judged by every scan: accessed takes it to level 1. A unit
//! that reaches level `x > 0` at scan `t` rests for 2^(x−1) windows. Each of them counts as a visit
//! whatever its bits say, the scan that ends the last of them re-arms it, and the next one judges it:
//! accessed counts as a visit and takes it up by one level, not accessed takes it down by one; either
//! way the new level's rest starts.
//!
//! The units that a scan re-arms must be known before it runs: the units of level 0, and those whose rest ends.
//! So a unit of level 0 that turns out to be accessed was re-armed once more than it needed.
//!
//! A resting window counts as a write if the answer shows that the page was written, else as a read.

use terrace_proto::{PageBitmap, PageSize, Rearm, ScanAnswer};

use super::unit_bits;
use crate::pages::Pages;

/// A unit's state in a byte: level in bits 5–7; below, the scan that ends its rest. Level 0 is 0.
const LEVEL_SHIFT: u32 = 5;
/// Also "after this round": a round has at most 30 windows.
const DUE_MASK: u8 = 31;

/// The filter; the state of each unit is a byte of its [`Pages`].
#[derive(Clone, Debug)]
pub struct MultiLevelQueue {
    max_level: u8,
}

/// The effect of one scan on a state byte: the state after it, and whether the window counts as a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    state: u8,
    visit: u8,
}

fn level(state: u8) -> u8 {
    state >> LEVEL_SHIFT
}

/// The level that a unit's state byte names, for people.
#[must_use]
pub(crate) fn level_of(state: u8) -> u8 {
    level(state)
}

/// The state of a unit that reaches a level at scan `window`.
fn reach(level: u8, window: u8) -> u8 {
    if level == 0 {
        return 0;
    }
    let rest = 1_u8 << (level - 1);
    level << LEVEL_SHIFT | window.saturating_add(rest).min(DUE_MASK)
}

impl MultiLevelQueue {
    /// A queue with levels 0 to `max_level` (at most 7).
    #[must_use]
    pub fn new(max_level: u8) -> Self {
        Self {
            max_level: max_level.min(7),
        }
    }

    fn step(&self, state: u8, window: u8, accessed: bool) -> Step {
        let level = level(state);
        if level > 0 && window <= state & DUE_MASK {
            return Step { state, visit: 1 };
        }
        let next = if accessed {
            (level + 1).min(self.max_level)
        } else {
            level.saturating_sub(1)
        };
        Step {
            state: reach(next, window),
            visit: u8::from(accessed),
        }
    }

    pub(super) fn rearm(&self, pages: &Pages, window: u8) -> Rearm {
        let due = |state: u8| level(state) == 0 || state & DUE_MASK == window;
        let mut map = PageBitmap::new(pages.ram().span_pages());
        for (index, states) in pages.queue.chunks(64).enumerate() {
            let word = if states.iter().all(|s| *s == 0) {
                u64::MAX
            } else {
                (0..)
                    .zip(states)
                    .fold(0, |word, (i, s)| word | u64::from(due(*s)) << i)
            };
            match pages.ram().unit() {
                PageSize::Base => map.set_word(index, word),
                PageSize::Huge => {
                    for unit in (0..states.len()).filter(|i| word >> i & 1 == 1) {
                        let first = (index * 64 + unit) * 8;
                        (first..first + 8).for_each(|w| map.set_word(w, u64::MAX));
                    }
                }
            }
        }
        Rearm::Only(map)
    }

    pub(super) fn record(
        &self,
        pages: &mut Pages,
        window: u8,
        answer: &ScanAnswer,
        written: &[u64],
    ) {
        let mut steps = [[Step { state: 0, visit: 0 }; 256]; 2];
        for state in 0..=u8::MAX {
            for accessed in [false, true] {
                steps[usize::from(accessed)][usize::from(state)] =
                    self.step(state, window, accessed);
            }
        }
        let unit = pages.ram().unit();
        let accessed = answer.accessed.words();
        let counts = pages.reads.chunks_mut(64).zip(pages.writes.chunks_mut(64));
        for (index, (states, (reads, writes))) in pages.queue.chunks_mut(64).zip(counts).enumerate()
        {
            let a = unit_bits(unit, accessed, index);
            if a == 0 && states.iter().all(|s| *s == 0) {
                continue;
            }
            let w = unit_bits(unit, written, index);
            let counts = reads.iter_mut().zip(writes);
            for (i, (state, (read, write))) in states.iter_mut().zip(counts).enumerate() {
                let step = steps[usize::from(a >> i & 1 == 1)][usize::from(*state)];
                let wrote = u8::from(w >> i & 1 == 1) & step.visit;
                *state = step.state;
                *read = read.saturating_add(step.visit & !wrote);
                *write = write.saturating_add(wrote);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::tests::{answer, pages};
    use super::*;

    /// A plain simulation of one page, written from the paper's words.
    #[derive(Clone, Copy, Default)]
    struct NaivePage {
        level: u32,
        /// Windows of rest left.
        rest: u32,
        reads: u8,
        writes: u8,
    }

    impl NaivePage {
        fn is_rearmed(&self) -> bool {
            self.level == 0 || self.rest == 1
        }

        fn window(&mut self, accessed: bool, written: bool, max_level: u32) {
            let visit = self.rest > 0 || accessed;
            if visit && written {
                self.writes += 1;
            } else if visit {
                self.reads += 1;
            }
            if self.rest > 0 {
                self.rest -= 1;
                return;
            }
            self.level = if accessed {
                max_level.min(self.level + 1)
            } else {
                self.level.saturating_sub(1)
            };
            self.rest = if self.level == 0 {
                0
            } else {
                2_u32.pow(self.level - 1)
            };
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn equals_a_plain_simulation_of_each_page(
            span in 1_usize..200,
            windows in 1_u8..=30,
            max_level in 1_u8..=7,
            heat in prop::collection::vec(0_u8..=255, 1..30),
            seed in any::<u64>(),
            writes in any::<bool>(),
        ) {
            let queue = MultiLevelQueue::new(max_level);
            let mut fast = pages(PageSize::Base, span as u64);
            let mut naive = vec![NaivePage::default(); span];
            let mut random = seed;
            for window in 1..=windows {
                let Rearm::Only(map) = queue.rearm(&fast, window) else {
                    panic!("the queue always names pages");
                };
                for (i, page) in naive.iter().enumerate() {
                    prop_assert_eq!(map.get(i as u64), page.is_rearmed(), "window {} page {}", window, i);
                }
                let mut draw = || {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    random.to_be_bytes()[0]
                };
                let accessed: Vec<bool> = (0..span).map(|i| draw() < heat[i % heat.len()]).collect();
                let written: Vec<bool> = (0..span).map(|_| draw() < 100).collect();
                let answer = answer(&accessed, writes.then_some(&written[..]));
                let reported = answer.written.as_ref().map_or(&[][..], |w| w.words());
                queue.record(&mut fast, window, &answer, reported);
                for (i, page) in naive.iter_mut().enumerate() {
                    page.window(accessed[i], writes && written[i], max_level.into());
                }
            }
            for (i, page) in naive.iter().enumerate() {
                prop_assert_eq!(fast.reads[i], page.reads);
                prop_assert_eq!(fast.writes[i], page.writes);
                prop_assert_eq!(u32::from(level_of(fast.queue[i])), page.level);
            }
        }
    }

    /// Accessed bits cleared for one page over a round, by how it is accessed.
    fn rearms(accessed: impl Fn(u8) -> bool) -> (u32, u8) {
        let queue = MultiLevelQueue::new(7);
        let mut p = pages(PageSize::Base, 1);
        let mut armed = 0;
        for window in 1..=8 {
            if let Rearm::Only(map) = queue.rearm(&p, window) {
                armed += u32::from(map.get(0));
            }
            queue.record(&mut p, window, &answer(&[accessed(window)], None), &[]);
        }
        (armed, p.reads[0])
    }

    #[test]
    fn an_always_accessed_page_counts_each_window_in_3_rearmings() {
        // Level 1 at scan 1, re-armed at 2; level 2 at 3, re-armed at 5; level 3 at 6, until 10.
        assert_eq!(rearms(|_| true), (3, 8));
    }

    #[test]
    fn a_page_never_accessed_is_re_armed_in_every_window() {
        assert_eq!(rearms(|_| false), (8, 0));
    }

    #[test]
    fn one_access_counts_its_window_and_the_one_of_rest() {
        assert_eq!(rearms(|t| t == 3).1, 2);
    }

    #[test]
    fn a_huge_unit_is_re_armed_with_all_its_pages() {
        let queue = MultiLevelQueue::new(7);
        let mut p = pages(PageSize::Huge, 1024);
        let mut bits = vec![false; 1024];
        bits[700] = true;
        queue.record(&mut p, 1, &answer(&bits, None), &[]);
        assert_eq!(p.reads, [0, 1]);
        queue.record(&mut p, 2, &answer(&bits, None), &[]);
        let Rearm::Only(map) = queue.rearm(&p, 3) else {
            panic!("the queue always names pages");
        };
        assert_eq!(map.iter().collect::<Vec<_>>(), (0..512).collect::<Vec<_>>());
    }
}
