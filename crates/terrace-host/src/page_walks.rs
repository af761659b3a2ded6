//! Page walks of a guest's programs, as the host's processors count them (HPMBS §4.1).
//!
//! The kernel's generic event "data TLB, misses" is completed page walks on Intel's processors since Skylake and misses
//! of the last TLB on AMD's since Zen (`arch/x86/events/{intel,amd}/core.c`). Counted on the threads of the virtual CPUs
//! while they run the guest; the host's own walks are left out. It takes `CAP_PERFMON` on most hosts, and a PMU.

use std::fmt::Debug;

use terrace_sys::SysError;
use terrace_sys::perf::{Event, EventAttr, HARDWARE_CACHE, Scope, Times, cache_misses};

use crate::HostRoot;

/// Virtual CPUs whose walks are counted: each takes two descriptors. Of a larger VM the first ones stand for all.
const MAX_VCPUS: usize = 64;
/// Time for which counters must have run before a count of zero says that nothing is counted, ns.
const LONG_NS: u64 = 1_000_000_000;

/// The reason why page walks are not counted.
#[derive(Debug, thiserror::Error)]
pub enum PageWalksError {
    /// The kernel opens no such counter.
    #[error("{}", refused(.0))]
    Refused(SysError),
    /// A thread that the hypervisor names is none of its own.
    #[error("thread {0}, which QEMU calls a virtual CPU, is none of its process's")]
    Foreign(u32),
    /// There are no virtual CPUs, or they have no threads.
    #[error("QEMU names no thread of a virtual CPU")]
    NoThreads,
}

fn refused(error: &SysError) -> String {
    match error.errno() {
        libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV => {
            format!("this host has no PMU that counts them ({error})")
        }
        libc::EACCES | libc::EPERM => {
            format!("not permitted ({error}): give terraced CAP_PERFMON")
        }
        _ => error.to_string(),
    }
}

/// A counter of one thread.
pub trait Counter: Debug + Send {
    /// The count so far, and for how long it ran.
    ///
    /// # Errors
    /// If it cannot be read any more.
    fn times(&self) -> Result<Times, SysError>;
}

impl Counter for Event {
    fn times(&self) -> Result<Times, SysError> {
        Self::times(self)
    }
}

/// The page walks of one VM.
#[derive(Debug)]
pub struct PageWalks {
    counters: Vec<(Box<dyn Counter>, Times)>,
    /// Time for which the threads ran, all together, ns.
    ran_ns: u64,
    total: u64,
}

impl PageWalks {
    /// Begins to count. `threads`: those of the virtual CPUs, as the hypervisor names them.
    ///
    /// # Errors
    /// If the host does not count them.
    pub fn open(root: &HostRoot, pid: u32, threads: &[u32]) -> Result<Self, PageWalksError> {
        let mut counters: Vec<Box<dyn Counter>> = Vec::new();
        for thread in threads.iter().take(MAX_VCPUS) {
            // A hypervisor that was taken over could name anybody's.
            if !root.process(pid, &format!("task/{thread}")).exists() {
                return Err(PageWalksError::Foreign(*thread));
            }
            counters.push(Box::new(
                open(*thread, false).map_err(PageWalksError::Refused)?,
            ));
            // Not all processors distinguish those of stores.
            if let Ok(stores) = open(*thread, true) {
                counters.push(Box::new(stores));
            }
        }
        match counters.is_empty() {
            true => Err(PageWalksError::NoThreads),
            false => Ok(Self::of(counters)),
        }
    }

    /// Page walks by counters that run.
    #[must_use]
    pub fn of(counters: Vec<Box<dyn Counter>>) -> Self {
        let counters = counters.into_iter();
        Self {
            counters: counters
                .map(|counter| (counter, Times::default()))
                .collect(),
            ran_ns: 0,
            total: 0,
        }
    }

    /// The walks so far; `None`: nothing is counted yet.
    ///
    /// # Errors
    /// If a counter cannot be read, or the guest ran and nothing was counted: an emulated guest, or a PMU that others hold.
    pub fn read(&mut self) -> Result<Option<u64>, String> {
        for (counter, last) in &mut self.counters {
            let now = counter.times().map_err(|error| error.to_string())?;
            let since = |of: fn(&Times) -> u64| of(&now).saturating_sub(of(last));
            let [count, enabled, running] = [
                |t: &Times| t.count,
                |t: &Times| t.enabled_ns,
                |t: &Times| t.running_ns,
            ]
            .map(since);
            // Others take turns on the PMU: what was counted in its part of the time stands for all of it.
            let whole = (u128::from(count) * u128::from(enabled)).checked_div(u128::from(running));
            let whole = u64::try_from(whole.unwrap_or(0)).unwrap_or(u64::MAX);
            self.total = self.total.saturating_add(whole);
            self.ran_ns = self.ran_ns.saturating_add(enabled);
            *last = now;
        }
        match self.total {
            0 if self.ran_ns >= LONG_NS => Err("the counters of its virtual CPUs stay at 0".into()),
            0 => Ok(None),
            total => Ok(Some(total)),
        }
    }
}

fn open(thread: u32, stores: bool) -> Result<Event, SysError> {
    let attr = EventAttr {
        pmu: HARDWARE_CACHE,
        config: cache_misses(stores),
        exclude_host: true,
        ..EventAttr::default()
    };
    let scope = Scope::Process {
        pid: thread,
        cpu: None,
    };
    let event = Event::open(&attr, scope, None)?;
    event.enable()?;
    Ok(event)
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A counter with these readings, one after another; the last one stays.
    #[derive(Debug)]
    struct Script(Mutex<Vec<Times>>);

    impl Counter for Script {
        fn times(&self) -> Result<Times, SysError> {
            let mut left = self.0.lock().unwrap();
            let now = left[0];
            if left.len() > 1 {
                left.remove(0);
            }
            Ok(now)
        }
    }

    fn walks(readings: &[&[(u64, u64, u64)]]) -> PageWalks {
        let counters = readings.iter().map(|readings| {
            let times = readings
                .iter()
                .map(|(count, enabled_ms, running_ms)| Times {
                    count: *count,
                    enabled_ns: enabled_ms * 1_000_000,
                    running_ns: running_ms * 1_000_000,
                });
            Box::new(Script(Mutex::new(times.collect()))) as Box<dyn Counter>
        });
        PageWalks::of(counters.collect())
    }

    #[test]
    fn walks_of_all_virtual_cpus_are_added_up() {
        let mut walks = walks(&[&[(10, 5, 5), (30, 9, 9)], &[(1, 5, 5), (2, 6, 6)]]);
        assert_eq!(walks.read(), Ok(Some(11)));
        assert_eq!(walks.read(), Ok(Some(32)));
        assert_eq!(walks.read(), Ok(Some(32)));
    }

    #[test]
    fn counters_that_take_turns_count_for_the_whole_time() {
        // Half of the time, then all of it: what was extrapolated before stays.
        let mut walks = walks(&[&[(100, 10, 5), (150, 20, 15), (150, 30, 15)]]);
        assert_eq!(walks.read(), Ok(Some(200)));
        assert_eq!(walks.read(), Ok(Some(250)));
        assert_eq!(walks.read(), Ok(Some(250)));
    }

    #[test]
    fn a_guest_of_which_nothing_is_counted_has_no_walks() {
        let mut walks = walks(&[&[(0, 400, 400), (0, 900, 900), (0, 1100, 1100)]]);
        assert_eq!(walks.read(), Ok(None));
        assert_eq!(walks.read(), Ok(None));
        assert!(walks.read().unwrap_err().contains("stay at 0"));
    }

    #[test]
    fn a_counter_that_falls_takes_nothing_away() {
        let mut walks = walks(&[&[(100, 10, 10), (7, 5, 5), (9, 6, 6)]]);
        assert_eq!(walks.read(), Ok(Some(100)));
        assert_eq!(walks.read(), Ok(Some(100)));
        assert_eq!(walks.read(), Ok(Some(102)));
    }

    /// One that a hypervisor names to have somebody else's counted.
    #[test]
    fn threads_of_others_are_not_counted() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/70/task/71")).unwrap();
        let root = HostRoot::new(folder.path());
        let error = PageWalks::open(&root, 70, &[1]).unwrap_err();
        assert!(matches!(error, PageWalksError::Foreign(1)), "{error}");
        let error = PageWalks::open(&root, 70, &[]).unwrap_err();
        assert!(matches!(error, PageWalksError::NoThreads), "{error}");
    }

    /// On a host with a PMU the own thread's guest walks are none; without one the reason says what is missing.
    #[test]
    fn the_kernels_answer_is_a_counter_or_a_reason() {
        let (pid, root) = (std::process::id(), HostRoot::default());
        match PageWalks::open(&root, pid, &[pid]) {
            Ok(mut walks) => assert_eq!(walks.read(), Ok(None)),
            Err(PageWalksError::Refused(error)) => {
                let text = PageWalksError::Refused(error).to_string();
                assert!(
                    text.contains("PMU") || text.contains("CAP_PERFMON"),
                    "{text}"
                );
            }
            Err(other) => panic!("{other}"),
        }
    }
}
