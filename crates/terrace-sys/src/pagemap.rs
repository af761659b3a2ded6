//! Pages of a process: which are present, which of them are huge, and which were written.

use std::fs::File;
use std::io::{Error, Write as _};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use terrace_proto::PAGE_SIZE;

use crate::opener::{self, How};
use crate::{Process, SysError};

/// Pages of one kind, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageRun {
    /// First virtual address.
    pub start: u64,
    /// First virtual address behind the run.
    pub end: u64,
    /// Whether huge entries map the pages (always false if [`Pagemap::sees_huge_pages`] is).
    pub huge: bool,
}

/// What is known of a page by its entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct PageEntry(u64);

impl PageEntry {
    /// The page's frame; `None` if it is not there, or who opened the file lacked `CAP_SYS_ADMIN`.
    #[must_use]
    pub fn frame(self) -> Option<u64> {
        let frame = self.0 & ENTRY_FRAME;
        (self.0 & ENTRY_PRESENT != 0 && frame > 0).then_some(frame)
    }

    /// Whether the page is there.
    #[must_use]
    pub fn is_present(self) -> bool {
        self.0 & ENTRY_PRESENT != 0
    }

    /// Whether the page is anonymous memory and mapped once: no other process has it, nor does KSM share it.
    #[must_use]
    pub fn is_own(self) -> bool {
        self.0 & (ENTRY_PRESENT | ENTRY_FILE | ENTRY_EXCLUSIVE) == ENTRY_PRESENT | ENTRY_EXCLUSIVE
    }
}

/// One process's `/proc/PID/pagemap`.
#[derive(Debug)]
pub struct Pagemap {
    file: File,
    scan: bool,
}

/// `struct pm_scan_arg` of `linux/fs.h`.
#[repr(C)]
#[derive(Default)]
struct ScanArg {
    size: u64,
    flags: u64,
    start: u64,
    end: u64,
    walk_end: u64,
    vec: u64,
    vec_len: u64,
    max_pages: u64,
    category_inverted: u64,
    category_mask: u64,
    category_anyof_mask: u64,
    return_mask: u64,
}

/// `struct page_region` of `linux/fs.h`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Region {
    start: u64,
    end: u64,
    categories: u64,
}

/// The ioctl's number: `_IOWR('f', 16, struct pm_scan_arg)`.
pub const PAGEMAP_SCAN: u32 = 0xc060_6610;
/// The same number as ioctl(2) takes it; the type differs between C libraries.
const REQUEST: libc::Ioctl = PAGEMAP_SCAN as libc::Ioctl;
const PRESENT: u64 = 1 << 3;
const HUGE: u64 = 1 << 6;
const SOFT_DIRTY: u64 = 1 << 7;
/// Most regions that one call returns.
const REGIONS: usize = 4096;
/// Most entries that one read of the plain file returns.
const ENTRIES: usize = 1 << 16;
const ENTRY_PRESENT: u64 = 1 << 63;
const ENTRY_SOFT_DIRTY: u64 = 1 << 55;
const ENTRY_FRAME: u64 = (1 << 55) - 1;
/// The page is in swap.
const ENTRY_SWAPPED: u64 = 1 << 62;
/// The page is of a file or shared anonymous memory.
const ENTRY_FILE: u64 = 1 << 61;
/// The page is mapped once: no other process has it, nor does KSM share it. The zero page never has this bit.
const ENTRY_EXCLUSIVE: u64 = 1 << 56;

impl Pagemap {
    /// Opens a pagemap file.
    ///
    /// # Errors
    /// If it cannot be opened: the process is gone, or `CAP_SYS_PTRACE` is missing.
    pub fn open(path: &Path) -> Result<Self, SysError> {
        let file = opener::open(path, How::Read).map_err(|source| SysError {
            call: "open",
            what: path.display().to_string(),
            source,
        })?;
        let mut map = Self { file, scan: true };
        if let Err(error) = map.scan_once(0, 0, PRESENT, &mut [Region::default(); 1]) {
            // Kernels before 6.7 do not know the call; a file that is no pagemap does not either.
            map.scan = !matches!(error.errno(), libc::ENOTTY | libc::EINVAL | libc::ENOSYS);
        }
        Ok(map)
    }

    /// Whether the kernel distinguishes huge pages from base pages (`PAGEMAP_SCAN`, Linux 6.7).
    #[must_use]
    pub fn sees_huge_pages(&self) -> bool {
        self.scan
    }

    /// The present pages from `start` to `end` (both whole pages), in ascending order.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn present(&self, start: u64, end: u64) -> Result<Vec<PageRun>, SysError> {
        if self.scan {
            self.by_scan(start, end, PRESENT)
        } else {
            self.by_read(start, end, ENTRY_PRESENT)
        }
    }

    /// The pages written since [`clear_soft_dirty`], in ascending order; never marked as huge if the kernel's call
    /// does not know of writes.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn soft_dirty(&self, start: u64, end: u64) -> Result<Vec<PageRun>, SysError> {
        // Not each kernel with the call reports this category by it.
        if self.scan
            && let Ok(runs) = self.by_scan(start, end, SOFT_DIRTY)
        {
            return Ok(runs);
        }
        self.by_read(start, end, ENTRY_SOFT_DIRTY)
    }

    /// Whether each page from `start` to `end` (both whole pages) is there, anonymous memory, and the process's alone: not the
    /// zero page, nor one that KSM shares.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn all_own(&self, start: u64, end: u64) -> Result<bool, SysError> {
        const BITS: u64 = ENTRY_PRESENT | ENTRY_SWAPPED | ENTRY_FILE | ENTRY_EXCLUSIVE;
        let pages = usize::try_from((end - start) / PAGE_SIZE).unwrap_or(usize::MAX);
        let mut entries = vec![0_u8; pages.saturating_mul(8)];
        let got = self.file.read_at(&mut entries, start / PAGE_SIZE * 8);
        let got = got.map_err(|source| SysError {
            call: "read",
            what: format!("pagemap at address {start:#x}"),
            source,
        })?;
        let is_own =
            |entry: &[u8; 8]| u64::from_ne_bytes(*entry) & BITS == ENTRY_PRESENT | ENTRY_EXCLUSIVE;
        Ok(got == entries.len() && entries.as_chunks::<8>().0.iter().all(is_own))
    }

    /// The entries of pages, by their numbers; an empty one if there is no such page. Neighbours are read at once.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn entries(&self, pages: &[u64]) -> Result<Vec<PageEntry>, SysError> {
        let mut entries = Vec::with_capacity(pages.len());
        for run in pages.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            for part in run.chunks(ENTRIES) {
                let mut bytes = vec![0_u8; part.len() * 8];
                // A read behind the last address of a process is short.
                let got = self.file.read_at(&mut bytes, part[0].saturating_mul(8));
                got.map_err(|source| SysError {
                    call: "read",
                    what: format!("pagemap at page {:#x}", part[0]),
                    source,
                })?;
                let read = bytes.as_chunks::<8>().0.iter();
                entries.extend(read.map(|entry| PageEntry(u64::from_ne_bytes(*entry))));
            }
        }
        Ok(entries)
    }

    fn by_scan(&self, start: u64, end: u64, category: u64) -> Result<Vec<PageRun>, SysError> {
        let mut runs: Vec<PageRun> = Vec::new();
        let mut regions = vec![Region::default(); REGIONS];
        let mut at = start;
        while at < end {
            let (count, walked) = self.scan_once(at, end, category, &mut regions)?;
            for region in &regions[..count] {
                push(
                    &mut runs,
                    PageRun {
                        start: region.start,
                        end: region.end,
                        huge: region.categories & HUGE != 0,
                    },
                );
            }
            if walked <= at {
                break;
            }
            at = walked;
        }
        Ok(runs)
    }

    /// Makes one ioctl. Returns the number of regions filled in, and the address where the walk ended.
    fn scan_once(
        &self,
        start: u64,
        end: u64,
        category: u64,
        regions: &mut [Region],
    ) -> Result<(usize, u64), SysError> {
        let mut arg = ScanArg {
            size: size_of::<ScanArg>() as u64,
            start,
            end,
            vec: regions.as_mut_ptr() as u64,
            vec_len: regions.len() as u64,
            category_mask: category,
            return_mask: category | HUGE,
            ..ScanArg::default()
        };
        // SAFETY: `arg` is the struct that this request takes, and names `regions` with its length.
        let count = unsafe { libc::ioctl(self.file.as_raw_fd(), REQUEST, &raw mut arg) };
        match usize::try_from(count) {
            Ok(count) => Ok((count.min(regions.len()), arg.walk_end)),
            Err(_) => Err(SysError::last(
                "ioctl(PAGEMAP_SCAN)",
                format!("addresses {start:#x} to {end:#x}"),
            )),
        }
    }

    fn by_read(&self, start: u64, end: u64, bit: u64) -> Result<Vec<PageRun>, SysError> {
        let mut runs: Vec<PageRun> = Vec::new();
        let mut buffer = vec![0_u8; ENTRIES * 8];
        let mut page = start / PAGE_SIZE;
        while page < end / PAGE_SIZE {
            let want = usize::try_from(end / PAGE_SIZE - page).map_or(ENTRIES, |n| n.min(ENTRIES));
            let got = self
                .file
                .read_at(&mut buffer[..want * 8], page * 8)
                .map_err(|source| SysError {
                    call: "read",
                    what: format!("pagemap at page {page:#x}"),
                    source,
                })?;
            if got < 8 {
                break;
            }
            for entry in buffer[..got].as_chunks::<8>().0 {
                if u64::from_ne_bytes(*entry) & bit != 0 {
                    push(
                        &mut runs,
                        PageRun {
                            start: page * PAGE_SIZE,
                            end: (page + 1) * PAGE_SIZE,
                            huge: false,
                        },
                    );
                }
                page += 1;
            }
        }
        Ok(runs)
    }
}

/// Clears the soft-dirty bits of all pages of a process, by its file `clear_refs`: from then on
/// [`Pagemap::soft_dirty`] reports what was written. The process stands still if it maps or faults meanwhile, and its
/// pages become write-protected.
///
/// # Errors
/// If the file cannot be written, or if the process has ended.
pub fn clear_soft_dirty(clear_refs: &Path, process: &Process) -> Result<(), SysError> {
    let clear = || {
        let mut file = opener::open(clear_refs, How::Write)?;
        // The open file stays with the task that had the number, which is the process if it runs now.
        if !process.is_alive() {
            return Err(Error::from_raw_os_error(libc::ESRCH));
        }
        file.write_all(b"4")
    };
    clear().map_err(|source| SysError {
        call: "write 4",
        what: clear_refs.display().to_string(),
        source,
    })
}

/// Whether this kernel tracks writes at all (`CONFIG_MEM_SOFT_DIRTY`). A kernel without it takes the request to clear
/// and does nothing, so this is found out by a page of our own that was just written.
#[must_use]
pub fn soft_dirty_supported() -> bool {
    let page = vec![1_u8; 4096];
    let start = (std::hint::black_box(&page).as_ptr() as u64) / PAGE_SIZE * PAGE_SIZE;
    let map = Pagemap::open(Path::new("/proc/self/pagemap"));
    let runs = map.and_then(|map| map.by_read(start, start + PAGE_SIZE, ENTRY_SOFT_DIRTY));
    runs.is_ok_and(|runs| !runs.is_empty())
}

/// Appends a run, joined with the last one if it continues that.
fn push(runs: &mut Vec<PageRun>, run: PageRun) {
    match runs.last_mut() {
        Some(last) if last.end == run.start && last.huge == run.huge => last.end = run.end,
        _ => runs.push(run),
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::SharedMapping;

    #[test]
    fn both_ways_see_the_same_pages() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(64 * PAGE_SIZE).unwrap();
        let map = SharedMapping::new(file.as_fd(), 0, 64 * 4096).unwrap();
        for page in [0, 1, 2, 10, 63] {
            // SAFETY: inside of the mapping.
            unsafe { map.as_ptr().add(page * 4096).write_volatile(1) };
        }
        let base = map.as_ptr() as u64;
        let mut pagemap = Pagemap::open(Path::new("/proc/self/pagemap")).unwrap();
        let end = base + 64 * PAGE_SIZE;
        let run = |from: u64, to: u64| PageRun {
            start: base + from * PAGE_SIZE,
            end: base + to * PAGE_SIZE,
            huge: false,
        };
        let want = vec![run(0, 3), run(10, 11), run(63, 64)];
        assert_eq!(pagemap.present(base, end).unwrap(), want);
        pagemap.scan = false;
        assert!(!pagemap.sees_huge_pages());
        assert_eq!(pagemap.present(base, end).unwrap(), want);
        assert_eq!(pagemap.present(base, base).unwrap(), []);
    }

    #[test]
    fn entries_are_those_of_the_named_pages() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(8 * PAGE_SIZE).unwrap();
        let map = SharedMapping::new(file.as_fd(), 0, 8 * 4096).unwrap();
        for page in [0, 1, 5] {
            // SAFETY: inside of the mapping.
            unsafe { map.as_ptr().add(page * 4096).write_volatile(1) };
        }
        let first = map.as_ptr() as u64 / PAGE_SIZE;
        let pagemap = Pagemap::open(Path::new("/proc/self/pagemap")).unwrap();
        let pages = [first, first + 1, first + 3, first + 5, 1 << 51];
        let entries = pagemap.entries(&pages).unwrap();
        let there: Vec<bool> = entries.iter().map(|entry| entry.is_present()).collect();
        assert_eq!(there, [true, true, false, true, false]);
        assert!(entries.iter().all(|entry| !entry.is_own()), "shared memory");
        assert_eq!(entries[2].frame(), None);
    }

    #[test]
    #[ignore = "needs a kernel with CONFIG_MEM_SOFT_DIRTY; the lab's soft_dirty_bits test runs the whole way on one"]
    fn pages_written_since_the_last_clearing_are_reported() {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(64 * PAGE_SIZE).unwrap();
        let map = SharedMapping::new(file.as_fd(), 0, 64 * 4096).unwrap();
        // SAFETY: inside of the mapping.
        let write = |page: usize| unsafe { map.as_ptr().add(page * 4096).write_volatile(1) };
        (0..64).for_each(write);
        let base = map.as_ptr() as u64;
        let mut pagemap = Pagemap::open(Path::new("/proc/self/pagemap")).unwrap();
        let me = Process::open(Path::new("/proc"), std::process::id()).unwrap();
        clear_soft_dirty(Path::new("/proc/self/clear_refs"), &me).unwrap();
        [3, 4, 60].into_iter().for_each(write);
        for scan in [pagemap.scan, false] {
            pagemap.scan = scan;
            let runs = pagemap.soft_dirty(base, base + 64 * PAGE_SIZE).unwrap();
            let pages: Vec<_> = runs
                .iter()
                .map(|r| ((r.start - base) / PAGE_SIZE, (r.end - base) / PAGE_SIZE))
                .collect();
            assert_eq!(pages, [(3, 5), (60, 61)], "by the call: {scan}");
        }
        assert!(clear_soft_dirty(Path::new("/proc/none"), &me).is_err());
    }

    #[test]
    fn a_process_that_ended_is_never_cleared() {
        let dir = tempfile::tempdir().unwrap();
        let clear_refs = dir.path().join("clear_refs");
        std::fs::write(&clear_refs, "").unwrap();
        let written = || std::fs::read_to_string(&clear_refs).unwrap();
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let process = Process::open(Path::new("/proc"), child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // Its number may be another one's by now, whose file this would be.
        let error = clear_soft_dirty(&clear_refs, &process).unwrap_err();
        assert_eq!((error.errno(), written()), (libc::ESRCH, String::new()));
        let me = Process::open(Path::new("/proc"), std::process::id()).unwrap();
        clear_soft_dirty(&clear_refs, &me).unwrap();
        assert_eq!(written(), "4");
    }

    #[test]
    fn pages_that_are_there_and_nobody_elses_are_distinguished() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pagemap");
        let own = ENTRY_PRESENT | ENTRY_EXCLUSIVE;
        let others = [
            ENTRY_PRESENT,
            own | ENTRY_FILE,
            ENTRY_SWAPPED | ENTRY_EXCLUSIVE,
            0,
        ];
        for other in others {
            let entries = [own, own | ENTRY_SOFT_DIRTY, own, other].map(u64::to_ne_bytes);
            std::fs::write(&path, entries.as_flattened()).unwrap();
            let pagemap = Pagemap::open(&path).unwrap();
            assert!(pagemap.all_own(0, 3 * PAGE_SIZE).unwrap());
            assert!(pagemap.all_own(PAGE_SIZE, 2 * PAGE_SIZE).unwrap());
            assert!(!pagemap.all_own(0, 4 * PAGE_SIZE).unwrap(), "{other:#x}");
            // What the kernel does not report is not there.
            assert!(!pagemap.all_own(2 * PAGE_SIZE, 9 * PAGE_SIZE).unwrap());
        }
    }

    #[test]
    fn a_file_that_is_no_pagemap_is_read_the_old_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pagemap");
        let entries = [0, ENTRY_PRESENT, ENTRY_PRESENT, 0].map(u64::to_ne_bytes);
        std::fs::write(&path, entries.as_flattened()).unwrap();
        let pagemap = Pagemap::open(&path).unwrap();
        assert!(!pagemap.sees_huge_pages());
        let runs = pagemap.present(0, 1 << 20).unwrap();
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].start, runs[0].end), (4096, 3 * 4096));
        assert!(Pagemap::open(&dir.path().join("none")).is_err());
    }
}
