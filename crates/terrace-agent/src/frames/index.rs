//! The page of a managed process that lies in each frame: 8 bytes for each frame of the guest.

use terrace_proto::{Gfn, PAGE_SIZE};
use terrace_sys::{HostRoot, Pagemap, SysError};

use crate::sampler::Target;

/// Frames that are covered: those of 128 GiB, 256 MiB of entries (memory of frames that nobody has stays untouched).
const MAX_FRAMES: u64 = 1 << 25;
/// Bits of a page's number in an entry; the process's place in the list stands above them.
const PAGE_BITS: u32 = 40;
/// Pages that are read at once.
const AT_ONCE: u64 = 1 << 16;

/// A page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The process.
    pub process: u32,
    /// Number of the virtual page.
    pub page: u64,
}

/// The pages by their frames, as they were when it was made.
#[derive(Clone, Default)]
pub struct Index {
    /// Of each frame: 0, or one more than place of the process and number of the page.
    entries: Vec<u64>,
    processes: Vec<u32>,
    /// Pages that were found.
    pages: u64,
    /// Pages beyond the frames that are covered.
    left_out: u64,
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index")
            .field("processes", &self.processes)
            .field("pages", &self.pages)
            .field("left_out", &self.left_out)
            .finish_non_exhaustive()
    }
}

impl Index {
    /// Reads the frames of these processes. One that ends meanwhile is left out.
    #[must_use]
    pub fn build(root: &HostRoot, targets: &[Target], memory_end: Gfn) -> Self {
        let frames = usize::try_from(memory_end.0.min(MAX_FRAMES)).unwrap_or(0);
        let mut index = Self {
            entries: vec![0; frames],
            ..Self::default()
        };
        for target in targets {
            let place = index.processes.len() as u64;
            index.processes.push(target.pid);
            let map = Pagemap::open(&root.process(target.pid, "pagemap"));
            for range in map.iter().flat_map(|_| &target.ranges) {
                let Ok(map) = &map else { break };
                let bytes = range.start * PAGE_SIZE..range.end * PAGE_SIZE;
                let Ok(runs) = map.present(bytes.start, bytes.end) else {
                    break;
                };
                for run in runs {
                    let pages = run.start / PAGE_SIZE..run.end / PAGE_SIZE;
                    if index.add(map, place, pages).is_err() {
                        break;
                    }
                }
            }
        }
        index
    }

    fn add(
        &mut self,
        map: &Pagemap,
        place: u64,
        pages: std::ops::Range<u64>,
    ) -> Result<(), SysError> {
        let mut start = pages.start;
        while start < pages.end {
            let end = pages.end.min(start + AT_ONCE);
            let numbers: Vec<u64> = (start..end).collect();
            for (page, entry) in numbers.iter().zip(map.entries(&numbers)?) {
                if let Some(frame) = entry.frame() {
                    self.put(frame, place, *page);
                }
            }
            start = end;
        }
        Ok(())
    }

    fn put(&mut self, frame: u64, place: u64, page: u64) {
        let at = usize::try_from(frame).ok();
        match at.and_then(|at| self.entries.get_mut(at)) {
            Some(entry) if page < 1 << PAGE_BITS => {
                *entry = 1 + (place << PAGE_BITS | page);
                self.pages += 1;
            }
            _ => self.left_out += 1,
        }
    }

    /// The page that lay in a frame.
    #[must_use]
    pub fn get(&self, frame: Gfn) -> Option<Place> {
        self.place(*self.entries.get(usize::try_from(frame.0).ok()?)?)
    }

    /// All frames in which a page lay, with that page.
    pub fn iter(&self) -> impl Iterator<Item = (Gfn, Place)> {
        let each = (0..).map(Gfn).zip(&self.entries);
        each.filter_map(|(gfn, entry)| Some((gfn, self.place(*entry)?)))
    }

    fn place(&self, entry: u64) -> Option<Place> {
        let entry = entry.checked_sub(1)?;
        let place = usize::try_from(entry >> PAGE_BITS).ok()?;
        Some(Place {
            process: *self.processes.get(place)?,
            page: entry & ((1 << PAGE_BITS) - 1),
        })
    }

    /// Pages that were found, and those that lie beyond the frames that are covered.
    #[must_use]
    pub fn pages(&self) -> (u64, u64) {
        (self.pages, self.left_out)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use terrace_core::ranges::Range;

    use super::*;

    const PRESENT: u64 = 1 << 63;

    /// Two processes whose page `n` has the frame of the list's place `n`; 0 for none.
    fn guest(frames: [&[u64]; 2]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (pid, frames) in [7, 8].into_iter().zip(frames) {
            let folder = dir.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&folder).unwrap();
            let entries = frames.iter().map(|frame| match frame {
                0 => 0,
                frame => PRESENT | frame,
            });
            let bytes: Vec<u8> = entries.flat_map(u64::to_ne_bytes).collect();
            fs::write(folder.join("pagemap"), bytes).unwrap();
        }
        dir
    }

    fn target(pid: u32, pages: u64) -> Target {
        Target {
            pid,
            ranges: vec![Range {
                start: 0,
                end: pages,
            }],
        }
    }

    #[test]
    fn a_frame_has_the_page_that_lies_in_it() {
        let dir = guest([&[5, 0, 9], &[6, 40]]);
        let root = HostRoot::new(dir.path());
        let targets = [target(7, 3), target(8, 2), target(9, 2)];
        let index = Index::build(&root, &targets, Gfn(32));
        let place = |process, page| Some(Place { process, page });
        assert_eq!(index.get(Gfn(5)), place(7, 0));
        assert_eq!(index.get(Gfn(9)), place(7, 2));
        assert_eq!(index.get(Gfn(6)), place(8, 0));
        for unknown in [0, 1, 31, 40, u64::MAX] {
            assert_eq!(index.get(Gfn(unknown)), None, "{unknown}");
        }
        assert_eq!(index.pages(), (3, 1), "frame 40 is beyond memory");
    }
}
