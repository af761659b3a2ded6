//! How many bytes may be copied: a token bucket.
//!
//! Responsible for: the rate over all VMs. It leaves to others: what the tokens are spent on.

use terrace_proto::Tick;

const NS_PER_S: u128 = 1_000_000_000;

/// Tokens are counted in bytes × 10⁹, so that no fraction is lost however often time passes.
#[derive(Debug)]
pub(crate) struct TokenBucket {
    /// Bytes per second; 0: no limit.
    rate: u64,
    burst: u128,
    tokens: u128,
    at: Tick,
}

impl TokenBucket {
    /// A full bucket. It holds a tenth of a second, or one plan if that is more.
    pub(crate) fn new(rate: u64, plan_bytes: u64) -> Self {
        let burst = u128::from((rate / 10).max(plan_bytes)) * NS_PER_S;
        Self {
            rate,
            burst,
            tokens: burst,
            at: Tick(0),
        }
    }

    pub(crate) fn refill(&mut self, now: Tick) {
        let elapsed = now.since(self.at).as_nanos();
        self.tokens = (self.tokens + elapsed * u128::from(self.rate)).min(self.burst);
        self.at = self.at.max(now);
    }

    /// Bytes that may be spent now.
    pub(crate) fn bytes(&self) -> u64 {
        if self.rate == 0 {
            return u64::MAX;
        }
        u64::try_from(self.tokens / NS_PER_S).unwrap_or(u64::MAX)
    }

    pub(crate) fn spend(&mut self, bytes: u64) {
        if self.rate > 0 {
            self.tokens = self.tokens.saturating_sub(u128::from(bytes) * NS_PER_S);
        }
    }

    /// When so many bytes (at most a full bucket) may be spent.
    pub(crate) fn ready_at(&self, bytes: u64) -> Tick {
        let want = (u128::from(bytes) * NS_PER_S).min(self.burst);
        let missing = want.saturating_sub(self.tokens);
        let wait = missing.div_ceil(u128::from(self.rate.max(1)));
        Tick(
            self.at
                .0
                .saturating_add(u64::try_from(wait).unwrap_or(u64::MAX)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn over_any_time_no_more_than_burst_and_rate_is_spent() {
        let mut bucket = TokenBucket::new(1000, 500);
        let mut spent = 0;
        for ns in (0..3_000_000_000_u64).step_by(7_777_777) {
            bucket.refill(Tick(ns));
            spent += bucket.bytes();
            bucket.spend(bucket.bytes());
        }
        assert!((3450..=3500).contains(&spent), "{spent}");
    }

    #[test]
    fn it_is_ready_exactly_when_it_says() {
        let mut bucket = TokenBucket::new(1000, 500);
        bucket.spend(500);
        let at = bucket.ready_at(300);
        assert_eq!(at, Tick(300_000_000));
        bucket.refill(Tick(at.0 - 1));
        assert_eq!(bucket.bytes(), 299);
        bucket.refill(at);
        assert_eq!(bucket.bytes(), 300);
    }

    #[test]
    fn no_rate_is_no_limit() {
        let mut bucket = TokenBucket::new(0, 500);
        bucket.spend(1 << 40);
        assert_eq!(bucket.bytes(), u64::MAX);
    }
}
