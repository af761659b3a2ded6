//! The description of a tier of memory.

use terrace_core::TierKind;

use super::service::Service;

/// A tier of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Tier {
    /// The tier's name.
    pub name: String,
    /// The kind of memory: gives the weights of reads and writes.
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
    /// The medium's access size, bytes: 64, 256 for persistent memory.
    pub line: u64,
    /// Price of 1 GiB, in any currency or relative to another tier's; `None` if it is not given.
    pub price_per_gib: Option<f64>,
    /// Service under load as measured; `None`: a queue.
    pub service: Option<Service>,
}
