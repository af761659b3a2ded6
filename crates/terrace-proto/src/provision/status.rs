//! Resizable memory as it is shown: the API's types, filled by the engine.

use serde::{Deserialize, Serialize};

use super::tiers_within_max;

/// An order that was taken; it is not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// The change that was ordered, in a sentence.
    pub done: String,
    /// Number of the order, which grows; [`OrderView::number`] of the VM shows whether a newer one came.
    pub number: u64,
    /// The mechanism that resizes the VM: `hyperflex`, `virtio-mem` or `balloon`.
    pub by: String,
    /// The same in words, to stand after "by".
    pub by_name: String,
    /// The size that each tier is to have, bytes, fastest first; `null` if the order leaves it alone.
    pub size_bytes: Vec<Option<u64>>,
}

/// The state of a VM's resizable memory, as the daemon last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProvisioningStatus {
    /// The mechanism that resizes the VM: `hyperflex`, `virtio-mem` or `balloon`; empty if it is not known yet.
    pub by: String,
    /// The same in words, to stand after "by".
    pub by_name: String,
    /// The address at which the mechanism is queried: its control socket or monitor.
    pub at: String,
    /// The reason why nothing newer is known; the fields below have the age `age_s`.
    pub problem: Option<String>,
    /// Seconds since the figures below were read; `null` if there are none yet.
    pub age_s: Option<f64>,
    /// Whether the hypervisor shares memory with the device.
    pub connected: bool,
    /// Whether the guest's driver knows the targets.
    pub targets_sent: bool,
    /// Whether some target is not met yet.
    pub resizing: bool,
    /// Number of times that the guest started anew, which empties balloons.
    pub resets: u64,
    /// The limit of the VM's whole size that its owner pays for, bytes; `null` if there is no such limit.
    pub total_bytes: Option<u64>,
    /// Requests of the guest that were refused, since the device was started.
    pub refused_entries: u64,
    /// The last order, since the daemon was started.
    pub order: Option<OrderView>,
    /// Outcomes of all orders since the VM was found.
    pub orders: OrderCounts,
    /// Memory of the hypervisor's process; `null` if it could not be read.
    pub resident: Option<Resident>,
    /// The passed-through device that pins the VM's memory, so that none may be taken away.
    pub pinned_by: Option<String>,
    /// The reason why that is not known, if it is not.
    pub pinning_unknown: Option<String>,
    /// The other process that has the VM's RAM and may have pinned it, so that none may be taken away.
    pub held_by: Option<String>,
    /// The reason why that is not known, if it is not.
    pub holding_unknown: Option<String>,
    /// The part of this VM that admission counts, in a sentence.
    pub admission: String,
    /// The VM's tiers, fastest first.
    #[serde(deserialize_with = "tiers_within_max")]
    pub tiers: Vec<ProvisionedTier>,
    /// The VM's part in the sharing of memory between VMs; `null` if it has none.
    pub balance: Option<BalanceStatus>,
    /// The last changes of its memory by that, oldest first: at most 16.
    pub changes: Vec<SizeChange>,
    /// Huge pages behind its memory since it last grew; `null` if Terrace never let it grow, or makes none.
    pub huge: Option<HugeStatus>,
}

/// Huge pages that are made of the single pages that a balloon gave back to its guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugeStatus {
    /// The share of huge pages before, percent; `null` if it is not known yet.
    pub before_percent: Option<f64>,
    /// The share of huge pages by the last step, percent.
    pub after_percent: Option<f64>,
    /// Memory that huge pages were made of, bytes.
    pub collapsed_bytes: u64,
    /// Whether more is done without another growth.
    pub is_under_way: bool,
    /// The reason why none are made now; `null` if there is none.
    pub why_not: Option<String>,
    /// Memory that huge pages were made of since the VM's provider was found, bytes: over all times that the VM grew.
    pub total_bytes: u64,
    /// The steps since then, by outcome.
    pub steps: HugeSteps,
}

/// Steps that were to make huge pages of a VM's memory, by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HugeSteps {
    /// Steps that made some.
    pub collapsed: u64,
    /// Steps that found nothing to make them of.
    pub idle: u64,
    /// Steps that made none, as the host had no free huge page.
    pub no_huge_page: u64,
    /// Steps that something was in the way of, for then.
    pub not_now: u64,
    /// Steps that were not possible on this host, or with this VM.
    pub never: u64,
}

/// A change of a VM's memory by the sharing of memory between VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SizeChange {
    /// Seconds since then; `null`: it would be ordered now.
    pub ago_s: Option<f64>,
    /// The VM's memory before, all tiers together, bytes.
    pub from_bytes: u64,
    /// Its memory as ordered, bytes.
    pub to_bytes: u64,
    /// The reason, in a sentence.
    pub why: String,
    /// Whether it was ordered; `false`: only said.
    pub is_ordered: bool,
}

/// The part of a VM in the sharing of memory between VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct BalanceStatus {
    /// `observe`: sizes are said and not ordered; or `on`.
    pub mode: String,
    /// The rule: `dp`, `fair` or `trade`.
    pub share: String,
    /// The least memory that the VM is left, bytes.
    pub floor_bytes: u64,
    /// The most that it is given, bytes; `null`: the size that it was started with.
    pub ceiling_bytes: Option<u64>,
    /// The VM's weight: its lost time counts so many thousandths.
    pub weight: u32,
    /// The reason why the VM keeps its size; `null` if it takes part.
    pub left_alone: Option<String>,
    /// The reason why its guest's statistics say nothing; `null` if they say something.
    pub statistics_missing: Option<String>,
    /// Seconds since the guest's last figures; `null` if there are none.
    pub statistics_age_s: Option<f64>,
    /// Memory that the guest calls free, bytes.
    pub free_bytes: Option<u64>,
    /// The guest's page cache, bytes.
    pub cache_bytes: Option<u64>,
    /// Swap in use, bytes, as the guest's agent says it.
    pub used_swap_bytes: Option<u64>,
    /// Whether that is an estimate by what was swapped out and in since the VM was found, as no agent says it.
    pub is_swap_estimate: bool,
    /// Whether the guest swaps.
    pub is_swapping: bool,
    /// The phase of its use of memory; `null` before its guest spoke.
    pub phase: Option<PhaseStatus>,
    /// The ages of the VM's memory; `null` if they are not scanned: no VM swaps, or this one is not scanned.
    pub ages: Option<AgesStatus>,
}

/// The memory that VMs share, all tiers together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharedMemory {
    /// All of it: the configured capacity, or what the VMs had when they came, bytes.
    pub capacity_bytes: u64,
    /// The part that VMs have or are on their way to, bytes.
    pub held_bytes: u64,
    /// The part that is kept for VMs that begin to swap, bytes.
    pub reserve_bytes: u64,
}

/// The phase of a VM's use of memory: what was found out about it before that says nothing.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PhaseStatus {
    /// The source: `page-walks`, as the host counts them, or `statistics` of the guest.
    pub source: String,
    /// Seconds since it began.
    pub since_s: f64,
    /// Phases that began since the VM was found.
    pub changes: u64,
}

/// The memory of a VM by its age, as scans of its page tables find it. Page cache that no program maps is not seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgesStatus {
    /// Seconds that were observed.
    pub observed_s: f64,
    /// Memory that programs of the guest map, bytes.
    pub mapped_bytes: u64,
    /// Memory of that without which they would miss at most one page a second, bytes.
    pub unused_bytes: u64,
    /// Misses of each size of memory for programs.
    pub curve: Vec<AgesPoint>,
}

/// The misses of one size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct AgesPoint {
    /// The size, bytes.
    pub bytes: u64,
    /// Pages of 4 KiB that would be missed a second.
    pub misses_per_s: u64,
}

/// The state of one tier of the VM.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProvisionedTier {
    /// The tier's name: `fast`, `slow`, …; `memory` if the mechanism knows no tiers.
    pub name: String,
    /// The guest's node.
    pub node: Option<u32>,
    /// The host's nodes behind the tier; empty if they are not known.
    pub host_nodes: Vec<u32>,
    /// The greatest size that the tier may have, bytes: the one that the VM was started with.
    pub whole_bytes: u64,
    /// The target: the size that the tier is to have, bytes.
    pub target_bytes: u64,
    /// The tier's size by the guest's claims, bytes.
    pub size_bytes: u64,
    /// Bytes that were being given back when another process came that may have pinned them: out of use until the
    /// guest starts anew.
    pub withheld_bytes: u64,
    /// Host memory that is really behind the tier, bytes; `null` if the files were not verified.
    pub present_bytes: Option<u64>,
    /// Bytes that the guest claims to have given back; `null` if the files were not verified.
    pub claimed_bytes: Option<u64>,
    /// Bytes of these that are still there.
    pub retained_bytes: Option<u64>,
    /// The share of the memory that the guest claims to have given back that is really gone, 0 to 1.
    pub verified_ratio: Option<f64>,
    /// Seconds since the files were verified.
    pub verified_age_s: Option<f64>,
    /// The reason why the target cannot be reached for now, if the guest gives one.
    pub stuck: Option<String>,
    /// Whether the driver has once brought the tier to its target, so that no more than that counts.
    pub inflated: bool,
    /// Bytes that admission counts of the tier.
    pub counted_bytes: u64,
    /// Bytes that the VM may still take of the host for this tier: the counted ones less those that are present
    /// already.
    pub may_take_bytes: u64,
    /// The guest's own statistics, untrusted.
    pub guest: GuestTier,
}

/// A guest's statistics of a tier; `null`: it reported nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestTier {
    /// Free bytes of the node.
    pub free_bytes: Option<u64>,
    /// Bytes of the node.
    pub total_bytes: Option<u64>,
    /// Pages (of 4 KiB) in the balloon by the driver's count.
    pub balloon_pages: Option<u64>,
    /// Pages given back under pressure.
    pub pressure_pages: Option<u64>,
    /// Major faults of the guest.
    pub major_faults: Option<u64>,
    /// Pages swapped in.
    pub swapped_in_pages: Option<u64>,
    /// Pages swapped out.
    pub swapped_out_pages: Option<u64>,
}

/// An order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OrderView {
    /// The order's number, which grows with each order to this daemon.
    pub number: u64,
    /// The giver of the order: `operator`, or `pinning` for the daemon itself if a device was passed through, or
    /// `sharing` if another process came that has the VM's RAM, or `arbiter` if it shares memory between VMs.
    pub origin: String,
    /// Seconds since it was given.
    pub age_s: f64,
    /// Sizes of the tiers when the order was given, bytes.
    pub from_bytes: Vec<u64>,
    /// The size that each tier is to have, bytes; `null` if the order leaves it alone.
    pub size_bytes: Vec<Option<u64>>,
    /// The order's progress.
    pub state: OrderState,
    /// The reason why the order is stuck or failed.
    pub why: Option<String>,
}

/// Counts of orders by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OrderCounts {
    /// Taken by the provider.
    pub taken: u64,
    /// Refused for want of free memory.
    pub refused_admission: u64,
    /// Refused because the VM's memory is pinned.
    pub refused_pinned: u64,
    /// Refused because the sizes are impossible.
    pub refused_invalid: u64,
    /// Not taken, or not in time.
    pub failed: u64,
    /// Orders that the arbiter gave, whatever came of them.
    #[serde(default)]
    pub by_arbiter: u64,
    /// Bytes by which the arbiter ordered the VM to grow, in all.
    #[serde(default)]
    pub given_bytes: u64,
    /// Bytes by which the arbiter ordered the VM to shrink, in all.
    #[serde(default)]
    pub taken_bytes: u64,
}

/// The progress of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderState {
    /// On its way to the device.
    Sent,
    /// The device has it.
    UnderWay,
    /// Every tier has the size that was ordered.
    Met,
    /// The guest reports that it cannot reach the target for now; it continues when it can.
    Stuck,
    /// The device did not take it.
    Failed,
    /// Not known: the answer was lost, or half of the order was carried out. The next query shows it.
    Unknown,
}

/// Memory of a hypervisor's process that is resident now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Shared memory, that of a guest's memfd or file, bytes.
    pub shared_bytes: u64,
    /// Private memory, that of a guest's other memory, bytes.
    pub private_bytes: u64,
    /// Decrease of this memory since the last order was given, bytes; negative if it grew.
    pub fell_bytes: Option<i64>,
}
