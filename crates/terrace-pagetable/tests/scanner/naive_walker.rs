//! The scanner against the naive walker: 1,000 guests of random, often hostile tables, several scans of
//! each with accesses between them. Answers, counters and memory must be equal.
#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    reason = "a test may panic, its numbers are small"
)]

use crate::common::{Naive, bitmap, paging, request, snapshot, store};
use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};
use terrace_pagetable::entry::{ACCESSED, LARGE, LARGE_PAT, PRESENT, USER, WRITABLE};
use terrace_pagetable::{Scanner, SimulatedMemory, Vectors};
use terrace_proto::{Gfn, Rearm, Vpn};

/// Odd ends: inside a bitmap's word, inside a 2 MiB block, room for a 1 GiB leaf in the last two.
const SIZES: [u64; 4] = [600, 1_536, 262_144 + 700, 2 * 262_144];

pub struct Case {
    pub random: Xoshiro256PlusPlus,
    pub memory: SimulatedMemory,
    pub frames: u64,
    pub tables: u64,
}

impl Case {
    pub fn new(seed: u64) -> Self {
        let mut random = Xoshiro256PlusPlus::seed_from_u64(seed);
        let frames = SIZES[(random.next_u64() % 4) as usize];
        let tables = 4 + random.next_u64() % 20;
        let mut memory = SimulatedMemory::new(frames);
        for frame in 0..tables {
            memory.add_table(Gfn(frame)).unwrap();
        }
        let mut case = Self {
            random,
            memory,
            frames,
            tables,
        };
        case.fill();
        case
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.random.next_u64() % end
    }

    /// Fills the tables: some dense, some sparse, one entry in a few of each hostile kind.
    fn fill(&mut self) {
        for table in 0..self.tables {
            let entries = [4, 30, 512][self.below(3) as usize];
            let run = self.below(self.frames);
            for n in 0..entries {
                let index = if entries == 512 { n } else { self.below(512) };
                let entry = self.entry((run + index) % self.frames);
                store(&self.memory, table, index as usize, entry);
            }
        }
    }

    fn entry(&mut self, in_run: u64) -> u64 {
        let a = ACCESSED * self.below(2);
        let w = WRITABLE * self.below(4).min(1);
        let flags = PRESENT | USER | w | a | self.below(16) << 5 & !LARGE;
        let frame = self.below(self.frames);
        match self.below(24) {
            0..8 => in_run << 12 | flags,
            8..13 => self.below(self.tables) << 12 | flags,
            13..15 => frame << 12 | flags,
            15 => (frame & !511) << 12 | flags | LARGE | (LARGE_PAT * self.below(2)),
            16 => (frame >> 18 << 18) << 12 | flags | LARGE,
            17 => frame << 12 | flags | LARGE,
            18 => (self.frames + self.below(2_000)) << 12 | flags,
            19 => frame << 12 | flags | 1 << (36 + self.below(16)),
            20 => frame << 12 | flags & !USER,
            21 => frame << 12 | flags & !PRESENT,
            22 => self.random.next_u64(),
            _ => 0,
        }
    }

    fn rearm(&mut self) -> Rearm {
        let frames = self.frames;
        match self.below(5) {
            0 => Rearm::None,
            1 | 2 => Rearm::All,
            _ => {
                let picks: Vec<_> = (0..self.below(2_000)).map(|_| self.below(frames)).collect();
                Rearm::Only(bitmap(frames, picks))
            }
        }
    }
}

#[test]
fn scans_of_random_tables_equal_those_of_the_naive_walker() {
    let (accessed, written) = scans_equal(false);
    assert!(accessed > crate::common::cases(), "the cases say nothing");
    assert_eq!(written, 0);
}

#[test]
fn scans_that_tell_writes_equal_those_of_the_naive_walker() {
    let (_, written) = scans_equal(true);
    assert!(written > crate::common::cases(), "the cases say nothing");
}

/// Number of pages that were found accessed, and written.
fn scans_equal(writes: bool) -> (u64, u64) {
    let (mut pages_seen, mut pages_written) = (0, 0);
    for seed in 0..crate::common::cases() {
        let mut case = Case::new(seed);
        let levels = 4 + case.below(2) as u8;
        let bits = [36, 40, 52][case.below(3) as usize];
        let paging = paging(levels, 0).with_physical_bits(bits).unwrap();
        let roots: Vec<_> = (0..1 + case.below(3))
            .map(|_| Gfn(case.below(case.tables + 1)))
            .collect();
        let mut scanner = Scanner::new(case.frames);
        // Each width in turn, so that each has its part of the cases.
        let vectors = Vectors::all();
        scanner.use_vectors(vectors[seed as usize % vectors.len()]);
        let mut naive = Naive::new(case.frames, paging);
        if writes {
            scanner.tell_writes(true);
            naive = naive.with_writes();
        }
        for turn in 0..4 {
            let rearm = case.rearm();
            let request = request(turn > 0 && case.below(2) == 1, rearm);
            scanner.name_tables(turn != 2);
            naive.entries = snapshot(&case.memory);
            naive.scan(&roots, &request);
            let answer = scanner.scan(&case.memory, paging, &roots, &request);
            let say = format!("seed {seed}, turn {turn}");
            assert_eq!(answer.stats, naive.stats, "{say}");
            let named = if turn == 2 { &[][..] } else { &naive.named };
            assert_eq!(scanner.take_tables(), named, "{say}");
            assert_eq!(answer.known, naive.known, "{say}");
            assert_eq!(answer.accessed, naive.accessed, "{say}");
            assert_eq!(answer.written, naive.written, "{say}");
            assert_eq!(answer.huge_leaf, naive.huge, "{say}");
            assert_eq!(snapshot(&case.memory), naive.entries, "{say}");
            pages_seen += answer.accessed.count();
            pages_written += answer.written.map_or(0, |w| w.count());
            for _ in 0..case.below(40) {
                let at = Vpn(case.below(1 << 45));
                let root = roots[0];
                case.memory.touch(paging.with_root(root), at, turn == 1);
            }
        }
    }
    (pages_seen, pages_written)
}
