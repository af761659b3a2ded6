//! The engine's actions and their reasons, for people: a bounded list of short sentences.
//!
//! Responsible for: keeping the newest ones. It leaves to others: their words.

use std::collections::VecDeque;

use serde::Serialize;
use terrace_proto::Tick;

/// One sentence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// Rises by one with each reason, from 1; gaps show what went when the list was full.
    pub sequence: u64,
    /// When it was said.
    pub at: Tick,
    /// The sentence.
    pub text: String,
}

/// The newest reasons.
#[derive(Debug)]
pub(crate) struct Reasons {
    ring: VecDeque<Reason>,
    max_len: usize,
    said: u64,
}

impl Reasons {
    pub(crate) fn new(max_len: usize) -> Self {
        Self {
            ring: VecDeque::new(),
            max_len,
            said: 0,
        }
    }

    pub(crate) fn say(&mut self, at: Tick, text: impl Into<String>) {
        if self.ring.len() >= self.max_len {
            self.ring.pop_front();
        }
        self.said += 1;
        self.ring.push_back(Reason {
            sequence: self.said,
            at,
            text: text.into(),
        });
    }

    /// Those after a number, oldest first.
    pub(crate) fn after(&self, sequence: u64) -> impl Iterator<Item = &Reason> {
        let gone = self.said - self.ring.len() as u64;
        let skip = usize::try_from(sequence.saturating_sub(gone)).unwrap_or(usize::MAX);
        self.ring.iter().skip(skip)
    }

    /// Oldest first.
    pub(crate) fn list(&self) -> Vec<Reason> {
        self.ring.iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_reason_makes_room() {
        let mut reasons = Reasons::new(2);
        (1..=3).for_each(|i| reasons.say(Tick(i), i.to_string()));
        let texts: Vec<_> = reasons.list().into_iter().map(|r| r.text).collect();
        assert_eq!(texts, ["2", "3"]);
        for (after, texts) in [(0, 2), (1, 2), (2, 1), (3, 0), (9, 0)] {
            assert_eq!(reasons.after(after).count(), texts, "after {after}");
        }
    }
}
