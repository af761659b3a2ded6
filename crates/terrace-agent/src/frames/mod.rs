//! Frames that the host names, moved by the guest (coordinated mode; HMvisor §3.2.2).
//!
//! Responsible for: which page of which managed process lies in a frame, and looking again right before
//! pages move, so that an old entry moves at most a page that was not named; or, if the guest can move frames by their numbers, what
//! came of each. It leaves to others: how many move, and in which order (`terrace_core::ranges`), and the host's messages.

mod by_number;
mod index;
mod limit;
mod nodes;
mod not_moved;
mod pass;

use std::collections::BTreeMap;
use std::time::Duration;

use terrace_core::ranges::piece;
use terrace_proto::Tick;
use terrace_proto::ranges::{Migration, Named, PieceRun, Side, Stopped};
use terrace_proto::{Gfn, PAGE_SIZE, PAGES_PER_HUGE};
use terrace_sys::{HostRoot, Pagemap, Pages};

use crate::channel::FrameRequests;
use crate::sampler::Target;
use by_number::ByNumber;
pub use by_number::Outcome;
pub use index::{Index, IndexSize, Place};
use limit::memory_limit;
pub use not_moved::NotMoved;
use pass::Pass;

/// CPU time for which the agent does nothing else than make its index.
const AT_ONCE: Duration = Duration::from_millis(100);
/// Least time between two passes.
const PAUSE: Duration = Duration::from_millis(500);

/// Named frames that lie in pages of managed processes.
#[derive(Debug, Default)]
pub struct Located {
    /// The pages for the controller.
    pub named: Named,
    /// The frames for which there is none.
    pub not_moved: NotMoved,
    /// Of those that are to come up, and of those that are to go down: how many lie in each page.
    frames: [FramesOf; 2],
}

/// Number of named frames that lie in a page, by its first one: those of a page of 2 MiB move together.
type FramesOf = BTreeMap<Place, u64>;

/// The frames of managed processes.
#[derive(Debug)]
pub struct Frames {
    root: HostRoot,
    /// The end of this guest's memory.
    memory_end: Gfn,
    /// Memory that the index may take, bytes.
    limit: Option<u64>,
    index: Index,
    pass: Option<Pass>,
    size: IndexSize,
    /// Frames that are being moved by their numbers.
    by_number: ByNumber,
    /// From when on the index may be made anew: making it takes no more of a CPU than allowed.
    due: Tick,
}

impl Frames {
    /// No frame is known yet. The index takes at most half of what this process's cgroup may have.
    #[must_use]
    pub fn new(root: HostRoot, memory_end: Gfn) -> Self {
        let limit = memory_limit(&root).map(|bytes| bytes / 2);
        Self {
            root,
            memory_end,
            limit,
            index: Index::default(),
            pass: None,
            size: IndexSize::default(),
            by_number: ByNumber::default(),
            due: Tick(0),
        }
    }

    /// The index as it is.
    #[must_use]
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The extent of the index after its last whole pass; of the first one, what it has so far.
    #[must_use]
    pub fn size(&self) -> IndexSize {
        let (pages, left_out) = match self.size.pass_ns {
            0 => self.index.found(),
            _ => (self.size.pages, self.size.left_out),
        };
        IndexSize {
            pages,
            left_out,
            bytes: self.index.bytes(),
            limit_bytes: self.limit.unwrap_or(0),
            ..self.size
        }
    }

    /// Whether a pass over the managed processes is not over yet.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.pass.is_some()
    }

    /// Makes the index anew, or goes on doing so, if so much of a CPU allows that by now.
    pub fn refresh(&mut self, now: Tick, targets: &[Target], cpu_percent: u8) {
        if now < self.due {
            return;
        }
        let mut pass = self.pass.take().unwrap_or_else(|| {
            if self.index.bytes() == 0 {
                self.index = Index::new(self.memory_end, self.limit);
            }
            Pass::new(targets.to_vec())
        });
        let before = pass.took;
        let found = pass.go_on(&self.root, &mut self.index, AT_ONCE);
        let took = pass.took.saturating_sub(before);
        let pause = took.saturating_mul(100) / u32::from(cpu_percent.max(1));
        let least = match found {
            Some((pages, left_out)) => {
                self.size.pages = pages;
                self.size.left_out = left_out;
                self.size.pass_ns = u64::try_from(pass.took.as_nanos()).unwrap_or(u64::MAX);
                PAUSE
            }
            None => {
                self.pass = Some(pass);
                Duration::ZERO
            }
        };
        self.due = now.after(pause.max(least));
    }

    /// Forgets all frames, as when nobody names any.
    pub fn forget(&mut self) {
        self.index = Index::default();
        self.pass = None;
        self.size = IndexSize::default();
        self.due = Tick(0);
    }

    /// Frames that are to be moved by their numbers, for the controller.
    #[must_use]
    pub fn by_number(&mut self, frames: &FrameRequests) -> Named {
        self.by_number = ByNumber::new(&self.root, frames);
        self.by_number.named()
    }

    /// Takes in the status of each frame of a move by number.
    pub fn answered(&mut self, migration: &Migration, statuses: &[i32]) {
        self.by_number.answered(migration, statuses);
    }

    /// The fate of the frames that were to be moved by their numbers. `stopped` says why the last ones were not tried.
    #[must_use]
    pub fn take_outcome(&mut self, tiers: &[Vec<u32>], stopped: Option<Stopped>) -> Outcome {
        std::mem::take(&mut self.by_number).outcome(tiers, stopped)
    }

    /// Finds the pages that lie in frames at this moment.
    #[must_use]
    pub fn locate(&self, frames: &FrameRequests, pages: &dyn Pages) -> Located {
        let mut located = Located::default();
        let Located {
            named,
            not_moved,
            frames: [up, down],
        } = &mut located;
        named.up = self.locate_list(&frames.promote, pages, not_moved, up);
        named.down = self.locate_list(&frames.demote, pages, not_moved, down);
        located
    }

    fn locate_list(
        &self,
        list: &[Gfn],
        pages: &dyn Pages,
        not_moved: &mut NotMoved,
        frames: &mut FramesOf,
    ) -> Vec<Side> {
        let parts = self.in_order(list);
        let known: usize = parts.iter().map(|(_, wanted)| wanted.len()).sum();
        not_moved.unknown += (list.len() - known) as u64;
        let mut maps = BTreeMap::new();
        let mut sides = Vec::new();
        for (process, mut wanted) in parts {
            let before = wanted.len();
            // A process that has ended has none.
            let map = maps
                .entry(process)
                .or_insert_with(|| Pagemap::open(&self.root.process(process, "pagemap")).ok());
            let pieces = match map {
                Some(map) => {
                    still_there(map, &mut wanted);
                    let pieces = pieces_of(process, &wanted, frames, |block| is_huge(map, block));
                    here(process, &pieces, pages)
                }
                None => {
                    wanted.clear();
                    Vec::new()
                }
            };
            not_moved.stale += (before - wanted.len()) as u64;
            if !pieces.is_empty() {
                sides.push(Side { process, pieces });
            }
        }
        sides
    }

    /// Known frames of a list, in its order, cut where the process changes.
    fn in_order(&self, list: &[Gfn]) -> Vec<(u32, Vec<(u64, Gfn)>)> {
        let mut parts: Vec<(u32, Vec<(u64, Gfn)>)> = Vec::new();
        for gfn in list {
            let Some(place) = self.index.get(*gfn) else {
                continue;
            };
            match parts.last_mut() {
                Some((process, pages)) if *process == place.process => {
                    pages.push((place.page, *gfn))
                }
                _ => parts.push((place.process, vec![(place.page, *gfn)])),
            }
        }
        parts
    }
}

/// Keeps the pages that lie in their frames still.
fn still_there(map: &Pagemap, wanted: &mut Vec<(u64, Gfn)>) {
    let numbers: Vec<u64> = wanted.iter().map(|(page, _)| *page).collect();
    let entries = map.entries(&numbers).unwrap_or_default();
    let mut at = 0;
    wanted.retain(|(_, gfn)| {
        let frame = entries.get(at).and_then(|entry| entry.frame());
        at += 1;
        frame == Some(gfn.0)
    });
}

/// The pages as pieces that were not named yet, by their first page and their length. A page of 2 MiB is one piece, named by whichever of
/// its frames; all of them are counted.
fn pieces_of(
    process: u32,
    wanted: &[(u64, Gfn)],
    frames: &mut FramesOf,
    is_huge: impl Fn(u64) -> bool,
) -> Vec<(u64, u16)> {
    let mut pieces: Vec<(u64, u16)> = Vec::new();
    // A whole page of 2 MiB is asked about once: asking costs more than answering.
    let mut huge = BTreeMap::new();
    for (page, _) in wanted {
        let block = page / PAGES_PER_HUGE * PAGES_PER_HUGE;
        let is_huge = *huge.entry(block).or_insert_with(|| is_huge(block));
        let piece = match is_huge {
            true => (block, HUGE),
            false => (*page, 1),
        };
        let page = piece.0;
        let named = frames.entry(Place { process, page }).or_insert(0);
        *named += 1;
        if *named == 1 {
            pieces.push(piece);
        }
    }
    pieces
}

/// Pieces, each on the node where it is.
fn here(process: u32, pieces: &[(u64, u16)], pages: &dyn Pages) -> Vec<PieceRun> {
    let addresses: Vec<u64> = pieces.iter().map(|(page, _)| page * PAGE_SIZE).collect();
    let mut status = vec![0; addresses.len()];
    if addresses.is_empty() || pages.query(process, &addresses, &mut status).is_err() {
        return Vec::new();
    }
    let placed = pieces.iter().copied().zip(status);
    placed
        .filter_map(|((page, pages_each), node)| {
            Some(PieceRun {
                page,
                pieces: 1,
                pages_each,
                node: u32::try_from(node).ok()?,
            })
        })
        .collect()
}

/// Whether a page of 2 MiB lies in a block.
fn is_huge(map: &Pagemap, block: u64) -> bool {
    let first = block * PAGE_SIZE;
    let runs = map.present(first, first + PAGES_PER_HUGE * PAGE_SIZE);
    runs.is_ok_and(|runs| runs.iter().any(|run| run.huge))
}

/// Named frames whose pages are in the tier that they were to go to: the kernel is asked anew.
#[must_use]
pub fn arrived(located: &Located, tiers: &[Vec<u32>], pages: &dyn Pages) -> u64 {
    let is_fast = |node: i32| {
        let fast = tiers.first();
        fast.is_some_and(|fast| u32::try_from(node).is_ok_and(|node| fast.contains(&node)))
    };
    let of = |sides: &[Side], frames: &FramesOf, up: bool| -> u64 {
        let counts = sides.iter().map(|side| {
            let first: Vec<u64> = piece::pages(&side.pieces).collect();
            let addresses: Vec<u64> = first.iter().map(|page| page * PAGE_SIZE).collect();
            let mut status = vec![0; addresses.len()];
            if pages.query(side.process, &addresses, &mut status).is_err() {
                return 0;
            }
            let there = first.iter().zip(status);
            let there = there.filter(|(_, node)| *node >= 0 && is_fast(*node) == up);
            let process = side.process;
            let named = there.filter_map(|(page, _)| {
                let page = *page;
                frames.get(&Place { process, page })
            });
            named.sum::<u64>()
        });
        counts.sum()
    };
    let Located {
        named,
        frames: [up, down],
        ..
    } = located;
    of(&named.up, up, true) + of(&named.down, down, false)
}

/// Pages of a huge page.
#[expect(clippy::cast_possible_truncation, reason = "512")]
const HUGE: u16 = PAGES_PER_HUGE as u16;

#[cfg(test)]
mod tests {
    use std::fs;

    use terrace_core::ranges::Range;
    use terrace_testkit::pages::{FakePage, FakePages, put_pagemap};

    use super::*;

    fn targets() -> Vec<Target> {
        let ranges = vec![Range { start: 0, end: 4 }];
        [7, 8]
            .map(|pid| Target {
                pid,
                ranges: ranges.clone(),
            })
            .into()
    }

    /// Two processes on the slow node, and a kernel that has their pages there.
    fn guest() -> (tempfile::TempDir, Frames, FakePages) {
        let dir = tempfile::tempdir().unwrap();
        put_pagemap(dir.path(), 7, &[10, 11, 12, 0]);
        put_pagemap(dir.path(), 8, &[20, 21, 0, 0]);
        let mut frames = Frames::new(HostRoot::new(dir.path()), Gfn(100));
        frames.refresh(Tick(0), &targets(), 5);
        let kernel = FakePages::default();
        for (pid, page) in [(7, 0), (7, 1), (7, 2), (8, 0), (8, 1)] {
            kernel.state().put(pid, page * PAGE_SIZE, FakePage::base(1));
        }
        (dir, frames, kernel)
    }

    fn named(promote: &[u64], demote: &[u64]) -> FrameRequests {
        let gfns = |frames: &[u64]| frames.iter().map(|frame| Gfn(*frame)).collect();
        FrameRequests {
            promote: gfns(promote),
            demote: gfns(demote),
        }
    }

    fn pages_of(sides: &[Side]) -> Vec<(u32, Vec<u64>)> {
        sides
            .iter()
            .map(|side| (side.process, piece::pages(&side.pieces).collect()))
            .collect()
    }

    #[test]
    fn frames_are_pages_in_the_order_of_the_host() {
        let (_dir, frames, kernel) = guest();
        let located = frames.locate(&named(&[12, 20, 10], &[21, 55]), &kernel);
        let up = [(7, vec![2]), (8, vec![0]), (7, vec![0])];
        assert_eq!(pages_of(&located.named.up), up);
        assert_eq!(pages_of(&located.named.down), [(8, vec![1])]);
        assert_eq!(
            located.not_moved,
            NotMoved {
                unknown: 1,
                ..NotMoved::default()
            }
        );
        assert_eq!(located.named.up[0].pieces[0].node, 1);
    }

    #[test]
    fn a_page_that_has_another_frame_by_now_is_not_moved() {
        let (dir, frames, kernel) = guest();
        put_pagemap(dir.path(), 7, &[13, 11, 0, 0]);
        fs::remove_dir_all(dir.path().join("proc/8")).unwrap();
        let located = frames.locate(&named(&[10, 11, 12, 20], &[]), &kernel);
        assert_eq!(pages_of(&located.named.up), [(7, vec![1])]);
        assert_eq!(
            located.not_moved,
            NotMoved {
                stale: 3,
                ..NotMoved::default()
            }
        );
    }

    #[test]
    fn what_came_of_it_is_the_kernels_word() {
        let (_dir, frames, kernel) = guest();
        let located = frames.locate(&named(&[10, 11], &[20]), &kernel);
        let tiers = [vec![0], vec![1]];
        assert_eq!(
            arrived(&located, &tiers, &kernel),
            1,
            "frame 20 lies on the slow node"
        );
        kernel.state().put(7, 0, FakePage::base(0));
        assert_eq!(arrived(&located, &tiers, &kernel), 2);
        kernel.state().ended.insert(7);
        assert_eq!(arrived(&located, &tiers, &kernel), 1);
    }

    #[test]
    fn all_named_frames_of_a_huge_page_count_as_they_move_together() {
        let wanted: Vec<(u64, Gfn)> = (512..1024).map(|page| (page, Gfn(page))).collect();
        let base = [(1024, Gfn(9))];
        let mut located = Located::default();
        let up = &mut located.frames[0];
        let is_huge = |block| block == 512;
        let mut pieces = pieces_of(7, &wanted[..300], up, is_huge);
        // The rest of the page is named after a page of another process.
        pieces.extend(pieces_of(7, &wanted[300..], up, is_huge));
        pieces.extend(pieces_of(7, &base, up, is_huge));
        assert_eq!(pieces, [(512, HUGE), (1024, 1)]);
        let kernel = FakePages::default();
        kernel.state().put(7, 512 * PAGE_SIZE, FakePage::huge(0));
        kernel.state().put(7, 1024 * PAGE_SIZE, FakePage::base(1));
        let pieces = here(7, &pieces, &kernel);
        assert_eq!(pieces.len(), 2);
        located.named.up = vec![Side { process: 7, pieces }];
        assert_eq!(arrived(&located, &[vec![0], vec![1]], &kernel), 512);
    }

    #[test]
    fn the_index_is_made_no_more_often_than_the_cpu_allows() {
        let (dir, mut frames, _) = guest();
        put_pagemap(dir.path(), 7, &[30, 0, 0, 0]);
        frames.refresh(Tick(400_000_000), &targets(), 100);
        assert_eq!(frames.index().get(Gfn(30)), None, "not due");
        frames.refresh(Tick(3_600_000_000_000), &targets(), 100);
        let place = Place {
            process: 7,
            page: 0,
        };
        assert_eq!(frames.index().get(Gfn(30)), Some(place));
        frames.forget();
        assert_eq!(frames.index().get(Gfn(30)), None);
    }
}
