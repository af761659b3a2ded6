//! Protection faults: how a host that takes permissions away learns of a VM's accesses.

use serde::{Deserialize, Serialize};

use crate::VmId;

/// Accesses to blocks of guest memory whose permission had been taken away. Each of the blocks has its permission back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultReport {
    /// The VM that made the accesses.
    pub vm: VmId,
    /// Loads and stores of the VM since it came under management, these included.
    pub accesses: u64,
    /// Numbers of the 2 MiB blocks (guest page number / 512), in the order of the accesses.
    pub blocks: Vec<u32>,
}

/// A VM's counters and its guest's memory, ten times a second. Counters begin with the VM's management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VmStatistics {
    /// The VM.
    pub vm: VmId,
    /// Loads and stores.
    pub accesses: u64,
    /// Completed page walks.
    pub walks: u64,
    /// Time that vCPUs spent in protection faults and in the flushes that they need, ns over all vCPUs.
    pub tracking_ns: u64,
    /// Time that the vCPUs had, ns over all vCPUs.
    pub cpu_ns: u64,
    /// Memory of the guest, bytes.
    pub total_bytes: u64,
    /// Memory of it that is free, bytes.
    pub free_bytes: u64,
    /// Swap space that is in use, bytes.
    pub used_swap_bytes: u64,
}

/// Blocks of a VM's memory whose permission is to be taken away, so that the next access to each faults.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Protection {
    /// The VM that has the blocks.
    pub vm: VmId,
    /// Numbers of the 2 MiB blocks.
    pub blocks: Vec<u32>,
}
