//! A guest that maps, unmaps and touches pages between scans: a scan must report as accessed exactly what was
//! accessed since it was last re-armed, pruned or not.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its numbers are small"
)]

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{bitmap, load, paging, request, store, wanted};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_pagetable::entry::{ADDRESS, PRESENT, USER, WRITABLE};
use terrace_pagetable::{GuestTables, Leaf, LeafSize, Paging, Scanner, SimulatedMemory};
use terrace_proto::{Gfn, PageBitmap, Rearm, ScanRequest, Vpn};

const FRAMES: u64 = 2 * 262_144;
/// Table pages are taken from here up; data below.
const FIRST_TABLE: u64 = FRAMES - 4_096;

struct Guest {
    random: Xoshiro256PlusPlus,
    memory: SimulatedMemory,
    paging: Paging,
    roots: Vec<Gfn>,
    next_table: u64,
    /// Leaf entries by table and index (a shared table's leaves are there once), with what they map.
    leaves: BTreeMap<(u64, usize), Leaf>,
    /// Leaf entries that were accessed since their last clearing.
    accessed: BTreeSet<(u64, usize)>,
}

impl Guest {
    fn new(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let mut memory = SimulatedMemory::new(FRAMES);
        let roots: Vec<_> = (0..1 + random.next_u64() % 3)
            .map(|n| Gfn(FIRST_TABLE + n))
            .collect();
        for root in &roots {
            memory.add_table(*root).unwrap();
        }
        let levels = 4 + u8::from(random.next_u64() & 1 == 1);
        Self {
            random,
            memory,
            paging: paging(levels, 0),
            next_table: FIRST_TABLE + roots.len() as u64,
            roots,
            leaves: BTreeMap::new(),
            accessed: BTreeSet::new(),
        }
    }

    fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    /// One of the address spaces.
    fn space(&mut self) -> Paging {
        let n = self.below(self.roots.len() as u64) as usize;
        self.paging.with_root(self.roots[n])
    }

    /// A page in one of a few places, so that pages meet in tables at every level.
    fn place(&mut self) -> Vpn {
        let top = self.below(2) << 27;
        Vpn(top | self.below(2) << 18 | self.below(3) << 9 | (self.below(12) * 43))
    }

    fn map_some(&mut self) {
        for _ in 0..self.below(25) {
            let (space, at) = (self.space(), self.place());
            let size = match self.below(12) {
                0 => LeafSize::Giant,
                1 | 2 => LeafSize::Huge,
                _ => LeafSize::Base,
            };
            let pages = size.base_pages();
            // Few frames, so that some are mapped more than once.
            let frame = Gfn(self.below(FRAMES / 2 / pages).min(40) * pages);
            let entry = WRITABLE;
            let free =
                self.memory.lookup(space, at).is_none() && !self.is_table_slot(space, at, size);
            let next = &mut self.next_table;
            let mut new_table = || {
                *next += 1;
                Some(Gfn(*next))
            };
            let leaf = Leaf { frame, size, entry };
            if free {
                self.memory.map(space, at, leaf, &mut new_table).unwrap();
                let slot = self.slot(space, at).unwrap();
                self.leaves.insert(slot, leaf);
            }
        }
    }

    /// Whether the entry that a leaf would go to is a table's.
    fn is_table_slot(&self, space: Paging, at: Vpn, size: LeafSize) -> bool {
        self.slot_at(space, at, size.level())
            .is_some_and(|(frame, index)| load(&self.memory, frame, index) & PRESENT != 0)
    }

    /// The frame of the table of `level` that holds the entry for `at`, and the index there.
    fn slot_at(&self, space: Paging, at: Vpn, level: u8) -> Option<(u64, usize)> {
        let mut frame = space.root().0;
        for l in (level..=space.levels()).rev() {
            let index = (at.0 >> (9 * (l - 1)) & 511) as usize;
            if l == level {
                return Some((frame, index));
            }
            let entry = load(&self.memory, frame, index);
            if entry & PRESENT == 0 || entry & 0x80 != 0 {
                return None;
            }
            frame = (entry & ADDRESS) >> 12;
        }
        None
    }

    fn slot(&self, space: Paging, at: Vpn) -> Option<(u64, usize)> {
        let leaf = self.memory.lookup(space, at)?;
        self.slot_at(space, at, leaf.size.level())
    }

    /// Makes a second entry point to an existing table of the level below it.
    fn share_some(&mut self) {
        let (from, to) = (self.space(), self.space());
        let (this, other) = (self.place(), self.place());
        let level = 2 + self.below(u64::from(self.paging.levels()) - 1) as u8;
        let (Some(source), Some(target)) = (
            self.slot_at(from, this, level),
            self.slot_at(to, other, level),
        ) else {
            return;
        };
        let link = load(&self.memory, source.0, source.1);
        let free = load(&self.memory, target.0, target.1) & PRESENT == 0;
        if free && link & PRESENT != 0 && link & 0x80 == 0 {
            let address = link & ADDRESS;
            store(
                &self.memory,
                target.0,
                target.1,
                address | PRESENT | USER | WRITABLE,
            );
        }
    }

    fn touch_some(&mut self) {
        for _ in 0..self.below(20) {
            let (space, at, write) = (self.space(), self.place(), self.below(2) == 1);
            if self.memory.touch(space, at, write).is_some() {
                self.accessed.insert(self.slot(space, at).unwrap());
            }
        }
    }

    fn unmap_some(&mut self) {
        for _ in 0..self.below(4) {
            let (space, at) = (self.space(), self.place());
            if let Some(slot) = self.slot(space, at) {
                self.memory.unmap(space, at);
                self.leaves.remove(&slot);
                self.accessed.remove(&slot);
            }
        }
    }

    fn pages<'a>(&'a self, slots: impl Iterator<Item = &'a (u64, usize)>) -> PageBitmap {
        let mut pages = PageBitmap::new(FRAMES);
        for leaf in slots.map(|slot| self.leaves[slot]) {
            pages.set_range(leaf.frame.0, leaf.size.base_pages());
        }
        pages
    }

    fn scan(&mut self, scanner: &mut Scanner, request: &ScanRequest, say: &str) {
        let answer = scanner.scan(&self.memory, self.paging, &self.roots, request);
        let want = self.pages(self.accessed.iter());
        assert_eq!(answer.accessed, want, "{say}");
        if !request.prune {
            let want = self.pages(self.leaves.keys());
            assert_eq!(answer.known, want, "{say}");
        }
        assert_eq!(answer.stats.lost_races, 0);
        let leaves = &self.leaves;
        self.accessed.retain(|slot| {
            let leaf = leaves[slot];
            !wanted(&request.rearm, leaf.frame.0, leaf.size.base_pages())
        });
    }
}

#[test]
fn scans_report_exactly_the_pages_accessed_since_rearming() {
    let mut reported = 0;
    for seed in 0..crate::common::cases() {
        let mut guest = Guest::new(seed);
        let mut scanner = Scanner::new(guest.memory.frames());
        for turn in 0..6 {
            guest.map_some();
            if turn == 0 {
                guest.share_some();
                guest.map_some();
            }
            guest.touch_some();
            let rearm = match guest.below(6) {
                0 => Rearm::None,
                1..3 => Rearm::All,
                _ => {
                    let pages: Vec<_> = (0..30).map(|n| guest.below([48, 20_480][n % 2])).collect();
                    Rearm::Only(bitmap(FRAMES, pages))
                }
            };
            reported += guest.accessed.len();
            let request = request(guest.below(3) > 0, rearm);
            guest.scan(&mut scanner, &request, &format!("seed {seed}, turn {turn}"));
            guest.unmap_some();
        }
    }
    assert!(reported > 10_000, "{reported}");
}
