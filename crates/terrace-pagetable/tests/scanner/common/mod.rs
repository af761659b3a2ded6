//! An obvious walker to compare the scanner with, and small guests to run both on.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering::Relaxed;

use terrace_pagetable::entry::{
    ACCESSED, ADDRESS, DIRTY, LARGE, LARGE_PAT, PRESENT, SAVED_DIRTY, USER, WRITABLE,
};
use terrace_pagetable::{GuestTables, Paging, SimulatedMemory};
use terrace_proto::{
    Gfn, PageBitmap, PagingRegisters, Part, PartRequest, Rearm, RequestId, ScanRequest, ScanStats,
    Space, TableFrame, VmId,
};

/// Number of random cases to try: a thousand, or as many times that as `TERRACE_LONG` says.
pub fn cases() -> u64 {
    let factor = std::env::var("TERRACE_LONG").ok().map(|text| {
        text.parse::<u64>()
            .expect("TERRACE_LONG is a whole number: how many times the usual cases to run")
    });
    1_000 * factor.unwrap_or(1)
}

pub fn paging(levels: u8, root: u64) -> Paging {
    Paging::from_registers(PagingRegisters {
        cr0: 1 << 31,
        cr3: root << 12,
        cr4: 1 << 5 | u64::from(levels == 5) << 12,
        efer: 1 << 10,
    })
    .expect("as the test set it up")
}

pub fn request(prune: bool, rearm: Rearm) -> ScanRequest {
    ScanRequest {
        id: RequestId(7),
        space: Space::Guest(VmId(1)),
        rearm,
        prune,
        discover: false,
    }
}

pub fn bitmap(pages: u64, set: impl IntoIterator<Item = u64>) -> PageBitmap {
    let mut bitmap = PageBitmap::new(pages);
    set.into_iter().for_each(|page| bitmap.set(page));
    bitmap
}

/// All words of a memory, by frame.
pub type Snapshot = BTreeMap<u64, Vec<u64>>;

pub fn snapshot(memory: &SimulatedMemory) -> Snapshot {
    let copy = |frame: Gfn| {
        let table = memory.table(frame).expect("as the test set it up");
        table.iter().map(|word| word.load(Relaxed)).collect()
    };
    memory.table_frames().map(|f| (f.0, copy(f))).collect()
}

pub fn load(memory: &SimulatedMemory, frame: u64, index: usize) -> u64 {
    memory.table(Gfn(frame)).expect("as the test set it up")[index].load(Relaxed)
}

pub fn store(memory: &SimulatedMemory, frame: u64, index: usize, word: u64) {
    memory.table(Gfn(frame)).expect("as the test set it up")[index].store(word, Relaxed);
}

/// A scan done one entry at a time, on a copy of the words.
pub struct Naive {
    pub entries: Snapshot,
    pub frames: u64,
    pub paging: Paging,
    pub known: PageBitmap,
    pub huge: PageBitmap,
    pub accessed: PageBitmap,
    /// Pages that were written. `None` if writes are not told from D.
    pub written: Option<PageBitmap>,
    pub stats: ScanStats,
    visited: BTreeSet<u64>,
    /// The tables below which leaves are accessed.
    pub named: Vec<TableFrame>,
    /// The part that is read; all if there is none.
    part: Option<Part>,
    /// Whether a pass over a part prunes.
    prune_part: bool,
}

impl Naive {
    pub fn new(frames: u64, paging: Paging) -> Self {
        Self {
            entries: Snapshot::new(),
            frames,
            paging,
            known: PageBitmap::new(frames),
            huge: PageBitmap::new(frames.div_ceil(512)),
            accessed: PageBitmap::new(frames),
            written: None,
            stats: ScanStats::default(),
            visited: BTreeSet::new(),
            named: Vec::new(),
            part: None,
            prune_part: false,
        }
    }

    pub fn with_writes(mut self) -> Self {
        self.written = Some(PageBitmap::new(self.frames));
        self
    }

    pub fn scan(&mut self, roots: &[Gfn], request: &ScanRequest) {
        self.accessed.clear();
        self.written.iter_mut().for_each(PageBitmap::clear);
        self.visited.clear();
        self.named.clear();
        self.stats = ScanStats::default();
        if !request.prune {
            self.known.clear();
            self.huge.clear();
        }
        for root in roots {
            if !self.is_table(root.0) {
                self.stats.out_of_ram += 1;
            } else if !self.visited.insert(root.0) {
                self.stats.revisited += 1;
            } else {
                self.stats.roots += 1;
                self.table(root.0, self.paging.levels(), request);
            }
        }
        TableFrame::bound(&mut self.named, TableFrame::most(self.frames));
    }

    /// The same over a part: `known` and `huge` are what the part maps.
    pub fn scan_part(&mut self, roots: &[Gfn], request: &PartRequest) {
        self.part = Some(request.part);
        self.known.clear();
        self.huge.clear();
        let rearm = if request.clear {
            Rearm::All
        } else {
            Rearm::None
        };
        self.prune_part = request.prune;
        self.scan(roots, &self::request(request.prune, rearm));
        self.part = None;
    }

    fn is_in_part(&self, entry: u64, level: u8) -> bool {
        let Some(part) = self.part else {
            return true;
        };
        let large = entry & LARGE != 0;
        let pat = if large { LARGE_PAT } else { 0 };
        let frame = Gfn((entry & ADDRESS & !pat) >> 12);
        match level {
            2 => part.has(frame),
            3 if large => part.has(frame),
            _ => true,
        }
    }

    fn put(&mut self, at: (u64, usize), entry: u64) {
        self.entries.get_mut(&at.0).expect("as the test set it up")[at.1] = entry;
    }

    fn is_table(&self, frame: u64) -> bool {
        frame < self.frames && self.entries.contains_key(&frame)
    }

    fn table(&mut self, frame: u64, level: u8, request: &ScanRequest) -> bool {
        let before = self.stats.accessed;
        let left = self.entries_of(frame, level, request);
        let accessed = self.stats.accessed - before;
        if accessed > 0 {
            self.named.push(TableFrame {
                frame: u32::try_from(frame).expect("a small guest"),
                level,
                accessed: u16::try_from(accessed).expect("a small guest"),
            });
        }
        left
    }

    fn entries_of(&mut self, frame: u64, level: u8, request: &ScanRequest) -> bool {
        self.stats.tables += 1;
        let end = if level == self.paging.levels() {
            256
        } else {
            512
        };
        let mut left = false;
        for index in 0..end {
            let at = (frame, index);
            let entry = self.entries[&frame][index];
            if entry & PRESENT == 0 || entry & USER == 0 || !self.is_in_part(entry, level) {
                continue;
            }
            left |= if level == 1 || (level <= 3 && entry & LARGE != 0) {
                self.leaf(at, entry, level, &request.rearm)
            } else if entry & LARGE != 0 {
                self.stats.reserved += 1;
                false
            } else {
                self.child(at, entry, level, request)
            };
        }
        left
    }

    fn leaf(&mut self, at: (u64, usize), entry: u64, level: u8, rearm: &Rearm) -> bool {
        let pages = [1, 512, 512 * 512][usize::from(level) - 1];
        let pat = if level == 1 { 0 } else { LARGE_PAT };
        let first = (entry & ADDRESS & !pat) >> 12;
        if first >= self.paging.addressable_frames() || !first.is_multiple_of(pages) {
            self.stats.reserved += 1;
            return false;
        }
        if first + pages > self.frames {
            self.stats.out_of_ram += 1;
            return false;
        }
        self.stats.leaves += 1;
        self.known.set_range(first, pages);
        if level > 1 {
            self.huge.set_range(first / 512, pages / 512);
        }
        let mut rearmed = entry & !ACCESSED;
        if entry & ACCESSED != 0 {
            self.stats.accessed += 1;
            self.accessed.set_range(first, pages);
        }
        if let Some(written) = &mut self.written
            && entry & DIRTY != 0
            && entry & WRITABLE != 0
            && level < 3
        {
            written.set_range(first, pages);
            rearmed = rearmed & !DIRTY | SAVED_DIRTY;
        }
        if rearmed == entry {
            return false;
        }
        if wanted(rearm, first, pages) {
            self.stats.cleared += u64::from(entry & ACCESSED != 0);
            self.put(at, rearmed);
            false
        } else {
            true
        }
    }

    fn child(&mut self, at: (u64, usize), entry: u64, level: u8, request: &ScanRequest) -> bool {
        let frame = (entry & ADDRESS) >> 12;
        let top = level == self.paging.levels();
        if frame >= self.paging.addressable_frames() {
            self.stats.reserved += 1;
            return false;
        }
        // In a part only the entries of its leaf tables prune, and are cleared.
        let prunes = !top && (self.part.is_none() || level == 2);
        let prune = self.part.map_or(request.prune, |_| self.prune_part);
        if prune && prunes && entry & ACCESSED == 0 {
            self.stats.pruned += 1;
            return false;
        }
        if !self.is_table(frame) {
            self.stats.out_of_ram += 1;
            return false;
        }
        if !self.visited.insert(frame) {
            self.stats.revisited += 1;
            return entry & ACCESSED != 0;
        }
        let left = self.table(frame, level - 1, request);
        if request.rearm != Rearm::None && prunes {
            let a = if left { ACCESSED } else { 0 };
            self.put(at, entry & !ACCESSED | a);
        }
        left
    }
}

/// Whether a leaf of `pages` from `first` is to be cleared.
pub fn wanted(rearm: &Rearm, first: u64, pages: u64) -> bool {
    match rearm {
        Rearm::None => false,
        Rearm::All => true,
        Rearm::Only(set) if pages == 1 => set.get(first),
        Rearm::Only(set) => set
            .iter()
            .any(|page| (first..first + pages).contains(&page)),
    }
}
