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

use super::{DEGREES, Estimator};
use crate::pages::{BLOCK, Pages, flags};

/// Classes of units: by tier, those that may move (0–3) and those that are known but stay (4–7); 8 is
/// not ranked.
const CLASSES: usize = 9;
const UNRANKED: u8 = 8;
/// Size of a table indexed by key (class and degree).
const KEYS: usize = 16 * DEGREES;

/// First key of the units of a tier that may move.
pub(crate) fn movable_key(tier: usize) -> u16 {
    u16::try_from(tier * DEGREES).unwrap_or(u16::MAX)
}

#[inline]
fn class(flags: u8) -> u8 {
    let tier = flags & flags::TIER;
    let stays = if flags & (flags::IN_FLIGHT | flags::COOL) == 0 {
        0
    } else {
        4
    };
    if flags & flags::KNOWN != 0 && tier < 4 {
        tier | stays
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
        let first = units.start as u64;
        let (reads, writes) = (&pages.reads[units.clone()], &pages.writes[units]);
        self.degrees(round, first, reads, writes, out);
    }
}

/// How a block is ranked.
pub(crate) enum Ranked {
    /// Unit by unit.
    Units,
    /// As one huge page, with this key.
    Whole(u16),
}

/// Keys (class × 256 + degree) of one block's units.
pub(crate) struct BlockRanks {
    pub(crate) keys: [u16; BLOCK],
    degrees: [u8; BLOCK],
}

impl BlockRanks {
    pub(crate) fn new() -> Self {
        Self {
            keys: [0; BLOCK],
            degrees: [0; BLOCK],
        }
    }

    /// Ranks the block that starts at unit `start`.
    #[inline]
    pub(crate) fn rank(
        &mut self,
        pages: &Pages,
        by: impl Rank,
        round: u64,
        start: usize,
    ) -> Ranked {
        let end = (start + BLOCK).min(pages.flags.len());
        let places = &pages.flags[start..end];
        let degrees = &mut self.degrees[..places.len()];
        by.rank(pages, round, start..end, degrees);
        let huge = places[0] & flags::HUGE != 0 && pages.ram().unit() == PageSize::Base;
        if huge && places.len() == BLOCK {
            return Ranked::Whole(whole_key(places, degrees));
        }
        for ((key, flags), degree) in self.keys.iter_mut().zip(places).zip(degrees) {
            *key = u16::from(class(*flags)) << 8 | u16::from(*degree);
        }
        Ranked::Units
    }
}

/// A huge block's key: known if any part is, as hot as the hottest, in the first page's tier.
fn whole_key(places: &[u8], degrees: &[u8]) -> u16 {
    let marks = places.iter().fold(0, |all, p| all | p) & !flags::TIER;
    let degree = degrees.iter().copied().max().unwrap_or(0);
    u16::from(class(marks | places[0] & flags::TIER)) << 8 | u16::from(degree)
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
        Self::tally_by(pages, estimator, round)
    }

    /// The same by any ranking.
    pub(crate) fn tally_by(pages: &Pages, by: impl Rank, round: u64) -> Self {
        // Four tables in turn: equal keys in a row would wait for each other's increment.
        let mut tables = vec![[0_u32; KEYS]; 4];
        let mut ranks = BlockRanks::new();
        for start in (0..pages.units()).step_by(BLOCK) {
            match ranks.rank(pages, by, round, start) {
                Ranked::Whole(key) => tables[0][usize::from(key)] += 512,
                Ranked::Units => {
                    let keys = &ranks.keys[..BLOCK.min(pages.units() - start)];
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
fn count(keys: &[u16], tables: &mut [[u32; KEYS]]) {
    let [a, b, c, d] = tables else { return };
    let (fours, rest) = keys.as_chunks::<4>();
    for four in fours {
        a[usize::from(four[0]) % KEYS] += 1;
        b[usize::from(four[1]) % KEYS] += 1;
        c[usize::from(four[2]) % KEYS] += 1;
        d[usize::from(four[3]) % KEYS] += 1;
    }
    for key in rest {
        a[usize::from(*key) % KEYS] += 1;
    }
}
