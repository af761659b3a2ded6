//! Rounds of gathering: what each one is to do, how long the next one waits, and when they no longer pay.

use std::collections::{BTreeMap, BTreeSet};

use terrace_proto::PAGE_SIZE;

use super::plan::{Limits, Plan};
use super::skew::Skew;

/// Rounds in a row that freed too little, after which gathering rests.
const POOR_ROUNDS: u8 = 3;
/// A block that is hot again and again rests for up to two to the power of this rounds.
const LONGEST_REST: u8 = 4;

/// Rounds so far, as far as they matter for the next one.
///
/// A round is judged by what the next one finds: hot pages may have gone elsewhere, or been taken back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rounds {
    /// Rounds in a row that freed less than half of what was planned.
    poor: u8,
    /// Of the last round: blocks that it was to free, and blocks that were hot before.
    last: Option<(u64, u64)>,
    /// Blocks that were emptied and did not stay empty, or may not.
    tried: BTreeMap<u64, Tried>,
    /// Those of them that rest in this round.
    resting: BTreeSet<u64>,
}

/// A block that was to be emptied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tried {
    /// Whether the last plan had it.
    now: bool,
    /// Times in a row that it had hot pages one round later.
    fails: u8,
    /// Rounds for which it is left alone.
    rests: u8,
}

impl Rounds {
    /// Begins a round with hot pages of this spread.
    pub fn begin(&mut self, skew: &Skew) {
        self.judge(skew.hot_blocks());
        self.tried.retain(|block, tried| {
            if tried.now {
                tried.now = false;
                tried.rests = 1 << tried.fails.min(LONGEST_REST);
                tried.fails = tried.fails.saturating_add(1);
            } else {
                tried.rests = tried.rests.saturating_sub(1);
            }
            skew.hot(*block) > 0
        });
        let resting = self.tried.iter().filter(|(_, tried)| tried.rests > 0);
        self.resting = resting.map(|(block, _)| *block).collect();
    }

    fn judge(&mut self, hot_blocks: u64) {
        let Some((planned, before)) = self.last.take().filter(|(planned, _)| *planned > 0) else {
            return;
        };
        let freed = before.saturating_sub(hot_blocks);
        let is_poor = freed.saturating_mul(2) < planned;
        self.poor = if is_poor {
            self.poor.saturating_add(1)
        } else {
            0
        };
    }

    /// The blocks to empty in this round. Those that were emptied and are hot again rest, each time for twice as many rounds.
    #[must_use]
    pub fn plan(&self, skew: &Skew, limits: Limits) -> Plan {
        Plan::new(skew, &self.resting, limits)
    }

    /// Blocks that rest in this round.
    #[must_use]
    pub fn resting(&self) -> u64 {
        self.resting.len() as u64
    }

    /// Takes in the plan that is carried out, and the hot blocks before it.
    pub fn end(&mut self, plan: &Plan, hot_blocks: u64) {
        self.last = Some((plan.freed(), hot_blocks));
        for block in &plan.blocks {
            self.tried.entry(*block).or_default().now = true;
        }
    }

    /// Whether three rounds in a row freed less than half of what was planned.
    #[must_use]
    pub fn rests(&self) -> bool {
        self.poor >= POOR_ROUNDS
    }

    /// Judges anew from now on, as after a long rest.
    pub fn try_again(&mut self) {
        *self = Self::default();
    }
}

/// Limits of what rounds may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Bytes that may be copied in a second.
    pub bytes_per_s: u64,
    /// Share of one processor for finding and moving pages, percent.
    pub cpu_percent: u8,
    /// Length of the windows of a round together, ms.
    pub windows_ms: u64,
    /// Shortest pause between two rounds, ms.
    pub rest_ms: u64,
}

impl Pace {
    /// Pages that a round may copy: those of its windows and the pause after it.
    #[must_use]
    pub fn pages(&self) -> u64 {
        let ms = self.windows_ms.saturating_add(self.rest_ms);
        let bytes = u128::from(self.bytes_per_s) * u128::from(ms) / 1000;
        u64::try_from(bytes / u128::from(PAGE_SIZE)).unwrap_or(u64::MAX)
    }

    /// The pause after a round that took so much of a processor's time.
    #[must_use]
    pub fn rest_ms(&self, cpu_ms: u64) -> u64 {
        let whole = cpu_ms.saturating_mul(100) / u64::from(self.cpu_percent.max(1));
        whole.saturating_sub(self.windows_ms).max(self.rest_ms)
    }
}

/// Keeps of pages that lie where hot ones are gathered those that go home: all that are not hot any more. Both lists ascend. Tried and left
/// out: to keep those that are seen in one of three windows, which made loads without a clear edge worse (docs/gather.md).
pub fn keep_cold(resident: &mut Vec<u64>, hot: &[u64]) {
    let mut stays = hot.iter().peekable();
    resident.retain(|page| {
        while stays.next_if(|stays| *stays < page).is_some() {}
        stays.peek() != Some(&page)
    });
}

#[cfg(test)]
mod tests {
    use super::super::plan::Cl;
    use super::*;

    const PLENTY: Limits = Limits {
        cl: Cl::Auto { gain: 1 },
        pages: u64::MAX,
        room: u64::MAX,
    };

    /// Each of the first blocks has one hot page.
    fn scattered(blocks: std::ops::Range<u64>) -> Skew {
        let mut skew = Skew::new(64 * 512);
        blocks.for_each(|block| skew.count(block * 512, true));
        skew
    }

    #[test]
    fn they_rest_after_three_poor_rounds_in_a_row() {
        let mut rounds = Rounds::default();
        let ten = Plan::new(&scattered(0..11), &BTreeSet::new(), PLENTY);
        assert_eq!(ten.freed(), 10);
        for (planned, freed, rests) in [
            (&ten, 4, false),
            (&ten, 4, false),
            (&ten, 5, false),
            (&ten, 4, false),
            (&Plan::default(), 0, false),
            (&ten, 0, false),
            (&ten, 0, true),
        ] {
            rounds.begin(&scattered(0..20));
            rounds.end(planned, 20);
            rounds.begin(&scattered(0..20 - freed));
            assert_eq!(rounds.rests(), rests);
        }
        rounds.try_again();
        assert!(!rounds.rests());
    }

    #[test]
    fn a_block_that_is_hot_again_rests_longer_each_time() {
        let mut rounds = Rounds::default();
        // The first block never stays empty.
        let planned: String = (0..20)
            .map(|_| {
                let skew = scattered(0..3);
                rounds.begin(&skew);
                let mut plan = rounds.plan(&skew, PLENTY);
                plan.blocks.retain(|block| *block == 0);
                rounds.end(&plan, 3);
                if plan.blocks.is_empty() { '.' } else { 'x' }
            })
            .collect();
        assert_eq!(planned, "x.x..x....x........x");
    }

    #[test]
    fn a_block_that_stayed_empty_is_forgotten() {
        let mut rounds = Rounds::default();
        let skew = scattered(0..3);
        rounds.begin(&skew);
        let plan = rounds.plan(&skew, PLENTY);
        rounds.end(&plan, 3);
        rounds.begin(&scattered(2..3));
        assert_eq!(rounds.resting(), 1);
        rounds.begin(&skew);
        assert_eq!(rounds.plan(&skew, PLENTY).blocks, [0, 1, 2]);
    }

    #[test]
    fn a_round_costs_no_more_than_allowed() {
        let pace = Pace {
            bytes_per_s: 1 << 20,
            cpu_percent: 5,
            windows_ms: 30_000,
            rest_ms: 60_000,
        };
        assert_eq!(pace.pages(), 90 * 256);
        assert_eq!(pace.rest_ms(0), 60_000);
        assert_eq!(pace.rest_ms(4_500), 60_000);
        assert_eq!(pace.rest_ms(9_000), 150_000);
        let extreme = Pace {
            bytes_per_s: u64::MAX,
            cpu_percent: 0,
            windows_ms: u64::MAX,
            rest_ms: u64::MAX,
        };
        assert_eq!(
            (extreme.pages(), extreme.rest_ms(u64::MAX)),
            (u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn cold_pages_are_those_that_are_not_hot() {
        let cold = |resident: &[u64], hot: &[u64]| {
            let mut resident = resident.to_vec();
            keep_cold(&mut resident, hot);
            resident
        };
        assert_eq!(cold(&[1, 3, 4, 9], &[0, 3, 5, 9, 10]), [1, 4]);
        assert_eq!(cold(&[1, 2], &[]), [1, 2]);
        assert_eq!(cold(&[], &[1]), [0; 0]);
        assert_eq!(cold(&[7], &[7]), [0; 0]);
    }
}
