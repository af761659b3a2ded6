//! Verification: whether the memory that the guest claims to have given back is gone, by sweeps over the files behind
//! each tier.
//!
//! Responsible for: the position of each tier's sweep, whose turn it is, and the result of the last whole one. A guest
//! decides in how many pieces its memory is, so a sweep takes as many steps as it needs; nothing that a guest does ends
//! it but a reset, which empties the balloons. It leaves to others: the time limit of a step, and the consequences of a
//! verdict.

use std::collections::BTreeMap;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::time::Instant;

use terrace_sys::{first_data, next_data_extent};

use crate::abi::PAGE_BYTES;
use crate::memory::{GuestFiles, Piece, Verified};
use crate::state::State;
use crate::tier::TierMap;

/// Bytes of a block as `stat` counts them.
const BLOCK_BYTES: u64 = 512;

/// Runs of claimed pages that are checked a second time while the queues wait, a system call each.
const MAX_RECHECKED_RUNS: usize = 4096;

/// The files, tiers and state that a sweep goes over.
pub(crate) struct Scope<'a> {
    pub files: &'a GuestFiles,
    pub maps: &'a [TierMap],
    pub state: &'a State,
}

/// The sweeps of a device, which last from one request to the next.
#[derive(Debug, Default)]
pub(crate) struct Sweeps {
    /// Resets of the guest that they are of.
    resets: u64,
    /// The tier whose turn it is.
    turn: usize,
    tiers: Vec<OfTier>,
}

#[derive(Debug, Default)]
struct OfTier {
    going: Option<Sweep>,
    /// The result of the last whole sweep, and when it began.
    verdict: Option<(Verified, Instant)>,
}

impl Sweeps {
    /// The result of the last whole sweep of each tier, and when it began.
    pub fn verdicts(&self) -> impl Iterator<Item = Option<(Verified, Instant)>> {
        self.tiers.iter().map(|tier| tier.verdict)
    }

    /// Continues while `in_time` returns true, at least by one step; a tier is through once a sweep of it began and
    /// ended here. While the value that `hold` returns is held no queue is served, so that memory that is claimed is
    /// gone.
    pub fn go_on<G>(
        &mut self,
        scope: &Scope<'_>,
        hold: impl Fn() -> G,
        in_time: impl Fn() -> bool,
    ) {
        let count = scope.maps.len();
        let resets = scope.state.resets();
        if self.tiers.len() != count || self.resets != resets {
            self.tiers = (0..count).map(|_| OfTier::default()).collect();
            self.resets = resets;
        }
        for number in (0..count).map(|i| (self.turn + i) % count) {
            let (Some(tier), Some(map)) = (self.tiers.get_mut(number), scope.maps.get(number))
            else {
                continue;
            };
            loop {
                let is_old = tier.going.is_some();
                let mut sweep = tier.going.take().unwrap_or_else(Sweep::new);
                let sweeper = Sweeper {
                    scope,
                    map,
                    number,
                    hold: &hold,
                    in_time: &in_time,
                };
                if !sweeper.sweep(&mut sweep) {
                    tier.going = Some(sweep);
                    self.turn = (number + 1) % count;
                    return;
                }
                tier.verdict = Some((sweep.said(map), sweep.begun));
                if !in_time() {
                    self.turn = (number + 1) % count;
                    return;
                }
                if !is_old {
                    break;
                }
            }
        }
    }
}

/// A sweep on its way.
#[derive(Debug)]
struct Sweep {
    begun: Instant,
    /// The tier's first page that was not checked.
    next: u64,
    seen: Verified,
    /// By device and inode: a file may be behind several parts of a tier.
    files: BTreeMap<(u64, u64), FileSeen>,
}

/// A file as `stat` reports it.
#[derive(Debug, Default)]
struct FileSeen {
    bytes: u64,
    there_bytes: u64,
    /// Of files that can be checked only as a whole: the tier's part, and the claimed bytes of it.
    of_tier_bytes: u64,
    claimed_pages: u64,
}

impl Sweep {
    fn new() -> Self {
        Self {
            begun: Instant::now(),
            next: 0,
            seen: Verified::default(),
            files: BTreeMap::new(),
        }
    }

    /// Notes how much of a file is present.
    fn stat(&mut self, piece: &Piece<'_>) -> Option<&mut FileSeen> {
        let meta = piece.file.metadata().ok()?;
        let file = self.files.entry((meta.dev(), meta.ino())).or_default();
        file.bytes = meta.len();
        file.there_bytes = meta.blocks() * BLOCK_BYTES;
        Some(file)
    }

    /// The result of the whole sweep.
    fn said(&self, map: &TierMap) -> Verified {
        let mut seen = self.seen;
        for file in self.files.values() {
            seen.file_bytes += file.there_bytes;
            let gone = file.bytes.saturating_sub(file.there_bytes) / PAGE_BYTES;
            seen.claimed_pages += file.claimed_pages;
            seen.absent_pages += file.claimed_pages.min(gone);
            seen.present_bytes += file.of_tier_bytes.min(file.there_bytes);
        }
        let most = map.ranges().iter().map(crate::tier::Run::bytes).sum();
        seen.present_bytes = seen.present_bytes.min(most);
        seen
    }
}

/// A go at one tier.
struct Sweeper<'a, H, T> {
    scope: &'a Scope<'a>,
    map: &'a TierMap,
    number: usize,
    hold: &'a H,
    in_time: &'a T,
}

impl<G, H: Fn() -> G, T: Fn() -> bool> Sweeper<'_, H, T> {
    /// Continues from the sweep's position; returns whether it came to its end.
    fn sweep(&self, sweep: &mut Sweep) -> bool {
        for piece in self.scope.files.pieces_of(self.map) {
            let end = piece.first + piece.bytes.div_ceil(PAGE_BYTES);
            if end <= sweep.next {
                continue;
            }
            self.skip(sweep, piece.first);
            if piece.page_bytes != PAGE_BYTES {
                self.whole(sweep, &piece, end);
                if !(self.in_time)() {
                    return false;
                }
                continue;
            }
            let _ = sweep.stat(&piece);
            while sweep.next < end {
                self.step(sweep, &piece, end);
                if !(self.in_time)() {
                    return false;
                }
            }
        }
        self.skip(sweep, u64::MAX);
        true
    }

    fn claimed(&self, from: u64, end: u64) -> u64 {
        let pages = end.saturating_sub(from);
        self.scope.state.count(self.number, from, pages)
    }

    /// Skips a part of which no file can be read: all of the guest's claims there count as still present.
    fn skip(&self, sweep: &mut Sweep, to: u64) {
        if sweep.next < to {
            sweep.seen.claimed_pages += self.claimed(sweep.next, to);
            sweep.next = to;
        }
    }

    /// Counts a hugetlbfs file as a whole, because hugetlbfs reports only the file's total: the counts are upper
    /// bounds.
    fn whole(&self, sweep: &mut Sweep, piece: &Piece<'_>, end: u64) {
        let still = (self.hold)();
        let claimed = self.claimed(sweep.next, end);
        let Some(file) = sweep.stat(piece) else {
            return self.skip(sweep, end);
        };
        drop(still);
        file.of_tier_bytes += piece.bytes;
        file.claimed_pages += claimed;
        sweep.next = end;
    }

    /// Checks up to the end of the next part of a piece that is present, of any length: if the rest of it were asked
    /// for later, the kernel would walk over all of it again.
    fn step(&self, sweep: &mut Sweep, piece: &Piece<'_>, end: u64) {
        let at = |page: u64| piece.offset + (page - piece.first) * PAGE_BYTES;
        let page = |offset: u64| piece.first + (offset - piece.offset).div_ceil(PAGE_BYTES);
        let all = at(sweep.next)..piece.offset + piece.bytes;
        let Ok(found) = next_data_extent(piece.file.as_fd(), all) else {
            return self.skip(sweep, end);
        };
        let (first, last) = found.map_or((end, end), |e| (page(e.start), page(e.start + e.len)));
        let gone = self.claimed(sweep.next, first);
        sweep.seen.claimed_pages += gone;
        sweep.seen.absent_pages += gone;
        sweep.seen.present_bytes += found.map_or(0, |extent| extent.len);
        if self.claimed(first, last) > 0 {
            // Claimed since, or just before its hole was punched?
            let _still = (self.hold)();
            let late = self.gone_since(piece, first, last);
            sweep.seen.claimed_pages += self.claimed(first, last);
            sweep.seen.absent_pages += late;
            let bytes = late * PAGE_BYTES;
            sweep.seen.present_bytes = sweep.seen.present_bytes.saturating_sub(bytes);
        }
        sweep.next = last;
    }

    /// Claimed pages of a part that was present which are not present any more.
    fn gone_since(&self, piece: &Piece<'_>, first: u64, last: u64) -> u64 {
        let next = |from, on| self.scope.state.next(self.number, from, last, on);
        let at = |page: u64| piece.offset + (page - piece.first) * PAGE_BYTES;
        let mut gone = 0;
        let mut from = first;
        for _ in 0..MAX_RECHECKED_RUNS {
            let Some(start) = next(from, true) else { break };
            let end = next(start, false).unwrap_or(last);
            if first_data(piece.file.as_fd(), at(start)..at(end)).is_ok_and(|data| data.is_none()) {
                gone += end - start;
            }
            from = end;
        }
        gone
    }
}

#[cfg(test)]
mod tests;
