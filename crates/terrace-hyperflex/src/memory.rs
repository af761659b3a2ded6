//! The files that back the guest's memory: giving parts of them back, and seeing what is left.
//!
//! Responsible for: finding the one region that holds a run, and punching. It leaves to others: whose run it is.

use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};
use terrace_sys::{backing_page_bytes, for_each_data_extent, punch_hole};
use vm_memory::{Address as _, FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::abi::PAGE_BYTES;
use crate::state::State;
use crate::tier::{Run, TierMap};

/// Bytes of a block as `stat` counts them.
const BLOCK_BYTES: u64 = 512;

/// Bytes of a file that are looked at between two looks at the clock.
const PART_BYTES: u64 = 1 << 30;

/// A region of the hypervisor that a file backs.
#[derive(Clone, Debug)]
struct Region {
    gpa: u64,
    len: u64,
    file: FileOffset,
    /// What can be given back at least.
    page_bytes: u64,
}

/// A part of a file that is a part of a tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// The file.
    pub file: &'a File,
    /// What can be given back of it at least.
    pub page_bytes: u64,
    /// Guest physical address of its first byte.
    pub gpa: u64,
    /// Where it is in the file.
    pub offset: u64,
    /// Number of its first page in the tier.
    pub first: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Piece<'_> {
    /// What is looked at in one go.
    fn parts(self) -> impl Iterator<Item = Self> {
        (0..self.bytes.div_ceil(PART_BYTES)).map(move |i| {
            let skipped = i * PART_BYTES;
            Self {
                gpa: self.gpa + skipped,
                offset: self.offset + skipped,
                first: self.first + skipped / PAGE_BYTES,
                bytes: PART_BYTES.min(self.bytes - skipped),
                ..self
            }
        })
    }
}

/// Gives memory of the guest back to the host.
pub trait Backing: Send {
    /// The number of the one region that holds all of a run, where the run is made of whole pages of its backing.
    fn region_of(&self, run: &Run) -> Option<usize>;

    /// Frees a run that [`Backing::region_of`] found in this region; false where the kernel refused.
    fn free(&self, region: usize, run: &Run) -> bool;
}

/// All regions, ascending.
#[derive(Clone, Debug, Default)]
pub struct GuestFiles {
    regions: Vec<Region>,
    /// Regions that no file backs or whose file could not be looked at: nothing in them is given back.
    unusable: usize,
}

impl GuestFiles {
    /// The files of what the hypervisor shares.
    #[must_use]
    pub fn new(memory: &GuestMemoryMmap) -> Self {
        let mut files = Self::default();
        for region in memory.iter() {
            let known = region.file_offset().and_then(|file| {
                let page_bytes = backing_page_bytes(file.file().as_fd()).ok()?;
                Some(Region {
                    gpa: region.start_addr().raw_value(),
                    len: region.len(),
                    file: file.clone(),
                    page_bytes,
                })
            });
            match known {
                Some(region) => files.regions.push(region),
                None => files.unusable += 1,
            }
        }
        files.regions.sort_unstable_by_key(|region| region.gpa);
        files
    }

    /// Regions that cannot be given back.
    #[must_use]
    pub fn unusable(&self) -> usize {
        self.unusable
    }

    /// The parts of a run that are in a region.
    fn pieces(&self, run: &Run) -> impl Iterator<Item = Piece<'_>> {
        let Run { gpa, first, .. } = *run;
        let end = gpa + run.bytes();
        self.regions.iter().filter_map(move |region| {
            let from = gpa.max(region.gpa);
            let to = end.min(region.gpa + region.len);
            (from < to).then(|| Piece {
                file: region.file.file(),
                page_bytes: region.page_bytes,
                gpa: from,
                offset: region.file.start() + (from - region.gpa),
                first: first + (from - gpa) / PAGE_BYTES,
                bytes: to - from,
            })
        })
    }

    /// The parts of files that a tier is in.
    pub(crate) fn pieces_of(&self, tier: &TierMap) -> impl Iterator<Item = Piece<'_>> {
        tier.ranges().iter().flat_map(|run| self.pieces(run))
    }

    /// The largest page that the files of a tier are made of, bytes; 0 where there are none.
    #[must_use]
    pub fn page_bytes(&self, tier: &TierMap) -> u64 {
        let pages = self.pieces_of(tier).map(|piece| piece.page_bytes);
        pages.max().unwrap_or(0)
    }

    /// Bytes of the tier's ranges that no file backs.
    #[must_use]
    pub fn uncovered_bytes(&self, tier: &TierMap) -> u64 {
        let covered = |run: &Run| self.pieces(run).map(|piece| piece.bytes).sum::<u64>();
        let missing = |run: &Run| run.bytes().saturating_sub(covered(run));
        tier.ranges().iter().map(missing).sum()
    }

    /// Looks at the files for what the guest claims to have given back. Takes two system calls per piece of a file;
    /// `in_time` is asked before each GiB, and where it says no there is no answer.
    #[must_use]
    pub fn verify(
        &self,
        tier: &TierMap,
        number: usize,
        state: &State,
        in_time: impl Fn() -> bool,
    ) -> Option<Verified> {
        let mut seen = Verified {
            claimed_pages: state.pages_in(number),
            ..Verified::default()
        };
        let mut inodes = BTreeSet::new();
        for piece in self.pieces_of(tier) {
            let (mut file_bytes, mut file_blocks) = (0, 0);
            if let Ok(meta) = piece.file.metadata() {
                (file_bytes, file_blocks) = (meta.len(), meta.blocks() * BLOCK_BYTES);
                if inodes.insert((meta.dev(), meta.ino())) {
                    seen.file_bytes += file_blocks;
                }
            }
            if piece.page_bytes == PAGE_BYTES {
                for part in piece.parts() {
                    if !in_time() {
                        return None;
                    }
                    look(&part, number, state, &mut seen);
                }
            } else {
                // Hugetlbfs says only how much of the whole file is there: an upper bound.
                let claimed = state.count(number, piece.first, piece.bytes / PAGE_BYTES);
                let absent = file_bytes.saturating_sub(file_blocks) / PAGE_BYTES;
                seen.absent_pages += claimed.min(absent);
                seen.present_bytes += piece.bytes.min(file_blocks);
            }
        }
        Some(seen)
    }
}

/// Adds what is there of a part of a file.
fn look(part: &Piece<'_>, number: usize, state: &State, seen: &mut Verified) {
    let Piece { offset, bytes, .. } = *part;
    let count = |from: u64, len: u64| {
        let page = part.first + (from - offset) / PAGE_BYTES;
        state.count(number, page, len.div_ceil(PAGE_BYTES))
    };
    let mut claimed_but_there = 0;
    let looked = for_each_data_extent(part.file.as_fd(), offset..offset + bytes, |extent| {
        seen.present_bytes += extent.len;
        claimed_but_there += count(extent.start, extent.len);
    });
    if looked.is_ok() {
        let claimed = count(offset, bytes);
        seen.absent_pages += claimed.saturating_sub(claimed_but_there);
    }
}

impl Backing for GuestFiles {
    fn region_of(&self, run: &Run) -> Option<usize> {
        let index = self
            .regions
            .partition_point(|region| region.gpa <= run.gpa)
            .checked_sub(1)?;
        let region = self.regions.get(index)?;
        let offset = run.gpa - region.gpa;
        let inside = offset.checked_add(run.bytes())? <= region.len;
        let whole = |n: u64| n.is_multiple_of(region.page_bytes);
        let at = region.file.start().checked_add(offset)?;
        (inside && whole(at) && whole(run.bytes())).then_some(index)
    }

    fn free(&self, region: usize, run: &Run) -> bool {
        self.regions.get(region).is_some_and(|region| {
            let at = region.file.start() + (run.gpa - region.gpa);
            punch_hole(region.file.file().as_fd(), at, run.bytes()).is_ok()
        })
    }
}

/// What a tier's files say about its balloon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verified {
    /// Pages that the guest said are in the balloon.
    pub claimed_pages: u64,
    /// Of these, pages that have no memory behind them. On hugetlbfs an upper bound.
    pub absent_pages: u64,
    /// Memory behind the tier's ranges, bytes.
    pub present_bytes: u64,
    /// Memory behind the files that the tier's ranges are in, bytes; they may hold more than the tier.
    pub file_bytes: u64,
}

impl Verified {
    /// The share of the claimed pages that are really gone, 0 to 1; 1 where nothing is claimed.
    #[must_use]
    pub fn honesty(&self) -> f64 {
        if self.claimed_pages == 0 {
            return 1.0;
        }
        // Pages of a VM are far below 2^52.
        self.absent_pages as f64 / self.claimed_pages as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mock::{MIB, MockVm};

    #[test]
    fn a_run_is_found_only_inside_of_one_region() {
        let vm = MockVm::two_tiers();
        let files = GuestFiles::new(vm.memory());
        let at = |gpa, pages| {
            files.region_of(&Run {
                gpa,
                first: 0,
                pages,
            })
        };
        assert_eq!(at(0, 1), Some(0));
        assert_eq!(at(vm.tier(1).start, 1), Some(1));
        assert_eq!(at(vm.tier(0).start + vm.tier(0).len - 4096, 2), None);
        assert_eq!(at(vm.tier(1).start + vm.tier(1).len, 1), None);
        assert_eq!(at(!4095, 1), None);
        assert_eq!(files.unusable(), 0);
        let missing = crate::config::TierConfig {
            node: 0,
            host_node: None,
            ranges: vec![crate::config::GpaRange {
                start: vm.tier(1).start + vm.tier(1).len - MIB,
                len: 2 * MIB,
            }],
        };
        assert_eq!(files.uncovered_bytes(&TierMap::new(&missing)), MIB);
    }

    #[test]
    fn a_piece_is_looked_at_in_parts_that_make_up_all_of_it() {
        let file = tempfile::tempfile().unwrap();
        let piece = Piece {
            file: &file,
            page_bytes: PAGE_BYTES,
            gpa: 7 << 30,
            offset: PAGE_BYTES,
            first: 3,
            bytes: 2 * PART_BYTES + PAGE_BYTES,
        };
        let parts: Vec<_> = piece
            .parts()
            .map(|p| (p.gpa, p.offset, p.first, p.bytes))
            .collect();
        let pages = PART_BYTES / PAGE_BYTES;
        let want = [
            (7 << 30, PAGE_BYTES, 3, PART_BYTES),
            (8 << 30, PART_BYTES + PAGE_BYTES, 3 + pages, PART_BYTES),
            (
                9 << 30,
                2 * PART_BYTES + PAGE_BYTES,
                3 + 2 * pages,
                PAGE_BYTES,
            ),
        ];
        assert_eq!(parts, want);
    }

    #[test]
    fn pages_that_came_back_after_they_were_claimed_cost_honesty() {
        let vm = MockVm::two_tiers();
        vm.fill();
        let files = GuestFiles::new(vm.memory());
        let state = State::in_memory(vm.config()).unwrap();
        let tier = TierMap::new(&vm.config().tiers()[1]);
        let run = tier.find(vm.tier(1).start + MIB, 64).unwrap();
        state.put_all(1, run.first, run.pages, true);
        let all = files.verify(&tier, 1, &state, || true).unwrap();
        assert_eq!(all.absent_pages, 0);
        assert_eq!(files.verify(&tier, 1, &state, || false), None);
        assert!(files.free(files.region_of(&run).unwrap(), &run));
        let honest = files.verify(&tier, 1, &state, || true).unwrap();
        assert_eq!((honest.claimed_pages, honest.absent_pages), (64, 64));
        assert_eq!(honest.present_bytes, vm.tier(1).len - run.bytes());
        assert_eq!(honest.file_bytes, honest.present_bytes);
        vm.touch(run.gpa, 16);
        let caught = files.verify(&tier, 1, &state, || true).unwrap();
        assert!((caught.honesty() - 0.75).abs() < 1e-9, "{caught:?}");
        assert!((Verified::default().honesty() - 1.0).abs() < 1e-9);
    }
}
