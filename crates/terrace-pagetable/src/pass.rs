//! One pass over a guest's tables, from the roots to the leaves.
//!
//! Follows vTMM's use of accessed bits and the rules that protect guest data (`docs/data-rules.md`, which numbers
//! them): the user half of each top-level table, user entries at every level, each table page once. Recursion is as
//! deep as there are levels.
//!
//! A pass takes milliseconds, and the guest frees and reuses table pages meanwhile. It takes a table out
//! of the entry above before it reuses the page, so whatever was read of a table counts only if
//! all entries that lead there still do afterwards, and nothing is written before they were looked at
//! again. What remains is the time between that look and the compare-exchange, and there the whole entry
//! would have to be the same.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use terrace_proto::{Gfn, Part, Rearm, ScanStats};

use crate::bits::{Bits, window};
use crate::chunk::{CHUNK, Chunk, Copies, ones};
use crate::entry::{Entry, Written, clear_accessed, rearm_written, set_accessed};
use crate::marks::Marks;
use crate::memory::{GuestTables, Table};
use crate::named::Named;
use crate::paging::Paging;
use crate::pairs;
use crate::vectors::{Vectors, fetch};
use crate::visited::Visited;

/// Entries of a top-level table that map user addresses.
const USER_HALF: usize = 256;

/// The pages whose A bits are cleared.
pub(crate) enum Arm<'a> {
    None,
    All,
    Only {
        /// One bit per page.
        pages: &'a [u64],
        /// One bit per 2 MiB: some page of it is in `pages`.
        blocks: &'a Bits,
    },
}

impl<'a> Arm<'a> {
    /// `blocks` is room for one bit per 2 MiB.
    pub(crate) fn new(rearm: &'a Rearm, blocks: &'a mut Bits) -> Self {
        match rearm {
            Rearm::None => Self::None,
            Rearm::All => Self::All,
            Rearm::Only(pages) => {
                blocks.set_blocks_of(pages);
                Self::Only {
                    pages: pages.words(),
                    blocks,
                }
            }
        }
    }

    fn writes(&self) -> bool {
        !matches!(self, Self::None)
    }

    /// Which of 64 pages from `first` are to be re-armed.
    #[inline]
    fn pages(&self, first: u64) -> u64 {
        match self {
            Self::None => 0,
            Self::All => u64::MAX,
            Self::Only { pages, .. } => window(pages, first),
        }
    }

    /// Whether any page of some blocks is to be re-armed.
    fn blocks(&self, first: u64, count: u64) -> bool {
        match self {
            Self::None => false,
            Self::All => true,
            Self::Only { blocks, .. } => blocks.any(first, count),
        }
    }
}

/// The state of one pass.
pub(crate) struct Pass<'a, M, S, L> {
    pub(crate) memory: &'a M,
    pub(crate) paging: Paging,
    pub(crate) frames: u64,
    pub(crate) arm: Arm<'a>,
    pub(crate) prune: bool,
    /// The leaf tables to read; all if there is none.
    pub(crate) part: Option<Part>,
    pub(crate) visited: &'a mut Visited,
    pub(crate) marks: S,
    pub(crate) vectors: Vectors,
    pub(crate) stats: ScanStats,
    pub(crate) path: Path<'a, L>,
    /// The copy of the leaf table at hand, in one place for a whole pass: clearing 4 KiB for each table would cost a twentieth of it.
    pub(crate) copies: Option<Box<Copies>>,
}

/// The conditions under which a pass may go on.
pub trait Guard {
    /// Whether a frame is a top-level table still.
    fn is_live(&self, root: Gfn) -> bool;

    /// Whether what the roots were chosen by may still be believed. Asked before each table is read.
    fn is_in_time(&self) -> bool;

    /// Whether the guest is known to be Linux. If so, a page with entries that Linux never makes in a user page table is
    /// not taken for a table: a former top-level table may since have been freed and overwritten by a process.
    fn is_linux(&self) -> bool;
}

/// Roots that are live for as long as they are asked for.
impl<F: Fn(Gfn) -> bool> Guard for F {
    fn is_live(&self, root: Gfn) -> bool {
        self(root)
    }

    // A closure has nothing that could become too old.
    fn is_in_time(&self) -> bool {
        true
    }

    // Nobody has proven which system such a guest runs: entries that Linux never makes say nothing of it.
    fn is_linux(&self) -> bool {
        false
    }
}

/// The way from the root to the table that is read now.
pub(crate) struct Path<'a, L> {
    guard: L,
    root: Gfn,
    /// The entries below the root, each with where it was read: one per level, the highest first.
    links: Vec<(&'a AtomicU64, Entry)>,
    /// The tables below which leaves are accessed, if they are asked for.
    named: Option<&'a mut Named>,
}

impl<'a, L: Guard> Path<'a, L> {
    pub(crate) fn new(guard: L, named: Option<&'a mut Named>) -> Self {
        Self {
            guard,
            root: Gfn(0),
            links: Vec::with_capacity(4),
            named,
        }
    }

    /// Whether what was read of the table until now was the table's: it is still in use.
    #[inline]
    fn holds(&self) -> Result<(), Gone> {
        // The reads before this one are to be done when the links are read.
        fence(Ordering::Acquire);
        let holds = self.links.iter().all(|(slot, seen)| seen.is_still_in(slot));
        if holds { Ok(()) } else { Err(Gone) }
    }

    /// The same for a table above the leaf tables, before one below it is read; asks for the root if the table is the
    /// root.
    fn holds_above_leaves(&self) -> Result<(), Gone> {
        self.holds_in_time()?;
        // An entry in the root tells whether a table below is in use. Nothing leads to the root itself: only the
        // guard knows.
        if self.links.is_empty() && !self.guard.is_live(self.root) {
            return Err(Gone);
        }
        Ok(())
    }

    fn holds_in_time(&self) -> Result<(), Gone> {
        self.holds()?;
        if self.guard.is_in_time() {
            Ok(())
        } else {
            Err(Gone)
        }
    }
}

/// Findings in a chunk of leaves, a bit for each.
struct ChunkBits {
    /// To be re-armed.
    rearm: u64,
    /// With a D that tells a write.
    written: u64,
    /// Whether a bit stays set.
    keeps: Left,
}

/// The table that is read was freed meanwhile: it may hold anything.
struct Gone;

/// Whether a table holds an A bit (or a D bit that tells a write) that this pass saw and left set.
type Left = bool;

impl<'a, M: GuestTables, S: Marks, L: Guard> Pass<'a, M, S, L> {
    /// Walks the user half of a top-level table.
    pub(crate) fn root(&mut self, frame: Gfn) {
        let Some(table) = self.table_at(frame) else {
            self.stats.out_of_ram += 1;
            return;
        };
        // Asked after the lookup, which may be a call to the kernel: the process may have ended since the roots were
        // chosen, and then the page may hold anything.
        if !self.path.guard.is_live(frame) {
            self.stats.lost_races += 1;
            return;
        }
        // An entry of another root may lead here, and a caller may name a root twice.
        if self.visited.insert(frame.0) {
            self.stats.roots += 1;
            self.path.root = frame;
            let before = self.stats.accessed;
            self.upper_table(table, self.paging.levels());
            self.name(frame, self.paging.levels(), before);
        } else {
            self.stats.revisited += 1;
        }
    }

    fn table_at(&self, frame: Gfn) -> Option<&'a Table> {
        let memory = self.memory;
        // The bitmaps of the pass end there, whatever `memory` knows beyond.
        (frame.0 < self.frames)
            .then(|| memory.table(frame))
            .flatten()
    }

    fn is_top(&self, level: u8) -> bool {
        level == self.paging.levels()
    }

    /// Frames that an entry may point to: in RAM, and without reserved bits.
    fn limit(&self) -> u64 {
        self.frames.min(self.paging.addressable_frames())
    }

    /// A table of any level but the first.
    fn upper_table(&mut self, table: &'a Table, level: u8) -> Left {
        self.stats.tables += 1;
        self.upper_entries(table, level)
            .unwrap_or_else(|Gone| self.given_up())
    }

    /// Counts a walk that was stopped. What it did not come to may have its bit.
    #[cold]
    fn given_up(&mut self) -> Left {
        self.stats.lost_races += 1;
        true
    }

    fn upper_entries(&mut self, table: &'a Table, level: u8) -> Result<Left, Gone> {
        // The other half maps the kernel: no process maps what is there (rule 12), and no bit of it is changed (rule
        // 2).
        let used = if self.is_top(level) {
            USER_HALF
        } else {
            table.len()
        };
        let mut left = false;
        // Some word of a page of data is no entry for users, so all of them are looked at before the first is
        // followed. The top level has entries for the kernel, and the guard knows it by these.
        if !self.is_top(level) && self.path.guard.is_linux() {
            let mut entries = table.iter().map(Entry::load);
            if !entries.all(|entry| entry.is_linux_upper(level)) {
                return Err(Gone);
            }
        }
        let mut turn = self.next_of_part(&table[..used], 0, level);
        while let Some((i, slot)) = turn {
            turn = self.next_of_part(&table[..used], i + 1, level);
            let entry = Entry::load(slot);
            // Nothing, or the kernel's: what no process maps is neither known nor touched (rule 12). It may have changed
            // since it was found.
            if !entry.is_user() || !self.is_in_part(entry, level) {
                continue;
            }
            left |= match (entry.is_large(), level) {
                (false, _) => self.child(slot, entry, level, turn.map(|(_, next)| next))?,
                (true, 2 | 3) => self.large_leaf(slot, entry, level)?,
                // The bit means nothing so high up: what the entry names is neither a page nor a table.
                (true, _) => {
                    self.stats.reserved += 1;
                    false
                }
            };
        }
        Ok(left)
    }

    /// The next entry for users from `from` on that this pass follows.
    #[inline]
    fn next_of_part(
        &self,
        table: &'a [AtomicU64],
        from: usize,
        level: u8,
    ) -> Option<(usize, &'a AtomicU64)> {
        let mut rest = table.iter().enumerate().skip(from);
        rest.find(|(_, slot)| {
            let entry = Entry::load(slot);
            entry.is_user() && self.is_in_part(entry, level)
        })
    }

    /// Whether the pass follows an entry: it leads to tables above leaf tables, or its leaf or leaf table is of the part.
    #[inline]
    fn is_in_part(&self, entry: Entry, level: u8) -> bool {
        let Some(part) = self.part else {
            return true;
        };
        match (entry.is_large(), level) {
            (false, 2) => part.has(entry.frame()),
            (true, 2 | 3) => part.has(entry.large_frame()),
            _ => true,
        }
    }

    /// Whether the A bit of a non-leaf entry prunes and is cleared. Nothing is pruned by bits of the top level. In a pass
    /// over a part those above the leaf tables' own entries are left alone, too: they speak of other parts as well, and a
    /// pruned pass over these would miss what the cleared bit told.
    fn prunes_by(&self, level: u8) -> bool {
        !self.is_top(level) && (self.part.is_none() || level == 2)
    }

    /// The table that a non-leaf entry points to, if there is one and it is not pruned.
    fn worth_walking(&mut self, entry: Entry, level: u8) -> Option<&'a Table> {
        let frame = entry.frame();
        // A processor faults at such an entry: nothing was accessed through it.
        if frame.0 >= self.paging.addressable_frames() {
            self.stats.reserved += 1;
            return None;
        }
        // A processor sets A in each entry on its way, so nothing below was accessed. The top level does not tell:
        // with page-table isolation user mode has a top-level table of its own, and the kernel's is walked (rule 4).
        if self.prune && self.prunes_by(level) && !entry.is_accessed() {
            self.stats.pruned += 1;
            return None;
        }
        // There may be RAM and no data in it: a look would allocate the page (rule 15).
        let table = self.table_at(frame);
        if table.is_none() {
            self.stats.out_of_ram += 1;
        }
        table
    }

    /// A non-leaf entry and all below it; `next` is its neighbour.
    fn child(
        &mut self,
        slot: &'a AtomicU64,
        entry: Entry,
        level: u8,
        next: Option<&AtomicU64>,
    ) -> Result<Left, Gone> {
        let Some(table) = self.worth_walking(entry, level) else {
            return Ok(false);
        };
        // The entry counts only if the table that it was read from is still one. Nothing below is marked or written
        // before.
        self.path.holds_above_leaves()?;
        if !self.visited.insert(entry.frame().0) {
            self.stats.revisited += 1;
            // Its leaves were read before this entry could be cleared, so it must not be: an access
            // through it in between would be lost to pruning. The next pass clears it.
            return Ok(entry.is_accessed());
        }
        let writes = self.arm.writes() && self.prunes_by(level);
        // Before the entries below are read: an access after that sets the bit again, and the next pruned pass comes
        // by. If it were cleared after them, an access in between would be lost.
        if writes && entry.is_accessed() && clear_accessed(slot, entry.0) == Written::Lost {
            self.stats.lost_races += 1;
            // Another subtree hangs here now; the table that was read of may be anything.
            return Ok(true);
        }
        self.path.links.push((slot, entry));
        let before = self.stats.accessed;
        // A table that is lost below ends the walk of that table alone: its neighbours are in use.
        let left = match level {
            2 => self.leaf_table(table, self.likely_next(next)),
            _ => {
                // Once for a whole table: there are few, and their entries are read with nothing in between.
                if let Some(next) = self.likely_next(next) {
                    next.as_chunks().0.iter().for_each(prefetch);
                }
                self.upper_table(table, level - 1)
            }
        };
        self.name(entry.frame(), level - 1, before);
        self.path.links.pop();
        if writes && left {
            // Something below keeps its bit, so the next pruned pass has to come by. This table may have been freed
            // while those below were read, and its page may hold data like the entry: the way to it is looked at
            // again.
            self.path.holds_in_time()?;
            if set_accessed(slot, entry.0) == Written::Lost {
                self.stats.lost_races += 1;
            }
        }
        Ok(left)
    }

    /// Names the table that the path leads to, if it was walked and leaves below it are accessed: `before` were until then.
    #[inline]
    fn name(&mut self, frame: Gfn, level: u8, before: u64) {
        let found = self.stats.accessed - before;
        if found > 0
            && self.path.named.is_some()
            && self.path.holds().is_ok()
            && let Some(named) = &mut self.path.named
        {
            named.add(frame, level, found);
        }
    }

    /// A leaf of 2 MiB or 1 GiB.
    fn large_leaf(&mut self, slot: &AtomicU64, entry: Entry, level: u8) -> Result<Left, Gone> {
        let first = entry.large_frame().0;
        let pages = 1_u64 << (9 * (level - 1));
        // The address bits below the leaf's size are reserved.
        if first >= self.paging.addressable_frames() || !first.is_multiple_of(pages) {
            self.stats.reserved += 1;
            return Ok(false);
        }
        // The bitmaps end with RAM, so a leaf that RAM holds in part is left alone. The sum has 41 bits at most.
        if first + pages > self.frames {
            self.stats.out_of_ram += 1;
            return Ok(false);
        }
        // What data says in a table's place is no access.
        self.path.holds()?;
        let (block, blocks) = (first / 512, pages / 512);
        self.stats.leaves += 1;
        // D of a leaf of 1 GiB is never moved (`entry.rs`): it would tell the same write in each pass.
        let written = self.marks.tells_writes() && level == 2 && entry.is_written();
        let accessed = entry.is_accessed();
        self.marks.add_blocks(block, blocks, accessed, written);
        self.stats.accessed += u64::from(accessed);
        if !accessed && !written {
            return Ok(false);
        }
        if !self.arm.blocks(block, blocks) {
            // The leaf keeps its bit, so the entries above have to keep theirs.
            return Ok(true);
        }
        let slot = std::slice::from_ref(slot);
        Ok(self.rearm(slot, &[entry.0], 1, u64::from(written)))
    }

    /// A level 1 table; see [`leaves`](Self::leaves) for `next`.
    fn leaf_table(&mut self, table: &Table, next: Option<&Table>) -> Left {
        self.stats.tables += 1;
        let mut copies = self.copies.take().unwrap_or_else(Copies::empty);
        let left = self.leaves(table, next, &mut copies);
        self.copies = Some(copies);
        left.unwrap_or_else(|Gone| self.given_up())
    }

    /// All of a level 1 table. While it is worked on, `next` is fetched bit by bit: hardware prefetch
    /// stops at the end of each page, and asking for all of it at once would wait for it.
    #[inline]
    fn leaves(
        &mut self,
        table: &Table,
        next: Option<&Table>,
        copies: &mut Copies,
    ) -> Result<Left, Gone> {
        let vectors = self.vectors;
        // All is read before the way to the table is looked at again, which then speaks for each word of the copy.
        vectors.read(copies.all_mut(), table);
        self.path.holds()?;
        if self.path.guard.is_linux() && !copies.are_for_users() {
            return Err(Gone);
        }
        let mut left = false;
        let writes = self.marks.tells_writes();
        // A pass over all comes by each place several times, so they are near.
        let ahead = S::ARE_FAR.then(|| {
            copies
                .chunks()
                .map(|entries| vectors.chunk(entries, writes))
        });
        if let Some(ahead) = &ahead {
            self.expect(ahead, copies);
        }
        let chunks = table.as_chunks::<CHUNK>().0.iter().zip(copies.chunks());
        for (i, (slots, entries)) in chunks.enumerate() {
            if let Some(next) = next {
                prefetch(&next.as_chunks().0[i]);
            }
            let found = match &ahead {
                Some(ahead) => self.record(&ahead[i], entries),
                None => self.record(&vectors.chunk(entries, writes), entries),
            };
            left |= found.keeps;
            if found.rearm != 0 {
                // Once for each chunk: the table may be freed while those before it are worked on.
                self.path.holds()?;
                left |= self.rearm(slots, entries, found.rearm, found.written);
            }
        }
        Ok(left)
    }

    /// Asks the processor for the places of all marks of a table at once. Its locked instructions wait for every store before them,
    /// so that otherwise one place would be waited for after the other.
    #[inline]
    fn expect(&self, chunks: &[Chunk; 8], copies: &Copies) {
        if S::ARE_FAR {
            for (chunk, entries) in chunks.iter().zip(copies.chunks()) {
                for run in chunk.runs() {
                    self.marks
                        .expect(Entry(entries[run.start as usize % CHUNK]).frame().0);
                }
            }
        }
    }

    /// Notes what a chunk of 4 KiB leaves says.
    #[inline]
    fn record(&mut self, chunk: &Chunk, entries: &[u64; CHUNK]) -> ChunkBits {
        let (mut leaves, mut accessed, mut written, mut rearm) = (0, 0, 0, 0);
        for run in chunk.runs() {
            let (at, within) = (run.start, ones(run.clone()));
            let first = Entry(entries[at as usize % CHUNK]).frame().0;
            let mut good = u64::MAX;
            // One comparison for a run: entries that point outside of RAM are rare.
            if first + u64::from(run.end - at) > self.limit() {
                good = self.refuse(first, (chunk.user & within) >> at);
            }
            let user = (chunk.user & within) >> at & good;
            let hit = (chunk.accessed & within) >> at & good;
            let wrote = (chunk.written & within) >> at & good;
            self.marks.add_pages(first, user, hit, wrote);
            leaves |= user << at;
            accessed |= hit << at;
            written |= wrote << at;
            // A leaf with D and without A too: the same write would be told again by the next pass.
            rearm |= ((hit | wrote) & self.arm.pages(first)) << at;
        }
        self.stats.leaves += u64::from(leaves.count_ones());
        self.stats.accessed += u64::from(accessed.count_ones());
        ChunkBits {
            rearm,
            written,
            keeps: accessed | written != rearm,
        }
    }

    /// Counts the entries of a run that point beyond the limit; returns the mask of those that do not.
    #[cold]
    fn refuse(&mut self, first: u64, user: u64) -> u64 {
        // Saturating, because all of the run may be beyond the limit.
        let below = |limit: u64| match limit.saturating_sub(first) {
            n @ 0..64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        let addressable = below(self.paging.addressable_frames());
        let good = below(self.limit());
        // Each entry counts once: an address that no processor has says nothing of RAM.
        self.stats.reserved += u64::from((user & !addressable).count_ones());
        self.stats.out_of_ram += u64::from((user & addressable & !good).count_ones());
        good
    }

    /// Clears A of the leaves in `mask`, which were read as `seen`, and moves D of those in `written`.
    #[inline]
    fn rearm(&mut self, slots: &[AtomicU64], seen: &[u64], mask: u64, written: u64) -> Left {
        let singly = self.rearm_pairs(slots, seen, mask & !written);
        let left = self.each(slots, seen, singly, clear_accessed);
        // Apart, so that the way without them stays short.
        left | (mask & written != 0 && self.rearm_written(slots, seen, mask & written))
    }

    /// Clears A of neighbours in `mask` two at a time; returns the mask of those that are left to be cleared one by one.
    #[inline]
    fn rearm_pairs(&mut self, slots: &[AtomicU64], seen: &[u64], mask: u64) -> u64 {
        const FIRST_OF_PAIRS: u64 = 0x5555_5555_5555_5555;
        let mut both = mask & mask >> 1 & FIRST_OF_PAIRS;
        if both == 0 || !pairs::are_exchanged() {
            return mask;
        }
        let (slots, seen) = (slots.as_chunks::<2>().0, seen.as_chunks::<2>().0);
        let mut done = 0_u64;
        while both != 0 {
            let i = both.trailing_zeros();
            if let (Some(slots), Some(seen)) = (slots.get(i as usize / 2), seen.get(i as usize / 2))
                && pairs::clear_accessed(slots, *seen)
            {
                done |= 3 << i;
            }
            both &= both - 1;
        }
        self.stats.cleared += u64::from(done.count_ones());
        mask & !done
    }

    /// The same for leaves that were written; not all of them have A.
    fn rearm_written(&mut self, slots: &[AtomicU64], seen: &[u64], mask: u64) -> Left {
        let mut without = 0;
        let left = self.each(slots, seen, mask, |slot, seen| {
            let outcome = rearm_written(slot, seen);
            let changed = outcome == Written::Changed;
            // `cleared` counts A bits, and this leaf had none.
            without += u64::from(changed && !Entry(seen).is_accessed());
            outcome
        });
        self.stats.cleared -= without;
        left
    }

    #[inline]
    fn each(
        &mut self,
        slots: &[AtomicU64],
        seen: &[u64],
        mask: u64,
        mut change: impl FnMut(&AtomicU64, u64) -> Written,
    ) -> Left {
        let (mut rest, mut cleared, mut lost) = (mask, 0, 0);
        while rest != 0 {
            let i = rest.trailing_zeros() as usize;
            if let (Some(slot), Some(seen)) = (slots.get(i), seen.get(i)) {
                match change(slot, *seen) {
                    Written::Changed => cleared += 1,
                    Written::Unneeded => {}
                    Written::Lost => lost += 1,
                }
            }
            rest &= rest - 1;
        }
        self.stats.cleared += cleared;
        self.stats.lost_races += lost;
        // An entry that was lost may have its bit, or gets it from an access that nobody saw: the next pruned pass
        // comes by.
        lost != 0
    }

    /// The leaf table that will be read after this one, as far as the next entry tells.
    fn likely_next(&self, next: Option<&AtomicU64>) -> Option<&'a Table> {
        // A guess, for the cache alone: the entry is read again when its turn comes.
        let entry = Entry::load(next?);
        let walked = entry.is_user() && !entry.is_large() && (!self.prune || entry.is_accessed());
        walked.then(|| self.table_at(entry.frame())).flatten()
    }
}

/// Asks the processor for 64 entries ahead of their use.
fn prefetch(slots: &[AtomicU64; CHUNK]) {
    slots.as_chunks::<8>().0.iter().for_each(fetch);
}
