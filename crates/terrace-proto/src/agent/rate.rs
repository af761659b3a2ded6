//! A limit on how much may come in a time.

use std::time::Duration;

use crate::Tick;

/// So many a second, and at most so many at once after a rest.
#[derive(Clone, Copy, Debug)]
pub struct Allowance {
    per_s: u64,
    burst: u64,
    left: u64,
    counted_to: Tick,
}

impl Allowance {
    /// An allowance that is full at `now`.
    #[must_use]
    pub fn new(per_s: u64, burst: u64, now: Tick) -> Self {
        Self {
            per_s,
            burst,
            left: burst,
            counted_to: now,
        }
    }

    /// The number of messages that may still come at this time.
    pub fn left(&mut self, now: Tick) -> u64 {
        let passed = now.since(self.counted_to).as_nanos();
        let more = passed.saturating_mul(self.per_s.into()) / 1_000_000_000;
        let more = u64::try_from(more).unwrap_or(u64::MAX);
        if self.left.saturating_add(more) >= self.burst {
            self.left = self.burst;
            self.counted_to = self.counted_to.max(now);
        } else if more > 0 {
            self.left += more;
            // The rest of the division counts the next time.
            let of_more = u128::from(more) * 1_000_000_000 / u128::from(self.per_s);
            let of_more = u64::try_from(of_more).unwrap_or(u64::MAX);
            self.counted_to = self.counted_to.after(Duration::from_nanos(of_more));
        }
        self.left
    }

    /// Takes so many out; `false` if there were fewer, and nothing is left then.
    pub fn take(&mut self, now: Tick, count: u64) -> bool {
        let left = self.left(now);
        self.left = left.saturating_sub(count);
        left >= count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_and_a_rest_allows_a_burst() {
        let mut allowed = Allowance::new(3, 10, Tick(0));
        assert!(allowed.take(Tick(0), 10));
        assert!(!allowed.take(Tick(1), 1));
        // Frequent calls lose nothing: 300 calls at 10 ms are 3 s.
        let step = Duration::from_millis(10);
        let mut now = Tick(0);
        let came = (0..300).filter(|_| {
            now = now.after(step);
            allowed.take(now, 1)
        });
        assert_eq!(came.count(), 9);
        assert_eq!(allowed.left(now.after(Duration::from_secs(3600))), 10);
        assert_eq!(allowed.left(Tick(u64::MAX)), 10);
        assert_eq!(
            allowed.left(Tick(0)),
            10,
            "a clock that goes back gives nothing"
        );
    }
}
