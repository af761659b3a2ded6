//! The progress of a vCPU with its load.

use super::histogram::Histogram;

/// A vCPU's time, and the work that it did in it.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The vCPU's time, ps.
    clock: u64,
    /// When the load ended, ps; `None` while it runs.
    ended: Option<u64>,
    /// Accesses that the load may still make.
    left: u64,
    /// Start of the operation under way, ps.
    operation: u64,
    /// Times of the load's operations.
    times: Histogram,
}

impl Progress {
    /// No progress at time 0, with a load that may make `left` accesses.
    #[must_use]
    pub fn new(left: u64) -> Self {
        Self {
            clock: 0,
            ended: None,
            left,
            operation: 0,
            times: Histogram::default(),
        }
    }

    /// Sets the time at which the load begins, ps.
    pub fn begin(&mut self, ps: u64) {
        (self.clock, self.operation) = (ps, ps);
    }

    /// The vCPU's time, ps.
    #[must_use]
    #[inline]
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// When the load ended, ps; `None` while it runs.
    #[must_use]
    #[inline]
    pub fn ended(&self) -> Option<u64> {
        self.ended
    }

    /// Accesses that the load may still make.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left
    }

    /// Times of the load's operations.
    #[must_use]
    pub fn times(&self) -> &Histogram {
        &self.times
    }

    /// Lets so many ps pass.
    #[inline]
    pub(super) fn advance(&mut self, ps: u64) {
        self.clock += ps;
    }

    /// Waits until a time, ps.
    pub(super) fn wait(&mut self, until_ps: u64) {
        self.clock = until_ps;
    }

    /// Counts an access, the end of an operation if it is one, and the end of the load if no access is left.
    #[inline]
    pub(super) fn made(&mut self, ends_operation: bool) {
        if ends_operation {
            self.times.add(self.clock - self.operation);
            self.operation = self.clock;
        }
        self.left -= 1;
        if self.left == 0 {
            self.ended = Some(self.clock);
        }
    }

    /// Ends the load now.
    pub fn end(&mut self) {
        self.ended = Some(self.clock);
    }

    /// Ends the load at a time of the clock, ps, unless it ended before.
    pub fn stop(&mut self, ps: u64) {
        self.ended.get_or_insert(ps);
    }

    /// Lets the load make `left` more accesses.
    #[cfg(test)]
    pub(crate) fn resume(&mut self, left: u64) {
        (self.left, self.ended) = (left, None);
    }
}
