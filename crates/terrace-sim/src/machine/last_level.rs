//! The last-level cache of the processor, in front of memory: the lines that it holds, and those that were written.
//!
//! Responsible for: sets of ways with least-recently-used replacement, shared by all vCPUs of all VMs. It leaves to
//! others: the time of a hit and the traffic of a write-back ([`super::vcpu`]), the lines of page tables, for which a
//! part of the real cache is set aside ([`super::lines`]). Lines are those of a load's own memory: a page that moves
//! keeps its lines, and copies of pages do not pass through.

use super::ways::holds_tag;
use crate::base::access::{Access, LINE, LINES_PER_PAGE};
use crate::base::number::{low, to_usize};

/// Most ways of a set: the tags of a set fill one line of the simulator's own processor.
pub const MAX_WAYS: usize = 16;

/// Least sets at any scale. A tag is then unique within its set.
pub const MIN_SETS: u64 = 16;

/// Bits of a line's number: [`crate::base::load::MAX_PAGES`] of 64 lines each.
const LINE_BITS: u32 = 34;

/// Multiplier that spreads line numbers over the sets: 2^34 divided by the golden ratio, made odd so that no two lines
/// have the same product.
const SPREAD: u64 = 0x2_78dd_e6e5;

/// Sets above which they are read ahead: fewer stay in the caches of the machine that runs the simulator.
const READ_AHEAD_SETS: u64 = 1 << 12;

/// The ways of a set, the most recently used first. A way is a tag, and whether the line was written (bit 0).
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Set([u32; MAX_WAYS]);

/// The cache.
#[derive(Clone, Debug)]
pub struct LastLevel {
    sets: Vec<Set>,
    /// Ways in use; those behind them hold nothing.
    ways: usize,
    /// First line of each VM's memory, and of the one that runs.
    firsts: Vec<u64>,
    running: u64,
}

/// The result of an access to the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Touched {
    /// The cache has the line. `dirtied`: the access made it dirty.
    Hit {
        /// Whether the line was clean before and is dirty now.
        dirtied: bool,
    },
    /// The line comes from memory.
    Miss,
}

impl LastLevel {
    /// An empty cache of so many bytes, at least [`MIN_SETS`] sets. `pages`: 4 KiB pages of each VM's load.
    #[must_use]
    pub fn new(bytes: u64, ways: u32, pages: impl Iterator<Item = u64>) -> Self {
        let ways = u64::from(ways).clamp(1, MAX_WAYS as u64);
        let sets = (bytes / (LINE * ways)).max(MIN_SETS);
        let mut end = 0;
        let first = |pages: u64| {
            let first = end;
            end += pages * LINES_PER_PAGE;
            first
        };
        Self {
            sets: (0..sets).map(|set| Set::empty(set, sets)).collect(),
            ways: to_usize(ways),
            firsts: pages.map(first).collect(),
            running: 0,
        }
    }

    /// Switches to the VM (by its place) whose vCPUs run from now on.
    pub fn serve(&mut self, vm: usize) {
        self.running = self.firsts.get(vm).copied().unwrap_or(0);
    }

    /// The set of an access of the running VM, and its line's tag there, shifted past the dirty bit.
    #[inline]
    fn place(&self, access: Access) -> (usize, u32) {
        let spread = (self.running + access.line_number()).wrapping_mul(SPREAD);
        let spread = spread & ((1 << LINE_BITS) - 1);
        let set = (spread * self.sets.len() as u64) >> LINE_BITS;
        (to_usize(set), tag(spread))
    }

    /// Accesses a line of the running VM. Afterwards the cache has it.
    #[inline(always)]
    pub fn touch(&mut self, access: Access) -> Touched {
        let (set, tag) = self.place(access);
        let written = u32::from(access.is_write());
        let Set(ways) = &mut self.sets[set];
        if !holds_tag(&ways.map(|way| way & !1), tag) {
            // All ways move in one copy of fixed size, and those behind the last one stay as they are.
            let behind = ways.get(self.ways).copied();
            ways.copy_within(..MAX_WAYS - 1, 1);
            ways[0] = tag | written;
            if let Some(behind) = behind {
                ways[self.ways] = behind;
            }
            return Touched::Miss;
        }
        let was = to_front(ways, tag);
        ways[0] = was | written;
        Touched::Hit {
            dirtied: was & 1 < written,
        }
    }

    /// Whether sets are read ahead.
    #[must_use]
    pub fn reads_ahead(&self) -> bool {
        self.sets.len() as u64 > READ_AHEAD_SETS
    }

    /// Reads the set of an access, so that it is in the caches of the machine that runs the simulator.
    #[must_use]
    #[inline]
    pub fn peek(&self, access: Access) -> u32 {
        self.sets[self.place(access).0].0[0]
    }

    /// Bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> u64 {
        let bytes = self.sets.capacity() * size_of::<Set>() + self.firsts.capacity() * 8;
        bytes as u64
    }
}

/// Moves the way that holds a line to the front; returns it. Not inlined, or the search would be merged with the one
/// before, which is of all ways at once.
#[inline(never)]
fn to_front(ways: &mut [u32; MAX_WAYS], tag: u32) -> u32 {
    let found = ways.iter().position(|way| *way & !1 == tag).unwrap_or(0);
    let was = ways[found];
    ways.copy_within(..found, 1);
    was
}

/// The part of a spread line number that is unique within a set, shifted past the dirty bit.
#[inline]
fn tag(spread: u64) -> u32 {
    low(spread << 1 & u64::from(u32::MAX))
}

impl Set {
    /// A set of ways that hold nothing: their tag is that of the last line of the set before, which never comes here.
    fn empty(set: u64, sets: u64) -> Self {
        let first = (set << LINE_BITS).div_ceil(sets);
        Self([tag(first.wrapping_sub(1)); MAX_WAYS])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache of the least size, with so many ways, before one VM.
    fn small(ways: u32) -> LastLevel {
        LastLevel::new(1, ways, [1 << 28].into_iter())
    }

    fn is_hit(touched: Touched) -> bool {
        touched != Touched::Miss
    }

    /// The same cache, with whole line numbers.
    #[derive(Default)]
    struct Naive(std::collections::BTreeMap<usize, Vec<(u64, bool)>>);

    impl Naive {
        fn touch(&mut self, set: usize, ways: usize, access: Access) -> Touched {
            let set = self.0.entry(set).or_default();
            let line = access.line_number();
            let found = set.iter().position(|(held, _)| *held == line);
            let was = found.map(|at| set.remove(at).1);
            set.insert(0, (line, was == Some(true) || access.is_write()));
            set.truncate(ways);
            match was {
                Some(dirty) => Touched::Hit {
                    dirtied: access.is_write() && !dirty,
                },
                None => Touched::Miss,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        #[test]
        fn it_holds_what_a_naive_one_holds(
            ways in 1_u32..17,
            bytes in 0_u64..200_000,
            pages in prop_oneof![Just(4_u64), Just(64), Just(1 << 28)],
            draws in proptest::collection::vec((any::<u64>(), any::<bool>()), 1..600),
        ) {
            let mut cache = LastLevel::new(bytes, ways, [pages].into_iter());
            let mut naive = Naive::default();
            for (draw, write) in draws {
                let access = Access::new((draw >> 6) % pages, draw & 63, write);
                let set = cache.place(access).0;
                let expected = naive.touch(set, ways as usize, access);
                prop_assert_eq!(cache.touch(access), expected);
            }
        }
    }

    #[test]
    fn a_line_is_dirtied_once_while_it_is_cached() {
        let mut cache = small(2);
        let mut touch = |line, write| cache.touch(Access::new(0, line, write));
        assert_eq!(touch(0, false), Touched::Miss);
        assert_eq!(touch(0, true), Touched::Hit { dirtied: true });
        assert_eq!(touch(0, true), Touched::Hit { dirtied: false });
        assert_eq!(touch(1, true), Touched::Miss);
        assert_eq!(touch(1, true), Touched::Hit { dirtied: false });
    }

    #[test]
    fn what_fits_stays_and_what_does_not_goes() {
        let bytes = 1 << 20;
        let mut cache = LastLevel::new(bytes, 16, [1 << 12].into_iter());
        let mut pass = |pages: u64| {
            let lines = (0..pages * 64).map(|n| Access::new(n / 64, n % 64, false));
            lines.filter(|access| is_hit(cache.touch(*access))).count()
        };
        assert_eq!([pass(128), pass(128)], [0, 128 * 64]);
        // Twice the cache, line after line: the least recently used line is always the one that comes next.
        pass(512);
        assert!(pass(512) < 64);
    }

    #[test]
    fn vms_have_lines_of_their_own() {
        let mut cache = LastLevel::new(1 << 20, 11, [8, 8].into_iter());
        let access = Access::new(3, 5, false);
        let hits = [0, 1, 0, 1].map(|vm| {
            cache.serve(vm);
            is_hit(cache.touch(access))
        });
        assert_eq!(hits, [false, false, true, true]);
    }

    #[test]
    fn an_empty_cache_holds_no_line_at_all() {
        // The lines whose tags are all ones or all zeros, found by the inverse of the multiplier.
        let mut inverse: u64 = 1;
        for _ in 0..6 {
            let product = SPREAD.wrapping_mul(inverse);
            inverse = inverse.wrapping_mul(2_u64.wrapping_sub(product));
        }
        for sets in [MIN_SETS, 36, 576, 36_864] {
            let mut cache = LastLevel::new(sets * 11 * LINE, 11, [1 << 28].into_iter());
            for high in 0..8_u64 {
                for spread in [high << 31, (high << 31).wrapping_sub(1)] {
                    let line = spread.wrapping_mul(inverse) & ((1 << LINE_BITS) - 1);
                    let access = Access::new(line / 64, line % 64, false);
                    assert_eq!(cache.touch(access), Touched::Miss);
                }
            }
        }
    }
}
