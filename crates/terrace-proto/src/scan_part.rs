//! Scans of a part of a guest's page tables: the question and the answer.
//!
//! A part is chosen by the tables that hold the leaves and not by the pages that they map: a scan that had to find the tables
//! of some pages would read all of them.

use serde::{Deserialize, Serialize};

use crate::{Gfn, RequestId, ScanAnswer, ScanRequest, ScanStats, Space};

/// A part of a guest's memory: what 1 / 2^`shift` of its leaf tables map, drawn by a seed.
///
/// Each leaf table is in exactly one of the 2^`shift` parts of a seed; a leaf of 2 MiB or 1 GiB counts as a table of its own.
/// A page that several tables map is in the parts of all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawPart", into = "RawPart")]
pub struct Part {
    seed: u64,
    shift: u8,
    index: u32,
}

#[derive(Serialize, Deserialize)]
struct RawPart {
    seed: u64,
    shift: u8,
    index: u32,
}

/// A part that does not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no part {index} of 2^{shift}; the finest is 1 / 2^{}",
    Part::MAX_SHIFT
)]
pub struct NoPart {
    /// The part asked for.
    pub index: u32,
    /// Binary logarithm of the number of parts.
    pub shift: u8,
}

impl Part {
    /// Binary logarithm of the greatest number of parts.
    pub const MAX_SHIFT: u8 = 16;

    /// Part `index` of 2^`shift`.
    ///
    /// # Errors
    /// If there is none of that number, or more than 2^16 parts were to be.
    pub fn new(seed: u64, shift: u8, index: u32) -> Result<Self, NoPart> {
        if shift > Self::MAX_SHIFT || index >> shift != 0 {
            return Err(NoPart { index, shift });
        }
        Ok(Self { seed, shift, index })
    }

    /// Number of the parts that this is one of.
    #[must_use]
    pub fn count(self) -> u32 {
        1 << self.shift
    }

    /// The part's number, from 0.
    #[must_use]
    pub fn index(self) -> u32 {
        self.index
    }

    /// The part after this one of the same draw; none after the last.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        Self::new(self.seed, self.shift, self.index + 1).ok()
    }

    /// Whether the leaf table in a frame, or the larger leaf that begins there, is in this part.
    #[must_use]
    #[inline]
    pub fn has(self, table: Gfn) -> bool {
        // Multiply and shift, by an odd number and a summand that the seed draws: any two tables are in one part about as seldom
        // as by chance, and the compiler draws both numbers once for all tables of a loop.
        let factor = mixed(self.seed ^ 0x9e37_79b9_7f4a_7c15) | 1;
        let summand = mixed(self.seed ^ 0x6a09_e667_f3bc_c908);
        let drawn = table.0.wrapping_mul(factor).wrapping_add(summand);
        // Two shifts, because one of 64 places does not exist.
        drawn >> 1 >> (63 - self.shift) == u64::from(self.index)
    }
}

/// A number of which each bit depends on all bits of another.
#[inline]
fn mixed(n: u64) -> u64 {
    let n = (n ^ n >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let n = (n ^ n >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    n ^ n >> 33
}

impl TryFrom<RawPart> for Part {
    type Error = NoPart;

    fn try_from(raw: RawPart) -> Result<Self, NoPart> {
        Self::new(raw.seed, raw.shift, raw.index)
    }
}

impl From<Part> for RawPart {
    fn from(part: Part) -> Self {
        Self {
            seed: part.seed,
            shift: part.shift,
            index: part.index,
        }
    }
}

/// One pass over a part of the guest's page tables.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartRequest {
    /// Echoed in the answer.
    pub id: RequestId,
    /// The address space to scan.
    pub space: Space,
    /// The part that is read; nothing else is read or cleared but the tables above it, which are only read.
    pub part: Part,
    /// Clear the accessed bits of the part; otherwise nothing is written.
    pub clear: bool,
    /// Skip leaf tables of which the entry above has no accessed bit.
    pub prune: bool,
    /// Look for top-level tables over all allocated memory first (slow).
    pub discover: bool,
}

/// The result of a pass over a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartAnswer {
    /// The request's id.
    pub id: RequestId,
    /// The request's address space.
    pub space: Space,
    /// The request's part.
    pub part: Part,
    /// Pages that the leaves read map, in ascending order of their numbers; nothing is said of any other page.
    pub cells: Vec<PartCell>,
    /// 2 MiB blocks that leaves of 2 MiB or larger map, in ascending order.
    pub huge: Vec<u32>,
    /// For each of `cells`, the pages of which some leaf of the part was written; `None` if no source of writes exists.
    pub written: Option<Vec<u64>>,
    /// Cost and counts. Tables above the leaf tables are read, and count, in each part.
    pub stats: ScanStats,
}

/// Findings on 64 pages, a bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartCell {
    /// The pages: those from `64 * at` on.
    pub at: u32,
    /// Pages that a leaf of the part maps.
    pub mapped: u64,
    /// Those of which some leaf of the part had its accessed bit.
    pub accessed: u64,
}

/// A pass over page tables as it is asked for: over all of them, or over a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pass {
    /// Over all.
    All(ScanRequest),
    /// Over a part.
    Part(PartRequest),
}

/// The result of a [`Pass`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Passed {
    /// Over all.
    All(Box<ScanAnswer>),
    /// Over a part.
    Part(Box<PartAnswer>),
}

impl Pass {
    /// The request's id.
    #[must_use]
    pub fn id(&self) -> RequestId {
        match self {
            Self::All(request) => request.id,
            Self::Part(request) => request.id,
        }
    }

    /// The address space.
    #[must_use]
    pub fn space(&self) -> Space {
        match self {
            Self::All(request) => request.space,
            Self::Part(request) => request.space,
        }
    }

    /// Whether top-level tables are looked for first.
    #[must_use]
    pub fn discovers(&self) -> bool {
        match self {
            Self::All(request) => request.discover,
            Self::Part(request) => request.discover,
        }
    }
}

impl PartAnswer {
    /// A part's share of what a source says that knows no tables: each block of 2 MiB counts as a leaf table in the frame of the block's
    /// number, so that the parts of a draw are the whole here, too.
    #[must_use]
    pub fn of_blocks(answer: &ScanAnswer, part: Part) -> Self {
        let is_in_part = |at: &u32| part.has(Gfn(u64::from(at / 8)));
        let all = (0_u32..).zip(answer.known.words().iter().zip(answer.accessed.words()));
        let cells = all.filter(|(at, (known, _))| **known != 0 && is_in_part(at));
        let cells: Vec<PartCell> = cells
            .map(|(at, (known, accessed))| PartCell {
                at,
                mapped: *known,
                accessed: accessed & known,
            })
            .collect();
        let count = |word: &dyn Fn(&PartCell) -> u64| -> u64 {
            cells
                .iter()
                .map(|cell| u64::from(word(cell).count_ones()))
                .sum()
        };
        Self {
            id: answer.id,
            space: answer.space,
            part,
            stats: ScanStats {
                leaves: count(&|cell| cell.mapped),
                accessed: count(&|cell| cell.accessed),
                ..answer.stats
            },
            cells,
            huge: Vec::new(),
            written: None,
        }
    }

    /// Whether the answer can be about a VM of so many pages: all numbers in range and ascending, and nothing found on pages that
    /// are not mapped.
    #[must_use]
    pub fn fits(&self, pages: u64) -> bool {
        let ascend = self.cells.is_sorted_by(|a, b| a.at < b.at);
        let blocks = self.huge.is_sorted_by(|a, b| a < b);
        let last_block = self
            .huge
            .last()
            .is_none_or(|b| u64::from(*b) * 512 + 512 <= pages);
        let writes = self.written.as_ref().is_none_or(|written| {
            let mut pairs = written.iter().zip(&self.cells);
            written.len() == self.cells.len()
                && pairs.all(|(written, cell)| written & !cell.mapped == 0)
        });
        ascend && blocks && last_block && writes && self.cells.iter().all(|cell| cell.fits(pages))
    }
}

impl PartCell {
    fn fits(&self, pages: u64) -> bool {
        let exist = match pages.saturating_sub(u64::from(self.at) * 64) {
            // A cell of no page, even if it says nothing, is not the VM's.
            0 => return false,
            n @ 1..64 => (1 << n) - 1,
            _ => u64::MAX,
        };
        self.mapped & !exist == 0 && self.accessed & !self.mapped == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PageBitmap;

    #[test]
    fn each_table_is_in_one_part_and_parts_are_alike() {
        for (seed, shift) in [(1, 0), (0, 4), (2, 4), (u64::MAX, 6)] {
            let first = Part::new(seed, shift, 0).unwrap();
            let parts: Vec<Part> = std::iter::successors(Some(first), |part| part.next()).collect();
            assert_eq!(parts.len(), 1 << shift);
            let mut sizes = vec![0_u64; parts.len()];
            for table in (0..32_768).map(Gfn) {
                let of: Vec<usize> = (0..parts.len()).filter(|i| parts[*i].has(table)).collect();
                assert_eq!(of.len(), 1);
                sizes[of[0]] += 1;
            }
            let fair = 32_768 >> shift;
            assert!(
                sizes.iter().all(|size| size.abs_diff(fair) <= fair / 3),
                "{sizes:?}"
            );
        }
    }

    #[test]
    fn another_seed_draws_other_tables() {
        let drawn = |seed| {
            let part = Part::new(seed, 4, 3).unwrap();
            (0..32_768)
                .map(Gfn)
                .filter(|t| part.has(*t))
                .collect::<Vec<_>>()
        };
        let (one, other) = (drawn(1), drawn(2));
        let both = one.iter().filter(|table| other.contains(table)).count();
        assert!(both < one.len() / 8, "{both} of {}", one.len());
    }

    #[test]
    fn a_part_that_does_not_exist_is_refused_even_from_outside() {
        assert_eq!(
            Part::new(0, 4, 16),
            Err(NoPart {
                index: 16,
                shift: 4
            })
        );
        assert!(Part::new(0, 17, 0).is_err());
        let bytes = postcard::to_allocvec(&RawPart {
            seed: 0,
            shift: 63,
            index: 5,
        })
        .unwrap();
        assert!(postcard::from_bytes::<Part>(&bytes).is_err());
    }

    #[test]
    fn parts_of_an_answer_about_all_are_the_whole() {
        let mut known = PageBitmap::full(5_000);
        (700..1_500).for_each(|page| known.put(page, false));
        let mut accessed = PageBitmap::new(5_000);
        (0..5_000).step_by(3).for_each(|page| accessed.set(page));
        let answer = ScanAnswer {
            id: RequestId(1),
            space: Space::Guest(crate::VmId(1)),
            known,
            accessed,
            written: None,
            huge_leaf: PageBitmap::new(10),
            stats: ScanStats::default(),
        };
        let mut sets = [PageBitmap::new(5_000), PageBitmap::new(5_000)];
        let mut leaves = 0;
        for index in 0..4 {
            let part = PartAnswer::of_blocks(&answer, Part::new(3, 2, index).unwrap());
            assert!(part.fits(5_000) && part.stats.leaves < 4_200);
            leaves += part.stats.leaves;
            for cell in part.cells {
                let at = cell.at as usize;
                assert_eq!(sets[0].words()[at], 0, "in two parts");
                sets[0].set_word(at, cell.mapped);
                sets[1].set_word(at, cell.accessed);
            }
        }
        let mut wanted = answer.accessed.clone();
        (700..1_500).for_each(|page| wanted.put(page, false));
        assert_eq!((&sets[0], leaves), (&answer.known, 4_200));
        assert_eq!(sets[1], wanted);
    }

    #[test]
    fn answers_out_of_order_or_beyond_the_end_do_not_fit() {
        let cell = |at, mapped, accessed| PartCell {
            at,
            mapped,
            accessed,
        };
        let answer = |cells: &[PartCell], huge: &[u32]| PartAnswer {
            id: RequestId(1),
            space: Space::Guest(crate::VmId(1)),
            part: Part::new(0, 0, 0).unwrap(),
            cells: cells.to_vec(),
            huge: huge.to_vec(),
            written: None,
            stats: ScanStats::default(),
        };
        assert!(answer(&[cell(0, 3, 1), cell(9, 1 << 23, 0)], &[0]).fits(600));
        assert!(!answer(&[cell(9, 1 << 24, 0)], &[]).fits(600), "page 600");
        assert!(
            !answer(&[cell(0, 1, 2)], &[]).fits(600),
            "accessed and not mapped"
        );
        assert!(
            !answer(&[cell(1, 1, 1), cell(1, 1, 1)], &[]).fits(600),
            "twice"
        );
        let writes = |written: &[u64]| PartAnswer {
            written: Some(written.to_vec()),
            ..answer(&[cell(0, 3, 1)], &[])
        };
        assert!(writes(&[2]).fits(600));
        assert!(!writes(&[4]).fits(600) && !writes(&[]).fits(600) && !writes(&[1, 1]).fits(600));
        assert!(!answer(&[], &[1]).fits(600), "a block beyond the end");
        for at in [10, u32::MAX] {
            assert!(!answer(&[cell(at, 1, 1)], &[]).fits(600));
            assert!(!answer(&[cell(at, 0, 0)], &[]).fits(600), "of no page");
        }
    }
}
