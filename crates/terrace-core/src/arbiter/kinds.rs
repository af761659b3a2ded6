//! Bytes of each kind of memory that VMs share.
//!
//! Each tier is a kind of its own for VMs whose device sizes it. Of a VM whose device knows one size for all of its
//! tiers nothing says which tier a byte comes from: such VMs share what they have among themselves.

use std::ops::Index;

use terrace_proto::TierId;

/// The number of kinds: memory of one size for all tiers, then each tier.
const KINDS: usize = TierId::MAX + 1;

/// Bytes of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kinds([u64; KINDS]);

/// The kind of a tier of a VM whose device sizes so many tiers.
pub(super) fn kind(tiers: usize, tier: usize) -> usize {
    match tiers {
        0 | 1 => 0,
        _ => (tier + 1).min(KINDS - 1),
    }
}

impl Kinds {
    /// These bytes of the first kind, and of each tier.
    pub fn of(whole: u64, tiers: &[u64]) -> Self {
        let mut kinds = Self::default();
        kinds.0[0] = whole;
        for (kind, bytes) in kinds.0[1..].iter_mut().zip(tiers) {
            *kind = *bytes;
        }
        kinds
    }

    /// Adds the tiers of a VM.
    pub fn add(&mut self, sizes: &[u64]) {
        for (tier, bytes) in sizes.iter().enumerate() {
            let kind = &mut self.0[kind(sizes.len(), tier)];
            *kind = kind.saturating_add(*bytes);
        }
    }

    /// Takes bytes of a kind away.
    pub fn take(&mut self, kind: usize, bytes: u64) {
        self.0[kind] = self.0[kind].saturating_sub(bytes);
    }

    /// The excess of this over the other.
    pub fn less(&self, other: &Self) -> Self {
        Self(std::array::from_fn(|kind| {
            self.0[kind].saturating_sub(other.0[kind])
        }))
    }

    /// The configured value if that is not 0, else this.
    pub fn or_configured(&self, configured: &Self) -> Self {
        Self(std::array::from_fn(|kind| match configured.0[kind] {
            0 => self.0[kind],
            bytes => bytes,
        }))
    }

    /// This, and no more of a kind than is configured if that is not 0.
    pub fn at_most(&self, configured: &Self) -> Self {
        Self(std::array::from_fn(|kind| match configured.0[kind] {
            0 => self.0[kind],
            bytes => bytes.min(self.0[kind]),
        }))
    }

    /// This, and no more than so many bytes of each kind.
    pub fn at_most_each(&self, bytes: u64) -> Self {
        Self(self.0.map(|of| of.min(bytes)))
    }

    /// So many percent of each.
    pub fn percent(&self, percent: u8) -> Self {
        Self(self.0.map(|bytes| super::percent(bytes, percent)))
    }

    /// The bytes of this kind and all after it.
    pub fn from(&self, first: usize) -> u64 {
        self.0[first..]
            .iter()
            .fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

impl Index<usize> for Kinds {
    type Output = u64;

    fn index(&self, kind: usize) -> &u64 {
        &self.0[kind]
    }
}
