//! Counters of the device. A fault of the guest shows here and nowhere else.

use serde::{Deserialize, Serialize};

use crate::tier::EntryRefusal;

/// Counts since the start of this process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Chains of page queues that were answered with counts, or would have been.
    pub chains: u64,
    /// Chains that were none: answered with length 0.
    pub malformed_chains: u64,
    /// Times that a chain was undone and left in its ring, because the ring was stopped or changed under it.
    #[serde(default)]
    pub undone_chains: u64,
    /// Rings whose index or memory makes no sense; checked again when the guest kicks.
    pub broken_rings: u64,
    /// Pages that went into balloons.
    pub inflated_pages: u64,
    /// Pages that came out.
    pub deflated_pages: u64,
    /// Holes that were punched.
    pub holes: u64,
    /// Entries refused for their order.
    pub refused_order: u64,
    /// Entries refused as not aligned.
    pub refused_alignment: u64,
    /// Entries refused as outside of the tier.
    pub refused_outside: u64,
    /// Entries refused as in no region, or smaller than its pages.
    pub refused_backing: u64,
    /// Entries refused as in the balloon already, or not in it.
    pub refused_duplicate: u64,
    /// Entries refused because the kernel gave nothing back.
    pub refused_punch: u64,
    /// Entries refused because no pin check found the memory free of other holders.
    #[serde(default)]
    pub refused_pinned: u64,
    /// Results of pin checks other than the last one requested.
    #[serde(default)]
    #[serde(rename = "stale_looks")]
    pub stale_pin_checks: u64,
    /// Pages that were withheld: punched as a process appeared that may have pinned them.
    #[serde(default)]
    pub withheld_pages: u64,
    /// Of these, and of pages that no second pin check had cleared, those that the guest has again since its reset.
    #[serde(default)]
    pub retaken_pages: u64,
    /// Times that the files of a tier did not take its host node.
    #[serde(default)]
    pub refused_node_policies: u64,
    /// Times that the guest had to wait for its rate.
    pub throttled: u64,
    /// Events that carried targets.
    pub events: u64,
    /// Event buffers that were no use.
    pub bad_event_buffers: u64,
    /// Statistics that were taken.
    pub statistics: u64,
    /// Values in statistics that no such VM can have: not passed on.
    #[serde(default)]
    pub implausible_statistics: u64,
    /// Statistics buffers that were none.
    pub bad_statistics: u64,
}

impl Counters {
    pub(crate) fn refuse(&mut self, why: EntryRefusal, entries: u64) {
        let count = match why {
            EntryRefusal::Order => &mut self.refused_order,
            EntryRefusal::Alignment => &mut self.refused_alignment,
            EntryRefusal::Outside => &mut self.refused_outside,
            EntryRefusal::Backing => &mut self.refused_backing,
            EntryRefusal::Duplicate => &mut self.refused_duplicate,
            EntryRefusal::Punch => &mut self.refused_punch,
        };
        *count = count.saturating_add(entries);
    }

    /// Entries that were refused, for any reason. Counts that another process reports may have any value.
    #[must_use]
    pub fn refused(&self) -> u64 {
        [
            self.refused_order,
            self.refused_alignment,
            self.refused_outside,
            self.refused_backing,
            self.refused_duplicate,
            self.refused_punch,
            self.refused_pinned,
        ]
        .into_iter()
        .fold(0, u64::saturating_add)
    }
}
