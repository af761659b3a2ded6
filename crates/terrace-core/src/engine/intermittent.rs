//! Intermittent monitoring (vTMM §3.2.3): a VM whose pages are placed well is scanned less often.
//!
//! Responsible for: period ticks, and which of them start a round. It leaves to others: the rounds.
//!
//! The paper's words: a round that migrated less than a threshold raises a counter, up to a limit; each
//! period the counter falls by one; monitoring runs only if it is 0. A counter that must be 0
//! before a round can raise it would never get past 1 and skip nothing. So what a quiet round raises
//! here is the history, the number of quiet rounds in a row (at most the limit, 3), and the counter
//! starts from it: with limit 3 the rounds of a quiet VM come 1, 2, 3, 3, … periods apart. A round that
//! migrated enough ends the history. A round that was abandoned means nothing and changes nothing.

use std::time::Duration;

use terrace_proto::Tick;

#[derive(Debug)]
pub(crate) struct Intermittent {
    period: Duration,
    limit: u8,
    next: Tick,
    quiet_rounds: u8,
    counter: u8,
}

impl Intermittent {
    pub(crate) fn new(first: Tick, period: Duration, limit: u8) -> Self {
        Self {
            period,
            limit,
            next: first,
            quiet_rounds: 0,
            counter: 0,
        }
    }

    /// The next period tick.
    pub(crate) fn next(&self) -> Tick {
        self.next
    }

    pub(crate) fn counter(&self) -> u8 {
        self.counter
    }

    /// When the next round starts, if no round is under way now.
    pub(crate) fn next_round(&self) -> Tick {
        let skipped = u32::from(self.counter.saturating_sub(1));
        self.next.after(self.period.saturating_mul(skipped))
    }

    /// A period tick has come; ticks that were missed (a pause, a long round) count as one. Whether a
    /// round starts.
    pub(crate) fn tick(&mut self, now: Tick) -> bool {
        self.skip_ticks(now);
        self.counter = self.counter.saturating_sub(1);
        self.counter == 0
    }

    /// Lets ticks up to now pass without effect.
    pub(crate) fn skip_ticks(&mut self, now: Tick) {
        let period = u64::try_from(self.period.as_nanos()).unwrap_or(u64::MAX);
        if self.next <= now {
            let missed = (now.0 - self.next.0) / period;
            let ahead = period.saturating_mul(missed + 1);
            self.next = Tick(self.next.0.saturating_add(ahead));
        }
    }

    /// The next period tick comes then.
    pub(crate) fn set_next(&mut self, next: Tick) {
        self.next = next;
    }

    /// The next period tick starts a round, whatever the history.
    pub(crate) fn wake(&mut self) {
        self.counter = self.counter.min(1);
    }

    pub(crate) fn round_done(&mut self, quiet: bool) {
        self.quiet_rounds = if quiet {
            self.limit.min(self.quiet_rounds + 1)
        } else {
            0
        };
        self.counter = self.quiet_rounds;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn quiet_rounds_lengthen_the_period_one_by_one(
            quiet in prop::collection::vec(any::<bool>(), 1..30),
            limit in 0_u8..5,
        ) {
            // Oracle: the gap after a round is the number of quiet rounds in a row up to it.
            let mut want = vec![0_u64];
            let mut row = 0;
            for q in &quiet {
                row = if *q { (row + 1).min(u64::from(limit)) } else { 0 };
                want.push(want[want.len() - 1] + row.max(1));
            }
            let mut i = Intermittent::new(Tick(0), Duration::from_nanos(10), limit);
            let mut got = Vec::new();
            for period in 0..=want[want.len() - 1] {
                let foretold = i.next_round();
                if i.tick(Tick(period * 10)) {
                    assert_eq!(foretold, Tick(period * 10));
                    got.push(period);
                    if let Some(q) = quiet.get(got.len() - 1) {
                        i.round_done(*q);
                    }
                }
            }
            prop_assert_eq!(got, want);
        }
    }

    #[test]
    fn ticks_missed_while_paused_count_once_and_the_schedule_holds() {
        let mut i = Intermittent::new(Tick(5), Duration::from_nanos(10), 3);
        assert!(i.tick(Tick(38)));
        assert_eq!(i.next(), Tick(45));
    }
}
