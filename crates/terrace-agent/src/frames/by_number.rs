//! Named frames that are moved by their numbers, whoever has them.

use std::collections::BTreeMap;

use terrace_core::ranges::{free, piece};
use terrace_proto::ranges::{FRAMES, Migration, Named, PieceRun, Side, Stopped};
use terrace_proto::{Gfn, TierId};
use terrace_sys::{HostRoot, NOT_ANSWERED};

use super::nodes::NodeFrames;
use super::not_moved::NotMoved;
use crate::channel::FrameRequests;

/// Frames on their way: where each was, and what was answered.
#[derive(Debug, Default)]
pub struct ByNumber {
    frames: FrameRequests,
    nodes: BTreeMap<Gfn, u32>,
    answers: BTreeMap<Gfn, i32>,
}

/// The fate of named frames.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// They are in the tier that they were to go to.
    pub taken: u64,
    /// The others, by the reason.
    pub not_moved: NotMoved,
    /// Frames that may be moved by the addresses of their pages.
    pub rest: FrameRequests,
}

enum Fate {
    Taken,
    Unknown,
    Left,
    Rest,
}

impl ByNumber {
    /// Looks up on which node each frame is.
    #[must_use]
    pub fn new(root: &HostRoot, frames: &FrameRequests) -> Self {
        let nodes = NodeFrames::read(root);
        let all = frames.promote.iter().chain(&frames.demote);
        Self {
            nodes: all
                .filter_map(|gfn| Some((*gfn, nodes.of(*gfn)?)))
                .collect(),
            frames: frames.clone(),
            answers: BTreeMap::new(),
        }
    }

    /// The frames for the controller.
    #[must_use]
    pub fn named(&self) -> Named {
        Named {
            up: self.sides(&self.frames.promote),
            down: self.sides(&self.frames.demote),
        }
    }

    fn sides(&self, list: &[Gfn]) -> Vec<Side> {
        let mut pieces: Vec<PieceRun> = Vec::new();
        for gfn in list {
            if let Some(node) = self.nodes.get(gfn) {
                piece::push(&mut pieces, gfn.0, 1, *node);
            }
        }
        match pieces.is_empty() {
            true => Vec::new(),
            false => vec![Side {
                process: FRAMES,
                pieces,
            }],
        }
    }

    /// Takes in the status of each frame of a move.
    pub fn answered(&mut self, migration: &Migration, statuses: &[i32]) {
        let frames = piece::pages(&migration.pieces).map(Gfn);
        self.answers.extend(frames.zip(statuses.iter().copied()));
    }

    /// The fate of each. `stopped` says why the last ones were not tried.
    #[must_use]
    pub fn outcome(&self, tiers: &[Vec<u32>], stopped: Option<Stopped>) -> Outcome {
        let mut outcome = Outcome::default();
        let sides = [(&self.frames.promote, true), (&self.frames.demote, false)];
        for (list, up) in sides {
            for gfn in list {
                match self.fate(*gfn, up, tiers, stopped) {
                    Fate::Taken => outcome.taken += 1,
                    Fate::Unknown => outcome.not_moved.unknown += 1,
                    Fate::Left => outcome.not_moved.left += 1,
                    Fate::Rest if up => outcome.rest.promote.push(*gfn),
                    Fate::Rest => outcome.rest.demote.push(*gfn),
                }
            }
        }
        outcome
    }

    fn fate(&self, gfn: Gfn, up: bool, tiers: &[Vec<u32>], stopped: Option<Stopped>) -> Fate {
        let Some(node) = self.nodes.get(&gfn) else {
            return Fate::Rest;
        };
        match free::tier_of(tiers, *node) {
            None => return Fate::Left,
            Some(tier) if (tier == TierId::FAST) == up => return Fate::Taken,
            Some(_) => {}
        }
        let Some(status) = self.answers.get(&gfn) else {
            // Pages of processes can change places where no node has room.
            return match stopped {
                Some(Stopped::BothFull) => Fate::Rest,
                _ => Fate::Left,
            };
        };
        match status.saturating_neg() {
            0 | libc::EEXIST => Fate::Taken,
            libc::ENOENT | libc::EFAULT => Fate::Unknown,
            // Parts of larger pages, files, what several processes map or one has locked: `move_pages(2)` may do it.
            libc::E2BIG | libc::EOPNOTSUPP | libc::EACCES | libc::EPERM => Fate::Rest,
            _ if *status == NOT_ANSWERED => Fate::Rest,
            _ => Fate::Left,
        }
    }
}
