//! How a run went over time, for pictures.

/// What was seen of one VM in one stretch of time.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Sample {
    /// End of the stretch: time of the full-size machine, s.
    pub at_s: f64,
    /// Memory accesses per second of the full-size machine.
    pub ops_per_s: f64,
    /// Share of the data accesses that the first tier served in it (1 where there were none).
    pub fast_hit_ratio: f64,
    /// 4 KiB pages moved to a faster tier in it, of the full-size machine.
    pub promoted_pages: u64,
    /// 4 KiB pages moved to a slower tier in it.
    pub demoted_pages: u64,
    /// Bytes held per tier at its end, of the full-size machine.
    pub tier_bytes: Vec<u64>,
    /// Accesses of the load by address: its memory in equal cells, from low to high.
    pub heat: Vec<u32>,
}

/// One VM's samples, oldest first.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct VmTimeline {
    /// Its name.
    pub name: String,
    /// Bytes of the load's memory that `heat` spans, of the full-size machine.
    pub memory_bytes: u64,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// A run over time.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Timeline {
    /// Names of the tiers, fastest first.
    pub tiers: Vec<String>,
    /// VM by VM, in the scenario's order.
    pub vms: Vec<VmTimeline>,
}
