//! The table pages that a pass has read.

use crate::bits::Bits;

/// One in how many frames may be listed: more than there are tables in any guest that means well.
const LISTED: u64 = 256;

/// A set of frames that is emptied in the time that it took to fill it: a pass over a small part of a large guest reads few tables.
#[derive(Debug)]
pub(crate) struct Visited {
    bits: Bits,
    /// The frames, until they are too many.
    frames: Vec<u64>,
    most: usize,
}

impl Visited {
    /// Of a VM with so many guest pages.
    pub(crate) fn new(frames: u64) -> Self {
        Self {
            bits: Bits::new(frames),
            frames: Vec::new(),
            most: usize::try_from(frames / LISTED).unwrap_or(usize::MAX),
        }
    }

    /// Adds a frame and says whether it is new.
    #[inline]
    pub(crate) fn insert(&mut self, frame: u64) -> bool {
        let new = self.bits.insert(frame);
        if new && self.frames.len() <= self.most {
            self.frames.push(frame);
        }
        new
    }

    pub(crate) fn clear(&mut self) {
        if self.frames.len() > self.most {
            self.bits.clear();
        } else {
            for frame in &self.frames {
                self.bits.remove(*frame);
            }
        }
        self.frames.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_frames_and_more_than_are_listed_are_forgotten_alike() {
        for count in [1, 3, 4, 5, 100] {
            let mut visited = Visited::new(1024);
            let frames = || (0..count).map(|i| i * 7);
            assert!(frames().all(|frame| visited.insert(frame)));
            assert!(!frames().any(|frame| visited.insert(frame)));
            visited.clear();
            assert!(frames().all(|frame| visited.insert(frame)), "{count}");
        }
    }
}
