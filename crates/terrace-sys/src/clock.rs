//! The monotonic clock as ticks, and the CPU time of a thread and of this process.

use std::time::Duration;

use terrace_proto::Tick;

/// Ticks since this clock was made, on `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub struct MonotonicClock {
    start: Duration,
}

impl MonotonicClock {
    /// A clock that reads zero now.
    #[must_use]
    pub fn start() -> Self {
        Self {
            start: read(libc::CLOCK_MONOTONIC),
        }
    }

    /// Time since the start.
    #[must_use]
    pub fn now(&self) -> Tick {
        Tick(0).after(read(libc::CLOCK_MONOTONIC).saturating_sub(self.start))
    }
}

/// Time on `CLOCK_MONOTONIC`, which all processes of a host share.
#[must_use]
pub fn monotonic_now() -> Tick {
    Tick(0).after(read(libc::CLOCK_MONOTONIC))
}

/// CPU time that the calling thread has used.
#[must_use]
pub fn thread_cpu_time() -> Duration {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that all threads of this process have used.
#[must_use]
pub fn process_cpu_time() -> Duration {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result. These clocks exist on every Linux, so the call
    // cannot fail; if it did, the zero above would stay.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_advance() {
        let clock = MonotonicClock::start();
        let (tick, cpu) = (clock.now(), thread_cpu_time());
        let mut sum = 0_u64;
        while clock.now().since(tick) < Duration::from_millis(2) {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(thread_cpu_time() > cpu);
        assert!(clock.now().since(tick) < Duration::from_secs(60));
    }
}
