//! The course of a run over time, for pictures.

/// The observations of one VM in one stretch of time.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Sample {
    /// End of the stretch: time of the full-size machine, s.
    pub at_s: f64,
    /// Memory accesses per second of the full-size machine.
    pub ops_per_s: f64,
    /// Share of the accesses to memory in the stretch that the first tier served; 1 if there were none.
    pub fast_hit_ratio: f64,
    /// 4 KiB pages moved to a faster tier in the stretch, of the full-size machine.
    pub promoted_pages: u64,
    /// 4 KiB pages moved to a slower tier in the stretch, of the full-size machine.
    pub demoted_pages: u64,
    /// Bytes held per tier at the end of the stretch, of the full-size machine.
    pub tier_bytes: Vec<u64>,
    /// Accesses of the load to memory by address: its memory in equal cells, from low to high.
    pub heat: Vec<u32>,
}

/// One VM's samples, oldest first.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct VmTimeline {
    /// The VM's name.
    pub name: String,
    /// Bytes of the load's memory that `heat` spans, of the full-size machine.
    pub memory_bytes: u64,
    /// The samples.
    pub samples: Vec<Sample>,
}

/// The course of a run over time.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Timeline {
    /// Names of the tiers, fastest first.
    pub tiers: Vec<String>,
    /// The VMs' timelines, in the scenario's order.
    pub vms: Vec<VmTimeline>,
}
