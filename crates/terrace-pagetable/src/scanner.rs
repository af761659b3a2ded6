//! Scans of one VM, and what is carried from one to the next.

use terrace_proto::{
    Gfn, Part, PartAnswer, PartRequest, Rearm, ScanAnswer, ScanRequest, TableFrame,
};

use crate::bits::Bits;
use crate::marks::{LeafBits, PartMarks, WholeMarks};
use crate::memory::GuestTables;
use crate::named::Named;
use crate::paging::Paging;
use crate::pass::{Arm, Guard, Pass, Path};
use crate::vectors::Vectors;
use crate::visited::Visited;

/// Scans the page tables of one VM.
///
/// A scanner keeps what the last full pass knew, because a pruned pass does not see it all: pages that some user
/// mapping had then, or since, stay known until the next full pass. The same holds for which 2 MiB blocks are mapped
/// by huge leaves.
#[derive(Debug)]
pub struct Scanner {
    frames: u64,
    /// Frames that were read as a table in this pass.
    visited: Visited,
    /// Pages that leaves map.
    mapped: LeafBits,
    /// Room for the findings of a pass over a part; none before the first.
    part: Option<PartMarks>,
    /// Scratch: blocks of which some page is to be re-armed.
    rearm_blocks: Bits,
    /// Whether D tells writes and is moved aside.
    writes: bool,
    /// The widest of this machine, unless a test says otherwise.
    vectors: Vectors,
    /// The tables that the last pass named, if it was to.
    named: Option<Named>,
}

impl Scanner {
    /// A scanner of a VM with `frames` guest pages (one more than the highest page number).
    #[must_use]
    pub fn new(frames: u64) -> Self {
        Self {
            frames,
            visited: Visited::new(frames),
            part: None,
            mapped: LeafBits::new(frames),
            rearm_blocks: Bits::new(frames.div_ceil(512)),
            writes: false,
            vectors: Vectors::of_this_machine(),
            named: None,
        }
    }

    /// Makes passes name the tables below which leaves are accessed, or stops that.
    pub fn name_tables(&mut self, on: bool) {
        self.named = on.then(|| Named::new(self.frames));
    }

    /// The tables that were named since this was last called, the upper ones too, in ascending order of their frames, each of them once for each
    /// pass; of more than [`TableFrame::most`] those with the most accessed leaves.
    pub fn take_tables(&mut self) -> Vec<TableFrame> {
        self.named.as_mut().map_or_else(Vec::new, Named::take)
    }

    /// Makes the scanner use other instructions than the widest.
    #[doc(hidden)]
    pub fn use_vectors(&mut self, vectors: Vectors) {
        self.vectors = vectors;
    }

    /// Makes answers say what was written (or stops that), for a guest of which **the operator says that it runs
    /// Linux 6.6 or later**: if a leaf is re-armed its D moves to the software bit that such a kernel takes for D as
    /// well ([`SAVED_DIRTY`](crate::entry::SAVED_DIRTY)). Any other kernel loses data by this.
    pub fn tell_writes(&mut self, on: bool) {
        self.writes = on;
    }

    /// One pass over the address spaces of `roots` (top-level tables; duplicates do no harm).
    /// `request.discover` and registers are the caller's matter; the times in the answer are 0.
    ///
    /// A page is accessed if any of its mappings is; all of its mappings are re-armed. A leaf of 2 MiB or
    /// 1 GiB speaks for all its pages, and is re-armed if any of them is to be. `cleared` counts leaves.
    /// A page is written if a leaf of 4 KiB or 2 MiB that may be written has D, which it has since it was
    /// last re-armed; nothing is said of leaves of 1 GiB.
    ///
    /// With [`Rearm::None`](terrace_proto::Rearm::None) nothing is written at all. Otherwise non-leaf bits are
    /// cleared too, each before the entries below it are read, and set again above anything that keeps its bit (a page
    /// that is not to be re-armed, an entry that the guest changed meanwhile), so that the next pruned pass
    /// comes by.
    pub fn scan<M: GuestTables>(
        &mut self,
        memory: &M,
        paging: Paging,
        roots: &[Gfn],
        request: &ScanRequest,
    ) -> ScanAnswer {
        self.scan_checked(memory, paging, roots, request, |_| true)
    }

    /// [`Scanner::scan`] for a guest that runs: `guard` says whether one of the roots is still a top-level table. It
    /// is asked right before each root is walked and again before each of its subtrees is, because by then the
    /// process may have ended and its table's page may hold anything. The guard ends the pass early if it took too
    /// long to say anything of the guest any more.
    ///
    /// A root, and any table below that the guest took out of use while the pass was in it, is read and
    /// written no further; each of them counts as a lost race.
    pub fn scan_checked<M: GuestTables>(
        &mut self,
        memory: &M,
        paging: Paging,
        roots: &[Gfn],
        request: &ScanRequest,
        guard: impl Guard,
    ) -> ScanAnswer {
        self.scan_of(memory, paging, roots, (request, None), guard)
    }

    /// A part's share of [`Scanner::scan_checked`]: the leaf tables of the part alone, by a scanner that always has that part. The shares of
    /// all parts of a draw together find what a pass over all does, and may be made side by side. Upper tables' accessed
    /// bits are treated as by [`Scanner::scan_part`].
    pub fn scan_share<M: GuestTables>(
        &mut self,
        memory: &M,
        paging: Paging,
        roots: &[Gfn],
        (request, part): (&ScanRequest, Part),
        guard: impl Guard,
    ) -> ScanAnswer {
        self.scan_of(memory, paging, roots, (request, Some(part)), guard)
    }

    fn scan_of<M: GuestTables>(
        &mut self,
        memory: &M,
        paging: Paging,
        roots: &[Gfn],
        (request, part): (&ScanRequest, Option<Part>),
        guard: impl Guard,
    ) -> ScanAnswer {
        self.visited.clear();
        if !request.prune {
            self.mapped.clear();
        }
        let mut pass = Pass {
            memory,
            paging,
            frames: self.frames,
            arm: Arm::new(&request.rearm, &mut self.rearm_blocks),
            prune: request.prune,
            part,
            visited: &mut self.visited,
            marks: WholeMarks {
                mapped: &mut self.mapped,
                accessed: LeafBits::new(self.frames),
                written: self.writes.then(|| LeafBits::new(self.frames)),
            },
            vectors: self.vectors,
            stats: Default::default(),
            path: Path::new(guard, self.named.as_mut()),
            copies: None,
        };
        for root in roots {
            pass.root(*root);
        }
        let Pass { marks, stats, .. } = pass;
        let WholeMarks {
            accessed, written, ..
        } = marks;
        ScanAnswer {
            id: request.id,
            space: request.space,
            known: self.mapped.all(),
            accessed: accessed.into_all(),
            written: written.map(LeafBits::into_all),
            huge_leaf: self.mapped.blocks(),
            stats,
        }
    }

    /// One pass over a part: of the leaf tables only those of the part are read and, if `request.clear` is set, re-armed.
    /// `request.discover` and registers are the caller's matter; the times in the answer are 0.
    ///
    /// Tables above the leaf tables are read whole, and none of their accessed bits is changed but those of the entries that lead to the
    /// part's leaf tables: the others speak of other parts, too.
    pub fn scan_part<M: GuestTables>(
        &mut self,
        memory: &M,
        paging: Paging,
        roots: &[Gfn],
        request: &PartRequest,
        guard: impl Guard,
    ) -> PartAnswer {
        self.visited.clear();
        let frames = self.frames;
        let room = self.part.get_or_insert_with(|| PartMarks::new(frames));
        room.tell_writes(self.writes);
        let rearm = if request.clear {
            Rearm::All
        } else {
            Rearm::None
        };
        let mut pass = Pass {
            memory,
            paging,
            frames,
            arm: Arm::new(&rearm, &mut self.rearm_blocks),
            prune: request.prune,
            part: Some(request.part),
            visited: &mut self.visited,
            marks: &mut *room,
            vectors: self.vectors,
            stats: Default::default(),
            path: Path::new(guard, self.named.as_mut()),
            copies: None,
        };
        for root in roots {
            pass.root(*root);
        }
        let stats = pass.stats;
        let found = room.take();
        PartAnswer {
            id: request.id,
            space: request.space,
            part: request.part,
            cells: found.cells,
            huge: found.huge,
            written: found.written,
            stats,
        }
    }
}
