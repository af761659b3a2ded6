//! Samples of the processor's counters (PEBS): a record for each so-manieth load or store.
//!
//! Each access of a load reaches memory, so loads count as those that miss the caches, whichever tier
//! serves them; of stores, only those that reach memory are seen here. The period is divided by the scale,
//! as is what a record costs: samples are as many at any scale.

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Loads per sample, of the full-size machine; 0: none are sampled.
    pub load_period: u64,
    /// The same of stores.
    pub store_period: u64,
    /// Records that a vCPU's buffer takes before it interrupts.
    pub buffer: usize,
}

/// A sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The load's 4 KiB page.
    pub page: u32,
    /// Whether it is a store.
    pub write: bool,
    /// The tier that served it.
    pub tier: u8,
}
