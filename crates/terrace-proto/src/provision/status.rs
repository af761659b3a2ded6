//! How elastic memory is shown: the API's types, filled by the engine.

use serde::{Deserialize, Serialize};

/// An order that was taken; it is not carried out yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ordered {
    /// What is done, in a sentence.
    pub done: String,
    /// Number of the order, which grows; [`Order::number`] of the VM tells whether a newer one came.
    pub number: u64,
    /// What does it: `hyperflex`, `virtio-mem` or `balloon`.
    pub by: String,
    /// The same in words, to stand after "by".
    pub by_words: String,
    /// What each tier shall have, bytes, fastest first; `null` where the order leaves it alone.
    pub size_bytes: Vec<Option<u64>>,
}

/// How a VM's elastic memory stands, as the daemon last saw it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Elastic {
    /// What resizes it: `hyperflex`, `virtio-mem` or `balloon`; empty where that is not known yet.
    pub by: String,
    /// The same in words, to stand after "by".
    pub by_words: String,
    /// Where that is asked: its control socket or monitor.
    pub at: String,
    /// Why nothing newer is known; what follows is as old as `age_s` says.
    pub problem: Option<String>,
    /// Seconds since what follows was seen; `null` where nothing was.
    pub age_s: Option<f64>,
    /// Whether the hypervisor shares memory with the device.
    pub connected: bool,
    /// Whether the guest's driver knows the targets.
    pub told: bool,
    /// Targets that are not met yet.
    pub resizing: bool,
    /// How often the guest started anew, which empties balloons.
    pub resets: u64,
    /// What the VM's owner pays for, bytes, where that is a limit.
    pub total_bytes: Option<u64>,
    /// Requests of the guest that were refused, since the device was started.
    pub refused_entries: u64,
    /// The last order, since the daemon was started.
    pub order: Option<Order>,
    /// What became of all orders, since the VM was found.
    pub orders: Orders,
    /// Memory of the hypervisor's process, where it could be read.
    pub resident: Option<Resident>,
    /// Why the VM's memory is pinned, so that none may be taken away.
    pub pinned_by: Option<String>,
    /// Why that is not known, if it is not.
    pub pinning_unknown: Option<String>,
    /// Who else has the VM's RAM and may have pinned it, so that none may be taken away.
    pub held_by: Option<String>,
    /// Why that is not known, if it is not.
    pub holding_unknown: Option<String>,
    /// How much of this VM admission counts, in a sentence.
    pub admission: String,
    /// Its tiers, fastest first.
    pub tiers: Vec<ElasticTier>,
}

/// How a tier of it stands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ElasticTier {
    /// `fast`, `slow`, …; `memory` where what resizes the VM knows no tiers.
    pub name: String,
    /// The guest's node.
    pub node: Option<u32>,
    /// The host's nodes behind it; empty where they are not known.
    pub host_nodes: Vec<u32>,
    /// What the VM was started with, bytes.
    pub whole_bytes: u64,
    /// What it shall have, bytes.
    pub target_bytes: u64,
    /// What it has by what the guest claims, bytes.
    pub size_bytes: u64,
    /// What was being given back as another process came that may have pinned it, bytes: out of use until the guest
    /// starts anew.
    pub withheld_bytes: u64,
    /// Host memory that is really behind it, bytes, where the files were looked at.
    pub present_bytes: Option<u64>,
    /// What the guest claims to have given back, bytes, where the files were looked at.
    pub claimed_bytes: Option<u64>,
    /// What the guest claims to have given back although it is still there, bytes.
    pub kept_bytes: Option<u64>,
    /// The share of what the guest claims to have given back that is really gone, 0 to 1.
    pub honesty: Option<f64>,
    /// Seconds since the files were looked at.
    pub verified_age_s: Option<f64>,
    /// Why the target cannot be reached for now, where the guest says so.
    pub stuck: Option<String>,
    /// The driver has once brought it to its target, so that no more than that counts.
    pub inflated: bool,
    /// What admission counts of it, bytes.
    pub counted_bytes: u64,
    /// What the VM may still take of the host for it: what is counted less what is there already.
    pub may_take_bytes: u64,
    /// What the guest says, untrusted.
    pub guest: GuestTier,
}

/// A guest's statistics of a tier; `null`: it said nothing.
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
pub struct Order {
    /// Grows with each order to this daemon.
    pub number: u64,
    /// Who gave it: `operator`, or `pinning` for the daemon itself, where a device was passed through, or
    /// `sharing`, where another process came that has the VM's RAM.
    pub origin: String,
    /// Seconds since it was given.
    pub age_s: f64,
    /// What each tier had then, bytes.
    pub from_bytes: Vec<u64>,
    /// What each tier shall have, bytes; `null` where the order leaves it alone.
    pub size_bytes: Vec<Option<u64>>,
    /// How far it is.
    pub state: OrderState,
    /// Why it is stuck or failed.
    pub why: Option<String>,
}

/// What became of orders.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Orders {
    /// Taken by what resizes the VM.
    pub taken: u64,
    /// Refused for want of free memory.
    pub refused_admission: u64,
    /// Refused because the VM's memory is pinned.
    pub refused_pinned: u64,
    /// Refused as sizes that cannot be.
    pub refused_invalid: u64,
    /// Not taken, or not in time.
    pub failed: u64,
}

/// How far an order is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OrderState {
    /// On its way to the device.
    Sent,
    /// The device has it.
    UnderWay,
    /// Every tier has what it shall have.
    Met,
    /// The guest says that it cannot for now; it goes on when it can.
    Stuck,
    /// The device did not take it.
    Failed,
    /// Its answer was lost, or half of it was done: the next look tells.
    Unknown,
}

/// Memory of a hypervisor's process that is resident now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resident {
    /// Shared, where a guest's memfd or file is, bytes.
    pub shared_bytes: u64,
    /// Private, where a guest's other memory is, bytes.
    pub private_bytes: u64,
    /// How much less this is than when the last order was given, bytes; negative where it grew.
    pub fell_bytes: Option<i64>,
}
