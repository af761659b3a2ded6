//! The balloons of a VM: which pages of which tier are in them.

use std::sync::Arc;

use terrace_proto::PageBitmap;

use crate::abi::{ENTRY_BYTES, Entry};
use crate::config::Config;
use crate::state::State;
use crate::tier::{Admit, EntryRefusal, Run, TierMap, admit};

/// A balloon for each tier. Which pages are in it is in the state, which survives this process.
pub(super) struct Balloons {
    state: Arc<State>,
    tiers: Vec<TierMap>,
    /// Pages in each: the sum of the bits.
    actual: Vec<u64>,
    admit: Admit,
    /// Page orders that are taken, one bit each.
    orders: u32,
}

impl Balloons {
    /// The balloons of `state`.
    pub fn new(config: &Config, state: Arc<State>) -> Self {
        let mut balloons = Self {
            state,
            tiers: config.tiers().iter().map(TierMap::new).collect(),
            actual: Vec::new(),
            admit,
            orders: config.orders(),
        };
        balloons.recount();
        balloons
    }

    /// Replaces the rule of admission.
    pub fn set_admit(&mut self, admit: Admit) {
        self.admit = admit;
    }

    /// The ranges of the tiers.
    pub fn tiers(&self) -> &[TierMap] {
        &self.tiers
    }

    /// Pages in each.
    pub fn actual(&self) -> &[u64] {
        &self.actual
    }

    /// Adds up the bits, which changed without it.
    pub fn recount(&mut self) {
        let state = &self.state;
        self.actual = (0..state.tiers()).map(|i| state.pages_in(i)).collect();
    }

    /// Empties all: the guest's pages are its own.
    pub fn reset(&mut self) {
        self.state.reset();
        self.recount();
    }

    /// Empties a balloon.
    pub fn empty(&mut self, tier: usize) {
        // Cut off at the end of the tier.
        self.state.put_all(tier, 0, u64::MAX, false);
        self.recount();
    }

    /// Takes over those of another device, of the same sizes.
    pub fn take_over(&mut self, balloons: &[PageBitmap]) {
        for (tier, balloon) in balloons.iter().enumerate() {
            // Another size changes nothing.
            let _ = self.state.set_bitmap(tier, balloon);
        }
        self.recount();
    }

    /// The pages that an entry names, if they may be.
    #[inline]
    pub fn admit(&self, tier: usize, entry: Entry) -> Result<Run, EntryRefusal> {
        let map = self.tiers.get(tier).ok_or(EntryRefusal::Outside)?;
        (self.admit)(map, self.orders, entry)
    }

    /// The pages that entries name, those that may not be left out.
    pub fn runs_of<'a>(&'a self, tier: usize, bytes: &'a [u8]) -> impl Iterator<Item = Run> + 'a {
        let words = bytes.as_chunks::<ENTRY_BYTES>().0.iter();
        // Entries that may not be are refused and counted when their chain is answered.
        words.filter_map(move |word| self.admit(tier, Entry(u64::from_le_bytes(*word))).ok())
    }

    /// Puts all pages of a run into the balloon (`on`), or takes them out, in any state that they are in.
    #[inline]
    pub fn mark(&mut self, tier: usize, run: &Run, on: bool) {
        // A process that was killed may have marked a part of the run: no page counts twice.
        let before = self.state.count(tier, run.first, run.pages);
        self.state.put_all(tier, run.first, run.pages, on);
        if let Some(actual) = self.actual.get_mut(tier) {
            let after = if on { run.pages } else { 0 };
            // Saturating, because bits that changed without the count leave it too small until it is added up again.
            *actual = (*actual + after).saturating_sub(before);
        }
    }
}
