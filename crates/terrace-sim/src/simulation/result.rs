//! The result of a run: the keys of its JSON.
//!
//! All times, bytes, pages, exits and faults are of the full-size machine; only `accesses` and `accesses_per_wall_s`
//! are those really simulated.

use serde::Serialize;
use terrace_proto::PAGE_SIZE;

use super::demand_result::Demand;
use crate::base::number::float;
use crate::host::provision;
use crate::machine::{PS, TIERS};

/// The result of a finished run.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct RunResult {
    /// The scenario's name: its file's, without folder and ending.
    pub scenario: String,
    /// The policy as it was asked for; the first VM's, or `mixed` if VMs differ.
    pub policy: String,
    /// Seed of all random streams.
    pub seed: u64,
    /// Divisor of sizes, operations and durations.
    pub scale: u64,
    /// Time of the full-size machine, s.
    pub simulated_s: f64,
    /// Time that the run took on the simulator's machine, s; the reference run is not in it.
    pub wall_s: f64,
    /// Number of simulated accesses.
    pub accesses: u64,
    /// Simulated accesses per second of `wall_s`.
    pub accesses_per_wall_s: f64,
    /// Bytes of the engine's state per simulated 4 KiB page.
    pub state_bytes_per_page: f64,
    /// Bytes of simulator and engine per simulated 4 KiB page.
    pub sim_state_bytes_per_page: f64,
    /// The position in a sweep, if the run is part of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sweep: Option<Sweep>,
    /// The rule by which the host shares memory, if runs of several rules are compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<String>,
    /// The change of the machine's model, if the run is one of those that show a comparison's sensitivity.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The part of the way from `first-touch` to `static-best` that the run goes, if both were run with it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub way: Option<Way>,
    /// The results of the VMs, in the scenario's order.
    pub vms: Vec<VmResult>,
}

/// A part of the way from `first-touch`, 0, to `static-best`, 1: less if a run is slower than the first, more if it is
/// faster than the second, which places every page only once. `None` if the two are within 1 % of each other.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Way(pub Option<f64>);

/// One value of a sweep.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sweep {
    /// The key that is swept: `fast`.
    pub key: String,
    /// The key's value, bytes.
    pub bytes: u64,
}

/// Blocks of 2 MiB of a guest's memory with a hot page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct HotBlocks {
    /// As the first round found them, before anything was gathered.
    pub first: u64,
    /// As the last round found them: what that one gathered itself shows in the next.
    pub last: u64,
}

impl HotBlocks {
    /// Blocks of the full-size machine, from those of a first and a last round at a scale.
    pub(crate) fn of((first, last): (u64, u64), scale: u64) -> Self {
        Self {
            first: first * scale,
            last: last * scale,
        }
    }
}

/// The result of one VM.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct VmResult {
    /// The VM's name.
    pub name: String,
    /// The name of the host's policy.
    pub policy: String,
    /// The name of the guest's policy, if it has one.
    pub guest_policy: Option<String>,
    /// 4 KiB pages that the guest gathered into few blocks, if it gathers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gathered_pages: Option<u64>,
    /// Blocks of 2 MiB with a hot page as the guest that gathers found them, once it had a round.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hot_blocks: Option<HotBlocks>,
    /// Number of rounds that the policy ended; figures of fewer than 3 say little.
    pub rounds: u64,
    /// Time until the VM's load ended, s.
    pub runtime_s: f64,
    /// Memory accesses per second of `runtime_s`.
    pub ops_per_s: f64,
    /// Median time of one operation, ns.
    pub p50_ns: f64,
    /// 99th percentile of the time of one operation, ns.
    pub p99_ns: f64,
    /// Run time over that of the same scenario with every VM `all-fast`.
    pub slowdown_vs_all_fast: Option<f64>,
    /// The slowdown that the scenario accepts for the VM, if it sets one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_slowdown: Option<f64>,
    /// Cost of the VM's memory: GiB held per tier, mean over time, times the tier's price, under memory-mode with the
    /// VM's size of the first tier besides; `None` if it holds memory without a price.
    pub cost: Option<f64>,
    /// Performance over that of `all-fast`, divided by cost over that of `all-fast`.
    pub performance_per_cost: Option<f64>,
    /// Share of the load's accesses before the last-level cache that it serves; `None` if there are none.
    pub cache_hit_ratio: Option<f64>,
    /// Share of the data accesses to memory that the first tier serves.
    pub fast_hit_ratio: f64,
    /// Share of the writes to memory that the first tier serves.
    pub fast_write_ratio: f64,
    /// HMvisor's `DRAM_utility`: see docs/simulator.md.
    pub dram_utility: f64,
    /// Bytes that the VM holds per tier, mean over time.
    pub tier_bytes_mean: Vec<u64>,
    /// Bytes that the VM holds per tier at the end.
    pub tier_bytes_end: Vec<u64>,
    /// Bytes that the VM's program wrote to each tier's medium; bytes that moves wrote are not counted.
    pub tier_written_bytes: Vec<u64>,
    /// First entry of `tier_bytes_mean`.
    pub fast_bytes_mean: u64,
    /// First entry of `tier_bytes_end`.
    pub fast_bytes_end: u64,
    /// 4 KiB pages moved to a faster tier.
    pub promoted_pages: u64,
    /// 4 KiB pages moved to a slower tier.
    pub demoted_pages: u64,
    /// Exits of the VM's vCPUs to the host.
    pub vm_exits: u64,
    /// Faults that waited for the swap device.
    pub major_faults: u64,
    /// Time that the VM's vCPUs waited for memory, all together: major faults, and reclaim that they did themselves; s.
    #[serde(skip_serializing_if = "is_none")]
    pub memory_wait_s: f64,
    /// Bytes read from the swap device.
    pub swapped_in_bytes: u64,
    /// Bytes written to the swap device.
    pub swapped_out_bytes: u64,
    /// CPU time of management for this VM.
    pub overhead_s: Overhead,
    /// The work of the device that sized the VM's tiers, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provision: Option<Provisioned>,
    /// The VM's demand, if its policy tracks that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub demand: Option<Demand>,
}

/// A device's work for a VM.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct Provisioned {
    /// The device's name.
    pub by: String,
    /// The VM's target sizes per tier at the end, bytes.
    pub wanted_bytes: Vec<u64>,
    /// The sizes of the VM's nodes at the end, bytes.
    pub given_bytes: Vec<u64>,
    /// Time that guest and device took to resize, s.
    pub resize_s: f64,
    /// Resizes that were refused.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused: Vec<Refused>,
    /// The sizes of the VM's nodes whenever they changed, at most 1,024 entries.
    pub sizes: Vec<SizeAt>,
    /// The orders for sizes, the first 1,024.
    pub orders: Vec<OrderAt>,
    /// Number of orders after those.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_orders: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
fn is_none(time_s: &f64) -> bool {
    *time_s <= 0.0
}

impl SizeAt {
    /// Bytes of all tiers together.
    #[must_use]
    pub fn whole_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }
}

impl Provisioned {
    /// Whether the size was ordered to change after the VM had booted: the first order is for the sizes to begin with.
    #[must_use]
    pub fn was_resized(&self) -> bool {
        self.orders.len() > 1
    }

    /// The sizes from the time on at which the VM had those that it was to begin with.
    pub fn sizes_after_boot(&self) -> impl Iterator<Item = &SizeAt> {
        let next = self.orders.get(1);
        let begin: u64 = next.map_or(u64::MAX, |order| order.from_bytes.iter().sum());
        let early = move |size: &&SizeAt| size.whole_bytes() > begin;
        self.sizes.iter().skip_while(early)
    }

    /// The result of a device's work, and its cost.
    pub(super) fn of(device: &provision::Provisioned) -> Self {
        let scale = device.scale();
        let bytes = |pages: [u64; TIERS]| {
            let tiers = pages.iter().take(device.tiers());
            tiers.map(|pages| pages * PAGE_SIZE * scale).collect()
        };
        let refused = device.all_refused().iter().map(|refused| Refused {
            at_s: float(refused.at_ns) / 1e9,
            why: refused.why.clone(),
        });
        let sizes = device.history().sizes().iter().map(|sizes| SizeAt {
            at_s: float(sizes.at_ns) / 1e9,
            bytes: bytes(sizes.pages),
        });
        let (orders, more_orders) = device.history().orders();
        let orders = orders.iter().map(|order| OrderAt {
            at_s: float(order.at_ns) / 1e9,
            from_bytes: bytes(order.from),
            to_bytes: order.to_bytes.clone(),
            origin: order.origin.clone(),
            reason: order.reason.clone(),
        });
        Self {
            sizes: sizes.collect(),
            orders: orders.collect(),
            more_orders,
            by: device.by().name().into(),
            wanted_bytes: bytes(device.wanted()),
            given_bytes: bytes(device.given()),
            resize_s: float(device.spent() * scale) / float(PS) / 1e9,
            refused: refused.collect(),
        }
    }
}

/// The sizes of a VM's nodes at a time.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct SizeAt {
    /// The time, s.
    pub at_s: f64,
    /// Bytes per tier.
    pub bytes: Vec<u64>,
}

/// An order for sizes of a VM.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct OrderAt {
    /// The time of the order, s.
    pub at_s: f64,
    /// The sizes of the VM's nodes at that time, bytes per tier.
    pub from_bytes: Vec<u64>,
    /// The size that each tier is to have, bytes; `null`: unchanged. The balloon's orders have one size for all tiers.
    pub to_bytes: Vec<Option<u64>>,
    /// The giver of the order, as `terrace show` names it.
    pub origin: String,
    /// The reason of the order; empty if none was given.
    pub reason: String,
}

/// A request for sizes that was refused.
#[derive(Clone, Debug, PartialEq, Default, Serialize)]
pub struct Refused {
    /// The time of the request, s.
    pub at_s: f64,
    /// The reason of the refusal, a sentence for people.
    pub why: String,
}

/// CPU time of management by stage, s.
#[derive(Clone, Copy, Debug, PartialEq, Default, Serialize)]
pub struct Overhead {
    /// Time of finding out which pages were touched.
    pub track: f64,
    /// Time of ranking and choosing pages.
    pub classify: f64,
    /// Time of moving pages.
    pub migrate: f64,
}
