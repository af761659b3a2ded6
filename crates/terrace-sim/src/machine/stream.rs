//! The accesses that a vCPU takes from its load.

use crate::base::access::{Access, Pace, Source};

/// Accesses taken from the load at a time.
const BATCH: usize = 64;

/// A vCPU's accesses: a batch of them, and the load that makes the others.
pub struct Stream {
    source: Box<dyn Source>,
    batch: [Access; BATCH],
    next: usize,
    len: usize,
}

impl Stream {
    /// A stream whose batch is still empty.
    #[must_use]
    pub fn new(source: Box<dyn Source>) -> Self {
        Self {
            source,
            batch: [Access::default(); BATCH],
            next: 0,
            len: 0,
        }
    }

    /// The next access; call it only if the batch is not empty.
    #[inline]
    pub(super) fn front(&self) -> Access {
        self.batch[self.next]
    }

    /// Drops the access at the front: it was made.
    #[inline]
    pub(super) fn advance(&mut self) {
        self.next += 1;
    }

    /// Whether the batch is empty.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.next == self.len
    }

    /// The accesses left in the batch.
    pub(super) fn at_hand(&self) -> &[Access] {
        &self.batch[self.next..self.len]
    }

    /// Takes the next accesses from the load.
    pub(super) fn refill(&mut self, now_ns: u64) {
        self.len = self.source.fill(now_ns, &mut self.batch);
        self.next = 0;
    }

    /// The pace of the accesses in the batch.
    pub(super) fn pace(&self) -> Pace {
        self.source.pace()
    }

    /// Number of programs that ended before that of the accesses in the batch.
    pub(super) fn program(&self) -> u64 {
        self.source.program()
    }

    /// A copy of the source of the accesses after the batch.
    pub(super) fn fork_source(&self) -> Box<dyn Source> {
        self.source.fork()
    }
}
