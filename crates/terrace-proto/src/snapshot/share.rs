//! A VM's part of the first tier.

use serde::{Deserialize, Serialize};

/// A VM's part in sharing the first tier. Sizes are of that tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Whether the VM's size follows the pool; otherwise it is fixed.
    pub pooled: bool,
    /// The VM's weight among VMs that want more than there is; 1000 is normal.
    pub weight: u32,
    /// The VM's nominal size, bytes.
    pub nominal_bytes: u64,
    /// The pool takes nothing below this, bytes.
    pub lower_bytes: u64,
    /// The pool gives nothing above this, bytes.
    pub upper_bytes: u64,
    /// Bytes that the VM holds, with those that are on their way to it.
    pub held_bytes: u64,
    /// Size of the VM's hot set by its last ranking, bytes; `null` before the first.
    pub hot_bytes: Option<u64>,
    /// Bytes of pages of unknown heat that the VM held then.
    pub unseen_bytes: Option<u64>,
    /// The VM's demand, bytes: hot set and pages of unknown heat, within the limits.
    pub want_bytes: Option<u64>,
    /// The most that the VM may hold, bytes; `null` while it has no part in the pool.
    pub target_bytes: Option<u64>,
    /// Free memory of the pool when it was divided last, bytes.
    pub pool_free_bytes: u64,
    /// The reason for these figures, in a sentence.
    pub why: String,
}
