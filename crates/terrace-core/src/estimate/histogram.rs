//! The buckets of the bucket sort (vTMM §3.3.2): how many units of each degree each tier holds.
//!
//! Responsible for: ranking units block by block, and counting them in one pass. It leaves to others:
//! what follows from the counts ([`crate::place`]).
//!
//! Units are taken in blocks of 512, so that what a pass needs stays in the first-level cache and its
//! inner loops work on bytes. If the unit is 4 KiB and the host backs a block with one huge page,
//! the block is ranked as one: as hot as its hottest page.

use std::ops::Range;

use terrace_proto::PageSize;

use super::spans::Spans;
use super::{DEGREES, Estimator};
use crate::pages::{BLOCK, Pages, flags};

/// Classes of units: by tier, those that may move (0–3) and those that are known but stay (4–7); 8 is
/// not ranked.
const CLASSES: usize = 9;
const UNRANKED: u8 = 8;
/// Keys: class and degree.
const KEYS: usize = 16 * DEGREES;
/// Tables that are counted in, in turn.
const TABLES: usize = 8;
/// Size of such a table: a line more than the keys, so that the counters of one key do not have equal low address bits,
/// by which a processor guesses whether a load must wait for a store.
const TABLE: usize = KEYS + 16;

/// The bits of a unit's flags that say whether it may move, and from which tier.
pub(crate) const MAY_MOVE: u8 = flags::TIER | flags::KNOWN | flags::IN_FLIGHT | flags::COOL;

/// The values of [`MAY_MOVE`] of units that may move from a tier.
pub(crate) fn movable_place(tier: u8) -> u8 {
    tier | flags::KNOWN
}

#[inline]
fn class(flags: u8) -> u8 {
    let stays = if flags & (flags::IN_FLIGHT | flags::COOL) == 0 {
        0
    } else {
        4
    };
    // A tier above 3 is none.
    if flags & (flags::KNOWN | 4) == flags::KNOWN {
        flags & flags::TIER | stays
    } else {
        UNRANKED
    }
}

/// How hot units are, as numbers.
pub(crate) trait Rank: Copy {
    /// Writes the degrees of a run of units, one for each. Hotter is higher.
    fn rank(self, pages: &Pages, round: u64, units: Range<usize>, out: &mut [u8]);
}

impl Rank for Estimator {
    #[inline]
    fn rank(self, pages: &Pages, round: u64, units: Range<usize>, out: &mut [u8]) {
        if self == Self::Rates {
            for (out, long) in out.iter_mut().zip(&pages.long[units]) {
                *out = long.to_le_bytes()[1];
            }
            return;
        }
        let first = units.start as u64;
        let (reads, writes) = (&pages.reads[units.clone()], &pages.writes[units]);
        self.degrees(round, first, reads, writes, out);
    }
}

/// How a block is ranked.
pub(crate) enum Ranked<'a> {
    /// Unit by unit.
    Units(Units<'a>),
    /// As one huge page.
    Whole {
        /// Place and marks as a unit's flags.
        place: u8,
        /// The degree of its hottest page.
        degree: u8,
    },
}

/// The units of a block: as many of one as of the other, 512 at most.
#[derive(Clone, Copy)]
pub(crate) struct Units<'a> {
    /// Flags.
    pub(crate) places: &'a [u8],
    /// Degrees.
    pub(crate) degrees: &'a [u8],
}

/// Notes of each unit of a block. They start a line: vectors that cross lines are slow, more so if read again
/// at once.
#[repr(align(64))]
pub(crate) struct Notes<T>(pub(crate) [T; BLOCK]);

/// Degrees of one block's units.
pub(crate) struct BlockRanks {
    degrees: Notes<u8>,
}

impl BlockRanks {
    pub(crate) fn new() -> Self {
        Self {
            degrees: Notes([0; BLOCK]),
        }
    }

    /// Ranks the block that starts at unit `start`.
    #[inline]
    pub(crate) fn rank<'a>(
        &'a mut self,
        pages: &'a Pages,
        by: impl Rank,
        round: u64,
        start: usize,
    ) -> Ranked<'a> {
        let end = (start + BLOCK).min(pages.flags.len());
        let places = &pages.flags[start..end];
        let degrees = &mut self.degrees.0[..places.len()];
        by.rank(pages, round, start..end, degrees);
        let huge = places[0] & flags::HUGE != 0 && pages.ram().unit() == PageSize::Base;
        if huge && places.len() == BLOCK {
            return whole(places, degrees);
        }
        Ranked::Units(Units { places, degrees })
    }
}

/// A huge block: known if any part is, as hot as the hottest, in the first page's tier.
fn whole<'a>(places: &[u8], degrees: &[u8]) -> Ranked<'a> {
    let marks = places.iter().fold(0, |all, p| all | p) & !flags::TIER;
    Ranked::Whole {
        place: marks | places[0] & flags::TIER,
        degree: degrees.iter().copied().max().unwrap_or(0),
    }
}

/// Number of units by class and degree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Box<[[u64; DEGREES]; CLASSES]>,
}

impl Histogram {
    /// Counts the units of a VM in one pass.
    #[must_use]
    pub fn tally(pages: &Pages, estimator: Estimator, round: u64) -> Self {
        Self::tally_by(pages, estimator, round, |_, _| {})
    }

    /// The same by any ranking, and between which degrees the units of each block lie.
    pub(crate) fn with_spans(pages: &Pages, by: impl Rank, round: u64) -> (Self, Spans) {
        let mut spans = Spans::new(pages);
        let note = |classes: &[u8], degrees: &[u8]| spans.note(classes, degrees);
        (Self::tally_by(pages, by, round, note), spans)
    }

    /// The same, with classes and degrees of each block handed on.
    fn tally_by(
        pages: &Pages,
        by: impl Rank,
        round: u64,
        mut note: impl FnMut(&[u8], &[u8]),
    ) -> Self {
        // Several tables in turn: equal keys in a row would wait for each other's increment.
        let mut tables = vec![[0_u32; TABLE]; TABLES];
        let mut ranks = BlockRanks::new();
        let (mut classes, mut keys) = (Notes([0; BLOCK]), Notes([0; BLOCK]));
        for start in (0..pages.units()).step_by(BLOCK) {
            match ranks.rank(pages, by, round, start) {
                Ranked::Whole { place, degree } => {
                    let class = class(place);
                    note(&[class], &[degree]);
                    let key = u16::from_le_bytes([degree, class]);
                    tables[0][usize::from(key)] += 512;
                }
                Ranked::Units(Units { places, degrees }) => {
                    // Bytes apart from their pairs: sixteen at a time, not eight.
                    for (slot, place) in classes.0.iter_mut().zip(places) {
                        *slot = class(*place);
                    }
                    note(&classes.0[..places.len()], degrees);
                    let keys = &mut keys.0[..places.len()];
                    for ((slot, class), degree) in keys.iter_mut().zip(&classes.0).zip(degrees) {
                        *slot = u16::from_le_bytes([*degree, *class]);
                    }
                    count(keys, &mut tables);
                }
            }
        }
        let mut counts = Box::new([[0; DEGREES]; CLASSES]);
        for table in tables {
            for (class, row) in counts.iter_mut().enumerate() {
                for (sum, n) in row.iter_mut().zip(&table[class * DEGREES..]) {
                    *sum += u64::from(*n);
                }
            }
        }
        Self { counts }
    }

    /// Units of a tier that may move, by degree.
    #[must_use]
    pub fn movable(&self, tier: usize) -> &[u64; DEGREES] {
        &self.counts[tier]
    }

    /// Known units of a tier that stay for now (in flight or cooling down), by degree.
    #[must_use]
    pub fn staying(&self, tier: usize) -> &[u64; DEGREES] {
        &self.counts[4 + tier]
    }

    /// Known units of a tier with a degree, whether they may move or not.
    #[must_use]
    pub fn known_in(&self, tier: usize, degree: usize) -> u64 {
        self.movable(tier)[degree] + self.staying(tier)[degree]
    }

    /// Known units of all tiers with a degree.
    #[must_use]
    pub fn known_with(&self, degree: usize) -> u64 {
        self.counts[..8].iter().map(|row| row[degree]).sum()
    }
}

#[inline]
fn count(keys: &[u16], tables: &mut [[u32; TABLE]]) {
    let [a, b, c, d, e, f, g, h] = tables else {
        return;
    };
    let (eights, rest) = keys.as_chunks::<TABLES>();
    // Memory that nobody accesses, block after block: found out by the first units if it is not so.
    if let (Some(first), []) = (keys.first(), rest)
        && eights.iter().all(|eight| *eight == [*first; TABLES])
    {
        a[usize::from(*first) % KEYS] += u32::try_from(keys.len()).unwrap_or(0);
        return;
    }
    for eight in eights {
        let [i, j, k, l, m, n, o, p] = eight.map(|key| usize::from(key) % KEYS);
        a[i] += 1;
        b[j] += 1;
        c[k] += 1;
        d[l] += 1;
        e[m] += 1;
        f[n] += 1;
        g[o] += 1;
        h[p] += 1;
    }
    for key in rest {
        a[usize::from(*key) % KEYS] += 1;
    }
}
