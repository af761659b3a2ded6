//! The guest's own pages of 2 MiB, split to see which of their parts are hot, and made whole again.
//!
//! A file in `/run` has those that are split, so that undoing finds them whoever split them.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use terrace_core::gather::{BLOCK_PAGES, LargePage};
use terrace_proto::PAGE_SIZE;
use terrace_sys::{
    Collapse as _, HostRoot, KernelCollapse, Pagemap, Process, SysError, split_huge_page,
};

use super::areas;
use super::pool::{FOLDER, make_folder};

const FILE: &str = "split";
/// Bytes of a larger page.
const LARGE: u64 = BLOCK_PAGES as u64 * PAGE_SIZE;
/// The end of a process's addresses, in larger pages.
const MAX_BLOCK: u64 = (1 << 56) / LARGE;
/// Most pages that the file has.
const MOST: usize = 1 << 20;

/// The end of an attempt to make a page whole.
enum Joined {
    /// It is one larger page again.
    Whole,
    /// Some part was in use, or there was no free block.
    NotNow,
    /// The process has ended, or has freed parts of it.
    Never,
}

/// The two pieces of advice, so that tests bring a kernel of their own.
pub trait Advice {
    /// Whether all base pages of a block are there, and the process's alone.
    fn is_whole(&self, root: &HostRoot, process: &Process, start: u64) -> Result<bool, SysError>;
    /// Splits the larger page at an address.
    fn split(&self, process: &Process, start: u64) -> Result<(), SysError>;
    /// Makes a larger page of base pages.
    fn join(&self, process: &Process, start: u64) -> Result<(), SysError>;
}

/// The kernel's own.
pub struct KernelAdvice;

impl Advice for KernelAdvice {
    fn is_whole(&self, root: &HostRoot, process: &Process, start: u64) -> Result<bool, SysError> {
        Pagemap::open(&root.process(process.pid(), "pagemap"))?.all_own(start, start + LARGE)
    }

    fn split(&self, process: &Process, start: u64) -> Result<(), SysError> {
        split_huge_page(process, start)
    }

    fn join(&self, process: &Process, start: u64) -> Result<(), SysError> {
        KernelCollapse.collapse(process, start, LARGE)
    }
}

/// A split page of a process that may have ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Entry {
    pid: u32,
    start_time: u64,
    block: u64,
}

/// Splits and joins larger pages.
pub struct Splitter<'a> {
    pub root: &'a HostRoot,
    pub advice: &'a dyn Advice,
}

impl Splitter<'_> {
    /// Splits pages; returns those that the kernel took the advice for, and why others were left. What was split is written down
    /// before.
    pub fn split(&self, pages: &[LargePage]) -> (Vec<LargePage>, Vec<String>) {
        let (mut split, mut refused) = (Vec::new(), Vec::new());
        let collapsing = areas::collapsing(self.root);
        for of_process in pages.chunk_by(|a, b| a.0 == b.0) {
            let pid = of_process[0].0;
            let collapsible = areas::collapsible(self.root, pid, collapsing);
            let stays =
                |page: &&LargePage| !areas::has(&collapsible, page.1 * u64::from(BLOCK_PAGES));
            let taken: Vec<LargePage> = of_process.iter().filter(stays).copied().collect();
            if taken.len() < of_process.len() {
                refused.push(format!(
                    "process {pid}: {} pages of 2 MiB are not split: khugepaged would make them whole again \
                     (/sys/kernel/mm/transparent_hugepage/khugepaged/scan_sleep_millisecs = 4294967295 switches it off)",
                    of_process.len() - taken.len()
                ));
            }
            if let Err(error) = self.split_of(pid, &taken, &mut split) {
                refused.push(format!("process {pid}: {error:#}"));
            }
        }
        (split, refused)
    }

    fn split_of(&self, pid: u32, pages: &[LargePage], split: &mut Vec<LargePage>) -> Result<()> {
        if pages.is_empty() {
            return Ok(());
        }
        let process = Process::open(&self.root.proc(), pid)?;
        let mut entries = self.entries();
        entries.retain(|entry| self.process(entry).is_some());
        entries.extend(pages.iter().map(|(pid, block)| Entry {
            pid: *pid,
            start_time: process.start_time(),
            block: *block,
        }));
        self.write(&entries)?;
        let mut first = None;
        for page in pages {
            // One that is locked is refused; the others are not.
            match self.advice.split(&process, page.1 * LARGE) {
                Ok(()) => split.push(*page),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        first.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Pages that are split, of processes that have not ended.
    pub fn known(&self) -> Vec<LargePage> {
        let entries = self.entries().into_iter();
        entries
            .filter(|entry| self.process(entry).is_some())
            .map(|entry| (entry.pid, entry.block))
            .collect()
    }

    /// Makes pages whole again; returns how many became so. The kernel refuses those whose parts are in use.
    pub fn join(&self, pages: &[LargePage]) -> Result<u64> {
        let is_asked = |entry: &Entry| pages.contains(&(entry.pid, entry.block));
        self.join_where(is_asked)
    }

    /// Makes all pages whole again that were ever split; returns how many became so.
    pub fn join_all(&self) -> Result<u64> {
        self.join_where(|_| true)
    }

    fn join_where(&self, is_asked: impl Fn(&Entry) -> bool) -> Result<u64> {
        let mut joined = 0;
        let entries = self.entries();
        if entries.is_empty() {
            return Ok(0);
        }
        let mut left = Vec::new();
        for entry in entries {
            match is_asked(&entry).then(|| self.join_one(&entry)) {
                Some(Joined::Whole) => joined += 1,
                Some(Joined::Never) => {}
                // It is asked for again.
                Some(Joined::NotNow) | None => left.push(entry),
            }
        }
        self.write(&left)?;
        Ok(joined)
    }

    fn join_one(&self, entry: &Entry) -> Joined {
        let Some(process) = self.process(entry) else {
            return Joined::Never;
        };
        let start = entry.block * LARGE;
        // The kernel would give memory for what the program has freed or swapped out, or share with others.
        match self.advice.is_whole(self.root, &process, start) {
            Ok(true) => match self.advice.join(&process, start) {
                Ok(()) => Joined::Whole,
                Err(_) => Joined::NotNow,
            },
            Ok(false) => Joined::Never,
            Err(_) => Joined::NotNow,
        }
    }

    /// The process, unless another one has its number now.
    fn process(&self, entry: &Entry) -> Option<Process> {
        let process = Process::open(&self.root.proc(), entry.pid).ok()?;
        (process.start_time() == entry.start_time).then_some(process)
    }

    fn file(&self) -> PathBuf {
        self.root.join(FOLDER).join(FILE)
    }

    /// The file's entries; lines that are none are left out.
    fn entries(&self) -> Vec<Entry> {
        let bytes = fs::read(self.file()).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let entry = |line: &str| {
            let mut fields = line.split(' ');
            Some(Entry {
                pid: fields.next()?.parse().ok()?,
                start_time: fields.next()?.parse().ok()?,
                block: fields
                    .next()?
                    .parse()
                    .ok()
                    .filter(|block| *block < MAX_BLOCK)?,
            })
        };
        let entries: BTreeSet<Entry> = text.lines().filter_map(entry).take(MOST).collect();
        entries.into_iter().collect()
    }

    fn write(&self, entries: &[Entry]) -> Result<()> {
        let file = self.file();
        let mut text = String::new();
        for entry in entries {
            // Writing to a string does not fail.
            let _ = writeln!(text, "{} {} {}", entry.pid, entry.start_time, entry.block);
        }
        let new = file.with_extension("new");
        let write = || {
            make_folder(self.root)?;
            fs::write(&new, text)?;
            fs::rename(&new, &file)
        };
        write().or_else(|error: io::Error| Err(error).with_context(|| file.display().to_string()))
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    /// Notes what is asked for; refuses addresses from the limit on.
    #[derive(Default)]
    struct Fake(RefCell<Vec<(&'static str, u64)>>, u64);

    impl Fake {
        fn note(&self, what: &'static str, start: u64) -> Result<(), SysError> {
            self.0.borrow_mut().push((what, start));
            match start >= self.1 {
                true => Err(SysError {
                    call: "a test",
                    what: String::new(),
                    source: io::Error::from_raw_os_error(libc::EPERM),
                }),
                false => Ok(()),
            }
        }
    }

    impl Advice for Fake {
        /// Parts of the block with the number 9 are gone.
        fn is_whole(&self, _: &HostRoot, _: &Process, start: u64) -> Result<bool, SysError> {
            Ok(start / LARGE != 9)
        }

        fn split(&self, _: &Process, start: u64) -> Result<(), SysError> {
            self.note("split", start)
        }

        fn join(&self, _: &Process, start: u64) -> Result<(), SysError> {
            self.note("join", start)
        }
    }

    /// A folder whose `/proc` is this machine's.
    fn machine() -> (tempfile::TempDir, HostRoot) {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/proc", dir.path().join("proc")).unwrap();
        let root = HostRoot::new(dir.path());
        (dir, root)
    }

    #[test]
    fn what_was_split_is_made_whole_by_whoever_undoes_it() {
        let (_dir, root) = machine();
        let me = std::process::id();
        let advice = Fake(RefCell::default(), 30 * LARGE);
        let splitter = Splitter {
            root: &root,
            advice: &advice,
        };
        let (split, refused) = splitter.split(&[(me, 3), (me, 4), (me, 31), (me, 32)]);
        assert_eq!(split, [(me, 3), (me, 4)]);
        assert_eq!(refused.len(), 1, "{refused:?}");
        assert_eq!(splitter.join(&[(me, 4)]).unwrap(), 1);
        let other = Fake(RefCell::default(), u64::MAX);
        let undo = Splitter {
            root: &root,
            advice: &other,
        };
        assert_eq!(undo.join_all().unwrap(), 3);
        let asked: Vec<u64> = other.0.borrow().iter().map(|(_, at)| at / LARGE).collect();
        assert_eq!(asked, [3, 31, 32]);
        assert_eq!(undo.join_all().unwrap(), 0, "nothing is left");
    }

    #[test]
    fn what_has_holes_stays_split_and_what_is_in_use_is_tried_again() {
        let (_dir, root) = machine();
        let me = std::process::id();
        let advice = Fake(RefCell::default(), 20 * LARGE);
        let splitter = Splitter {
            root: &root,
            advice: &advice,
        };
        assert_eq!(splitter.split(&[(me, 8), (me, 9)]).0.len(), 2);
        let busy = Fake::default();
        let undo = Splitter {
            root: &root,
            advice: &busy,
        };
        assert_eq!(undo.join_all().unwrap(), 0);
        assert_eq!(
            *busy.0.borrow(),
            [("join", 8 * LARGE)],
            "block 9 would be given memory"
        );
        assert_eq!(undo.known(), [(me, 8)]);
        assert_eq!(splitter.join_all().unwrap(), 1);
    }

    #[test]
    fn a_process_that_has_the_number_of_another_is_left_alone() {
        let (_dir, root) = machine();
        let advice = Fake(RefCell::default(), u64::MAX);
        let splitter = Splitter {
            root: &root,
            advice: &advice,
        };
        let me = std::process::id();
        let started = Process::open(&root.proc(), me).unwrap().start_time();
        splitter.write(&[]).unwrap();
        let text = format!(
            "{me} {} 5\nno entry\n{me} {started} 6\n{me} {started} 6\n{me} {started} 18446744073709551615\n4294967295 1 7\n",
            started + 1
        );
        fs::write(splitter.file(), text).unwrap();
        assert_eq!(splitter.join_all().unwrap(), 1);
        assert_eq!(*advice.0.borrow(), [("join", 6 * LARGE)]);
    }
}
