//! The last verdicts on the tiers: the last verification of the host's memory behind each. A query that could not
//! verify it in time takes no verdict back.

use std::time::Duration;

use terrace_proto::Tick;
use terrace_proto::provision::{ProviderStatus, Verified};

/// Difference of time up to which two verdicts are the same one: the time that it takes to be reported.
const SAME: Duration = Duration::from_secs(1);

/// A verdict on a tier: the host's count of the memory behind it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Verdict {
    /// The time when the verification began.
    pub at: Tick,
    /// The figures that the verification counted.
    pub verified: Verified,
}

/// The last verdicts on the tiers of one VM.
#[derive(Debug, Default)]
pub(super) struct Verdicts {
    tiers: Vec<Option<Verdict>>,
    /// The time when the host's memory was last verified.
    pub tried: Option<Tick>,
    /// The guest's resets by the last report.
    resets: Option<u64>,
    /// The time of the guest's last reset, as it was seen: older verdicts are about the guest before.
    from: Option<Tick>,
}

impl Verdicts {
    /// Keeps the verdicts that are new in a status whose query was asked for at `asked`, and puts the known ones into
    /// it. For each tier, whether its verdict is new.
    pub fn take(&mut self, now: Tick, status: &mut ProviderStatus, asked: Tick) -> Vec<bool> {
        let before = self.resets.replace(status.resets);
        // The guest before may have given back what this one has again: its verdicts count no more, and neither
        // does one whose verification began before the reset was seen.
        if before.is_some_and(|before| before != status.resets) {
            *self = Self {
                resets: self.resets,
                from: Some(now),
                ..Self::default()
            };
        }
        self.tiers.resize(status.tiers.len(), None);
        let from = self.from;
        let tiers = status.tiers.iter_mut().zip(&mut self.tiers);
        let each = tiers.map(|(tier, known)| {
            let at = Tick(now.0.saturating_sub(tier.verified_age_ns));
            let new = tier.verified.map(|verified| Verdict { at, verified });
            let new = new.filter(|new| from.is_none_or(|from| new.at >= from));
            // A device repeats its last verdict with each query. It is new if it began after this query was asked
            // for, or clearly after the one that is known.
            let is_fresh = new.is_some_and(|new| {
                new.at >= asked || known.is_none_or(|known| new.at > known.at.after(SAME))
            });
            *known = new.or(*known);
            tier.verified = known.map(|known| known.verified);
            is_fresh
        });
        each.collect()
    }

    /// The last verdict on a tier.
    pub fn of(&self, tier: usize) -> Option<Verdict> {
        self.tiers.get(tier).copied().flatten()
    }
}

#[cfg(test)]
mod tests {
    use terrace_proto::provision::TierStatus;

    use super::*;

    const BEGUN: Tick = Tick(1_000_000_000_000);

    /// A status as a query gives it at `now`, with a verdict that began at `at`, in a guest that was started `resets`
    /// times.
    fn status(now: Tick, verified: Option<Verified>, at: Tick, resets: u64) -> ProviderStatus {
        let tier = TierStatus {
            verified,
            verified_age_ns: now.0 - at.0,
            ..TierStatus::default()
        };
        ProviderStatus {
            tiers: vec![tier],
            resets,
            ..ProviderStatus::default()
        }
    }

    #[test]
    fn a_repeated_verdict_counts_once_and_a_missing_one_not_at_all() {
        let (mut verdicts, verified) = (Verdicts::default(), Some(Verified::default()));
        let mut seen = status(BEGUN, verified, BEGUN, 0);
        assert_eq!(verdicts.take(BEGUN, &mut seen, BEGUN), [true]);
        let now = BEGUN.after(Duration::from_secs(20));
        let asked = BEGUN.after(Duration::from_secs(10));
        // It takes a while to be reported.
        let late = BEGUN.after(SAME / 2);
        let mut again = status(now, verified, late, 0);
        assert_eq!(verdicts.take(now, &mut again, asked), [false]);
        let mut none = status(now, None, now, 0);
        assert_eq!(verdicts.take(now, &mut none, asked), [false]);
        assert_eq!(none.tiers[0].verified, verified);
        assert_eq!(verdicts.of(0).unwrap().at, late);
        let mut new = status(now, verified, late.after(2 * SAME), 0);
        assert_eq!(verdicts.take(now, &mut new, asked), [true]);
    }

    #[test]
    fn a_verdict_of_before_a_reset_says_nothing_of_the_new_guest() {
        let (mut verdicts, verified) = (Verdicts::default(), Some(Verified::default()));
        verdicts.take(BEGUN, &mut status(BEGUN, verified, BEGUN, 0), BEGUN);
        let now = BEGUN.after(SAME);
        let mut after = status(now, verified, BEGUN, 1);
        assert_eq!(verdicts.take(now, &mut after, BEGUN), [false]);
        assert_eq!(after.tiers[0].verified, None);
    }
}
