//! 64 leaf entries at a time: what they are, as masks, and how their frames run.
//!
//! This is where a scan of cold memory spends its time, so it is written to become vector code on any
//! x86-64: entries are copied first (atomic loads never vectorise), and each mask is gathered by eight
//! lanes that shift by the same amount.

use std::ops::Range;

use crate::entry::{ACCESSED, ADDRESS, DIRTY, PRESENT, USER, WRITABLE};

/// Entries in a chunk.
pub(crate) const CHUNK: usize = 64;

/// The distance of two neighbours' addresses if their frames follow each other.
pub(crate) const STEP: u64 = 1 << 12;

/// Copies of the entries of a table, each read exactly once.
///
/// A whole table and not just a chunk, because vector loads of words that were stored one by one a
/// moment ago have to wait for these stores to reach the cache. Aligned as tables are: the processor
/// compares the addresses of loads with those of pending stores modulo 4 KiB, and at another offset
/// most loads from the table would seem to depend on a store to the copy.
#[repr(align(4096))]
pub(crate) struct Copies([u64; 512]);

impl Copies {
    pub(crate) fn empty() -> Box<Self> {
        Box::new(Self([0; 512]))
    }

    /// The copies, to be filled from a table. (A constructor from a table would build the 4 KiB elsewhere and copy them.)
    #[inline]
    pub(crate) fn all_mut(&mut self) -> &mut [u64; 512] {
        &mut self.0
    }

    #[inline]
    pub(crate) fn chunks(&self) -> [&[u64; CHUNK]; 512 / CHUNK] {
        let chunks = self.0.as_chunks().0;
        std::array::from_fn(|i| &chunks[i])
    }
}

impl Copies {
    /// Whether no entry is present without being for users, as in every table of Linux below the user half.
    #[inline]
    pub(crate) fn are_for_users(&self) -> bool {
        let foreign = (self.0.iter()).fold(0, |all, entry| {
            all | entry & !(entry >> USER.trailing_zeros())
        });
        foreign & PRESENT == 0
    }
}

/// Properties of 64 neighbouring entries; bit `i` of each mask is about entry `i`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Chunk {
    /// Entries that are present and for users.
    pub(crate) user: u64,
    /// The accessed ones among the user entries.
    pub(crate) accessed: u64,
    /// The user entries with W and D; none if nobody asked.
    pub(crate) written: u64,
    /// Entries at which a run of frames begins: the frame is not the successor of the one before.
    pub(crate) starts: u64,
}

impl Chunk {
    #[inline(always)]
    pub(crate) fn of(entries: &[u64; CHUNK], writes: bool) -> Self {
        let lanes = lanes(entries);
        let (user, accessed) = flags(&lanes);
        let written = if writes { user & written(&lanes) } else { 0 };
        let starts = if follows_throughout(entries) {
            1
        } else {
            breaks(entries)
        };
        Self {
            user,
            accessed,
            written,
            starts,
        }
    }

    /// The runs of entries whose frames ascend one by one, those without a user entry left out.
    #[inline]
    pub(crate) fn runs(&self) -> impl Iterator<Item = Range<u32>> + use<> {
        let (mut rest, starts) = (self.user, self.starts);
        std::iter::from_fn(move || {
            if rest == 0 {
                return None;
            }
            let first = rest.trailing_zeros();
            let end = (starts & (u64::MAX - 1) << first).trailing_zeros();
            rest &= !ones(first..end);
            Some(first..end)
        })
    }
}

/// A mask of the bits in `range`, which is not empty and ends at 64 or below.
#[inline]
pub(crate) fn ones(range: Range<u32>) -> u64 {
    u64::MAX >> (64 - (range.end - range.start)) << range.start
}

/// Byte `j` of lane `l` is about entry `8j + l`.
///
/// So all lanes of a row shift by the same amount, which every x86-64 can do in vectors, and bit `k` of
/// all bytes together, each lane shifted by its number, is the mask of property `k` in order.
type Lanes = [u64; 8];

/// The mask that bit 0 of all bytes forms.
#[inline]
fn gather(lanes: &Lanes) -> u64 {
    const EACH: u64 = 0x0101_0101_0101_0101;
    let shifted = lanes.iter().enumerate().map(|(l, lane)| (lane & EACH) << l);
    shifted.fold(0, |mask, bits| mask | bits)
}

/// The lowest flags of each entry in its byte.
#[inline]
fn lanes(entries: &[u64; CHUNK]) -> Lanes {
    const FLAGS: u64 = PRESENT | WRITABLE | USER | ACCESSED | DIRTY;
    let mut lanes = Lanes::default();
    for (row, entries) in entries.as_chunks::<8>().0.iter().enumerate() {
        for (lane, entry) in lanes.iter_mut().zip(entries) {
            *lane |= (entry & FLAGS) << (8 * row);
        }
    }
    lanes
}

/// The masks of user entries and of accessed user entries.
#[inline]
fn flags(lanes: &Lanes) -> (u64, u64) {
    let user = lanes.map(|l| l & l >> USER.trailing_zeros());
    let accessed = lanes.map(|l| l >> ACCESSED.trailing_zeros());
    let user = gather(&user);
    (user, user & gather(&accessed))
}

/// The mask of entries with W and D.
#[inline]
fn written(lanes: &Lanes) -> u64 {
    gather(&lanes.map(|l| l >> DIRTY.trailing_zeros() & l >> WRITABLE.trailing_zeros()))
}

/// Whether all 64 frames are one run.
#[inline]
fn follows_throughout(entries: &[u64; CHUNK]) -> bool {
    let mut differ = 0;
    for (before, entry) in entries.iter().zip(&entries[1..]) {
        differ |= before.wrapping_add(STEP) ^ entry;
    }
    differ & ADDRESS == 0
}

/// The mask of entries whose frame is not the successor of the one before; always with bit 0.
#[inline]
fn breaks(entries: &[u64; CHUNK]) -> u64 {
    let mut differ = [1; CHUNK];
    for (differ, pair) in differ[1..].iter_mut().zip(entries.windows(2)) {
        let address = (pair[0].wrapping_add(STEP) ^ pair[1]) & ADDRESS;
        // 1 if any bit of the address is set: such a sum carries into bit 63, which addresses lack.
        *differ = (address + (u64::MAX >> 1)) >> 63;
    }
    let mut lanes = Lanes::default();
    for (row, differ) in differ.as_chunks::<8>().0.iter().enumerate() {
        for (lane, differ) in lanes.iter_mut().zip(differ) {
            *lane |= differ << (8 * row);
        }
    }
    gather(&lanes)
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// An entry of any kind.
    pub(crate) fn entry() -> impl Strategy<Value = u64> {
        prop_oneof![
            any::<u64>(),
            (0_u64..8, 0_u64..256).prop_map(|(frame, flags)| frame << 12 | flags),
            Just(0),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]
        #[test]
        fn masks_and_runs_equal_those_found_entry_by_entry(
            random in prop::collection::vec(entry(), CHUNK),
            run_from in 0_u64..1 << 40,
            in_run in any::<u64>(),
            whole in any::<bool>(),
        ) {
            let entries: [u64; CHUNK] = std::array::from_fn(|i| {
                let in_order = (run_from + i as u64) << 12 | random[i] & 0xfff;
                if whole || in_run >> i & 1 == 1 { in_order } else { random[i] }
            });
            let chunk = Chunk::of(&entries, true);
            prop_assert_eq!(Chunk::of(&entries, false).written, 0);
            let frame = |i: usize| (entries[i] & ADDRESS) >> 12;
            let mut seen = 0;
            for run in chunk.runs() {
                prop_assert!(run.start < run.end && run.end <= 64);
                for i in run.start..run.end {
                    let offset = u64::from(i - run.start);
                    prop_assert_eq!(frame(i as usize), frame(run.start as usize) + offset);
                }
                prop_assert_eq!(seen & ones(run.clone()), 0);
                seen |= ones(run);
            }
            for (i, e) in entries.iter().enumerate() {
                let user = e & 5 == 5;
                prop_assert_eq!(chunk.user >> i & 1 == 1, user);
                prop_assert_eq!(chunk.accessed >> i & 1 == 1, user && e & 0x20 != 0);
                prop_assert_eq!(chunk.written >> i & 1 == 1, user && e & 0x42 == 0x42);
                prop_assert!(!user || seen >> i & 1 == 1);
            }
        }
    }
}
