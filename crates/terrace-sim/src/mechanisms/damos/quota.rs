//! The quota of a scheme (mm/damon/core.c, `damos_adjust_quota`): bytes that it goes through in a second, less if that
//! takes too long or if its goal is met.

/// Time for which a quota holds (`reset_interval_ms` of damo's scripts/mem_tier.sh), ns.
const RESET_NS: u64 = 1_000_000_000;

/// The score of a goal that is met, and the unit of parts: 10,000ths (`damon_feed_loop_next_input`).
pub(super) const MET: u64 = 10_000;

/// Bytes that a scheme is taken to go through in a ms before it has gone through any (`damos_set_effective_quota`).
const FIRST_PER_MS: u64 = 4096 * 1024;

/// A quota, in bytes of the full-size machine.
#[derive(Debug)]
pub(super) struct Quota {
    /// The most.
    size: u64,
    /// The most time, ms; 0: as much as it takes.
    ms: u64,
    /// What the goal allows, 10,000ths of bytes (`esz_bp`).
    tuned: u64,
    /// The quota of this window; `None` before the first one.
    now: Option<u64>,
    charged: u64,
    window_began: u64,
    /// Bytes of a frame as simulated: a quota of less is kept until it is enough for one.
    frame: u64,
    /// All that was charged in windows before, and the time that it took, ns.
    total: (u64, u64),
}

impl Quota {
    pub(super) fn new(size: u64, ms: u64) -> Self {
        Self {
            size,
            ms,
            tuned: 0,
            now: None,
            charged: 0,
            window_began: 0,
            frame: 0,
            total: (0, 0),
        }
    }

    /// Sets the bytes of a frame as simulated.
    pub(super) fn set_frame(&mut self, bytes: u64) {
        self.frame = bytes;
    }

    /// Begins a new window, if the last one is over. `score`: how far the goal is met, of [`MET`]; `None` if there is
    /// no goal.
    pub(super) fn renew(&mut self, now: u64, score: Option<u64>) {
        if self.now.is_some() && now < self.window_began + RESET_NS {
            return;
        }
        let rest = self.left().min(self.frame.saturating_sub(1));
        self.total.0 += std::mem::take(&mut self.charged);
        self.window_began = now;
        let mut bytes = self.size;
        if let Some(score) = score {
            self.tuned = next_input(self.tuned.max(MET), score);
            bytes = bytes.min(self.tuned / MET);
        }
        if self.ms > 0 {
            let per_ms = match self.total.1 {
                0 => FIRST_PER_MS,
                ns => per_ms(self.total.0, ns),
            };
            bytes = bytes.min(per_ms.saturating_mul(self.ms));
        }
        self.now = Some(bytes.saturating_add(rest));
    }

    /// Bytes that are left in this window.
    pub(super) fn left(&self) -> u64 {
        self.bytes().saturating_sub(self.charged)
    }

    /// Bytes of this window.
    pub(super) fn bytes(&self) -> u64 {
        self.now.unwrap_or(0)
    }

    pub(super) fn charge(&mut self, bytes: u64) {
        self.charged += bytes;
    }

    /// Adds time that the scheme took, ns.
    pub(super) fn took(&mut self, ns: u64) {
        self.total.1 += ns;
    }
}

fn per_ms(bytes: u64, ns: u64) -> u64 {
    let per_ms = u128::from(bytes) * 1_000_000 / u128::from(ns.max(1));
    u64::try_from(per_ms).unwrap_or(u64::MAX)
}

/// The next input of a loop whose output was `score`, by the last one (`damon_feed_loop_next_input`): more, in proportion
/// to what is missing, or less.
fn next_input(last: u64, score: u64) -> u64 {
    let change = |part: u64| {
        let change = u128::from(last) * u128::from(part) / u128::from(MET);
        u64::try_from(change).unwrap_or(u64::MAX)
    };
    match score {
        MET => last,
        0..MET => last.saturating_add(change(MET - score)),
        _ if score >= 2 * MET => MET,
        _ => last.saturating_sub(change(score - MET)).max(MET),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = RESET_NS;

    #[test]
    fn a_goal_that_is_far_doubles_the_quota_each_window() {
        let mut quota = Quota::new(100, 0);
        let seen: Vec<u64> = (0..9)
            .map(|second| {
                quota.renew(second * SECOND, Some(0));
                quota.bytes()
            })
            .collect();
        assert_eq!(seen, [2, 4, 8, 16, 32, 64, 100, 100, 100]);
        // Twice the goal: as little as at first.
        quota.renew(9 * SECOND, Some(2 * MET));
        assert_eq!(quota.bytes(), 1);
    }

    #[test]
    fn a_window_gives_its_quota_once() {
        let mut quota = Quota::new(2, 0);
        quota.renew(0, None);
        quota.charge(2);
        quota.renew(SECOND - 1, None);
        assert_eq!(quota.left(), 0);
        quota.renew(SECOND, None);
        assert_eq!(quota.left(), 2);
    }

    #[test]
    fn what_is_not_enough_for_a_frame_is_kept() {
        let mut quota = Quota::new(10, 0);
        quota.set_frame(25);
        let mut taken = Vec::new();
        for second in 0..10 {
            quota.renew(second * SECOND, None);
            let frames = quota.left() / 25;
            quota.charge(frames * 25);
            taken.push(frames);
        }
        assert_eq!(taken, [0, 0, 1, 0, 1, 0, 0, 1, 0, 1]);
    }

    #[test]
    fn a_scheme_that_is_slow_gets_less() {
        let mut quota = Quota::new(u64::MAX, 10);
        quota.renew(0, None);
        assert_eq!(quota.bytes(), 10 * FIRST_PER_MS);
        quota.charge(5000);
        quota.took(50_000_000);
        quota.renew(SECOND, None);
        assert_eq!(quota.bytes(), 1000);
    }

    #[test]
    fn an_input_follows_what_is_missing() {
        assert_eq!(next_input(1_000_000, 5000), 1_500_000);
        assert_eq!(next_input(1_000_000, 15_000), 500_000);
        assert_eq!(next_input(1_000_000, MET), 1_000_000);
        assert_eq!(next_input(20_000, 19_000), MET);
    }
}
