//! A pass over the pages of all managed processes that puts them into the index, in pieces of a bounded time.

use std::time::Duration;

use terrace_proto::{Gfn, PAGE_SIZE};
use terrace_sys::{HostRoot, Pagemap, SysError, thread_cpu_time};

use super::index::Index;
use super::limit::memory_limit;
use crate::sampler::Target;

/// Pages that are looked at before the time is.
const AT_ONCE: u64 = 1 << 18;
/// Pages whose entries are read at once.
const ENTRIES: u64 = 1 << 15;

/// A pass under way.
#[derive(Debug)]
pub(super) struct Pass {
    targets: std::vec::IntoIter<Target>,
    /// The process under way.
    process: Option<Process>,
    /// CPU time so far.
    pub took: Duration,
}

#[derive(Debug)]
struct Process {
    map: Pagemap,
    ranges: Vec<terrace_core::ranges::Range>,
    /// The range under way, and its next page.
    at: (usize, u64),
}

impl Pass {
    pub(super) fn new(targets: Vec<Target>) -> Self {
        Self {
            targets: targets.into_iter(),
            process: None,
            took: Duration::ZERO,
        }
    }

    /// Goes on for about so much CPU time. Returns the pages that were found, and those that were left out, once all processes were
    /// looked at. One that ends meanwhile is left out.
    pub(super) fn go_on(
        &mut self,
        root: &HostRoot,
        index: &mut Index,
        time: Duration,
    ) -> Option<(u64, u64)> {
        let begin = thread_cpu_time();
        let is_over = loop {
            if !self.step(root, index) {
                break true;
            }
            if thread_cpu_time().saturating_sub(begin) >= time {
                break false;
            }
        };
        let found = is_over.then(|| index.end_pass());
        self.took += thread_cpu_time().saturating_sub(begin);
        found
    }

    /// Looks at the next pages; `false` if there are none.
    fn step(&mut self, root: &HostRoot, index: &mut Index) -> bool {
        let Some(process) = &mut self.process else {
            let Some(target) = self.targets.next() else {
                return false;
            };
            if let Ok(map) = Pagemap::open(&root.process(target.pid, "pagemap")) {
                index.begin_process(target.pid);
                let first = target.ranges.first().map_or(0, |range| range.start);
                self.process = Some(Process {
                    map,
                    ranges: target.ranges,
                    at: (0, first),
                });
            }
            return true;
        };
        match process.step(index) {
            Ok(true) => {}
            Ok(false) | Err(_) => self.process = None,
        }
        true
    }
}

impl Process {
    fn step(&mut self, index: &mut Index) -> Result<bool, SysError> {
        let (at, start) = self.at;
        let Some(range) = self.ranges.get(at) else {
            return Ok(false);
        };
        let end = range.end.min(start.saturating_add(AT_ONCE));
        if start < end {
            let bytes = |page: u64| page.saturating_mul(PAGE_SIZE);
            for run in self.map.present(bytes(start), bytes(end))? {
                self.put(index, run.start / PAGE_SIZE, run.end / PAGE_SIZE)?;
            }
        }
        self.at = match end < range.end {
            true => (at, end),
            false => (at + 1, self.ranges.get(at + 1).map_or(0, |next| next.start)),
        };
        Ok(true)
    }

    fn put(&self, index: &mut Index, start: u64, end: u64) -> Result<(), SysError> {
        let mut from = start;
        while from < end {
            let to = end.min(from + ENTRIES);
            let numbers: Vec<u64> = (from..to).collect();
            let entries = self.map.entries(&numbers)?;
            let frames = numbers.into_iter().zip(entries);
            index.put(frames.filter_map(|(page, entry)| Some((page, Gfn(entry.frame()?)))));
            from = to;
        }
        Ok(())
    }
}

impl Index {
    /// The pages of these processes, looked at all at once. One that ends meanwhile is left out.
    #[must_use]
    pub fn build(root: &HostRoot, targets: &[Target], memory_end: Gfn) -> Self {
        let mut index = Self::new(memory_end, memory_limit(root).map(|bytes| bytes / 2));
        let mut pass = Pass::new(targets.to_vec());
        while pass.go_on(root, &mut index, Duration::MAX).is_none() {}
        index
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use terrace_core::ranges::Range;

    use super::super::index::Place;
    use super::*;

    const PRESENT: u64 = 1 << 63;

    /// Gives a process a table of pages: page `n` has the frame of the list's place `n`; 0 for none.
    fn put(dir: &tempfile::TempDir, pid: u32, frames: &[u64]) {
        let folder = dir.path().join(format!("proc/{pid}"));
        fs::create_dir_all(&folder).unwrap();
        let entries = frames.iter().map(|frame| match frame {
            0 => 0,
            frame => PRESENT | frame,
        });
        let bytes: Vec<u8> = entries.flat_map(u64::to_ne_bytes).collect();
        fs::write(folder.join("pagemap"), bytes).unwrap();
    }

    fn target(pid: u32, ranges: &[(u64, u64)]) -> Target {
        let ranges = ranges.iter();
        Target {
            pid,
            ranges: ranges
                .map(|(start, end)| Range {
                    start: *start,
                    end: *end,
                })
                .collect(),
        }
    }

    fn place(process: u32, page: u64) -> Option<Place> {
        Some(Place { process, page })
    }

    fn whole(index: &mut Index, root: &HostRoot, targets: Vec<Target>) -> (u64, u64) {
        let mut pass = Pass::new(targets);
        let found = pass.go_on(root, index, Duration::MAX);
        found.expect("no time is too long")
    }

    #[test]
    fn a_frame_has_the_page_that_lies_in_it() {
        let dir = tempfile::tempdir().unwrap();
        put(&dir, 7, &[5, 0, 9]);
        put(&dir, 8, &[6, 40]);
        let root = HostRoot::new(dir.path());
        let targets = [
            target(7, &[(0, 3)]),
            target(9, &[(0, 2)]),
            target(8, &[(0, 1), (1, 2)]),
        ];
        let mut index = Index::new(Gfn(32), None);
        let found = whole(&mut index, &root, targets.to_vec());
        assert_eq!(found, (3, 1), "frame 40 is beyond memory");
        assert_eq!(index.get(Gfn(5)), place(7, 0));
        assert_eq!(index.get(Gfn(9)), place(7, 2));
        assert_eq!(index.get(Gfn(6)), place(8, 0));
        for unknown in [0, 1, 31, 40, u64::MAX] {
            assert_eq!(index.get(Gfn(unknown)), None, "{unknown}");
        }
        assert_eq!(index.iter().count(), 3);
        let built = Index::build(&root, &targets, Gfn(32));
        assert_eq!(
            built.iter().collect::<Vec<_>>(),
            index.iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn until_a_pass_is_over_the_pages_of_the_last_one_serve() {
        let dir = tempfile::tempdir().unwrap();
        put(&dir, 7, &[5, 6]);
        put(&dir, 8, &[2000]);
        let root = HostRoot::new(dir.path());
        let targets = vec![target(7, &[(0, 2)]), target(8, &[(0, 1)])];
        let mut index = Index::new(Gfn(4000), None);
        whole(&mut index, &root, targets.clone());
        let before = index.bytes();
        put(&dir, 7, &[9, 5]);
        fs::remove_dir_all(dir.path().join("proc/8")).unwrap();
        let mut pass = Pass::new(targets);
        // Each look takes no time that is measured, and the first opens a file alone.
        assert_eq!(pass.go_on(&root, &mut index, Duration::ZERO), None);
        assert_eq!(index.get(Gfn(6)), place(7, 1));
        while pass.go_on(&root, &mut index, Duration::ZERO).is_none() {
            assert_eq!(index.get(Gfn(2000)), place(8, 0));
        }
        let now = [5, 6, 9, 2000].map(|frame| index.get(Gfn(frame)));
        assert_eq!(now, [place(7, 1), None, place(7, 0), None]);
        assert!(index.bytes() < before, "no entry of frame 2000 is left");
    }

    #[test]
    fn an_index_takes_no_more_than_it_may_and_counts_the_rest() {
        let dir = tempfile::tempdir().unwrap();
        let frames: Vec<u64> = (1..20_000).collect();
        put(&dir, 7, &frames);
        let root = HostRoot::new(dir.path());
        let targets = vec![target(7, &[(0, 30_000)])];
        let limit = 40_000;
        let mut index = Index::new(Gfn(1 << 40), Some(limit));
        let (found, left_out) = whole(&mut index, &root, targets.clone());
        assert_eq!(found + left_out, 19_999);
        assert!(
            found >= 7000 && index.bytes() <= limit + 4096,
            "{found} in {index:?}"
        );
        let mut all = Index::new(Gfn(20_000), None);
        assert_eq!(whole(&mut all, &root, targets), (19_999, 0));
        let per_page = all.bytes() as f64 / 19_999.0;
        assert!(per_page < 4.5, "{per_page} bytes a page");
    }
}
