//! Linux's direct map, which proves that a table is a top-level table of the kernel that runs.
//!
//! Linux maps all RAM once more into its half of every address space, at `page_offset_base`
//! (`Documentation/arch/x86/x86_64/mm.rst`), and writes its page tables there. So one base, a multiple of 1 GiB,
//! exists at which supervisor leaves map to themselves the top-level table and every table that its kernel half
//! names. In data that looks like a table no such base exists. One leaf that covers all of them would prove nothing
//! (the word 0x81 is a leaf of 1 GiB); hence the map has to begin with many.
//!
//! Not proven by this: that the table is in use. A copy of a top-level table has the same half; see
//! [`DirectMap::is_at_default_base`].

use terrace_proto::Gfn;

use crate::entry::Entry;
use crate::kernel_half::{FIRST, KernelHalf};
use crate::memory::{GuestTables, Table};
use crate::paging::Paging;

/// `page_offset_base` without KASLR: `__PAGE_OFFSET_BASE_L4` and `_L5`.
const DEFAULT_BASE: [u64; 2] = [0xffff_8880_0000_0000, 0xff11_0000_0000_0000];
/// 4 KiB pages in 1 GiB: a base is a multiple of it, since KASLR shifts it by whole entries of level 3.
const GIANT_PAGES: u64 = 1 << 18;
/// Least number of leaves in the table in which the map begins. On a PC the first MiB is mapped page by page.
const MIN_LEAVES: usize = 16;
/// Tables that the search for the base reads at most. Linux's direct map is the first of its half but for the local
/// descriptor tables.
const MAX_TABLES: u32 = 8_192;
/// Bases that are tried at most; one that is offered again counts again unless it was wrong.
const MAX_TRIES: u32 = 64;

/// The reason why a kernel half is not taken for one of Linux.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unproven {
    /// The frame that CR3 names is not in RAM, or nothing was ever written there.
    #[error("the top-level table in frame {0} is outside of the guest's allocated RAM")]
    OutOfRam(Gfn),
    /// The table's kernel half is empty.
    #[error(
        "the top-level table in frame {0} maps no kernel (firmware, a kernel that boots, or another system than Linux)"
    )]
    NoKernel(Gfn),
    /// An entry of the kernel half leads to no table.
    #[error("the kernel half of the top-level table in frame {0} names what is no page table")]
    NoTables(Gfn),
    /// No base exists at which the kernel half maps its tables to themselves.
    #[error(
        "no direct map of a Linux kernel covers the top-level table in frame {0} and the tables that it names (another system \
         than Linux, firmware, a kernel that boots, or a nested guest)"
    )]
    NoDirectMap(Gfn),
}

/// The mapping of all RAM by a kernel half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectMap {
    /// Virtual page of guest page 0, below 512 to the power of the levels.
    base: u64,
    paging: Paging,
}

impl DirectMap {
    /// Finds and proves the direct map of `half`, that of the top-level table `root`.
    ///
    /// # Errors
    /// If there is none; found out after a bounded number of steps.
    pub fn find<M: GuestTables>(
        memory: &M,
        paging: Paging,
        half: &KernelHalf,
        root: Gfn,
    ) -> Result<Self, Unproven> {
        let in_ram =
            |(_, frame): (_, Option<Gfn>)| frame.is_some_and(|f| memory.table(f).is_some());
        if !half.named().all(in_ram) {
            return Err(Unproven::NoTables(root));
        }
        let mut search = Search {
            memory,
            paging,
            half,
            root,
            tables_left: MAX_TABLES,
            tries_left: MAX_TRIES,
            wrong: Vec::new(),
        };
        search.run().ok_or(Unproven::NoDirectMap(root))
    }

    /// Whether the map maps `root` and every table that `half` names to themselves. `half` is one of those that were
    /// proven with this map, or the one of page-table isolation's user mode beside it.
    pub fn covers<M: GuestTables>(&self, memory: &M, half: &KernelHalf, root: Gfn) -> bool {
        self.covers_tables(memory, half, half) && self.maps_to_itself(memory, half, root)
    }

    /// Whether the map maps every table that `other` names to itself, by the entries of `half`.
    pub(crate) fn covers_tables<M: GuestTables>(
        &self,
        memory: &M,
        half: &KernelHalf,
        other: &KernelHalf,
    ) -> bool {
        let itself = |frame| self.maps_to_itself(memory, half, frame);
        other.named().all(|(_, frame)| frame.is_some_and(itself))
    }

    /// Whether a supervisor leaf without reserved bits maps `frame` to itself.
    pub fn maps_to_itself<M: GuestTables>(
        &self,
        memory: &M,
        half: &KernelHalf,
        frame: Gfn,
    ) -> bool {
        let at = self.base + frame.0;
        let top = self.paging.levels();
        if frame.0 >= self.paging.addressable_frames() || at >> (9 * top) != 0 {
            return false;
        }
        let mut entry = half.entry(index(at, top));
        for level in (1..top).rev() {
            let Some(table) = entry.and_then(|e| table_below(memory, self.paging, e)) else {
                return false;
            };
            let below = Entry::load(&table[index(at, level)]);
            if level == 1 || below.is_large() {
                let first = leaf(self.paging, below, level);
                return first.is_some_and(|first| first + at % pages(level) == frame.0);
            }
            entry = Some(below);
        }
        false
    }

    /// Whether the map lies where kernels without KASLR have it. There the tables of one boot equal those of the
    /// next, and any process in the guest knows what to write to forge one: whether a table is in use cannot be told
    /// from what it holds.
    #[must_use]
    pub fn is_at_default_base(&self) -> bool {
        let mask = (1 << (9 * self.paging.levels())) - 1;
        DEFAULT_BASE
            .iter()
            .any(|base| base >> 12 & mask == self.base)
    }
}

/// The search for the base: each first leaf at or below an entry of level 3 offers one.
struct Search<'a, M> {
    memory: &'a M,
    paging: Paging,
    half: &'a KernelHalf,
    root: Gfn,
    tables_left: u32,
    tries_left: u32,
    wrong: Vec<u64>,
}

impl<'a, M: GuestTables> Search<'a, M> {
    fn run(&mut self) -> Option<DirectMap> {
        let half = self.half;
        let top = self.paging.levels();
        half.named().find_map(|(i, _)| {
            let table = self.below(half.entry(i)?)?;
            self.upper(table, top - 1, (i as u64) << (9 * (top - 1)))
        })
    }

    /// The table that an entry points to. `None` if there is none, or as many tables were read as may be.
    fn below(&mut self, entry: Entry) -> Option<&'a Table> {
        self.tables_left = self.tables_left.checked_sub(1)?;
        table_below(self.memory, self.paging, entry)
    }

    /// Searches a table of level 3 or 4, whose first entry maps the virtual page `first`.
    fn upper(&mut self, table: &'a Table, level: u8, first: u64) -> Option<DirectMap> {
        for (i, slot) in table.iter().enumerate() {
            let entry = Entry::load(slot);
            let at = first + i as u64 * pages(level);
            if !entry.is_present() {
                continue;
            }
            let proven = if level > 3 {
                let below = self.below(entry);
                below.and_then(|below| self.upper(below, level - 1, at))
            } else {
                self.giant(table, entry, at)
            };
            if proven.is_some() {
                return proven;
            }
            if self.tables_left == 0 || self.tries_left == 0 {
                return None;
            }
        }
        None
    }

    /// The direct map whose base an entry of a level 3 table offers, if it is proven.
    fn giant(&mut self, table: &Table, entry: Entry, at: u64) -> Option<DirectMap> {
        if entry.is_large() {
            return self.offer(table, 3, at, entry);
        }
        let table = self.below(entry)?;
        for (i, slot) in table.iter().enumerate() {
            let (entry, at) = (Entry::load(slot), at + i as u64 * pages(2));
            if !entry.is_present() {
                continue;
            }
            if entry.is_large() {
                return self.offer(table, 2, at, entry);
            }
            let Some(table) = self.below(entry) else {
                continue;
            };
            let mut leaves = (at..).zip(table.iter().map(Entry::load));
            if let Some((at, leaf)) = leaves.find(|(_, leaf)| leaf.is_present()) {
                return self.offer(table, 1, at, leaf);
            }
        }
        None
    }

    /// Tries the base at which the first leaf of a table would belong to the direct map.
    fn offer(&mut self, table: &Table, level: u8, at: u64, first: Entry) -> Option<DirectMap> {
        let base = at.checked_sub(leaf(self.paging, first, level)?)?;
        let top = index(base, self.paging.levels());
        if !base.is_multiple_of(GIANT_PAGES) || top < FIRST || self.wrong.contains(&base) {
            return None;
        }
        self.tries_left = self.tries_left.checked_sub(1)?;
        let map = DirectMap {
            base,
            paging: self.paging,
        };
        if !map.covers(self.memory, self.half, self.root) {
            self.wrong.push(base);
            return None;
        }
        map.begins_in(table, level, at).then_some(map)
    }
}

impl DirectMap {
    /// Whether a table, one of whose leaves maps the virtual page `at`, is part of this map: enough leaves, and none
    /// of another map. (A table of level 3 may end the direct map and begin another region.)
    fn begins_in(&self, table: &Table, level: u8, at: u64) -> bool {
        let start = at - at % pages(level + 1);
        let (mut own, mut foreign) = (0, 0);
        for (i, slot) in table.iter().enumerate() {
            let entry = Entry::load(slot);
            if !entry.is_present() || level > 1 && !entry.is_large() {
                continue;
            }
            let at = start + i as u64 * pages(level);
            let is_own = leaf(self.paging, entry, level)
                .is_some_and(|pa| Some(pa) == at.checked_sub(self.base));
            *if is_own { &mut own } else { &mut foreign } += 1;
        }
        own >= MIN_LEAVES && (foreign == 0 || level == 3)
    }
}

/// 4 KiB pages that an entry of a table of this level maps.
fn pages(level: u8) -> u64 {
    1 << (9 * (level - 1))
}

fn index(at: u64, level: u8) -> usize {
    usize::try_from(at >> (9 * (level - 1)) & 511).unwrap_or(0)
}

fn table_below<M: GuestTables>(memory: &M, paging: Paging, entry: Entry) -> Option<&Table> {
    let fits = entry.is_present() && !entry.is_large();
    let frame = entry.frame();
    (fits && frame.0 < paging.addressable_frames())
        .then(|| memory.table(frame))
        .flatten()
}

/// The first frame of a leaf in a table of this level, if it is one for the supervisor without reserved bits.
fn leaf(paging: Paging, entry: Entry, level: u8) -> Option<u64> {
    let first = match level {
        1 => entry.frame().0,
        _ if entry.is_large() => entry.large_frame().0,
        _ => return None,
    };
    let pages = pages(level);
    let fits = first.is_multiple_of(pages) && first + pages <= paging.addressable_frames();
    (entry.is_present() && !entry.is_user() && fits).then_some(first)
}
