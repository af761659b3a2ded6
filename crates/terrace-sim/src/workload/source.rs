//! The conversion of generators of accesses into sources.

use crate::base::access::{Access, Pace, Source};

/// A generator of accesses without end.
pub(super) trait Generate: Clone + Send + 'static {
    /// Fills the whole batch; `now_ns` as in [`Source::fill`].
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]);
}

/// The source of a generator.
#[derive(Clone)]
pub(super) struct Endless<G> {
    pub(super) generator: G,
    pub(super) pace: Pace,
}

impl<G: Generate> Source for Endless<G> {
    fn fill(&mut self, now_ns: u64, batch: &mut [Access]) -> usize {
        self.generator.fill(now_ns, batch);
        batch.len()
    }

    fn pace(&self) -> Pace {
        self.pace
    }

    fn fork(&self) -> Box<dyn Source> {
        Box::new(self.clone())
    }
}

/// A program that does one operation after another, each of some accesses.
pub(super) trait Operate: Clone + Send + 'static {
    /// Puts the accesses of the next operation into `out`: none at all only a bounded number of times
    /// in a row.
    fn operate(&mut self, out: &mut Vec<Access>);
}

/// The generator of a program's accesses.
#[derive(Clone)]
pub(super) struct Operations<O> {
    operate: O,
    pending: Vec<Access>,
    given: usize,
}

impl<O> Operations<O> {
    pub(super) fn new(operate: O) -> Self {
        Self {
            operate,
            pending: Vec::new(),
            given: 0,
        }
    }
}

impl<O: Operate> Generate for Operations<O> {
    fn fill(&mut self, _now_ns: u64, batch: &mut [Access]) {
        let mut filled = 0;
        while filled < batch.len() {
            if self.given == self.pending.len() {
                self.pending.clear();
                self.given = 0;
                self.operate.operate(&mut self.pending);
            }
            let some = (self.pending.len() - self.given).min(batch.len() - filled);
            batch[filled..filled + some]
                .copy_from_slice(&self.pending[self.given..self.given + some]);
            self.given += some;
            filled += some;
        }
    }
}
