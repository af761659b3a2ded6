//! Page walks of a guest's programs, as the host's processors count them (HPMBS §4.1).
//!
//! The kernel's generic event "data TLB, misses" is completed page walks on Intel's processors since Skylake and misses
//! of the last TLB on AMD's since Zen (`arch/x86/events/{intel,amd}/core.c`). Counted on the threads of the virtual CPUs
//! while they run the guest; the host's own walks are left out. It takes `CAP_PERFMON` on most hosts, and a PMU.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering};

use terrace_sys::SysError;
use terrace_sys::perf::{Event, EventAttr, HARDWARE_CACHE, Scope, Times, cache_misses};

use crate::HostRoot;

/// Virtual CPUs whose walks are counted: each takes two descriptors. Of a larger VM the first ones stand for all.
const MAX_VCPUS: usize = 64;
/// Counters of all VMs together: descriptors that the daemon can do without (its unit allows 65,536).
const MAX_COUNTERS: usize = 16_384;
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
    /// The counters of other VMs leave none for this one.
    #[error(
        "{MAX_COUNTERS} counters of page walks, of all VMs together, are all that the daemon opens"
    )]
    TooMany,
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

/// The counters that there may be, of all VMs together.
#[derive(Debug, Default)]
struct Budget(AtomicUsize);

static ALL: Budget = Budget(AtomicUsize::new(0));

/// A part of the budget, until it is dropped.
#[derive(Debug)]
struct Share(&'static Budget, usize);

impl Budget {
    /// Takes so many counters; `None`: they are not left.
    fn take(&'static self, counters: usize) -> Option<Share> {
        let fits = |taken: usize| Some(taken + counters).filter(|all| *all <= MAX_COUNTERS);
        let taken = self
            .0
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, fits);
        taken.ok().map(|_| Share(self, counters))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.0.0.fetch_sub(self.1, Ordering::AcqRel);
    }
}

/// The opener of a thread's counter, of loads or of stores.
type Open<'a> = &'a dyn Fn(u32, bool) -> Result<Box<dyn Counter>, SysError>;

/// The page walks of one VM.
#[derive(Debug)]
pub struct PageWalks {
    counters: Vec<(Box<dyn Counter>, Times)>,
    /// The VM's part of all counters.
    _share: Option<Share>,
    /// Time for which the threads ran, all together, ns.
    ran_ns: u64,
    /// Time for which they ran since a counter did, ns.
    starved_ns: u64,
    total: u64,
}

impl PageWalks {
    /// Begins to count. `threads`: those of the virtual CPUs, as the hypervisor names them.
    ///
    /// # Errors
    /// If the host does not count them.
    pub fn open(root: &HostRoot, pid: u32, threads: &[u32]) -> Result<Self, PageWalksError> {
        Self::open_by(root, pid, threads, &|thread, stores| {
            Ok(Box::new(open(thread, stores)?))
        })
    }

    fn open_by(
        root: &HostRoot,
        pid: u32,
        threads: &[u32],
        open: Open<'_>,
    ) -> Result<Self, PageWalksError> {
        // A hypervisor that was taken over could name anybody's, and one of them many times.
        let check = |thread: &u32| match root.process(pid, &format!("task/{thread}")).exists() {
            true => Ok(()),
            false => Err(PageWalksError::Foreign(*thread)),
        };
        let mut seen = BTreeSet::new();
        let threads: Vec<u32> = threads
            .iter()
            .copied()
            .filter(|id| seen.insert(*id))
            .collect();
        let threads = &threads[..threads.len().min(MAX_VCPUS)];
        let share = ALL.take(2 * threads.len()).ok_or(PageWalksError::TooMany)?;
        let mut counters: Vec<Box<dyn Counter>> = Vec::new();
        for thread in threads {
            check(thread)?;
            counters.push(open(*thread, false).map_err(PageWalksError::Refused)?);
            // Not all processors distinguish those of stores.
            counters.extend(open(*thread, true).ok());
        }
        // A thread that ended in between may have left its number to another process's.
        threads.iter().try_for_each(check)?;
        match counters.is_empty() {
            true => Err(PageWalksError::NoThreads),
            false => Ok(Self {
                _share: Some(share),
                ..Self::of(counters)
            }),
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
            _share: None,
            ran_ns: 0,
            starved_ns: 0,
            total: 0,
        }
    }

    /// The walks so far; `None`: nothing is counted yet.
    ///
    /// # Errors
    /// If a counter cannot be read, or the guest ran and nothing was counted: an emulated guest, or a PMU that others hold.
    pub fn read(&mut self) -> Result<Option<u64>, String> {
        let (mut ran_ns, mut counted_ns) = (0_u64, 0_u64);
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
            ran_ns = ran_ns.saturating_add(enabled);
            counted_ns = counted_ns.saturating_add(running);
            *last = now;
        }
        self.ran_ns = self.ran_ns.saturating_add(ran_ns);
        self.starved_ns = match counted_ns {
            0 => self.starved_ns.saturating_add(ran_ns),
            _ => 0,
        };
        if self.total > 0 && self.starved_ns >= LONG_NS {
            return Err("others hold the counters of the processors".into());
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

    /// A process with one thread, 71.
    fn process() -> (tempfile::TempDir, HostRoot) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("proc/70/task/71")).unwrap();
        let root = HostRoot::new(folder.path());
        (folder, root)
    }

    /// A counter that says nothing.
    fn silent() -> Box<dyn Counter> {
        Box::new(Script(Mutex::new(vec![Times::default()])))
    }

    /// The number may be another process's by the time of the call.
    #[test]
    fn a_thread_that_ends_before_it_is_opened_is_not_counted() {
        let (folder, root) = process();
        let opened = PageWalks::open_by(&root, 70, &[71], &|_, _| {
            let _ = std::fs::remove_dir(folder.path().join("proc/70/task/71"));
            Ok(silent())
        });
        let error = opened.unwrap_err();
        assert!(matches!(error, PageWalksError::Foreign(71)), "{error}");
    }

    #[test]
    fn a_thread_that_is_named_many_times_is_counted_once() {
        let (_folder, root) = process();
        let opened = PageWalks::open_by(&root, 70, &[71; 10_000], &|_, _| Ok(silent())).unwrap();
        assert_eq!(opened.counters.len(), 2);
    }

    /// Without descriptors the daemon could read nothing more of any VM.
    #[test]
    fn counters_of_all_vms_together_are_bounded() {
        static SOME: Budget = Budget(AtomicUsize::new(0));
        let mut shares: Vec<Share> = (0..MAX_COUNTERS / 128)
            .map(|_| SOME.take(128).unwrap())
            .collect();
        assert!(SOME.take(2).is_none());
        shares.pop();
        assert!(SOME.take(128).is_some() && SOME.take(usize::MAX / 2).is_none());
    }

    /// As long as they hold it, a guest that uses other memory would seem to go on as before.
    #[test]
    fn counters_that_lost_the_pmu_count_no_more() {
        let mut walks = walks(&[&[(100, 500, 500), (100, 1000, 500), (100, 1600, 500)]]);
        assert_eq!(walks.read(), Ok(Some(100)));
        assert_eq!(walks.read(), Ok(Some(100)));
        assert!(walks.read().unwrap_err().contains("others hold"));
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
