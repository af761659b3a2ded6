//! Hot base pages by samples of accesses: the PMU's (PEBS, IBS). A page was accessed in a window if a sample of it came.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use terrace_core::ranges::Range;

use super::watch::{AccessedBits, Seen};
use crate::sampler::{Sampler, Target};

/// Pause between two looks at the samples. The PMU's rings hold those of half a second.
const PAUSE: Duration = Duration::from_millis(250);
/// Most sampled pages of a window.
const MAX_PAGES: usize = 1 << 24;

/// A source of samples, asked for pages.
pub struct Samples {
    sampler: Box<dyn Sampler>,
    targets: Vec<Target>,
    seen: BTreeMap<u32, BTreeSet<u64>>,
    lost: u64,
}

impl Samples {
    /// Pages by the samples of this source.
    #[must_use]
    pub fn new(sampler: Box<dyn Sampler>) -> Self {
        Self {
            sampler,
            targets: Vec::new(),
            seen: BTreeMap::new(),
            lost: 0,
        }
    }

    fn drain(&mut self) -> Result<()> {
        let (seen, mut pages) = (&mut self.seen, 0);
        let drained = self.sampler.drain(&mut |sample| {
            // Anything larger says nothing of its pages.
            if sample.range.pages() == 1 && pages < MAX_PAGES {
                pages += usize::from(
                    seen.entry(sample.pid)
                        .or_default()
                        .insert(sample.range.start),
                );
            }
        })?;
        self.lost += drained.lost;
        Ok(())
    }
}

impl AccessedBits for Samples {
    fn name(&self) -> &'static str {
        self.sampler.name()
    }

    fn wait(&mut self, window: Duration) -> Result<()> {
        self.sampler.watch(&self.targets)?;
        // Those of before the window.
        self.sampler.drain(&mut |_| ())?;
        self.seen.clear();
        let end = Instant::now() + window;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            std::thread::sleep(left.min(PAUSE));
            self.drain()?;
        }
        if self.seen.is_empty() && self.lost > 0 {
            bail!(
                "{}: the kernel dropped all of {} samples",
                self.name(),
                self.lost
            );
        }
        Ok(())
    }

    fn clear(&mut self, pid: u32, range: Range) -> Result<()> {
        match self.targets.last_mut() {
            Some(last) if last.pid == pid => last.ranges.push(range),
            _ => self.targets.push(Target {
                pid,
                ranges: vec![range],
            }),
        }
        Ok(())
    }

    fn take(&mut self, pid: u32, range: Range, seen: &mut Vec<Seen>) -> Result<()> {
        let sampled = self.seen.get(&pid);
        let is = |page: u64| sampled.is_some_and(|pages| pages.contains(&page));
        seen.extend((range.start..range.end).map(|page| match is(page) {
            true => Seen::Accessed,
            false => Seen::Not,
        }));
        Ok(())
    }
}

impl Drop for Samples {
    fn drop(&mut self) {
        // Sampling costs the processes time.
        let _ = self.sampler.watch(&[]);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use terrace_core::ranges::Params;

    use super::*;
    use crate::sampler::{Drained, Sample, SamplerError};

    /// A source that gives each list of samples once it is drained, and notes what is watched.
    struct Fake {
        samples: Vec<Vec<Sample>>,
        watched: Arc<Mutex<Vec<Target>>>,
    }

    impl Sampler for Fake {
        fn name(&self) -> &'static str {
            "pebs"
        }

        fn params(&self, vcpus: u32) -> Params {
            Params::paper(vcpus)
        }

        fn watch(&mut self, targets: &[Target]) -> Result<(), SamplerError> {
            *self.watched.lock().unwrap() = targets.to_vec();
            Ok(())
        }

        fn drain(&mut self, sink: &mut dyn FnMut(Sample)) -> Result<Drained, SamplerError> {
            let samples = self.samples.pop().unwrap_or_default();
            samples.into_iter().for_each(sink);
            Ok(Drained::default())
        }
    }

    fn sample(pid: u32, start: u64, pages: u64) -> Sample {
        Sample {
            pid,
            range: Range {
                start,
                end: start + pages,
            },
            accesses: 1,
        }
    }

    #[test]
    fn pages_with_a_sample_in_the_window_were_accessed() {
        let watched = Arc::new(Mutex::new(Vec::new()));
        let fake = Fake {
            // Drained from the end: the first list is of before the window.
            samples: vec![
                vec![sample(7, 3, 1), sample(8, 2, 1), sample(7, 0, 512)],
                vec![sample(7, 1, 1)],
            ],
            watched: Arc::clone(&watched),
        };
        let mut samples = Samples::new(Box::new(fake));
        let range = Range { start: 0, end: 5 };
        samples.clear(7, range).unwrap();
        samples.wait(Duration::from_millis(1)).unwrap();
        assert_eq!(watched.lock().unwrap()[0].ranges, [range]);
        let mut seen = Vec::new();
        samples.take(7, range, &mut seen).unwrap();
        let accessed: Vec<usize> = (0..5).filter(|at| seen[*at] == Seen::Accessed).collect();
        assert_eq!(accessed, [3]);
        drop(samples);
        assert_eq!(watched.lock().unwrap().len(), 0, "it samples no more");
    }
}
