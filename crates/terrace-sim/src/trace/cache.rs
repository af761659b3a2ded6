//! The cache of the processor on which a program was recorded, as a filter: a hit reaches no memory.
//!
//! Set-associative, 16 ways of 64-byte lines, least-recently-used replacement, write-allocate. A store that misses is
//! a write access: it stands for the fetch of the line and its later write-back. The write-back of a line that was
//! fetched by a load and stored to while it was cached is left out.

use crate::base::access::LINE;

/// Lines in a set.
const WAYS: usize = 16;
const SET: u64 = WAYS as u64 * LINE;
/// Largest cache: its tags take an eighth of this.
const LARGEST: u64 = 1 << 30;
/// An empty way: numbers of lines are below 2^58.
const NONE: u64 = u64::MAX;

/// The error of a size that no cache can have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} bytes of cache: expected a multiple of 1 KiB (16 lines of 64 bytes), 1 KiB to 1 GiB")]
pub struct CacheSizeError(pub u64);

/// The cache of a processor.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Lines by set, the most recently used of a set first.
    sets: Vec<[u64; WAYS]>,
}

impl Cache {
    /// An empty cache.
    ///
    /// # Errors
    /// If the size is not a whole number of sets, or is out of bounds.
    pub fn new(bytes: u64) -> Result<Self, CacheSizeError> {
        let wrong = CacheSizeError(bytes);
        if bytes == 0 || !bytes.is_multiple_of(SET) || bytes > LARGEST {
            return Err(wrong);
        }
        let sets = usize::try_from(bytes / SET).map_err(|_| wrong)?;
        Ok(Self {
            sets: vec![[NONE; WAYS]; sets],
        })
    }

    /// Uses a line (by number); returns whether it was missing. Afterwards the line is in the cache.
    pub fn misses(&mut self, line: u64) -> bool {
        let sets = self.sets.len() as u64;
        let Some(set) = usize::try_from(line % sets)
            .ok()
            .and_then(|set| self.sets.get_mut(set))
        else {
            return true;
        };
        if set[0] == line {
            return false;
        }
        let found = set.iter().position(|l| *l == line);
        let last = found.unwrap_or(WAYS - 1);
        set.copy_within(..last, 1);
        set[0] = line;
        found.is_none()
    }
}
