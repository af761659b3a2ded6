//! Frames that the host names, until the agent takes them.

use std::collections::BTreeSet;

use terrace_proto::Gfn;
use terrace_proto::agent::Frames;

/// Most frames that wait to be taken.
pub const MAX_FRAMES: usize = 16 << 10;

/// Pages that the host named. Each lies in this guest's memory and is named once.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct FrameRequests {
    /// Pages for the first tier, most urgent first.
    pub promote: Vec<Gfn>,
    /// Pages that leave it to make room, coldest first.
    pub demote: Vec<Gfn>,
}

impl FrameRequests {
    /// Number of the pages.
    #[must_use]
    pub fn len(&self) -> u64 {
        (self.promote.len() + self.demote.len()) as u64
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Frames of the host's latest decision that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    generation: u64,
    frames: FrameRequests,
    named: BTreeSet<Gfn>,
}

impl Waiting {
    /// Takes in the frames that lie in memory and were not named yet. Returns how many.
    pub(super) fn take_in(&mut self, frames: &Frames, memory_end: Gfn) -> u64 {
        if frames.generation() < self.generation {
            return 0;
        }
        if frames.generation() > self.generation {
            self.generation = frames.generation();
            self.forget();
        }
        let named = &mut self.named;
        let mut fits =
            |gfn: &&Gfn| **gfn < memory_end && named.len() < MAX_FRAMES && named.insert(**gfn);
        let promote: Vec<Gfn> = frames.promote().iter().filter(&mut fits).copied().collect();
        let demote: Vec<Gfn> = frames.demote().iter().filter(&mut fits).copied().collect();
        let taken = promote.len() + demote.len();
        self.frames.promote.extend(promote);
        self.frames.demote.extend(demote);
        taken as u64
    }

    /// Forgets the frames that wait. A decision older than theirs is still refused.
    pub(super) fn forget(&mut self) {
        self.frames = FrameRequests::default();
        self.named.clear();
    }

    /// Hands out the frames that wait, once.
    pub(super) fn hand_out(&mut self) -> FrameRequests {
        self.named.clear();
        std::mem::take(&mut self.frames)
    }

    pub(super) fn len(&self) -> usize {
        self.named.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_many_frames_are_refused_and_those_before_them_wait() {
        let mut waiting = Waiting::default();
        let end = Gfn(1 << 20);
        let part = |first: u64| {
            let frames = (first..first + 4096).map(Gfn).collect();
            Frames::new(7, frames, Vec::new()).unwrap()
        };
        for first in [0, 4096, 8192, 12288] {
            assert_eq!(waiting.take_in(&part(first), end), 4096);
        }
        // All places are taken, and stay with those that came first.
        assert_eq!(waiting.take_in(&part(16384), end), 0);
        assert_eq!(waiting.len(), MAX_FRAMES);
        let all = waiting.hand_out();
        assert_eq!(all.promote.last(), Some(&Gfn(16383)));
        assert_eq!(waiting.take_in(&part(16384), end), 4096);
    }
}
