//! Hot pages that the host names for gathering, until a set is whole.

use std::collections::BTreeSet;
use std::time::Duration;

use terrace_proto::Gfn;
use terrace_proto::agent::Gather;

/// A set of hot pages. Each lies in this guest's memory and is named once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HotFrames {
    /// The host's number of the set.
    pub generation: u64,
    /// Time over which accesses were counted, up to the host's word.
    pub counted: Duration,
    /// Frames that the host named, those that were refused included.
    pub named: u64,
    /// The frames that were taken, hottest first.
    pub frames: Vec<Gfn>,
}

/// A set that comes in parts, then waits to be taken.
#[derive(Debug, Default)]
pub(super) struct HotSet {
    generation: u64,
    counted_ms: u32,
    /// Frames that were named of it so far, and how many there are.
    named: u64,
    whole: u64,
    frames: Vec<Gfn>,
    seen: BTreeSet<Gfn>,
    /// A whole set that nobody took yet.
    ready: Option<HotFrames>,
}

impl HotSet {
    /// Takes in the frames that lie in memory and were not named yet. Returns how many. A part of an older set, and one of a set that is
    /// whole already, is refused as a whole.
    pub(super) fn take_in(&mut self, part: &Gather, memory_end: Gfn) -> u64 {
        if part.generation() < self.generation {
            return 0;
        }
        if part.generation() > self.generation {
            *self = Self {
                generation: part.generation(),
                counted_ms: part.counted_ms(),
                whole: part.whole().into(),
                ready: self.ready.take(),
                ..Self::default()
            };
        } else if self.is_whole() {
            return 0;
        }
        let before = self.frames.len();
        for gfn in part.hot() {
            if self.is_whole() {
                break;
            }
            self.named += 1;
            if *gfn < memory_end && self.seen.insert(*gfn) {
                self.frames.push(*gfn);
            }
        }
        let taken = self.frames.len() - before;
        if self.is_whole() {
            self.finish();
        }
        taken as u64
    }

    fn is_whole(&self) -> bool {
        self.named >= self.whole
    }

    fn finish(&mut self) {
        self.seen = BTreeSet::new();
        self.ready = Some(HotFrames {
            generation: self.generation,
            counted: Duration::from_millis(self.counted_ms.into()),
            named: self.named,
            frames: std::mem::take(&mut self.frames),
        });
    }

    /// Hands out the newest whole set, once.
    pub(super) fn hand_out(&mut self) -> Option<HotFrames> {
        self.ready.take()
    }

    /// Frames that are held.
    pub(super) fn len(&self) -> usize {
        self.frames
            .len()
            .max(self.ready.as_ref().map_or(0, |set| set.frames.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: Gfn = Gfn(1000);

    fn part(generation: u64, whole: u32, frames: &[u64]) -> Gather {
        let hot = frames.iter().copied().map(Gfn).collect();
        Gather::new(generation, whole, 5000, hot).unwrap()
    }

    fn taken(set: &mut HotSet) -> Option<Vec<u64>> {
        let taken = set.hand_out()?;
        Some(taken.frames.iter().map(|gfn| gfn.0).collect())
    }

    #[test]
    fn a_set_is_handed_out_once_and_whole() {
        let mut set = HotSet::default();
        assert_eq!(set.take_in(&part(1, 3, &[7, 5]), END), 2);
        assert_eq!(set.hand_out(), None, "one is missing");
        assert_eq!(set.take_in(&part(1, 3, &[2]), END), 1);
        let whole = set.hand_out().unwrap();
        assert_eq!(whole.frames, [Gfn(7), Gfn(5), Gfn(2)]);
        assert_eq!((whole.generation, whole.named), (1, 3));
        assert_eq!(whole.counted, Duration::from_secs(5));
        assert_eq!(set.hand_out(), None);
    }

    #[test]
    fn a_set_whose_beginning_was_lost_is_replaced_by_the_next() {
        let mut set = HotSet::default();
        set.take_in(&part(4, 3, &[7]), END);
        set.take_in(&part(5, 1, &[9]), END);
        assert_eq!(taken(&mut set), Some(vec![9]));
        assert_eq!(set.take_in(&part(4, 3, &[5, 6]), END), 0, "an old decision");
        assert_eq!(set.hand_out(), None);
    }

    #[test]
    fn a_set_that_nobody_took_yet_waits_while_the_next_one_comes() {
        let mut set = HotSet::default();
        set.take_in(&part(1, 1, &[9]), END);
        set.take_in(&part(2, 2, &[8]), END);
        assert_eq!(taken(&mut set), Some(vec![9]));
        set.take_in(&part(2, 2, &[7]), END);
        set.take_in(&part(3, 0, &[]), END);
        assert_eq!(taken(&mut set), Some(vec![]), "the newest one");
    }

    #[test]
    fn gather_outside_of_memory_is_refused() {
        let mut set = HotSet::default();
        assert_eq!(set.take_in(&part(1, 3, &[999, 1000, 1 << 39]), END), 1);
        assert_eq!(taken(&mut set), Some(vec![999]));
    }

    #[test]
    fn gather_named_twice_is_taken_once() {
        let mut set = HotSet::default();
        assert_eq!(set.take_in(&part(1, 5, &[3, 3, 4]), END), 2);
        assert_eq!(set.take_in(&part(1, 5, &[4, 3]), END), 0);
        assert_eq!(set.hand_out().unwrap().named, 5);
    }

    #[test]
    fn gather_of_more_than_the_set_has_is_refused() {
        let mut set = HotSet::default();
        assert_eq!(set.take_in(&part(1, 3, &[1, 2]), END), 2);
        assert_eq!(set.take_in(&part(1, 3, &[3, 4, 5]), END), 1);
        assert_eq!(set.take_in(&part(1, 3, &[6]), END), 0);
        assert_eq!(taken(&mut set), Some(vec![1, 2, 3]));
    }
}
