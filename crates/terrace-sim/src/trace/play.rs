//! A trace being played: the accesses of one vCPU.

use std::sync::Arc;

use super::Loaded;
use super::copies::Copies;
use super::load::BLOCK;
use crate::base::access::{Access, Pace, Source};
use crate::base::number::to_usize;

/// A trace that a vCPU plays from some access on, and round to that again.
#[derive(Clone)]
pub(super) struct Played {
    loaded: Arc<Loaded>,
    /// The places of copies; `None` if each page stands for itself.
    copies: Option<Arc<Copies>>,
    /// Computing time of a record, ns.
    record_ns: f64,
    /// Whether the last-level cache sees the accesses.
    before_cache: bool,
    /// The recorded access that comes next; with copies, the first of those that come to each of them.
    at: usize,
    /// The copy that is played to.
    copy: usize,
    /// Accesses from `at` on that are played to this copy.
    played: usize,
    /// Recorded accesses that are not played yet, or not to all copies.
    left: u64,
    /// Computing time of an access in the last batch, ns.
    compute_ns: f64,
}

impl Played {
    /// A trace that is played `repeat` times from its access `at` on.
    pub(super) fn new(loaded: Arc<Loaded>, record_ns: f64, at: usize, repeat: u32) -> Self {
        Self {
            left: loaded.accesses().len() as u64 * u64::from(repeat),
            loaded,
            copies: None,
            record_ns,
            before_cache: false,
            at,
            copy: 0,
            played: 0,
            compute_ns: record_ns,
        }
    }

    /// Plays each access to all copies of its page.
    pub(super) fn to(mut self, copies: Option<Arc<Copies>>) -> Self {
        self.copies = copies;
        self
    }

    /// Plays the accesses before the last-level cache, or after it.
    pub(super) fn before_cache(mut self, before_cache: bool) -> Self {
        self.before_cache = before_cache;
        self
    }

    /// Goes on to a recorded access; the first follows the last.
    fn proceed(&mut self, to: usize) {
        self.left -= (to - self.at) as u64;
        self.at = if to == self.loaded.accesses().len() {
            0
        } else {
            to
        };
    }

    /// Plays accesses before `end` to one copy of their pages; returns how many. Before the next accesses, those
    /// come to each copy: between a page's accesses lie as few others as in the trace, which matters to a TLB.
    fn fill_copy(&mut self, copies: &Copies, end: usize, batch: &mut [Access]) -> usize {
        let recorded = &self.loaded.accesses()[self.at + self.played..end];
        let filled = recorded.len().min(batch.len());
        for (slot, recorded) in batch.iter_mut().zip(recorded) {
            *slot = copies.access(*recorded, self.copy);
        }
        self.played += filled;
        if self.at + self.played == end {
            self.played = 0;
            self.copy += 1;
        }
        if self.copy == copies.each() {
            self.copy = 0;
            self.proceed(end);
        }
        filled
    }
}

impl Source for Played {
    fn fill(&mut self, _now_ns: u64, batch: &mut [Access]) -> usize {
        if self.left == 0 || batch.is_empty() {
            return 0;
        }
        let accesses = self.loaded.accesses();
        let block_end = (self.at / BLOCK + 1) * BLOCK;
        let end = block_end.min(accesses.len());
        let end = end.min(self.at.saturating_add(to_usize(self.left)));
        self.compute_ns = self.record_ns * self.loaded.records_per_access(self.at);
        if let Some(copies) = self.copies.clone() {
            return self.fill_copy(&copies, end, batch);
        }
        let end = end.min(self.at + batch.len());
        let played = end - self.at;
        batch[..played].copy_from_slice(&accesses[self.at..end]);
        self.proceed(end);
        played
    }

    fn pace(&self) -> Pace {
        Pace {
            compute_ns: self.compute_ns,
            parallelism: 1.0,
            before_cache: self.before_cache,
        }
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}
