//! Requests for sizes of a VM.

use std::collections::VecDeque;

use crate::host::device::Resize;
use crate::machine::TIERS;

/// A request for sizes that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refused {
    /// The time of the request, ns.
    pub at_ns: u64,
    /// The reason, a sentence for people.
    pub why: String,
}

/// Requests for sizes of a VM, present and coming.
#[derive(Debug)]
pub(super) struct Requests {
    /// Requests to come, in order of time.
    coming: VecDeque<Resize>,
    /// Number of these whose time has come.
    count: u32,
    /// Pages of the last request: the balloon's orders know no tiers.
    asked: [u64; TIERS],
    refused: Vec<Refused>,
}

impl Requests {
    /// Requests: `asked` pages now, and others later.
    pub(super) fn new(asked: [u64; TIERS], coming: &[Resize]) -> Self {
        Self {
            coming: coming.iter().cloned().collect(),
            count: 0,
            asked,
            refused: Vec::new(),
        }
    }

    /// The next request and its number, if its time has come.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<(u32, Vec<u64>)> {
        let resize = self.coming.pop_front_if(|next| next.at_ns <= now_ns)?;
        self.count += 1;
        Some((self.count, resize.sizes))
    }

    /// Takes a request for so many pages of each tier.
    pub(super) fn ask(&mut self, pages: [u64; TIERS]) {
        self.asked = pages;
    }

    /// Pages of the last request.
    pub(super) fn asked(&self) -> [u64; TIERS] {
        self.asked
    }

    /// Records that a request was refused.
    pub(super) fn refuse(&mut self, at_ns: u64, why: &str) {
        let why = why.to_owned();
        self.refused.push(Refused { at_ns, why });
    }

    /// The requests that were refused so far.
    pub(super) fn refused(&self) -> &[Refused] {
        &self.refused
    }
}
