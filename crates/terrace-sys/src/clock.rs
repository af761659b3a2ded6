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

/// CPU time that all threads of another process have used, also of one that ended and is not collected yet. `None` if
/// there is no such process.
#[must_use]
pub fn cpu_time_of(pid: u32) -> Option<Duration> {
    let pid = libc::pid_t::try_from(pid).ok().filter(|pid| *pid > 0)?;
    let mut clock = 0;
    // SAFETY: `clock` is a valid place for the result.
    let failed = unsafe { libc::clock_getcpuclockid(pid, &raw mut clock) } != 0;
    (!failed)
        .then(|| read(clock))
        .filter(|time| !time.is_zero())
}

fn read(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is a valid place for the result. If the call fails (the clock is that of a process
    // that ended), the zero above stays.
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
    fn the_cpu_time_of_a_process_can_be_asked_until_it_is_collected() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = child.id();
        assert!(cpu_time_of(std::process::id()).unwrap() > Duration::ZERO);
        child.wait().unwrap();
        assert_eq!(cpu_time_of(pid), None);
        assert_eq!(cpu_time_of(0), None);
        assert_eq!(cpu_time_of(u32::MAX), None);
    }

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
