//! Samples of the processor's counters (PEBS): a record for each so-manieth load or store.
//!
//! Each access of a load reaches memory, so loads count as those that miss the caches, whichever tier
//! serves them; of stores, only those that reach memory are seen here. A vCPU's records are seen when its
//! buffer is full, which interrupts it, or when it changes its address space. Its counters begin at
//! another place of the period than those of others: in lockstep, vCPUs that sweep the same memory would
//! all sample the same pages.

/// What is sampled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pmu {
    /// Loads per sample, of the full-size machine; 0: none are sampled.
    pub load_period: u64,
    /// The same of stores.
    pub store_period: u64,
    /// Records that a vCPU's buffer takes before it interrupts.
    pub buffer: usize,
    /// Divisor of the periods, and of what a record and an interrupt cost. 1 where samples are counted per
    /// page: a page has as many accesses at any scale. The scale where they are counted per range, and
    /// ranges are smaller by the scale.
    pub divisor: u64,
}

impl Pmu {
    /// Loads and stores per sample as simulated. What is divided is made odd, so that it never keeps step
    /// with the lines of a page or with sizes, which are powers of two.
    #[must_use]
    pub fn periods(&self) -> [u64; 2] {
        [self.load_period, self.store_period].map(|period| match (period, self.divisor) {
            (0, _) | (_, 1) => period,
            (period, divisor) => (period / divisor) | 1,
        })
    }
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
