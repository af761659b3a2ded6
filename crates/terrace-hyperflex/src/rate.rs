//! How much work per second a guest may cause.

/// A bucket of tokens that fills up over time; one that was overdrawn fills up before anything more is taken.
#[derive(Clone, Copy, Debug)]
pub struct Bucket {
    /// Tokens per second, and how many it holds: a second's worth. `None`: no limit.
    per_s: Option<u64>,
    tokens: i64,
    filled_ns: u64,
}

const NS_PER_S: u64 = 1_000_000_000;

impl Bucket {
    /// A full bucket.
    #[must_use]
    pub fn new(per_s: Option<u64>) -> Self {
        Self {
            per_s,
            tokens: signed(per_s.unwrap_or(0)),
            filled_ns: 0,
        }
    }

    /// `None`: there is something to take. Otherwise the time at which there will be.
    pub fn next_ns(&mut self, now_ns: u64) -> Option<u64> {
        let per_s = self.per_s?;
        let passed = now_ns.saturating_sub(self.filled_ns).min(NS_PER_S);
        let new = passed.saturating_mul(per_s) / NS_PER_S;
        if new > 0 {
            self.tokens = self.tokens.saturating_add(signed(new)).min(signed(per_s));
            self.filled_ns = now_ns;
        }
        if self.tokens > 0 {
            return None;
        }
        let short = self.tokens.unsigned_abs() + 1;
        let wait = short.saturating_mul(NS_PER_S).div_ceil(per_s.max(1));
        Some(now_ns.saturating_add(wait))
    }

    /// Takes tokens, also more than there are.
    pub fn take(&mut self, tokens: u64) {
        if self.per_s.is_some() {
            self.tokens = self.tokens.saturating_sub(signed(tokens));
        }
    }
}

/// A guest's rate, and whether it waits for it.
#[derive(Clone, Copy, Debug)]
pub struct Throttle {
    bucket: Bucket,
    is_on: bool,
}

impl Throttle {
    /// A guest that does not wait yet.
    #[must_use]
    pub fn new(per_s: Option<u64>) -> Self {
        Self {
            bucket: Bucket::new(per_s),
            is_on: false,
        }
    }

    /// Whether the guest had to wait at the last query.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.is_on
    }

    /// The time from which on the guest may have more, if it has had its rate.
    pub fn next_ns(&mut self, now_ns: u64) -> Option<u64> {
        let at = self.bucket.next_ns(now_ns);
        self.is_on = at.is_some();
        at
    }

    /// Takes tokens, also more than there are.
    pub fn take(&mut self, tokens: u64) {
        self.bucket.take(tokens);
    }

    /// Forgets that the guest waits, as after its reset; the pages that it took still count.
    pub fn forget(&mut self) {
        self.is_on = false;
    }
}

fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_overdrawn_is_waited_for() {
        let mut bucket = Bucket::new(Some(100));
        assert_eq!(bucket.next_ns(0), None);
        bucket.take(150);
        let at = bucket.next_ns(0).unwrap();
        assert_eq!(at, 510_000_000);
        assert!(bucket.next_ns(at - 20_000_000).is_some());
        assert_eq!(bucket.next_ns(at), None);
        bucket.take(1);
        assert!(bucket.next_ns(at).is_some());
    }

    #[test]
    fn it_holds_a_seconds_worth_and_may_have_no_limit() {
        let mut bucket = Bucket::new(Some(10));
        assert_eq!(bucket.next_ns(u64::MAX), None);
        bucket.take(10);
        assert!(bucket.next_ns(u64::MAX).is_some());
        let mut open = Bucket::new(None);
        open.take(u64::MAX);
        assert_eq!(open.next_ns(0), None);
    }
}
