//! A tier of memory, as it is described.

use terrace_core::TierKind;

/// A tier of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// Its name.
    pub name: String,
    /// What it is made of: gives the weights of reads and writes.
    pub kind: TierKind,
    /// Size, bytes: all that VMs can get.
    pub bytes: u64,
    /// Idle latency of a read, ns.
    pub read_ns: f64,
    /// Idle latency of a write, ns.
    pub write_ns: f64,
    /// Bandwidth of reads, GB/s (bytes per ns).
    pub read_gb_s: f64,
    /// Bandwidth of writes, GB/s.
    pub write_gb_s: f64,
    /// What one access takes from the medium, bytes: 64, 256 for persistent memory.
    pub line: u64,
    /// Price of 1 GiB, in any currency or relative to another tier's; none where nobody said it.
    pub price_per_gib: Option<f64>,
}
