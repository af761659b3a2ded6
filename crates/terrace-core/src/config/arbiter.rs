//! Parameters of the arbiter.

use serde::{Deserialize, Serialize};

/// How the memory of a host is shared between VMs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Each VM keeps the memory that it has.
    #[default]
    Off,
    /// Least lost time by dynamic programming (HPMBS §4.3).
    Dp,
    /// Each VM trades fast memory for slow at equal cost (HMvisor §3.3).
    Trade,
    /// The VM that is slowed down most is slowed down as little as can be.
    Fair,
}

impl Rule {
    /// Whether the first tier goes to whom it saves most time.
    #[must_use]
    pub fn divides_by_gain(self) -> bool {
        matches!(self, Self::Dp | Self::Fair)
    }
}

/// Parameters of the arbiter. Sizes are bytes of the machine that providers size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ArbiterConfig {
    /// The rule: off.
    pub rule: Rule,
    /// Memory that VMs have together whose device knows one size for all tiers, bytes; 0: what they have when they come.
    pub capacity_bytes: u64,
    /// Memory of each tier that VMs have together whose devices size tiers, bytes, fastest first; 0, or none named: what
    /// they have when they come.
    pub capacity_tiers_bytes: Vec<u64>,
    /// Share of each that is kept for VMs that begin to swap, percent: 5 (our choice). 0 to 50.
    pub reserve_percent: u8,
    /// Time between two decisions, ms: 5 s (our choice; as long as used swap is remembered).
    pub cycle_ms: u64,
    /// Most of a VM's memory that a decision takes beyond what its guest calls free, percent: 5 (our choice). 1 to 100.
    /// As much at least is given to one that swaps, if it is there.
    pub shrink_percent: u8,
    /// So many bytes may be taken in any case: 64 MiB (our choice).
    pub least_shrink_bytes: u64,
    /// Page cache that a live guest gives at a time to VMs that swap, while its reads from disk are watched, percent of its memory:
    /// 2 (our choice: the dead band, which is the least). 0: none. 0 to 10.
    pub cache_percent: u8,
    /// Length of a window in which the ages of a live VM's memory are scanned while one that shares memory swaps, ms: 5 s (our
    /// choice). Scans that cost more than they may come less often. 0: none. 0 to 60,000.
    pub age_window_ms: u64,
    /// One in how many of a guest's leaf tables these scans read: 1, all of them. A power of two, up to 1024. What a sample finds
    /// stands for as many times as much.
    pub age_sample: u16,
    /// A change below this share of a VM's size is not made, percent: 2 (our choice). 0 to 50.
    pub dead_band_percent: u8,
    /// Time before a VM that shrank grows again or the other way round, ms: 10 s (our choice).
    pub turn_ms: u64,
    /// Time for which memory must be free before others or the reserve have it, ms: 60 s (our choice). 0: none.
    pub valley_ms: u64,
    /// Time for which a VM that begins to swap may have of the reserve what it lacks, ms; then up to what it brought and as
    /// much as the reserve: 10 s (our choice). 0: for as long as it swaps. At most 250 s.
    pub relief_ms: u64,
    /// Time for which a VM that swapped because it had lent memory keeps what it got back, ms: 10 min (our choice). 0: none.
    pub lend_again_ms: u64,
    /// Time after which what was taken is judged by the time lost, ms: 30 s (our choice).
    pub review_ms: u64,
    /// A change that was judged wrong is not tried again for so many times as long: 10 (our choice). 1 to 1000.
    pub retry_factor: u32,
    /// Time of a major fault of which nothing was measured, and the most that a guest may say that one takes, ns: 100 µs (a read
    /// of 4 KiB from an SSD).
    pub fault_ns: u64,
    /// Price of memory of the first tier, thousandths of that of the last one: 4000 (the example of HMvisor §3.3).
    pub price_ratio_milli: u32,
    /// Time that an access to slow memory takes longer than one to the first tier, ns: 230 (the simulator's presets of
    /// Optane and DRAM). 1 to 1,000,000.
    pub slow_access_extra_ns: u64,
    /// Whether sizes are said and not ordered: no.
    pub observe: bool,
    /// Whether this is a live host: no. There the pool divides the first tier as without a rule, by windows touched, since
    /// nobody counts which accesses reach memory; and capacities are those of the host, whatever kinds of VMs share it.
    pub live: bool,
    /// Share of the host's memory that is to be available, percent: 5 (our choice). Where less is, VMs give what they do not
    /// use, and none grows. 0 to 50.
    pub host_reserve_percent: u8,
    /// The host is short of memory, too, while some of its tasks wait for memory in so much of the last ten seconds, percent: 10
    /// (our choice; systemd-oomd's default is 60 % for a whole 30 s, which is far too late here). 1 to 100.
    pub host_waits_percent: u8,
    /// Time for which a live VM is left alone after it was first seen, ms: 30 s (our choice).
    pub settle_ms: u64,
    /// Time for which a live VM is left alone after its hypervisor was started, ms: 60 s (our choice).
    pub boot_ms: u64,
    /// Bytes that a provider sizes for each byte of managed memory: 1. On a simulated machine its scale.
    pub scale: u64,
}

impl Default for ArbiterConfig {
    fn default() -> Self {
        Self {
            rule: Rule::default(),
            capacity_bytes: 0,
            capacity_tiers_bytes: Vec::new(),
            reserve_percent: 5,
            cycle_ms: 5_000,
            shrink_percent: 5,
            least_shrink_bytes: 64 << 20,
            cache_percent: 2,
            age_window_ms: 5_000,
            age_sample: 1,
            dead_band_percent: 2,
            turn_ms: 10_000,
            valley_ms: 60_000,
            relief_ms: 10_000,
            lend_again_ms: 600_000,
            review_ms: 30_000,
            retry_factor: 10,
            fault_ns: 100_000,
            price_ratio_milli: 4_000,
            slow_access_extra_ns: 230,
            observe: false,
            live: false,
            host_reserve_percent: 5,
            host_waits_percent: 10,
            settle_ms: 30_000,
            boot_ms: 60_000,
            scale: 1,
        }
    }
}

impl ArbiterConfig {
    /// Binary logarithm of [`Self::age_sample`].
    pub(crate) fn sample_shift(&self) -> u8 {
        u8::try_from(self.age_sample.trailing_zeros()).unwrap_or(0)
    }

    /// Whether it says how much memory there is.
    pub(crate) fn names_capacity(&self) -> bool {
        self.capacity_bytes > 0 || !self.capacity_tiers_bytes.is_empty()
    }

    /// Whether the first tier goes to whom it saves most time.
    #[must_use]
    pub fn divides_fast_by_gain(&self) -> bool {
        self.rule.divides_by_gain() && !self.live
    }

    /// Time for which a change that was judged wrong is not tried again, ns.
    pub(crate) fn pause_ns(&self) -> u64 {
        Self::ns(self.review_ms).saturating_mul(self.retry_factor.into())
    }

    /// Nanoseconds of a parameter in ms.
    pub(crate) fn ns(ms: u64) -> u64 {
        ms.saturating_mul(1_000_000)
    }
}
