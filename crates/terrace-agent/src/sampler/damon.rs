//! DAMON, for machines without a PMU. The kernel samples one page of each region and takes the region to be like it:
//! fine for ranges, blind to heat that is scattered inside of one.
//!
//! A thread of its own asks, because an answer comes only at the end of an aggregation interval, and only one kdamond
//! answers at a time. If there are several processes, each is asked in turn. Its latest answer counts in every epoch
//! until it is asked again, so that taking turns does not count as heat.
//!
//! DAMON clears accessed bits, so while it runs no other program in the guest should age the same pages.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrace_core::ranges::{Params, Range};
use terrace_proto::PAGE_SIZE;
use terrace_sys::{Damon, DamonAttrs, DamonError, DamonRegion, HostRoot, Kdamond, Process};

use super::{Drained, Sample, Sampler, SamplerError, Target};
use crate::mappings::join_nearest;

/// Fifty checks make an interval, of which two make an epoch: an answer comes at the end of one, so that there is
/// one in every epoch. Regions cost time at each check.
const ATTRS: DamonAttrs = DamonAttrs {
    sample_us: 5_000,
    aggregation_us: 250_000,
    min_regions: 256,
    max_regions: 512,
};
/// Most address ranges of one process that are watched.
const MAX_RANGES: usize = 64;
/// Pages for which one check that found its page accessed counts as one access. Each check is of another page of
/// the region, so the count of a region of this size varies as the plan takes counts to vary (a count's
/// variance is the count at most); regions are not larger ([`addresses`]).
const PAGES_PER_ACCESS: u64 = 512;
/// Most epochs in which an answer counts: as many as 61 processes need to have a turn.
const MAX_EPOCHS: u32 = 64;
/// Pause of the thread while nothing is watched.
const IDLE: Duration = Duration::from_millis(50);

/// Regions of processes, by DAMON.
#[derive(Debug)]
pub struct DamonSampler {
    watched: Arc<Mutex<Watched>>,
    seen: Receiver<Seen>,
    /// The latest answer of each process's kdamond, and the number of epochs in which it counted.
    answers: BTreeMap<u32, (Vec<DamonRegion>, u32)>,
    /// The remainder that is not yet one access.
    rest: u64,
}

#[derive(Debug, Default)]
struct Watched {
    targets: Vec<Target>,
    /// Counter of changes to the targets.
    version: u64,
    ended: bool,
}

/// The thread's result: a process's regions, or a failure.
#[derive(Debug)]
enum Seen {
    Regions { pid: u32, regions: Vec<DamonRegion> },
    Failed(DamonError),
}

impl DamonSampler {
    /// Starts the thread, which watches nothing yet.
    ///
    /// # Errors
    /// If the kernel has no DAMON or another program uses it.
    pub fn start(root: &HostRoot, epoch: Duration) -> Result<Self, SamplerError> {
        let damon = Damon::of_agent(&root.join(""));
        // Asked now, so that the choice of a sampler knows it.
        damon.available().map_err(|error| failed(&error))?;
        let watched = Arc::new(Mutex::new(Watched::default()));
        let (sender, seen) = channel();
        let asker = Asker {
            damon,
            proc: root.proc(),
            watched: Arc::clone(&watched),
            seen: sender,
            epoch,
            version: 0,
            kdamonds: BTreeMap::new(),
        };
        std::thread::Builder::new()
            .name("damon".into())
            .spawn(move || asker.run())
            .map_err(|error| SamplerError(format!("DAMON: no thread: {error}")))?;
        Ok(Self {
            watched,
            seen,
            answers: BTreeMap::new(),
            rest: 0,
        })
    }
}

/// The tree's parameters for a source that counts checks, not accesses, so that vCPUs do not matter. 2 MiB that are
/// accessed at each check count 50 an epoch; the difference that splits is about a sixth of that.
pub(super) fn params() -> Params {
    Params {
        tau_split: 4,
        ..Params::paper(1)
    }
}

fn failed(error: &DamonError) -> SamplerError {
    SamplerError(format!("DAMON: {error}"))
}

impl Sampler for DamonSampler {
    fn name(&self) -> &'static str {
        "damon"
    }

    fn params(&self, _vcpus: u32) -> Params {
        params()
    }

    fn watch(&mut self, targets: &[Target]) -> Result<(), SamplerError> {
        self.answers
            .retain(|pid, _| targets.iter().any(|target| target.pid == *pid));
        let mut watched = lock(&self.watched);
        if watched.targets != targets {
            watched.targets = targets.to_vec();
            watched.version += 1;
        }
        Ok(())
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError> {
        loop {
            match self.seen.try_recv() {
                Ok(Seen::Regions { pid, regions }) => {
                    self.answers.insert(pid, (regions, 0));
                }
                Ok(Seen::Failed(error)) => return Err(failed(&error)),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    return Err(SamplerError("DAMON: its thread has ended".into()));
                }
            }
        }
        self.answers.retain(|_, (_, epochs)| *epochs < MAX_EPOCHS);
        for (pid, (regions, epochs)) in &mut self.answers {
            *epochs += 1;
            for region in regions {
                if let Some(sample) = sample(*pid, region, &mut self.rest) {
                    sink(sample);
                }
            }
        }
        Ok(Drained::default())
    }
}

impl Drop for DamonSampler {
    fn drop(&mut self) {
        lock(&self.watched).ended = true;
    }
}

fn lock(watched: &Mutex<Watched>) -> std::sync::MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A region as accesses; the remainder that is less than one is left for the next region.
fn sample(pid: u32, region: &DamonRegion, rest: &mut u64) -> Option<Sample> {
    let range = Range {
        start: region.start / PAGE_SIZE,
        end: region.end.div_ceil(PAGE_SIZE),
    };
    let weight = region
        .nr_accesses
        .saturating_mul(range.pages())
        .saturating_add(*rest);
    *rest = weight % PAGES_PER_ACCESS;
    let accesses = u32::try_from(weight / PAGES_PER_ACCESS).unwrap_or(u32::MAX);
    (accesses > 0).then_some(Sample {
        pid,
        range,
        accesses,
    })
}

/// The thread that asks.
struct Asker {
    damon: Arc<Damon>,
    proc: std::path::PathBuf,
    watched: Arc<Mutex<Watched>>,
    seen: Sender<Seen>,
    epoch: Duration,
    version: u64,
    kdamonds: BTreeMap<u32, Asked>,
}

struct Asked {
    kdamond: Kdamond,
    process: Process,
    ranges: Vec<(u64, u64)>,
    at: Instant,
}

impl Asker {
    fn run(mut self) {
        loop {
            let changed = {
                let watched = lock(&self.watched);
                if watched.ended {
                    return;
                }
                (watched.version != self.version)
                    .then(|| (watched.version, watched.targets.clone()))
            };
            let done = match changed {
                Some((version, targets)) => self.follow(&targets).map(|all| {
                    // Requests that a busy kernel did not take are made again.
                    if all {
                        self.version = version;
                    }
                }),
                None => Ok(()),
            };
            // The sampler is dropped when it hears of this, and the thread ends.
            if let Err(error) = done.and_then(|()| self.ask_all())
                && self.seen.send(Seen::Failed(error)).is_err()
            {
                return;
            }
            if self.kdamonds.is_empty() {
                std::thread::sleep(IDLE);
            }
        }
    }

    /// Watches these processes and no others. Returns whether all are watched.
    fn follow(&mut self, targets: &[Target]) -> Result<bool, DamonError> {
        self.kdamonds
            .retain(|pid, _| targets.iter().any(|target| target.pid == *pid));
        let mut all = true;
        for target in targets {
            let ranges = addresses(&target.ranges);
            let followed = match self.kdamonds.get_mut(&target.pid) {
                Some(asked) if asked.ranges == ranges => Ok(()),
                Some(asked) => asked
                    .kdamond
                    .set_ranges(&ranges)
                    .map(|()| asked.ranges = ranges),
                None => self.start(target.pid, &ranges),
            };
            all &= !matches!(followed, Err(DamonError::Busy(_)));
            self.unless_ended(target.pid, followed)?;
        }
        Ok(all)
    }

    fn start(&mut self, pid: u32, ranges: &[(u64, u64)]) -> Result<(), DamonError> {
        if ranges.is_empty() {
            return Ok(());
        }
        let Ok(process) = Process::open(&self.proc, pid) else {
            return Err(DamonError::Ended(pid));
        };
        let kdamond = self.damon.start(&process, ranges, ATTRS)?;
        self.kdamonds.insert(
            pid,
            Asked {
                kdamond,
                process,
                ranges: ranges.to_vec(),
                // Asked at once: the first answer is worth most.
                at: Instant::now()
                    .checked_sub(self.epoch)
                    .unwrap_or_else(Instant::now),
            },
        );
        Ok(())
    }

    fn ask_all(&mut self) -> Result<(), DamonError> {
        let pids: Vec<u32> = self.kdamonds.keys().copied().collect();
        for pid in pids {
            // The sampler may have been dropped; an answer takes a while.
            if lock(&self.watched).ended {
                return Ok(());
            }
            let Some(asked) = self.kdamonds.get_mut(&pid) else {
                continue;
            };
            let epoch = self.epoch;
            let waited = asked.at.elapsed();
            if waited < epoch {
                std::thread::sleep(epoch.saturating_sub(waited).min(IDLE));
                continue;
            }
            let answered = asked.kdamond.accessed().map(|regions| {
                asked.at =
                    (asked.at + epoch).max(Instant::now().checked_sub(epoch).unwrap_or(asked.at));
                // There is no receiver once the sampler is dropped.
                let _ = self.seen.send(Seen::Regions { pid, regions });
            });
            self.unless_ended(pid, answered)?;
        }
        Ok(())
    }

    /// Ignores errors that are no failure of DAMON: a process that ended, a kernel that is busy (it is asked again),
    /// and more processes than there are kdamonds (the rest is not watched).
    fn unless_ended(&mut self, pid: u32, done: Result<(), DamonError>) -> Result<(), DamonError> {
        match done {
            Ok(()) | Err(DamonError::Ended(_) | DamonError::Busy(_) | DamonError::Full) => Ok(()),
            Err(_) if self.has_ended(pid) => {
                self.kdamonds.remove(&pid);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    fn has_ended(&self, pid: u32) -> bool {
        match self.kdamonds.get(&pid) {
            Some(asked) => !asked.process.is_alive(),
            None => !self.proc.join(pid.to_string()).exists(),
        }
    }
}

/// The ranges' addresses, cut into pieces of 2 MiB, or as small as the number of regions allows: the kernel would
/// otherwise begin with one region for each range, and take seconds to distinguish its parts.
fn addresses(ranges: &[Range]) -> Vec<(u64, u64)> {
    let joined = join_nearest(ranges, MAX_RANGES);
    let bytes = |page: u64| page.saturating_mul(PAGE_SIZE);
    let all: u64 = joined.iter().map(|range| range.pages()).sum();
    let most = ATTRS.max_regions / 2;
    let piece = (all / most)
        .next_multiple_of(PAGES_PER_ACCESS)
        .max(PAGES_PER_ACCESS);
    let mut cut = Vec::new();
    for range in joined {
        let mut start = range.start;
        while start < range.end {
            let end = (start + piece).min(range.end);
            cut.push((bytes(start), bytes(end)));
            start = end;
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(pages: u64, nr_accesses: u64) -> DamonRegion {
        DamonRegion {
            start: 1 << 30,
            end: (1 << 30) + pages * PAGE_SIZE,
            nr_accesses,
        }
    }

    #[test]
    fn a_regions_accesses_scale_with_its_size_without_rounding_loss() {
        let mut rest = 0;
        let hot = sample(7, &region(2048, 40), &mut rest).unwrap();
        assert_eq!((hot.pid, hot.accesses, rest), (7, 160, 0));
        let mut sum = 0;
        for _ in 0..1024 {
            sum += sample(7, &region(3, 5), &mut rest).map_or(0, |s| s.accesses);
        }
        assert_eq!(sum, 30);
        assert_eq!(sample(7, &region(512, 0), &mut rest), None);
    }

    #[test]
    fn an_answer_counts_in_every_epoch_until_the_next_one() {
        let (sender, seen) = channel();
        let mut sampler = DamonSampler {
            watched: Arc::default(),
            seen,
            answers: BTreeMap::new(),
            rest: 0,
        };
        let target = Target {
            pid: 7,
            ranges: Vec::new(),
        };
        let drain = |sampler: &mut DamonSampler| {
            let mut sum = 0;
            sampler.drain(&mut |sample| sum += sample.accesses).unwrap();
            sum
        };
        let say = |nr_accesses| {
            let regions = vec![region(512, nr_accesses)];
            sender.send(Seen::Regions { pid: 7, regions }).unwrap();
        };
        sampler.watch(&[target]).unwrap();
        assert_eq!(drain(&mut sampler), 0);
        say(40);
        assert_eq!((drain(&mut sampler), drain(&mut sampler)), (40, 40));
        say(30);
        say(3);
        assert_eq!(drain(&mut sampler), 3);
        let silent = (0..2 * MAX_EPOCHS).map(|_| drain(&mut sampler)).last();
        assert_eq!(silent, Some(0), "a process that is never asked goes cold");
        say(40);
        sampler.watch(&[]).unwrap();
        drop(sender);
        assert!(sampler.drain(&mut |_| ()).is_err(), "its thread is gone");
    }

    #[test]
    fn a_kernel_without_damon_is_named() {
        let empty = tempfile::tempdir().unwrap();
        let root = HostRoot::new(empty.path());
        let error = DamonSampler::start(&root, Duration::from_millis(500)).unwrap_err();
        assert!(error.to_string().contains("CONFIG_DAMON"), "{error}");
    }

    #[test]
    fn neighbouring_ranges_are_merged_if_there_are_too_many() {
        let range = |start, end| Range { start, end };
        let many: Vec<Range> = (0..1000).map(|i| range(i * 1024, i * 1024 + 1)).collect();
        let watched = addresses(&many);
        let gaps = watched.windows(2).filter(|pair| pair[0].1 != pair[1].0);
        assert_eq!(gaps.count() + 1, MAX_RANGES);
    }

    #[test]
    fn ranges_are_watched_in_pieces_of_which_there_are_not_too_many() {
        let pieces = |pages: u64| {
            addresses(&[Range {
                start: 3,
                end: 3 + pages,
            }])
        };
        let bytes = PAGES_PER_ACCESS * PAGE_SIZE;
        let first = 3 * PAGE_SIZE;
        assert_eq!(
            pieces(600),
            [(first, first + bytes), (first + bytes, 603 * PAGE_SIZE)]
        );
        assert_eq!(pieces(1 << 28).len() as u64, ATTRS.max_regions / 2);
    }
}
