//! The pages that a plan's shares mean: each extent that may have some is asked about once.

use std::collections::{BTreeMap, VecDeque};

use terrace_proto::TierId;
use terrace_proto::ranges::Range;

use super::free::Free;
use super::piece::{Piece, size};
use super::plan::{Plan, Ranked, Share};
use super::program::Program;

/// Pages of text, data and stacks that are brought up in an epoch, in extents.
const MAX_PINNED: u64 = 32;
/// Extents of text, data and stacks that are asked about at once.
const PINNED_AT_ONCE: u64 = 64;
/// Part of the headroom that is made free again in an epoch. Pages that went down free more than the kernel reports
/// at once (pages in lists of each CPU), so a large step would send down too much.
const HEADROOM_STEP: u64 = 8;

/// Processes under management, by their numbers.
pub type Programs = BTreeMap<u32, Program>;

/// A query of where pages are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeQuery {
    /// The process whose range it is.
    pub process: u32,
    /// The range.
    pub range: Range,
    /// Whether it is an extent, whose answer is stored.
    pub is_extent: bool,
}

/// The choice of pieces for an epoch.
#[derive(Clone, Debug)]
pub struct Pick {
    plan: Plan,
    free: Free,
    /// Pages that may travel in each direction.
    each_way: u64,
    /// Pages in the first tier that are more than the capacity.
    excess: u64,
    stage: Stage,
    up: Vec<Piece>,
    /// Of them, text, data and stacks.
    pinned: u64,
    /// Pages that go down whatever comes up.
    more: u64,
}

/// The direction that is chosen for at this moment.
#[derive(Clone, Debug)]
enum Stage {
    /// Text, data and stacks.
    Pinned {
        /// The ranges that are still to be asked about.
        todo: VecDeque<(u32, Range)>,
        /// Pages that still may.
        left: u64,
        /// Pages of a question.
        by: u64,
    },
    Up(Gather),
    Down(Gather),
}

/// The chosen pieces.
#[derive(Clone, Debug)]
pub struct Picked {
    /// To the first tier.
    pub up: Vec<Piece>,
    /// Out of it.
    pub down: Vec<Piece>,
    /// Pages that come up without others that go down.
    pub into_free: u64,
    /// Pages that go down whatever comes up.
    pub more_down: u64,
    /// Pages of text, data and stacks among those that come up.
    pub pinned: u64,
    /// Free memory.
    pub free: Free,
}

impl Pick {
    /// Begins to choose, by a plan.
    #[must_use]
    pub fn new(
        plan: Plan,
        free: Free,
        each_way: u64,
        excess: u64,
        programs: &Programs,
        extent: u64,
    ) -> Self {
        let pinned = programs
            .iter()
            .flat_map(|(process, program)| program.pinned().iter().map(|range| (*process, *range)));
        Self {
            plan,
            free,
            each_way,
            excess,
            stage: Stage::Pinned {
                todo: pinned.collect(),
                left: each_way.min(MAX_PINNED * extent),
                by: PINNED_AT_ONCE * extent.max(1),
            },
            up: Vec::new(),
            pinned: 0,
            more: 0,
        }
    }

    /// The next question; none if all is chosen.
    pub fn next(
        &mut self,
        programs: &Programs,
        ranked: &[Ranked],
        epoch: u32,
    ) -> Option<RangeQuery> {
        loop {
            match &mut self.stage {
                Stage::Pinned { todo, by, .. } => {
                    if let Some((process, range)) = next_part(todo, *by) {
                        return Some(RangeQuery {
                            process,
                            range,
                            is_extent: false,
                        });
                    }
                    self.pinned = size(&self.up);
                    let most = self.each_way.saturating_sub(self.pinned);
                    let gather = Gather::new(&self.plan.promote, ranked, false, most);
                    self.stage = Stage::Up(gather);
                }
                Stage::Up(gather) => {
                    if let Some(asked) = gather.next(programs, epoch) {
                        return Some(asked);
                    }
                    self.up.append(&mut gather.pieces);
                    self.more = self.more_down();
                    let going = self.plan.going_down(ranked, self.more);
                    let gather = Gather::new(&going, ranked, true, self.each_way);
                    self.stage = Stage::Down(gather);
                }
                Stage::Down(gather) => return gather.next(programs, epoch),
            }
        }
    }

    /// Pages to demote beyond the plan: those above the size and, if something is to come up, those by which others
    /// used up the headroom.
    fn more_down(&self) -> u64 {
        let wanted = if self.up.is_empty() {
            0
        } else {
            self.free.deficit(self.pinned)
        };
        let step = self.pinned + self.free.headroom() / HEADROOM_STEP;
        (self.excess + wanted.min(step)).min(self.each_way)
    }

    /// Takes the answer to the last question.
    pub fn surveyed(&mut self, found: &[Piece]) {
        match &mut self.stage {
            Stage::Pinned { todo, left, .. } => {
                for piece in found.iter().filter(|piece| piece.tier != TierId::FAST) {
                    let pages = u64::from(piece.pages);
                    if pages > *left {
                        todo.clear();
                        return;
                    }
                    *left -= pages;
                    // Others may map it, too.
                    self.up.push(Piece {
                        shared: true,
                        ..*piece
                    });
                }
            }
            Stage::Up(gather) | Stage::Down(gather) => gather.surveyed(found),
        }
    }

    /// The chosen pieces, once nothing is left to ask about.
    #[must_use]
    pub fn picked(self) -> Picked {
        let down = match self.stage {
            Stage::Down(gather) => gather.pieces,
            Stage::Pinned { .. } | Stage::Up(_) => Vec::new(),
        };
        let into_free = self.plan.promoted().saturating_sub(self.plan.demoted());
        Picked {
            up: self.up,
            down,
            into_free: into_free.saturating_add(self.pinned),
            more_down: self.more,
            pinned: self.pinned,
            free: self.free,
        }
    }
}

/// The next ranges, cut at multiples of so many pages.
fn next_part(todo: &mut VecDeque<(u32, Range)>, by: u64) -> Option<(u32, Range)> {
    let (process, range) = todo.pop_front()?;
    let cut = (range.start / by + 1).saturating_mul(by).min(range.end);
    if cut < range.end {
        let rest = Range {
            start: cut,
            end: range.end,
        };
        todo.push_front((process, rest));
    }
    let part = Range {
        start: range.start,
        end: cut,
    };
    Some((process, part))
}

/// Pages of ranges that are in the first tier, or that are not, in order of address.
#[derive(Clone, Debug)]
struct Gather {
    fast: bool,
    /// Of each range so many pages; the first one is being surveyed.
    todo: VecDeque<Wanted>,
    /// Pages that still may be taken, beside those that the first range still may.
    left: u64,
    begun: bool,
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug)]
struct Wanted {
    process: u32,
    /// The part of the range that was not asked about yet.
    range: Range,
    pages: u64,
}

impl Gather {
    /// At most `most` pages.
    fn new(shares: &[Share], ranked: &[Ranked], fast: bool, most: u64) -> Self {
        let todo = shares.iter().filter_map(|share| {
            let ranked = ranked.get(share.rank)?;
            Some(Wanted {
                process: ranked.process,
                range: ranked.leaf.range,
                pages: share.pages,
            })
        });
        Self {
            fast,
            todo: todo.collect(),
            left: most,
            begun: false,
            pieces: Vec::new(),
        }
    }

    /// The next extent that may have pages.
    fn next(&mut self, programs: &Programs, epoch: u32) -> Option<RangeQuery> {
        loop {
            let wanted = self.todo.front_mut()?;
            if !self.begun {
                if self.left == 0 {
                    return None;
                }
                wanted.pages = wanted.pages.min(self.left);
                self.left -= wanted.pages;
                self.begun = true;
            }
            let program = programs.get(&wanted.process);
            let extents = program.map(|program| program.extents.begin_in(wanted.range));
            let mut extents = extents.into_iter().flatten();
            let found = extents.find(|extent| {
                let here = if self.fast { extent.fast } else { extent.slow };
                here > 0 && !extent.rests(epoch)
            });
            if let Some(extent) = found {
                wanted.range.start = extent.start + 1;
                return Some(RangeQuery {
                    process: wanted.process,
                    range: extent.range(),
                    is_extent: true,
                });
            }
            self.finish();
        }
    }

    /// Lets other ranges use what was not found of a range.
    fn finish(&mut self) {
        self.begun = false;
        if let Some(wanted) = self.todo.pop_front() {
            self.left += wanted.pages;
        }
    }

    fn surveyed(&mut self, found: &[Piece]) {
        let Some(wanted) = self.todo.front_mut() else {
            return;
        };
        let fast = self.fast;
        for piece in found
            .iter()
            .filter(|piece| (piece.tier == TierId::FAST) == fast)
        {
            let pages = u64::from(piece.pages);
            if pages > wanted.pages {
                // The rest of a share that is less than a huge page waits for a larger one.
                return self.finish();
            }
            wanted.pages -= pages;
            self.pieces.push(*piece);
        }
        if wanted.pages == 0 {
            self.finish();
        }
    }
}
