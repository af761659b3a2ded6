//! Guest RAM as far as it is allocated: reading what the guest never touched, or what a balloon gave back, would
//! allocate it.
//!
//! Whatever a guest's tables name is therefore asked for before it is read, once per request: a kernel that reports
//! that a page of the file holds data is believed until the request ends.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fs::{File, Metadata};
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use terrace_pagetable::{GuestTables, MappedMemory, Table};
use terrace_proto::worker::FileRange;
use terrace_proto::{Gfn, PAGE_SIZE};
use terrace_sys::{Extent, SharedMapping, first_data, next_data_extent};

/// Frames without data that are asked for in one request. A kernel names none as a table; what a guest names
/// beyond this is taken to have none.
const MAX_MISSES: u32 = 65_536;
/// The frames that a search reads before it lets go of them.
const PIECE_FRAMES: u64 = (64 << 20) / PAGE_SIZE;

/// The files behind a VM's RAM, each range mapped.
pub(super) struct Ram {
    pub(super) ranges: Vec<FileRange>,
    pub(super) files: Vec<OwnedFd>,
    /// One per range.
    pub(super) mappings: Vec<SharedMapping>,
    /// For each file, whether the kernel reports to this process which pages are cached; else it reports all as cached.
    pub(super) tells_cached: Vec<bool>,
}

impl Ram {
    /// Whether a page of the guest holds data, as the kernel reports.
    fn holds_data(&self, frame: Gfn) -> bool {
        let at = frame.gpa().0;
        let held = |range: &&FileRange| range.gpa.0 <= at && at - range.gpa.0 < range.len;
        let Some(range) = self.ranges.iter().find(held) else {
            return false;
        };
        let Some(file) = self.files.get(range.file as usize) else {
            return false;
        };
        let offset = range.offset + (at - range.gpa.0);
        let data = first_data(file.as_fd(), offset..offset + PAGE_SIZE);
        data.is_ok_and(|data| data == Some(offset))
    }

    /// The guest pages that hold data, in pieces, each checked right before it is handed out: a search takes seconds,
    /// and what a balloon gave back meanwhile is not to be read. Before the next pages are checked this process lets
    /// go of the last ones: a page that two processes map is harder to move and to reclaim.
    pub(super) fn pieces(&self) -> Pieces<'_> {
        Pieces {
            ram: self,
            range: 0,
            at: 0,
            extent: None,
            held: VecDeque::new(),
            last: None,
            failed: None,
        }
    }

    /// The runs of `frames`, part of a range, that hold data now. Pages that are cached do; of others the kernel is
    /// asked one by one: they are swapped out, or were given back.
    fn held_now(&self, range: usize, frames: &Range<Gfn>) -> VecDeque<Range<Gfn>> {
        let cached = self.ranges.get(range).zip(self.mappings.get(range));
        let cached = cached.and_then(|(range, mapping)| {
            let reports = self.tells_cached.get(range.file as usize);
            reports.filter(|reports| **reports)?;
            let start = frames.start.gpa().0.saturating_sub(range.gpa.0);
            let len = (frames.end.0 - frames.start.0) * PAGE_SIZE;
            mapping.cached_pages(start, len).ok()
        });
        let cached = cached.unwrap_or_default();
        let mut runs: VecDeque<Range<Gfn>> = VecDeque::new();
        for (n, frame) in (frames.start.0..frames.end.0).enumerate() {
            if cached.get(n) != Some(&true) && !self.holds_data(Gfn(frame)) {
                continue;
            }
            match runs.back_mut() {
                Some(run) if run.end.0 == frame => run.end.0 += 1,
                _ => runs.push_back(Gfn(frame)..Gfn(frame + 1)),
            }
        }
        runs
    }

    fn forget(&self, range: usize, frames: &Range<Gfn>) {
        let (Some(range), Some(mapping)) = (self.ranges.get(range), self.mappings.get(range))
        else {
            return;
        };
        let start = frames.start.gpa().0.saturating_sub(range.gpa.0);
        let len = (frames.end.0 - frames.start.0) * PAGE_SIZE;
        if let Err(error) = mapping.forget_pages(start, len) {
            tracing::debug!("a search could not let go of RAM: {error}");
        }
    }
}

/// Whether `mincore(2)` reports the truth of a file (`can_do_mincore` in `mm/mincore.c`): it owns the file, or
/// anybody may write it.
pub(super) fn tells_cached(file: &File) -> bool {
    let own = std::fs::metadata("/proc/self").map(|own| own.uid()).ok();
    let may = |meta: Metadata| Some(meta.uid()) == own || meta.mode() & 0o002 != 0;
    file.metadata().is_ok_and(may)
}

/// See [`Ram::pieces`]. A list of all extents would take as much memory as the guest makes holes.
pub(super) struct Pieces<'a> {
    ram: &'a Ram,
    /// The range that is checked, and how many bytes of it were asked for.
    range: usize,
    at: u64,
    /// The rest of the extent that the kernel reported last.
    extent: Option<Range<Gfn>>,
    /// Runs of the pages that were checked last.
    held: VecDeque<Range<Gfn>>,
    last: Option<(usize, Range<Gfn>)>,
    failed: Option<String>,
}

impl Pieces<'_> {
    /// The result after the last piece: whether it was the end of RAM.
    ///
    /// # Errors
    /// If a file could not be asked; for people.
    pub(super) fn result(self) -> Result<(), String> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Checks the next pages; `false` if there are none.
    fn advance(&mut self) -> bool {
        if let Some((range, frames)) = self.last.take() {
            self.ram.forget(range, &frames);
        }
        let Some(extent) = self.extent.take().or_else(|| self.next_extent()) else {
            return false;
        };
        let end = Gfn(extent.end.0.min(extent.start.0 + PIECE_FRAMES));
        self.extent = Some(end..extent.end).filter(|rest| rest.start < rest.end);
        let frames = extent.start..end;
        self.held = self.ram.held_now(self.range, &frames);
        self.last = Some((self.range, frames));
        true
    }

    fn next_extent(&mut self) -> Option<Range<Gfn>> {
        while let Some(range) = self.ram.ranges.get(self.range) {
            let file = self.ram.files.get(range.file as usize)?;
            let rest = range.offset + self.at..range.offset + range.len;
            match next_data_extent(file.as_fd(), rest) {
                Ok(Some(extent)) => {
                    self.at = extent.start + extent.len - range.offset;
                    return in_guest(range, &extent);
                }
                Ok(None) => (self.range, self.at) = (self.range + 1, 0),
                Err(error) => {
                    self.failed = Some(error.to_string());
                    return None;
                }
            }
        }
        None
    }
}

impl Iterator for Pieces<'_> {
    type Item = Range<Gfn>;

    fn next(&mut self) -> Option<Range<Gfn>> {
        loop {
            if let Some(run) = self.held.pop_front() {
                return Some(run);
            }
            if !self.advance() {
                return None;
            }
        }
    }
}

/// The memory of one request: nothing that holds no data is read.
pub(super) struct Allocated<'a> {
    memory: &'a MappedMemory,
    ram: &'a Ram,
    /// A bit for each frame that holds data, as far as was asked.
    held: RefCell<&'a mut Vec<u64>>,
    misses_left: Cell<u32>,
}

impl<'a> Allocated<'a> {
    /// `bits` is room for a bit per frame.
    pub(super) fn new(memory: &'a MappedMemory, ram: &'a Ram, bits: &'a mut Vec<u64>) -> Self {
        bits.clear();
        let words = usize::try_from(memory.frames().div_ceil(64)).unwrap_or(usize::MAX);
        bits.resize(words, 0);
        Self {
            memory,
            ram,
            held: RefCell::new(bits),
            misses_left: Cell::new(MAX_MISSES),
        }
    }

    fn holds_data(&self, frame: Gfn) -> bool {
        let mut held = self.held.borrow_mut();
        let word = usize::try_from(frame.0 / 64).ok();
        let Some(word) = word.and_then(|word| held.get_mut(word)) else {
            return false;
        };
        let bit = 1 << (frame.0 % 64);
        if *word & bit != 0 {
            return true;
        }
        let left = self.misses_left.get();
        if left == 0 {
            return false;
        }
        let holds = self.ram.holds_data(frame);
        if holds {
            *word |= bit;
        } else {
            self.misses_left.set(left - 1);
        }
        holds
    }
}

impl GuestTables for Allocated<'_> {
    fn frames(&self) -> u64 {
        self.memory.frames()
    }

    #[inline]
    fn table(&self, frame: Gfn) -> Option<&Table> {
        self.holds_data(frame)
            .then(|| self.memory.table(frame))
            .flatten()
    }
}

/// The part of a file's extent that is in this run of RAM.
fn in_guest(range: &FileRange, extent: &Extent) -> Option<Range<Gfn>> {
    let start = extent.start.max(range.offset);
    let end = (extent.start + extent.len).min(range.offset + range.len);
    let gfn = |at: u64| (range.gpa.0 + (at - range.offset)) / PAGE_SIZE;
    (start < end).then(|| Gfn(gfn(start))..Gfn(gfn(end + PAGE_SIZE - 1)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;
    use std::ptr::NonNull;

    use terrace_pagetable::MappedRange;
    use terrace_proto::Gpa;
    use terrace_sys::{memory_file, punch_hole};

    use super::*;

    const PAGES: u64 = 200_000;

    struct Guest {
        memory: MappedMemory,
        ram: Ram,
        file: File,
    }

    /// One file of which only frame 7 and the last one hold data.
    fn guest() -> Guest {
        let file = memory_file(c"guest", PAGES * PAGE_SIZE).unwrap();
        for frame in [7, PAGES - 1] {
            file.write_all_at(&[1; 8], frame * PAGE_SIZE).unwrap();
        }
        let range = FileRange {
            gpa: Gpa(1 << 32),
            len: PAGES * PAGE_SIZE,
            file: 0,
            offset: 0,
        };
        let len = usize::try_from(range.len).unwrap();
        let mapping = SharedMapping::new(file.as_fd(), 0, len).unwrap();
        let mapped = MappedRange {
            start: range.gpa,
            len: range.len,
            host: NonNull::new(mapping.as_ptr()).unwrap(),
        };
        // SAFETY: the mapping lives in the same value and is read as atomics only.
        let memory = unsafe { MappedMemory::new(&[mapped]) }.unwrap();
        let ram = Ram {
            ranges: vec![range],
            files: vec![file.try_clone().unwrap().into()],
            mappings: vec![mapping],
            tells_cached: vec![tells_cached(&file)],
        };
        Guest { memory, ram, file }
    }

    fn blocks(file: &File) -> u64 {
        file.metadata().unwrap().blocks() * 512 / PAGE_SIZE
    }

    #[test]
    fn pages_without_data_are_no_tables_and_stay_without() {
        let Guest { memory, ram, file } = guest();
        let first = 1 << 20;
        let mut bits = Vec::new();
        let seen = |bits: &mut Vec<u64>, frames: Range<u64>| -> Vec<u64> {
            let memory = Allocated::new(&memory, &ram, bits);
            let held = |frame: &u64| {
                memory
                    .table(Gfn(first + frame))
                    .map(|t| t[0].load(std::sync::atomic::Ordering::Relaxed))
            };
            frames
                .filter(|frame| held(frame).is_some_and(|word| word != 0))
                .collect()
        };
        assert_eq!(seen(&mut bits, 0..60_000), [7]);
        assert_eq!(seen(&mut bits, PAGES - 60_000..PAGES + 5), [PAGES - 1]);
        assert_eq!(blocks(&file), 2);
        // Memory that a balloon gave back since is asked for anew.
        punch_hole(file.as_fd(), 7 * PAGE_SIZE, PAGE_SIZE).unwrap();
        assert_eq!(seen(&mut bits, 0..10), [] as [u64; 0]);
        assert_eq!(blocks(&file), 1);
    }

    #[test]
    fn a_guest_that_names_ever_more_holes_is_asked_for_no_more() {
        let Guest { memory, ram, file } = guest();
        let mut bits = Vec::new();
        let memory = Allocated::new(&memory, &ram, &mut bits);
        let first = 1 << 20;
        assert!((100..100 + u64::from(MAX_MISSES)).all(|f| memory.table(Gfn(first + f)).is_none()));
        assert!(memory.table(Gfn(first + 7)).is_none());
        assert_eq!(blocks(&file), 2);
    }

    #[test]
    fn extents_of_the_file_become_pages_of_the_guest() {
        let range = FileRange {
            gpa: Gpa(4 << 30),
            len: 1 << 30,
            file: 0,
            offset: 2 << 30,
        };
        let extent = |start, len| Extent { start, len };
        let base = 1 << 20;
        assert_eq!(
            in_guest(&range, &extent(0, (2 << 30) + 8192)),
            Some(Gfn(base)..Gfn(base + 2))
        );
        assert_eq!(
            in_guest(&range, &extent((3 << 30) - 4096, 1 << 30)),
            Some(Gfn(base + (1 << 18) - 1)..Gfn(base + (1 << 18)))
        );
        assert_eq!(in_guest(&range, &extent(0, 2 << 30)), None);
        assert_eq!(in_guest(&range, &extent(3 << 30, 4096)), None);
    }

    #[test]
    fn a_search_gets_allocated_pages_in_pieces_and_lets_go_of_each() {
        let Guest { ram, file, .. } = guest();
        let held: Vec<u8> = vec![1; 100 << 20];
        file.write_all_at(&held, 0).unwrap();
        let pieces: Vec<u64> = ram.pieces().map(|p| p.end.0 - p.start.0).collect();
        assert_eq!(pieces, [PIECE_FRAMES, (36 << 20) / PAGE_SIZE, 1]);
    }

    /// The guest's balloon gives pages back while a search is under way.
    #[test]
    fn memory_given_back_during_a_search_is_not_read() {
        let Guest { memory, ram, file } = guest();
        let held: Vec<u8> = vec![1; 200 << 20];
        file.write_all_at(&held, 0).unwrap();
        let mut read = 0;
        for (n, piece) in ram.pieces().enumerate() {
            if n == 0 {
                punch_hole(file.as_fd(), 64 << 20, 136 << 20).unwrap();
            }
            for frame in piece.start.0..piece.end.0 {
                let table = memory.table(Gfn(frame)).unwrap();
                read += u64::from(table[0].load(std::sync::atomic::Ordering::Relaxed) != 0);
            }
        }
        assert_eq!(read, PIECE_FRAMES + 1);
        assert_eq!(blocks(&file), PIECE_FRAMES + 1);
    }
}
