//! What VMs cost each other.

use serde::{Deserialize, Serialize};

/// What a VM costs the others, and what it was refused for their sake. Sums are since it came under management;
/// those of all VMs are since the daemon started.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Neighbours {
    /// Shares are by weight, whatever a guest shows.
    pub fair: bool,
    /// Its weight; 1000 is normal.
    pub weight: u32,
    /// What it has a right to of the first tier, bytes: its nominal size, or its part by weight; `null` where it
    /// shares with nobody.
    pub right_bytes: Option<u64>,
    /// What it may hold now, bytes: more than its right while others leave it; `null` where only its ceiling
    /// bounds it.
    pub most_bytes: Option<u64>,
    /// What it holds and what is on its way to it, bytes.
    pub held_bytes: u64,
    /// What of that is above its right, bytes.
    pub above_right_bytes: u64,
    /// Bytes of its plans of moves.
    pub moved_bytes: u64,
    /// The same of all VMs.
    pub all_moved_bytes: u64,
    /// CPU time of what looks into it, ns.
    pub scan_cpu_ns: u64,
    /// The same of all VMs.
    pub all_scan_cpu_ns: u64,
    /// What it showed use for at its last ranking above what it may hold, bytes.
    pub refused_bytes: u64,
    /// Plans of moves that came later because it was others' turn.
    pub late_plans: u64,
    /// By how much, ns.
    pub late_plans_ns: u64,
    /// Windows that were made longer because its scans cost more than its part of the budget.
    pub late_scans: u64,
    /// By how much, ns.
    pub late_scans_ns: u64,
}
