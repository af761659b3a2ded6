//! Accessed bits of base pages, by SCAN of the guest's kernel module.
//!
//! A check of a part of memory is two scans with a pause: the first clears the bits, the second reads which pages were
//! accessed since. A thread of its own checks part after part, within a share of one CPU; the latest answer for a part
//! counts in every epoch until the next one, as with DAMON.
//!
//! SCAN clears accessed bits, so no other program in the guest should age the same pages.

use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use terrace_core::ranges::{Params, Range};
use terrace_proto::{PAGE_SIZE, PAGES_PER_HUGE};
use terrace_sys::guest_module::{GuestModule, abi};

use super::{Drained, Sample, Sampler, SamplerError, Target};

/// Pages of a part: 1 GiB, for which the module holds a process's map lock once.
const PART_PAGES: u64 = 1 << 18;
/// Time in which pages are accessed or not, at least.
const WINDOW: Duration = Duration::from_millis(50);
/// The thread rests so many times as long as it scanned: 5 % of one CPU.
const REST: u32 = 19;
/// Accesses that a block of 2 MiB counts in an epoch if all of its pages were accessed at each check: as many as by DAMON
/// (`super::damon`), whose parameters fit therefore.
const ACCESSES_PER_BLOCK: u64 = 50;
/// Most epochs in which an answer counts.
const MAX_EPOCHS: u32 = 64;
/// Pause of the thread while nothing is watched, and longest pause until it looks whether it is to end.
const IDLE: Duration = Duration::from_millis(50);

/// Accessed bits of processes, by the module.
#[derive(Debug)]
pub struct ScanSampler {
    watched: Arc<Mutex<Watched>>,
    seen: Receiver<Seen>,
    /// The latest answer for each part, by process and first page, and the number of epochs in which it counted.
    answers: BTreeMap<(u32, u64), (Vec<Block>, u32)>,
    /// The remainder that is not yet one access.
    rest: u64,
}

#[derive(Debug, Default)]
struct Watched {
    targets: Vec<Target>,
    ended: bool,
}

/// A part of a process's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    pid: u32,
    range: Range,
}

/// Accessed pages of a block of 2 MiB, or of what a range has of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Block {
    range: Range,
    accessed: u64,
}

/// The thread's result: accessed pages of a part, or a failure.
#[derive(Debug)]
enum Seen {
    Checked(Part, Vec<Block>),
    Failed(String),
}

impl ScanSampler {
    /// Starts the thread, which watches nothing yet.
    ///
    /// # Errors
    /// If there is no thread for it.
    pub fn start(module: Arc<GuestModule>) -> Result<Self, SamplerError> {
        let watched = Arc::new(Mutex::new(Watched::default()));
        let (sender, seen) = channel();
        let checker = Checker {
            module,
            watched: Arc::clone(&watched),
            seen: sender,
            entries: Vec::new(),
            at: 0,
        };
        std::thread::Builder::new()
            .name("scan".into())
            .spawn(move || checker.run())
            .map_err(|error| SamplerError(format!("scan: no thread: {error}")))?;
        Ok(Self {
            watched,
            seen,
            answers: BTreeMap::new(),
            rest: 0,
        })
    }

    fn take_in(&mut self) -> Result<(), SamplerError> {
        loop {
            match self.seen.try_recv() {
                Ok(Seen::Checked(part, blocks)) => {
                    let key = (part.pid, part.range.start);
                    self.answers.insert(key, (blocks, 0));
                }
                Ok(Seen::Failed(why)) => return Err(SamplerError(format!("scan: {why}"))),
                Err(TryRecvError::Empty) => return Ok(()),
                Err(TryRecvError::Disconnected) => {
                    return Err(SamplerError("scan: its thread has ended".into()));
                }
            }
        }
    }
}

impl Sampler for ScanSampler {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn params(&self, _vcpus: u32) -> Params {
        super::damon::params()
    }

    fn watch(&mut self, targets: &[Target]) -> Result<(), SamplerError> {
        let mut watched = lock(&self.watched);
        if watched.targets != targets {
            let parts = parts(targets);
            let known = |(pid, start): &(u32, u64)| {
                let same = |part: &Part| (part.pid, part.range.start) == (*pid, *start);
                parts.iter().any(same)
            };
            self.answers.retain(|key, _| known(key));
            watched.targets = targets.to_vec();
        }
        Ok(())
    }

    fn drain(&mut self, sink: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError> {
        self.take_in()?;
        for ((pid, _), (blocks, epochs)) in &mut self.answers {
            *epochs += 1;
            if *epochs > MAX_EPOCHS {
                blocks.clear();
            }
            for block in blocks.iter() {
                let weight = block.accessed * ACCESSES_PER_BLOCK + self.rest;
                self.rest = weight % PAGES_PER_HUGE;
                let accesses = u32::try_from(weight / PAGES_PER_HUGE).unwrap_or(u32::MAX);
                if accesses > 0 {
                    sink(Sample {
                        pid: *pid,
                        range: block.range,
                        accesses,
                    });
                }
            }
        }
        Ok(Drained::default())
    }
}

impl Drop for ScanSampler {
    fn drop(&mut self) {
        lock(&self.watched).ended = true;
    }
}

fn lock(watched: &Mutex<Watched>) -> std::sync::MutexGuard<'_, Watched> {
    watched.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The thread that scans.
struct Checker {
    module: Arc<GuestModule>,
    watched: Arc<Mutex<Watched>>,
    seen: Sender<Seen>,
    entries: Vec<u64>,
    /// Number of the next part.
    at: usize,
}

impl Checker {
    fn run(mut self) {
        while let Some(targets) = self.targets() {
            let parts = parts(&targets);
            let rest = match group(&parts, &mut self.at) {
                [] => IDLE,
                turn => match self.check(turn) {
                    Ok(time) => time * REST,
                    Err(why) => {
                        // The sampler is dropped when it hears of this, and this thread ends.
                        let _ = self.seen.send(Seen::Failed(why));
                        IDLE
                    }
                },
            };
            self.pause(rest);
        }
    }

    /// The processes to watch; `None` if the thread is to end.
    fn targets(&self) -> Option<Vec<Target>> {
        let watched = lock(&self.watched);
        (!watched.ended).then(|| watched.targets.clone())
    }

    fn pause(&self, rest: Duration) {
        let until = Instant::now() + rest;
        while !lock(&self.watched).ended {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(IDLE));
        }
    }

    /// Checks parts together. Returns the time that the scans took; parts without a page take no window.
    fn check(&mut self, group: &[Part]) -> Result<Duration, String> {
        let start = Instant::now();
        let mut filled = Vec::new();
        for part in group {
            let found = self.scan(*part)?.is_some();
            if found && self.entries.iter().any(|entry| *entry != 0) {
                filled.push(*part);
            }
        }
        let cleared = start.elapsed();
        if filled.is_empty() {
            return Ok(cleared);
        }
        self.pause(WINDOW);
        let again = Instant::now();
        for part in filled {
            if let Some(blocks) = self.scan(part)? {
                // There is no receiver once the sampler is dropped.
                let _ = self.seen.send(Seen::Checked(part, blocks));
            }
        }
        Ok(cleared + again.elapsed())
    }

    /// Scans a part and clears its bits; nothing of a process that has ended or is hard to reach just now.
    fn scan(&mut self, part: Part) -> Result<Option<Vec<Block>>, String> {
        let Range { start, end } = part.range;
        let bytes = start * PAGE_SIZE..end * PAGE_SIZE;
        match self.module.scan(part.pid, bytes, true, &mut self.entries) {
            Ok(_) => Ok(Some(blocks(part.range, &self.entries))),
            Err(error) => match error.errno() {
                libc::EOPNOTSUPP | libc::ENOTTY | libc::ENODEV | libc::EBADF => {
                    Err(error.to_string())
                }
                _ => Ok(None),
            },
        }
    }
}

/// The memory of all processes in parts, cut at multiples of their size.
fn parts(targets: &[Target]) -> Vec<Part> {
    let mut parts = Vec::new();
    for target in targets {
        for range in &target.ranges {
            let mut start = range.start;
            while start < range.end {
                let next = (start / PART_PAGES + 1).saturating_mul(PART_PAGES);
                let end = next.min(range.end);
                let range = Range { start, end };
                parts.push(Part {
                    pid: target.pid,
                    range,
                });
                start = end;
            }
        }
    }
    parts
}

/// The parts whose turn it is: at least one, together no more pages than a part may have.
fn group<'a>(parts: &'a [Part], at: &mut usize) -> &'a [Part] {
    if *at >= parts.len() {
        *at = 0;
    }
    let mut pages = 0;
    let turn = parts.get(*at..).unwrap_or_default();
    let fits = turn.iter().take_while(|part| {
        pages += part.range.pages();
        pages <= PART_PAGES
    });
    let count = fits.count().max(1).min(turn.len());
    *at += count;
    turn.get(..count).unwrap_or_default()
}

/// The blocks of a part that have accessed pages.
fn blocks(range: Range, entries: &[u64]) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut start = range.start;
    let mut left = entries;
    while start < range.end {
        let end = ((start / PAGES_PER_HUGE + 1) * PAGES_PER_HUGE).min(range.end);
        let pages = usize::try_from(end - start).unwrap_or(usize::MAX);
        let (these, others) = left.split_at(pages.min(left.len()));
        let accessed = these
            .iter()
            .filter(|entry| *entry & abi::ENTRY_ACCESSED != 0);
        let accessed = accessed.count() as u64;
        if accessed > 0 {
            blocks.push(Block {
                range: Range { start, end },
                accessed,
            });
        }
        (start, left) = (end, others);
    }
    blocks
}

#[cfg(test)]
mod tests {
    use terrace_sys::guest_module::{Call, Calls, Errno};

    use super::*;

    fn range(start: u64, end: u64) -> Range {
        Range { start, end }
    }

    fn target(pid: u32, ranges: Vec<Range>) -> Target {
        Target { pid, ranges }
    }

    #[test]
    fn memory_is_cut_into_parts_that_take_turns() {
        let all = parts(&[
            target(
                7,
                vec![range(10, 20), range(PART_PAGES - 5, 2 * PART_PAGES + 5)],
            ),
            target(8, vec![range(0, 512)]),
        ]);
        let pages: Vec<u64> = all.iter().map(|part| part.range.pages()).collect();
        assert_eq!(pages, [10, 5, PART_PAGES, 5, 512]);
        let mut at = 0;
        let turns: Vec<usize> = (0..4).map(|_| group(&all, &mut at).len()).collect();
        assert_eq!(
            turns,
            [2, 1, 2, 2],
            "15 pages, a part, 517 pages, and the first again"
        );
        assert!(group(&[], &mut at).is_empty());
    }

    #[test]
    fn accessed_pages_count_for_their_block() {
        let part = range(510, 1030);
        let mut entries = vec![abi::ENTRY_PRESENT; 520];
        for page in [1, 2, 3, 519] {
            entries[page] |= abi::ENTRY_ACCESSED;
        }
        let found = blocks(part, &entries);
        let ranges: Vec<_> = found.iter().map(|b| (b.range, b.accessed)).collect();
        let wanted = [
            (range(510, 512), 1),
            (range(512, 1024), 2),
            (range(1024, 1030), 1),
        ];
        assert_eq!(ranges, wanted);
        assert_eq!(blocks(part, &[]), [], "an answer that is too short");
    }

    /// A module by which all pages of processes with an even number are accessed, and others have none; or that fails.
    struct Played(Errno);

    impl Calls for Played {
        fn carry_out(&self, call: Call<'_>) -> Result<(), Errno> {
            if let Call::Scan(scan, entries) = call
                && scan.pid % 2 == 0
            {
                for entry in entries.iter_mut() {
                    *entry = abi::ENTRY_PRESENT | abi::ENTRY_ACCESSED;
                }
            }
            match self.0 {
                0 => Ok(()),
                errno => Err(errno),
            }
        }
    }

    fn drained(sampler: &mut ScanSampler) -> Result<u32, SamplerError> {
        let mut sum = 0;
        sampler.drain(&mut |sample| sum += sample.accesses)?;
        Ok(sum)
    }

    /// Drains until something comes.
    fn awaited(sampler: &mut ScanSampler) -> Result<u32, SamplerError> {
        for _ in 0..3000 {
            let sum = drained(sampler)?;
            if sum > 0 {
                return Ok(sum);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("nothing was scanned in 30 s");
    }

    #[test]
    fn accesses_count_until_the_process_is_watched_no_more() {
        let module = GuestModule::of(Box::new(Played(0)));
        let mut sampler = ScanSampler::start(Arc::new(module)).unwrap();
        assert_eq!(drained(&mut sampler).unwrap(), 0);
        sampler.watch(&[target(8, vec![range(512, 2048)])]).unwrap();
        assert_eq!(awaited(&mut sampler).unwrap(), 150);
        assert_eq!(drained(&mut sampler).unwrap(), 150);
        sampler.watch(&[]).unwrap();
        assert!(sampler.answers.is_empty());
    }

    #[test]
    fn parts_without_a_page_take_no_window() {
        let (sender, seen) = channel();
        let mut checker = Checker {
            module: Arc::new(GuestModule::of(Box::new(Played(0)))),
            watched: Arc::default(),
            seen: sender,
            entries: Vec::new(),
            at: 0,
        };
        let part = |pid| Part {
            pid,
            range: range(0, 512),
        };
        // The process that has no pages has an odd number.
        checker.check(&[part(7), part(9)]).unwrap();
        assert!(seen.try_recv().is_err());
        checker.check(&[part(7), part(8)]).unwrap();
        assert!(matches!(
            seen.try_recv(),
            Ok(Seen::Checked(Part { pid: 8, .. }, _))
        ));
        assert!(seen.try_recv().is_err());
    }

    #[test]
    fn an_answer_does_not_count_for_ever() {
        let (sender, seen) = channel();
        let mut sampler = ScanSampler {
            watched: Arc::default(),
            seen,
            answers: BTreeMap::new(),
            rest: 0,
        };
        let part = Part {
            pid: 7,
            range: range(0, 512),
        };
        let block = Block {
            range: part.range,
            accessed: 512,
        };
        sender.send(Seen::Checked(part, vec![block])).unwrap();
        let counts: Vec<u32> = (0..=MAX_EPOCHS)
            .map(|_| drained(&mut sampler).unwrap())
            .collect();
        assert_eq!((counts[0], counts.last()), (50, Some(&0)));
        drop(sender);
        assert!(sampler.drain(&mut |_| ()).is_err(), "its thread is gone");
    }

    #[test]
    fn an_ended_process_is_no_failure_and_a_missing_call_is() {
        for (errno, fails) in [(libc::ESRCH, false), (libc::EOPNOTSUPP, true)] {
            let (sender, _seen) = channel();
            let mut checker = Checker {
                module: Arc::new(GuestModule::of(Box::new(Played(errno)))),
                watched: Arc::default(),
                seen: sender,
                entries: Vec::new(),
                at: 0,
            };
            let part = Part {
                pid: 7,
                range: range(0, 512),
            };
            let scanned = checker.scan(part);
            assert_eq!(scanned.is_err(), fails);
            assert!(fails || scanned.unwrap().is_none());
        }
    }
}
