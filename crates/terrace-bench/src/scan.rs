//! The cost of a scan: the real [`Scanner`] over simulated memory, beside a baseline over the same bytes.
//!
//! The guest: 32 GiB mapped by 64 MiB of leaf tables (16,384 tables of 512 entries), each page once.
//! Its frames lie as a buddy allocator leaves them: three quarters of the tables map one aligned run of
//! 512 frames; in the rest, 2 MiB blocks were cut into runs of 8 to 64 frames, and these runs are dealt
//! out in random order over the whole guest.
//!
//! Every scan re-arms all pages and produces all bitmaps. Accessed bits are set again between the runs,
//! by page walks as a processor does them; that is not timed.

use std::sync::atomic::Ordering::Relaxed;

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_pagetable::entry::{ACCESSED, WRITABLE};
use terrace_pagetable::linux::Kernel;
use terrace_pagetable::{
    GuestTables as _, Leaf, LeafSize, Paging, Scanner, SimulatedMemory, Table, Vectors, maps_users,
    prove,
};
use terrace_proto::{
    Gfn, PagingRegisters, Part, PartAnswer, PartRequest, Rearm, RequestId, ScanAnswer, ScanRequest,
    Space, VmId, Vpn,
};

use crate::measured::{Cost, Measured, timed};

const LEAF_TABLES: u64 = 16_384;
const PER_TABLE: u64 = 512;
const PAGES: u64 = LEAF_TABLES * PER_TABLE;
const GIB: f64 = (PAGES / (1 << 18)) as f64;
/// One leaf table in this many maps frames that do not all follow each other.
const FRAGMENTED: u64 = 4;
const ROOT: Gfn = Gfn(PAGES);
/// Processes of which nothing is scanned: telling their tables from data costs the same.
const PROCESSES: u64 = 256;
/// A kernel that maps all frames, those of tables included. Its direct map takes one table of level 3, 33 of level 2
/// and one of level 1; its text two.
const KERNEL: Kernel = Kernel {
    base: 0xffff_9c40_4000_0000,
    gib: (PAGES >> 18) + 1,
    giant: false,
};
const KERNEL_TABLES: u64 = 37;

/// `scan_leaf_ns`: a full scan when `percent` of the pages, chosen at random, were accessed; the baseline sums the
/// entries of the same leaf tables. ns per entry.
#[must_use]
pub fn scan_leaf(percent: u64) -> Measured {
    scan_leaf_by(None, percent)
}

/// The same by these instructions; the widest of this machine if none are named.
#[must_use]
pub fn scan_leaf_by(vectors: Option<Vectors>, percent: u64) -> Measured {
    let mut guest = Guest::by(vectors);
    measure(&mut guest, |guest| {
        guest.touch_random(percent);
        let scan = timed(|| guest.scan(false).stats.accessed);
        let sum = timed(|| {
            guest
                .memory
                .tables_mut()
                .map(sum)
                .fold(0, u64::wrapping_add)
        });
        (scan, sum)
    })
    .per(PAGES as f64)
}

/// `scan_leaf_all_ns`: the same with every page accessed; the baseline is one compare-exchange per entry
/// that nothing contends for. ns per entry.
#[must_use]
pub fn scan_leaf_all() -> Measured {
    scan_leaf_all_by(None)
}

/// The same by these instructions; the widest of this machine if none are named.
#[must_use]
pub fn scan_leaf_all_by(vectors: Option<Vectors>) -> Measured {
    let mut guest = Guest::by(vectors);
    measure(&mut guest, |guest| {
        guest.touch_random(100);
        let scan = timed(|| guest.scan(false).stats.cleared);
        guest.touch_random(100);
        let exchange = timed(|| guest.memory.tables_mut().map(exchange).sum::<u64>());
        (scan, exchange)
    })
    .per(PAGES as f64)
}

/// `scan_pruned_ns_per_gib`: one leaf table in sixteen, all of them neighbours, has half of its pages
/// accessed; a pruned scan, and a full one as the baseline. ns per GiB of guest memory.
#[must_use]
pub fn scan_pruned() -> Measured {
    let mut guest = Guest::new();
    guest.scan(false);
    measure(&mut guest, |guest| {
        guest.touch_cluster();
        let pruned = timed(|| guest.scan(true).stats.accessed);
        guest.touch_cluster();
        let full = timed(|| guest.scan(false).stats.accessed);
        (pruned, full)
    })
    .per(GIB)
}

/// `scan_sampled_ns_per_gib`: one leaf table in sixteen, drawn anew for each run, is read and re-armed, a tenth of all pages
/// accessed; the baseline is the full scan. ns per GiB of guest memory.
#[must_use]
pub fn scan_sampled() -> Measured {
    let mut guest = Guest::new();
    guest.scan_part(Part::new(0, 4, 0).expect("there is one"), true);
    let mut seed = 0;
    measure(&mut guest, |guest| {
        guest.touch_random(10);
        seed += 1;
        let part = Part::new(seed, 4, 0).expect("there is one");
        let sampled = timed(|| guest.scan_part(part, true).stats.accessed);
        guest.touch_random(10);
        let full = timed(|| guest.scan(false).stats.accessed);
        (sampled, full)
    })
    .per(GIB)
}

/// The cost of windows that belong to parts of a guest of 64 GiB: each part is cleared and, a window later, read, and the parts
/// take turns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PartWindows {
    /// Number of parts.
    pub parts: u32,
    /// CPU time of clearing a part and of reading it, ns; the least of several turns over all parts, per part.
    pub clear_ns: f64,
    /// The same of reading it after its window.
    pub read_ns: f64,
}

/// Clears and reads each of so many parts (a power of two) in turn, a tenth of its pages accessed in between, and measures the
/// passes. A page's window is meant to be so short that nothing else is.
#[must_use]
pub fn part_windows(shift: u8) -> PartWindows {
    let mut guest = Guest::new();
    let (mut clear, mut read) = (f64::INFINITY, f64::INFINITY);
    let parts = f64::from(1_u32 << shift);
    for seed in 0..3 {
        let (mut clear_sum, mut read_sum) = (0.0, 0.0);
        guest.touch_random(10);
        let first = Part::new(seed, shift, 0).ok();
        for part in std::iter::successors(first, |part| part.next()) {
            clear_sum += timed(|| guest.scan_part(part, true).stats.cleared).ns;
        }
        guest.touch_random(10);
        for part in std::iter::successors(first, |part| part.next()) {
            read_sum += timed(|| guest.scan_part(part, false).cells.len()).ns;
        }
        clear = clear.min(clear_sum / parts);
        read = read.min(read_sum / parts);
    }
    // The guest has 32 GiB.
    PartWindows {
        parts: 1 << shift,
        clear_ns: clear * 2.0,
        read_ns: read * 2.0,
    }
}

/// A full scan with a tenth of the pages accessed by so many threads (a power of two), each with its share of the leaf tables; one thread is the
/// baseline. ns of wall time.
#[must_use]
pub fn side_by_side(threads: u8) -> Measured {
    let mut guest = Guest::new();
    let shift = u8::try_from(threads.max(1).ilog2()).unwrap_or(0);
    let frames = guest.memory.frames();
    let mut shares: Vec<(Part, Scanner)> = (0..1 << shift)
        .filter_map(|index| Part::new(0, shift, index).ok())
        .map(|part| (part, Scanner::new(frames)))
        .collect();
    measure(&mut guest, |guest| {
        guest.touch_random(10);
        let all = request(false);
        let (memory, paging) = (&guest.memory, guest.paging);
        let together = timed(|| {
            std::thread::scope(|running| {
                for (part, scanner) in &mut shares {
                    let work = (&all, *part);
                    running
                        .spawn(move || scanner.scan_share(memory, paging, &[ROOT], work, |_| true));
                }
            });
        });
        guest.touch_random(10);
        let alone = timed(|| guest.scan(false).stats.accessed);
        (together, alone)
    })
}

/// `root_proof_ns`: the work before a scan may walk: the direct map is found and proven for the table that a register
/// names, and 256 more tables with the same kernel half are looked at; the baseline is the full scan. ns each.
#[must_use]
pub fn root_proof() -> Measured {
    let mut guest = Guest::new();
    let roots = guest.add_processes();
    measure(&mut guest, |guest| {
        guest.touch_random(10);
        let proof = timed(|| guest.prove(&roots));
        let scan = timed(|| guest.scan(false).stats.accessed);
        (proof, scan)
    })
}

/// The sum of a table's words: the cost of reading it at all.
fn sum(table: &mut Table) -> u64 {
    table
        .iter_mut()
        .fold(0, |sum, word| sum.wrapping_add(*word.get_mut()))
}

fn exchange(table: &mut Table) -> u64 {
    let done = |slot: &&mut std::sync::atomic::AtomicU64| {
        let seen = slot.load(Relaxed);
        slot.compare_exchange(seen, seen & !ACCESSED, Relaxed, Relaxed)
            .is_ok()
    };
    table.iter_mut().filter(done).count() as u64
}

fn measure(guest: &mut Guest, mut run: impl FnMut(&mut Guest) -> (Cost, Cost)) -> Measured {
    Measured::in_turns(|_| run(guest))
}

/// A number as an index; this bench's numbers fit.
fn position(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

struct Guest {
    memory: SimulatedMemory,
    paging: Paging,
    scanner: Scanner,
    random: Xoshiro256PlusPlus,
}

impl Guest {
    fn by(vectors: Option<Vectors>) -> Self {
        let mut guest = Self::new();
        vectors
            .into_iter()
            .for_each(|vectors| guest.scanner.use_vectors(vectors));
        guest
    }

    fn new() -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(1);
        let registers = PagingRegisters {
            cr0: 1 << 31,
            cr3: ROOT.gpa().0,
            cr4: 1 << 5,
            efer: 1 << 10,
        };
        let paging = Paging::from_registers(registers).expect("four levels");
        // Each leaf table, 32 level 2 tables, one of level 3, the root.
        let mut memory = SimulatedMemory::new(PAGES + LEAF_TABLES + 34 + KERNEL_TABLES + PROCESSES);
        let mut tables = (ROOT.0..).map(Gfn);
        let mut new_table = || tables.next();
        let root = new_table().map(|frame| memory.add_table(frame));
        assert_eq!(root, Some(Ok(())));
        for (at, frame) in (0..).map(Vpn).zip(frames(LEAF_TABLES, &mut random)) {
            let leaf = Leaf {
                frame,
                size: LeafSize::Base,
                entry: WRITABLE,
            };
            memory
                .map(paging, at, leaf, &mut new_table)
                .expect("there is room for all tables");
        }
        let scanner = Scanner::new(memory.frames());
        Self {
            memory,
            paging,
            scanner,
            random,
        }
    }

    /// Gives the guest a kernel, and processes beside the one that is scanned.
    fn add_processes(&mut self) -> Vec<Gfn> {
        let mut frames = (PAGES + LEAF_TABLES + 34..self.memory.frames()).map(Gfn);
        KERNEL.map(&mut self.memory, self.paging, ROOT, &mut frames);
        let roots: Vec<Gfn> = frames.take(position(PROCESSES)).collect();
        for root in &roots {
            self.memory.add_table(*root).expect("a free frame");
            let (from, to) = (self.memory.table(ROOT), self.memory.table(*root));
            for (from, to) in from
                .into_iter()
                .zip(to)
                .flat_map(|(from, to)| from.iter().zip(to))
            {
                to.store(from.load(Relaxed), Relaxed);
            }
        }
        roots
    }

    fn prove(&self, roots: &[Gfn]) -> u64 {
        let proven = prove(&self.memory, self.paging, ROOT, |_| None).expect("a Linux kernel");
        let is_root = |root: &&Gfn| {
            let table = self.memory.table(**root);
            table.is_some_and(|table| {
                maps_users(table, self.memory.frames()) && proven.half.is_in(table)
            }) && proven
                .map
                .maps_to_itself(&self.memory, &proven.half, **root)
        };
        let live = roots.iter().filter(is_root).count() as u64;
        assert_eq!(live, PROCESSES);
        live
    }

    fn touch(&mut self, at: u64) {
        self.memory.touch(self.paging, Vpn(at), false);
    }

    fn touch_random(&mut self, percent: u64) {
        for at in 0..PAGES {
            if self.random.next_u64() % 100 < percent {
                self.touch(at);
            }
        }
    }

    fn touch_cluster(&mut self) {
        for at in PAGES / 2..PAGES / 2 + PAGES / 16 {
            if self.random.next_u64() & 1 == 1 {
                self.touch(at);
            }
        }
    }

    fn scan_part(&mut self, part: Part, clear: bool) -> PartAnswer {
        let request = PartRequest {
            id: RequestId(1),
            space: Space::Guest(VmId(1)),
            part,
            clear,
            prune: false,
            discover: false,
        };
        self.scanner
            .scan_part(&self.memory, self.paging, &[ROOT], &request, |_| true)
    }

    fn scan(&mut self, prune: bool) -> ScanAnswer {
        self.scanner
            .scan(&self.memory, self.paging, &[ROOT], &request(prune))
    }
}

fn request(prune: bool) -> ScanRequest {
    ScanRequest {
        id: RequestId(1),
        space: Space::Guest(VmId(1)),
        rearm: Rearm::All,
        prune,
        discover: false,
    }
}

/// The frame of each page, in the order of virtual pages; see the module's text.
fn frames(tables: u64, random: &mut Xoshiro256PlusPlus) -> Vec<Gfn> {
    let mut frames: Vec<_> = (0..tables * PER_TABLE).map(Gfn).collect();
    let fragmented: Vec<_> = (0..tables)
        .filter(|_| random.next_u64().is_multiple_of(FRAGMENTED))
        .collect();
    let mut runs: Vec<&[Gfn]> = Vec::new();
    let whole = frames.clone();
    for table in &fragmented {
        let mut rest = &whole[position(table * PER_TABLE)..position((table + 1) * PER_TABLE)];
        while !rest.is_empty() {
            let len = position(8 + random.next_u64() % 57).min(rest.len());
            let run;
            (run, rest) = rest.split_at(len);
            runs.push(run);
        }
    }
    for i in (1..runs.len()).rev() {
        runs.swap(i, position(random.next_u64() % (i as u64 + 1)));
    }
    let mut dealt = runs.concat().into_iter();
    for table in fragmented {
        let from = position(table * PER_TABLE);
        for (slot, frame) in frames[from..].iter_mut().take(512).zip(&mut dealt) {
            *slot = frame;
        }
    }
    frames
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_frame_is_dealt_out_once_and_most_follow_each_other() {
        let frames = frames(1_024, &mut Xoshiro256PlusPlus::seed_from_u64(1));
        let follow = frames.windows(2).filter(|p| p[1].0 == p[0].0 + 1).count();
        assert!(follow > frames.len() * 98 / 100);
        let broken = frames.chunks(512).filter(|t| t[511].0 != t[0].0 + 511);
        assert!((200..312).contains(&broken.count()));
        let mut sorted = frames;
        sorted.sort_unstable();
        assert!(sorted.into_iter().eq((0..1_024 * 512).map(Gfn)));
    }
}
