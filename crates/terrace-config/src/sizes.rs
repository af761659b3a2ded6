//! The sizes of a VM: how much of each tier it may have.

use anyhow::{Result, ensure};
use bytesize::ByteSize;
use terrace_proto::TierLimit;

/// Sizes of a VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// Nominal size of the first tier, bytes; 0: it has none.
    pub fast_bytes: u64,
    /// One per tier.
    pub limits: Vec<TierLimit>,
}

impl Sizes {
    /// A nominal size is one that the VM may have.
    pub(super) fn new(fast: ByteSize, limits: Vec<TierLimit>) -> Result<Self> {
        let fast_bytes = fast.as_u64();
        if let Some(limit) = limits.first().filter(|_| fast_bytes > 0) {
            ensure!(
                (limit.floor_bytes..=limit.ceiling_bytes).contains(&fast_bytes),
                "fast ({fast}) is not between floor ({}) and ceiling ({}) of the first tier",
                ByteSize(limit.floor_bytes),
                ByteSize(limit.ceiling_bytes)
            );
        }
        Ok(Self { fast_bytes, limits })
    }
}
