//! The page of a managed process that lies in each frame: 4 bytes for each frame of the guest that has one.
//!
//! An entry is the place of the page's block of 2 MiB in a list, and the page's place in that block. Entries are made anew
//! one after the other, so that those that were not reached yet still serve; each has a bit for the pass that made it.

use serde::{Deserialize, Serialize};
use terrace_proto::{Gfn, PAGES_PER_HUGE};

/// Frames whose entries lie together: one page of them is there or not.
const FRAMES: usize = 1024;
/// The bit of an entry that says in which of two passes in turn it was made.
const PASS: u32 = 1 << 31;
/// Bits of a block's number in the list that names it; the process's place stands above them.
const BLOCK_BITS: u32 = 44;
/// Most blocks of a pass: those of 8 TiB of processes' memory, as far as they are touched.
const MOST_BLOCKS: usize = (PASS as u64 / PAGES_PER_HUGE) as usize - 1;

/// Most parts: those of 64 TiB of memory.
const MOST_PARTS: u64 = 1 << 24;

/// A page of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The process.
    pub process: u32,
    /// Number of the virtual page.
    pub page: u64,
}

/// The extent of an index, and what it took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct IndexSize {
    /// Pages of managed processes that it has, 4 KiB each.
    pub pages: u64,
    /// Pages that it does not have: they lie beyond the guest's memory as it was when the agent started, or the index has no
    /// room for them.
    pub left_out: u64,
    /// Memory that it takes, bytes.
    pub bytes: u64,
    /// Memory that it may take, bytes; 0 if nothing limits it.
    pub limit_bytes: u64,
    /// CPU time of the last pass over all pages, ns.
    pub pass_ns: u64,
}

type Part = [u32; FRAMES];

/// The pages by their frames, each as it was when its entry was made.
#[derive(Clone, Default)]
pub struct Index {
    parts: Vec<Option<Box<Part>>>,
    /// Parts that are there.
    present: u64,
    /// The processes and blocks of two passes; even ones and odd ones take turns.
    blocks: [Blocks; 2],
    /// 0 or [`PASS`].
    pass: u32,
    memory_end: Gfn,
    /// Bytes that it may take.
    limit: u64,
    /// Pages that were found in this pass, and those that were left out.
    found: (u64, u64),
}

/// The blocks of one pass.
#[derive(Clone, Default)]
struct Blocks {
    processes: Vec<u32>,
    list: Vec<u64>,
}

impl Blocks {
    fn bytes(&self) -> u64 {
        (self.list.capacity() * size_of::<u64>() + self.processes.capacity() * size_of::<u32>())
            as u64
    }
}

impl std::fmt::Debug for Index {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Index")
            .field("found", &self.found)
            .field("bytes", &self.bytes())
            .finish_non_exhaustive()
    }
}

impl Index {
    /// An index of memory up to this frame that knows no page yet and takes so many bytes at most.
    #[must_use]
    pub fn new(memory_end: Gfn, limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(u64::MAX);
        let parts = memory_end.0.div_ceil(FRAMES as u64);
        // Most of it is for the parts, not for the list of them.
        let most = (limit / 16 / size_of::<Option<Box<Part>>>() as u64).min(MOST_PARTS);
        let parts = usize::try_from(parts.min(most)).unwrap_or(0);
        Self {
            parts: vec![None; parts],
            memory_end,
            limit,
            ..Self::default()
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let parts = self.parts.capacity() * size_of::<Option<Box<Part>>>();
        let blocks = self.blocks.iter().map(Blocks::bytes).sum::<u64>();
        parts as u64 + self.present * size_of::<Part>() as u64 + blocks
    }

    /// Pages that were found in this pass, and those that were left out.
    #[must_use]
    pub fn found(&self) -> (u64, u64) {
        self.found
    }

    /// From now on pages of this process are put in.
    pub fn begin_process(&mut self, process: u32) {
        self.making().processes.push(process);
    }

    /// Puts in pages of the process that was begun, by their numbers, in ascending order.
    pub fn put(&mut self, pages: impl Iterator<Item = (u64, Gfn)>) {
        let mut block = None;
        for (page, gfn) in pages {
            let number = page / PAGES_PER_HUGE;
            if block.is_none_or(|(of, _)| of != number) {
                block = self.add_block(number).map(|at| (number, at));
            }
            let is_in = block.is_some_and(|(_, at)| {
                let inside = u32::try_from(page % PAGES_PER_HUGE).unwrap_or(0);
                let entry = 1 + at * BLOCK_PAGES + inside;
                self.set(gfn, entry | self.pass)
            });
            match is_in {
                true => self.found.0 += 1,
                false => self.left_out(1),
            }
        }
    }

    /// Counts pages that are not put in.
    pub fn left_out(&mut self, pages: u64) {
        self.found.1 += pages;
    }

    /// Ends a pass: what it did not find again is forgotten. Returns how many pages it found, and how many it left out.
    pub fn end_pass(&mut self) -> (u64, u64) {
        for part in &mut self.parts {
            let Some(entries) = part else { continue };
            let mut is_used = false;
            for entry in entries.iter_mut() {
                if *entry & PASS != self.pass {
                    *entry = 0;
                }
                is_used |= *entry != 0;
            }
            if !is_used {
                *part = None;
                self.present -= 1;
            }
        }
        self.pass ^= PASS;
        *self.making() = Blocks::default();
        std::mem::take(&mut self.found)
    }

    /// The page that lay in a frame.
    #[must_use]
    pub fn get(&self, frame: Gfn) -> Option<Place> {
        let at = usize::try_from(frame.0).ok()?;
        let part = self.parts.get(at / FRAMES)?.as_ref()?;
        let entry = *part.get(at % FRAMES)?;
        let number = (entry & !PASS).checked_sub(1)?;
        let blocks = &self.blocks[usize::from(entry & PASS != 0)];
        let block = *blocks
            .list
            .get(usize::try_from(number / BLOCK_PAGES).ok()?)?;
        let process = usize::try_from(block >> BLOCK_BITS).ok()?;
        let first = (block & ((1 << BLOCK_BITS) - 1)) * PAGES_PER_HUGE;
        Some(Place {
            process: *blocks.processes.get(process)?,
            page: first + u64::from(number % BLOCK_PAGES),
        })
    }

    /// All frames in which a page lay, with that page.
    pub fn iter(&self) -> impl Iterator<Item = (Gfn, Place)> {
        let frames = 0..(self.parts.len() * FRAMES) as u64;
        frames.filter_map(|n| Some((Gfn(n), self.get(Gfn(n))?)))
    }

    fn making(&mut self) -> &mut Blocks {
        &mut self.blocks[usize::from(self.pass != 0)]
    }

    /// Adds a block of the process that was begun; returns its place. `None` if there is no room for it.
    fn add_block(&mut self, number: u64) -> Option<u32> {
        let is_full = self.bytes() >= self.limit;
        let blocks = self.making();
        let process = (blocks.processes.len() as u64).checked_sub(1)?;
        let at = blocks.list.len();
        if is_full || at >= MOST_BLOCKS || number >> BLOCK_BITS != 0 || process >> 20 != 0 {
            return None;
        }
        blocks.list.push(process << BLOCK_BITS | number);
        u32::try_from(at).ok()
    }

    /// Sets an entry, if there is room for it.
    fn set(&mut self, gfn: Gfn, entry: u32) -> bool {
        let at = usize::try_from(gfn.0).unwrap_or(usize::MAX);
        let is_there = match self.parts.get(at / FRAMES) {
            Some(part) if gfn < self.memory_end => part.is_some(),
            _ => return false,
        };
        if !is_there && self.bytes().saturating_add(size_of::<Part>() as u64) > self.limit {
            return false;
        }
        let Some(part) = self.parts.get_mut(at / FRAMES) else {
            return false;
        };
        let present = &mut self.present;
        let part = part.get_or_insert_with(|| {
            *present += 1;
            Box::new([0; FRAMES])
        });
        part[at % FRAMES] = entry;
        true
    }
}

/// Pages of a block.
#[expect(clippy::cast_possible_truncation, reason = "512")]
const BLOCK_PAGES: u32 = PAGES_PER_HUGE as u32;
