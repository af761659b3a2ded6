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
    /// The recorded access that comes next.
    at: usize,
    /// The copy of it that comes next.
    copy: usize,
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
            at,
            copy: 0,
            compute_ns: record_ns,
        }
    }

    /// Plays each access to all copies of its page.
    pub(super) fn to(mut self, copies: Option<Arc<Copies>>) -> Self {
        self.copies = copies;
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

    /// Plays accesses before `end` to their copies; returns how many.
    fn fill_copies(&mut self, copies: &Copies, end: usize, batch: &mut [Access]) -> usize {
        let loaded = Arc::clone(&self.loaded);
        let mut at = self.at;
        let mut filled = 0;
        for slot in batch {
            if at == end {
                break;
            }
            *slot = copies.access(loaded.accesses()[at], self.copy);
            filled += 1;
            self.copy += 1;
            if self.copy == copies.each() {
                self.copy = 0;
                at += 1;
            }
        }
        self.proceed(at);
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
            return self.fill_copies(&copies, end, batch);
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
        }
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}
