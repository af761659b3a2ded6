//! The result of a round of placing: the pages that it found and moved.

use serde::{Deserialize, Serialize};

use crate::{Gpa, Tick};

/// One round. A unit of 2 MiB counts 512 pages.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Round {
    /// The round's number, from 1.
    pub number: u64,
    /// Start of the round, ns since the daemon started.
    #[serde(default, rename = "started_at_ns")]
    pub started_at: Tick,
    /// Time of the ranking; `None` before it.
    #[serde(default, rename = "ranked_at_ns")]
    pub classified_at: Option<Tick>,
    /// End of the round; `None` while it runs.
    #[serde(default, rename = "ended_at_ns")]
    pub ended_at: Option<Tick>,
    /// Pages that some user table of the guest maps.
    pub known_pages: u64,
    /// Pages in the hot set: the hottest that fit into the first tier.
    pub hot_pages: u64,
    /// Pages of the hot set that were in the first tier before the round's moves.
    pub hot_on_fast_before: u64,
    /// The same after its moves, by the nodes that the kernel reports.
    pub hot_on_fast_after: u64,
    /// Least degree of a page in the hot set.
    pub threshold_degree: u8,
    /// Known pages at each degree, from 0.
    pub degree_histogram: Vec<u64>,
    /// Units of 2 MiB that were in more than one tier when the round began: the host split their huge pages.
    #[serde(default)]
    pub split_units: u64,
    /// Whether a source of writes has reported all windows so far (in each of them, or in the last for all).
    #[serde(default)]
    pub writes_seen: bool,
    /// How accesses and pages divide between the first tier and the others, before the round's moves.
    #[serde(default)]
    pub worth: Worth,
    /// Pages moved up.
    pub promoted_pages: u64,
    /// Pages moved down.
    pub demoted_pages: u64,
    /// Pages whose move was tried and failed.
    pub failed_pages: u64,
    /// Pages that stayed because other processes map them too.
    #[serde(default)]
    pub mapped_by_others_pages: u64,
    /// Pages that the ranking wanted to move up.
    pub proposed_promotions: u64,
    /// Pages that the ranking wanted to move down.
    pub proposed_demotions: u64,
    /// Proposals that were not tried, by reason.
    pub refused: Vec<Refused>,
    /// The reason why the round was given up, if it was.
    pub abandoned: Option<String>,
    /// If the round was only to plan: the first moves that would be tried, most wanted first; nothing was moved.
    pub planned: Option<Vec<PlannedMove>>,
    /// Bytes that changed tier.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Wall time of the moves, ns.
    #[serde(default)]
    pub move_elapsed_ns: u64,
    /// The cost of the round's scans.
    #[serde(flatten)]
    pub scan: ScanCost,
}

/// What the first tier is worth to a VM: its part of the accesses beside its part of the memory (HMvisor §3.2.2). An estimate: a
/// page counts once for each window in which it was accessed, however often that was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worth {
    /// Pages of 4 KiB in use in the first tier.
    pub fast_pages: u64,
    /// Pages of 4 KiB in use.
    pub pages: u64,
    /// Accesses to pages of the first tier, by windows.
    pub fast_accesses: u64,
    /// Accesses, by windows.
    pub accesses: u64,
    /// Writes to pages of the first tier, by windows; 0 if no source reports writes.
    pub fast_writes: u64,
    /// Writes, by windows.
    pub writes: u64,
}

impl Worth {
    /// The part of accesses that the first tier takes, 0 to 1; `None` without accesses.
    #[must_use]
    pub fn fast_access_share(&self) -> Option<f64> {
        share(self.fast_accesses, self.accesses)
    }

    /// The part of writes that the first tier takes, 0 to 1; `None` if none were seen.
    #[must_use]
    pub fn fast_write_share(&self) -> Option<f64> {
        share(self.fast_writes, self.writes)
    }

    /// `DRAM_utility`: the first tier's part of the writes, divided by its part of the memory; by accesses if no writes were seen.
    /// Memory that is interleaved over the tiers has 1. `None` if nothing was accessed, or the first tier has no page.
    #[must_use]
    pub fn dram_utility(&self) -> Option<f64> {
        let traffic = self.fast_write_share().or(self.fast_access_share())?;
        let memory = share(self.fast_pages, self.pages).filter(|part| *part > 0.0)?;
        Some(traffic / memory)
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn share(part: u64, all: u64) -> Option<f64> {
    (all > 0).then(|| part as f64 / all as f64)
}

/// Cost and counts of a round's scans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanCost {
    /// Scans answered.
    pub scans: u64,
    /// Wall time, ns.
    #[serde(default, rename = "scan_elapsed_ns")]
    pub elapsed_ns: u64,
    /// CPU time, ns.
    #[serde(rename = "scan_cpu_ns")]
    pub cpu_ns: u64,
    /// Leaf entries read.
    #[serde(default, rename = "scan_leaves")]
    pub leaves: u64,
    /// Accessed bits found set.
    #[serde(default, rename = "scan_accessed")]
    pub accessed: u64,
    /// Accessed bits cleared.
    #[serde(default, rename = "scan_cleared")]
    pub cleared: u64,
    /// Subtrees skipped.
    #[serde(default, rename = "scan_pruned")]
    pub pruned: u64,
    /// Windows made longer so that scanning stays within its CPU share.
    #[serde(default)]
    pub stretched_windows: u64,
}

/// Proposals that were not tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The reason, for people.
    pub reason: String,
    /// Number of units (`unit_bytes` each).
    pub units: u64,
}

/// One move that would be tried.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlannedMove {
    /// First byte of the unit that would move.
    pub gpa: Gpa,
    /// Size of the unit, bytes.
    pub bytes: u64,
    /// Name of the tier that holds the unit.
    pub from: String,
    /// Name of the tier that the unit would go to.
    pub to: String,
    /// The unit's degree; 0 as well if that is not known.
    pub degree: u8,
}
