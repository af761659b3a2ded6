//! The way to a device: one request per connection on its control socket, one line of JSON each way.
//!
//! Bytes of an export or import follow the line, as many as it announces.

mod client;
mod server;
mod timed;

use serde::{Deserialize, Serialize};
use terrace_proto::provision::GuestTier;

use crate::counters::Counters;
use crate::lease::Holders;
use crate::memory::Verified;
use crate::policy::NodePolicy;

pub use client::{Client, ClientError, Lease};
pub(crate) use server::serve;

/// Most bytes of a line.
const MAX_LINE: u64 = 64 * 1024;

/// A question or an order to a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Request {
    /// The question for the device's state.
    Status {
        /// Whether to verify the files, which takes up to 0.5 s.
        verify: bool,
    },
    /// New sizes of the VM's tiers, fastest first; `None` leaves a tier's target as it is.
    Resize {
        /// Bytes, whole blocks of the tier ([`TierStatus::block_bytes`]).
        size_bytes: Vec<Option<u64>>,
    },
    /// The request of a number for a pin check: which processes have the VM's memory, except the hypervisor and the
    /// daemon's own. Carries the result of the pin check of the number before, which began after that was given.
    Lease {
        /// `None`: there was none.
        #[serde(default)]
        #[serde(rename = "looked")]
        pin_checked: Option<PinCheckResult>,
    },
    /// The balloons, for a VM that moves to another host: stop it first.
    Export,
    /// The balloons of a VM that comes from another host, before the hypervisor connects.
    Import {
        /// How many follow the line.
        bytes: u64,
    },
}

/// The result of a pin check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PinCheckResult {
    /// The number that was given before it began.
    pub number: u64,
    /// Who was found.
    pub found: Holders,
}

/// The request of a device to a process that can see all others.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseRequest {
    /// The number of the next pin check; `None` if none is needed, by the operator's word.
    pub number: Option<u64>,
    /// Whether chains wait for it.
    pub waits: bool,
    /// The files behind the VM's memory: device and inode.
    pub files: Vec<(u64, u64)>,
}

/// The answer of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Reply {
    /// The device's state.
    Status(Box<Status>),
    /// The order is taken; it is not carried out yet.
    Accepted {
        /// Number of the targets.
        generation: u32,
    },
    /// The pin check that the device wants next.
    Lease(LeaseRequest),
    /// The balloons follow the line.
    Exported {
        /// How many bytes.
        bytes: u64,
    },
    /// The request is refused.
    Error {
        /// Why, for people.
        message: String,
    },
}

/// The state of a device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Status {
    /// Whether the hypervisor shares the VM's memory: the guest has a driver.
    pub connected: bool,
    /// The process that connected to the hypervisor's socket, by its number on the device's host; `None`: none did yet,
    /// or it is in another pid namespace.
    #[serde(default)]
    pub hypervisor_pid: Option<u32>,
    /// Number of the targets of now.
    pub generation: u32,
    /// Whether the driver was sent these.
    #[serde(rename = "told")]
    pub targets_sent: bool,
    /// How often the guest started anew, which empties the balloons.
    pub resets: u64,
    /// Memory that the VM's owner pays for, bytes; `None` if the operator set none.
    pub total_bytes: Option<u64>,
    /// The state of the leases; `None`: an older device has no leases.
    #[serde(default)]
    pub leases: Option<LeaseStatus>,
    /// The VM's tiers, fastest first.
    pub tiers: Vec<TierStatus>,
    /// Counts since the start of the process.
    pub counters: Counters,
}

/// The state of a device's leases.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseStatus {
    /// Memory is given back only after pin checks; else by the operator's word that no process pins it.
    pub needed: bool,
    /// Whether it is given back now.
    pub stands: bool,
    /// Whether chains wait for a pin check.
    pub waits: bool,
    /// The result of the last pin check; `None`: there was none yet, and nothing is given back.
    pub last: Option<Holders>,
}

/// The state of a tier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TierStatus {
    /// The guest's node.
    pub node: u32,
    /// The host's node that its memory shall come from, if the operator set one.
    #[serde(default)]
    pub host_node: Option<u32>,
    /// Whether its files prefer that node.
    #[serde(default)]
    pub node_policy: Option<NodePolicy>,
    /// Why it cannot be resized, for people.
    #[serde(default)]
    pub problem: Option<String>,
    /// The smallest page that is offered to the guest, bytes: sizes are whole ones of it. 0: an older device did not
    /// report it.
    #[serde(default)]
    pub block_bytes: u64,
    /// The largest page that the tier's files are made of, bytes; 0: no hypervisor shares them yet.
    #[serde(default)]
    pub page_bytes: u64,
    /// Size of the tier at the VM's start, with an empty balloon, bytes.
    pub whole_bytes: u64,
    /// Size that the tier is ordered to have, bytes.
    pub target_bytes: u64,
    /// Size that the tier has by the guest's claims, bytes.
    pub size_bytes: u64,
    /// Memory that was punched and that no second pin check has cleared yet, bytes.
    #[serde(default)]
    pub unproven_bytes: u64,
    /// Memory that was punched as a process appeared that may have pinned it, bytes: out of use until the guest is
    /// reset.
    #[serde(default)]
    pub withheld_bytes: u64,
    /// The result of the last whole verification of the files, if it was requested; `None` before the first since the
    /// guest started. A verification continues for 0.5 s with each request: a large tier in many pieces takes several.
    pub verified: Option<Verified>,
    /// The share of the claimed pages that are really gone, 0 to 1, by the same verification.
    #[serde(rename = "honesty")]
    pub verified_ratio: Option<f64>,
    /// Seconds since that verification began: nothing in it is older.
    #[serde(default)]
    pub verified_age_s: Option<f64>,
    /// The guest's report, untrusted.
    pub guest: GuestReport,
}

impl TierStatus {
    /// Whether the target is reached by the guest's claims.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.size_bytes == self.target_bytes
    }
}

/// The statistics of a guest on a tier: untrusted, but nothing larger than such a VM can have, so that sums cannot
/// overflow. `None`: it reported nothing, or an impossible value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestReport {
    /// The guest's statistics of the tier.
    #[serde(flatten)]
    pub statistics: GuestTier,
    /// Whether the target cannot be reached for now.
    pub is_stuck: Option<bool>,
}

impl From<&crate::device::GuestStatistics> for GuestReport {
    fn from(said: &crate::device::GuestStatistics) -> Self {
        let [
            free_bytes,
            total_bytes,
            balloon_pages,
            pressure_pages,
            stuck,
            major_faults,
            swapped_in_pages,
            swapped_out_pages,
        ] = *said;
        Self {
            statistics: GuestTier {
                free_bytes,
                total_bytes,
                balloon_pages,
                pressure_pages,
                major_faults,
                swapped_in_pages,
                swapped_out_pages,
            },
            is_stuck: stuck.map(|value| value != 0),
        }
    }
}
