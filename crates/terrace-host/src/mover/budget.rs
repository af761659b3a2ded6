//! The budget of bytes that may be moved per second.

use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use terrace_proto::Tick;
use terrace_sys::MonotonicClock;

/// Time, so that tests do not wait for it.
pub(crate) trait Clock: Debug + Sync {
    /// The current time.
    fn now(&self) -> Tick;
    /// Waits for that time.
    fn sleep(&self, time: Duration);
}

/// The real one.
#[derive(Debug)]
pub(crate) struct SystemClock(MonotonicClock);

impl SystemClock {
    pub(crate) fn start() -> Self {
        Self(MonotonicClock::start())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Tick {
        self.0.now()
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Longest wait before the stop flag is read again.
const SLICE: Duration = Duration::from_millis(20);
/// The largest burst after a pause, as time at full rate.
const BURST: Duration = Duration::from_millis(100);

/// A token bucket. Who takes more than is left goes into debt and waits until it is paid off, so that
/// a batch larger than the bucket passes, and the rate holds on average.
#[derive(Debug)]
pub(crate) struct Budget<C> {
    clock: C,
    bytes_per_s: Option<u64>,
    /// The time when all that was taken is paid off.
    paid_at: Mutex<Tick>,
}

impl<C: Clock> Budget<C> {
    pub(crate) fn new(bytes_per_s: Option<u64>, clock: C) -> Self {
        let paid_at = Mutex::new(clock.now());
        Self {
            clock,
            bytes_per_s,
            paid_at,
        }
    }

    pub(crate) fn clock(&self) -> &C {
        &self.clock
    }

    /// Takes bytes, and waits if they are not due yet. `false` if `stop` was set; nothing is given back then.
    pub(crate) fn take(&self, bytes: u64, stop: &AtomicBool) -> bool {
        let due = self.book(bytes);
        loop {
            if stop.load(Ordering::Relaxed) {
                return false;
            }
            let wait = due.since(self.clock.now());
            if wait.is_zero() {
                return true;
            }
            self.clock.sleep(wait.min(SLICE));
        }
    }

    /// The time when these bytes are due.
    fn book(&self, bytes: u64) -> Tick {
        let now = self.clock.now();
        let Some(rate) = self.bytes_per_s else {
            return now;
        };
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
        let cost = Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        let mut paid_at = self.paid_at.lock().unwrap_or_else(|e| e.into_inner());
        let unused = Tick(now.0.saturating_sub(Tick(0).after(BURST).0));
        let due = (*paid_at).max(unused);
        *paid_at = due.after(cost);
        due
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    /// A clock that sleeping advances.
    #[derive(Debug, Default)]
    pub(crate) struct FakeClock(pub AtomicU64);

    impl Clock for FakeClock {
        fn now(&self) -> Tick {
            Tick(self.0.load(Ordering::Relaxed))
        }

        fn sleep(&self, time: Duration) {
            self.0.fetch_add(Tick(0).after(time).0, Ordering::Relaxed);
        }
    }

    static GO: AtomicBool = AtomicBool::new(false);

    #[test]
    fn the_rate_holds_over_many_batches() {
        let budget = Budget::new(Some(1_000_000), FakeClock::default());
        for _ in 0..100 {
            assert!(budget.take(50_000, &GO));
        }
        // Five seconds' worth, the last batch not waited for, and no burst saved up at the start.
        assert_eq!(budget.clock().now(), Tick(4_950_000_000));
        budget.clock().sleep(Duration::from_secs(60));
        let before = budget.clock().now();
        assert!(budget.take(100_000, &GO) && budget.take(1, &GO));
        assert_eq!(
            budget.clock().now(),
            before,
            "a tenth of a second was saved up"
        );
        assert!(budget.take(1, &GO));
        assert!(budget.clock().now() > before);
    }

    #[test]
    fn without_a_limit_nobody_waits_and_a_stop_ends_waiting() {
        let free = Budget::new(None, FakeClock::default());
        assert!(free.take(u64::MAX, &GO) && free.take(u64::MAX, &GO));
        assert_eq!(free.clock().now(), Tick(0));
        let slow = Budget::new(Some(1), FakeClock::default());
        assert!(slow.take(u64::MAX, &GO));
        assert!(!slow.take(1, &AtomicBool::new(true)));
    }
}
