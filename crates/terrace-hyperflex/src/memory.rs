//! The files that back the guest's memory: which part of them is which of a tier's, and giving parts of them back.
//!
//! Responsible for: finding the one region that holds a run, and punching. It leaves to others: whose run it is, and
//! measuring the memory that is left (`sweep.rs`).

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;

use serde::{Deserialize, Serialize};
use terrace_sys::{backing_page_bytes, punch_hole};
use vm_memory::{Address as _, FileOffset, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion};

use crate::abi::PAGE_BYTES;
use crate::tier::{Run, TierMap};

/// A region of the hypervisor that a file backs.
#[derive(Clone, Debug)]
struct Region {
    gpa: u64,
    len: u64,
    file: FileOffset,
    /// The least that can be given back, bytes.
    page_bytes: u64,
}

/// A part of a file that is a part of a tier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    /// The file.
    pub file: &'a File,
    /// The least that can be given back of the file, bytes.
    pub page_bytes: u64,
    /// Guest physical address of its first byte.
    pub gpa: u64,
    /// The offset in the file, bytes.
    pub offset: u64,
    /// Number of its first page in the tier.
    pub first: u64,
    /// Length, bytes.
    pub bytes: u64,
}

/// Gives memory of the guest back to the host.
pub trait Backing: Send {
    /// The number of the one region that holds all of a run, if the run is made of whole pages of its backing.
    fn region_of(&self, run: &Run) -> Option<usize>;

    /// Frees a run that [`Backing::region_of`] found in this region; false if the kernel refused.
    fn free(&self, region: usize, run: &Run) -> bool;
}

/// All regions, ascending.
#[derive(Clone, Debug, Default)]
pub struct GuestFiles {
    regions: Vec<Region>,
    /// Regions that no file backs or whose file could not be read: nothing in them is given back.
    unusable: usize,
}

impl GuestFiles {
    /// The files of the memory that the hypervisor shares.
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

    /// Which files these are, each once: device and inode.
    pub(crate) fn ids(&self) -> Vec<(u64, u64)> {
        let meta = self.regions.iter().map(|r| r.file.file().metadata());
        let mut ids: Vec<_> = meta.flatten().map(|m| (m.dev(), m.ino())).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
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

    /// The largest page that the files of a tier are made of, bytes; 0 if there are none.
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

/// A tier's balloon by the count of its files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verified {
    /// Pages that are in the balloon by the guest's claim.
    pub claimed_pages: u64,
    /// Of these, pages that have no memory behind them. On hugetlbfs an upper bound.
    pub absent_pages: u64,
    /// Memory behind the tier's ranges, bytes; swapped-out memory counts as present. On hugetlbfs an upper bound.
    pub present_bytes: u64,
    /// Memory behind the files that the tier's ranges are in, bytes; they may hold more than the tier.
    pub file_bytes: u64,
}

impl Verified {
    /// The share of the claimed pages that are really gone, 0 to 1; 1 if nothing is claimed.
    #[must_use]
    pub fn verified_ratio(&self) -> f64 {
        if self.claimed_pages == 0 {
            return 1.0;
        }
        // Pages of a VM are far below 2^52.
        (self.absent_pages as f64 / self.claimed_pages as f64).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_vm::{MIB, MockVm};

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
    fn no_more_is_gone_than_was_claimed() {
        let verified_ratio = |claimed_pages, absent_pages| {
            let seen = Verified {
                claimed_pages,
                absent_pages,
                ..Verified::default()
            };
            seen.verified_ratio()
        };
        assert_eq!(
            [(0, 0), (0, 5), (4, 5)].map(|(c, a)| verified_ratio(c, a)),
            [1.0; 3]
        );
        assert_eq!(
            [(4, 3), (4, 0)].map(|(c, a)| verified_ratio(c, a)),
            [0.75, 0.0]
        );
    }
}
