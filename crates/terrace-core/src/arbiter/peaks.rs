//! The most memory that a guest used in the last while.
//!
//! A valley of demand that is shorter is no memory that nobody needs.

use terrace_proto::Tick;

/// Parts of the time that is remembered: the oldest one is forgotten as a whole.
const PARTS: usize = 8;

/// The most of a value over a time, in parts of it: a value counts for that time, and up to a seventh of it longer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Peaks {
    /// The most in each part, the latest one last; 0 if nothing was seen in it.
    most: [u64; PARTS],
    /// The number of the latest part since time began.
    part: u64,
}

impl Peaks {
    /// Takes in a value. `ns`: how long it counts; 0: not at all.
    pub fn add(&mut self, now: Tick, value: u64, ns: u64) {
        let Some(part) = now.0.checked_div(ns / (PARTS as u64 - 1)) else {
            return;
        };
        for _ in 0..part.saturating_sub(self.part).min(PARTS as u64) {
            self.most.rotate_left(1);
            self.most[PARTS - 1] = 0;
        }
        self.part = self.part.max(part);
        self.most[PARTS - 1] = self.most[PARTS - 1].max(value);
    }

    /// The most of the last while, as of the last value.
    #[must_use]
    pub fn most(&self) -> u64 {
        self.most.into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NS: u64 = 7000;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Against all values kept.
        #[test]
        fn every_value_counts_for_its_time_and_little_longer(
            values in prop::collection::vec((0..3000_u64, 0..1000_u64), 1..60),
        ) {
            let (mut peaks, mut all, mut now) = (Peaks::default(), Vec::new(), 0);
            for (ns, value) in values {
                now += ns;
                all.push((now, value));
                peaks.add(Tick(now), value, NS);
                let most_of = |ns: u64| {
                    let late = all.iter().filter(|(at, _)| now - at < ns);
                    late.map(|(_, value)| *value).max().unwrap_or(0)
                };
                prop_assert!(peaks.most() >= most_of(NS));
                prop_assert!(peaks.most() <= most_of(NS + NS / 7));
            }
        }
    }

    #[test]
    fn no_time_remembers_nothing() {
        let mut peaks = Peaks::default();
        peaks.add(Tick(5), 7, 0);
        assert_eq!(peaks.most(), 0);
    }
}
