//! The costs that VMs cause each other.

use serde::{Deserialize, Serialize};

/// The costs that a VM causes to the others, and the memory that it was refused for their sake. Sums are since the VM
/// came under management; those of all VMs are since the daemon started.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Neighbours {
    /// Whether shares are by weight, with any use that a guest shows.
    pub fair: bool,
    /// The VM's weight; 1000 is normal.
    pub weight: u32,
    /// The VM's right to memory of the first tier, bytes: its nominal size, or its part by weight; `null` if it
    /// shares with no other VM.
    pub right_bytes: Option<u64>,
    /// The most that the VM may hold now, bytes: more than its right while others leave it; `null` if only its
    /// ceiling bounds it.
    pub most_bytes: Option<u64>,
    /// Bytes that the VM holds, with those that are on their way to it.
    pub held_bytes: u64,
    /// Bytes of these above the VM's right.
    pub above_right_bytes: u64,
    /// Bytes of the VM's plans of moves.
    pub moved_bytes: u64,
    /// The same of all VMs.
    pub all_moved_bytes: u64,
    /// CPU time of the VM's worker, ns.
    pub scan_cpu_ns: u64,
    /// The same of all VMs.
    pub all_scan_cpu_ns: u64,
    /// Bytes beyond the VM's limit that it showed use for at its last ranking.
    pub refused_bytes: u64,
    /// Plans of moves that came later because it was others' turn.
    pub late_plans: u64,
    /// Sum of these delays, ns.
    pub late_plans_ns: u64,
    /// Windows that were made longer because the VM's scans cost more than its part of the budget.
    pub late_scans: u64,
    /// Sum of these extensions, ns.
    pub late_scans_ns: u64,
}
