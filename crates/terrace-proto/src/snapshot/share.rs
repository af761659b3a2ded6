//! A VM's part of the first tier.

use serde::{Deserialize, Serialize};

/// A VM's part in sharing the first tier. Sizes are of that tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its size follows the pool; otherwise it is fixed.
    pub pooled: bool,
    /// Its weight among VMs that want more than there is; 1000 is normal.
    pub weight: u32,
    /// Its nominal size, bytes.
    pub nominal_bytes: u64,
    /// The pool takes nothing below this, bytes.
    pub lower_bytes: u64,
    /// The pool gives nothing above this, bytes.
    pub upper_bytes: u64,
    /// What it holds and what is on its way to it, bytes.
    pub held_bytes: u64,
    /// Its hot set by its last ranking, bytes; `null` before the first.
    pub hot_bytes: Option<u64>,
    /// What it held then of pages of unknown heat, bytes.
    pub unseen_bytes: Option<u64>,
    /// What it wants: both, within the limits, bytes.
    pub want_bytes: Option<u64>,
    /// What it may hold, bytes; `null` while it has no part in the pool.
    pub target_bytes: Option<u64>,
    /// Free memory of the pool when it was divided last, bytes.
    pub pool_free_bytes: u64,
    /// All of that in a sentence.
    pub why: String,
}
