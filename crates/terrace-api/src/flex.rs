//! Types of elastic memory: `POST /v1/vms/{name}/resize`, and its part of `GET /v1/vms/{name}`.

use serde::{Deserialize, Serialize};

/// What a VM shall have of each tier, bytes; what is absent stays as it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// Of its first tier.
    pub fast_bytes: Option<u64>,
    /// Of its second tier.
    pub slow_bytes: Option<u64>,
}

/// How a VM's HyperFlex device stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flex {
    /// Its control socket.
    pub control: String,
    /// Why nothing is known; everything below is empty then.
    pub problem: Option<String>,
    /// Whether the hypervisor shares memory with it.
    pub connected: bool,
    /// Whether the guest's driver knows the targets.
    pub told: bool,
    /// What the VM's owner pays for, bytes, where that is a limit.
    pub total_bytes: Option<u64>,
    /// Requests of the guest that were refused, since the device was started.
    pub refused_entries: u64,
    /// Its tiers, fastest first.
    pub tiers: Vec<FlexTier>,
}

/// How a tier of it stands.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlexTier {
    /// The guest's node.
    pub node: u32,
    /// What the VM was started with, bytes.
    pub whole_bytes: u64,
    /// What it shall have, bytes.
    pub target_bytes: u64,
    /// What it has by what the guest claims, bytes.
    pub size_bytes: u64,
    /// Host memory that is really behind it, bytes, where the files were looked at.
    pub present_bytes: Option<u64>,
    /// The share of what the guest claims to have given back that is really gone, 0 to 1.
    pub honesty: Option<f64>,
    /// Whether the guest says that it cannot reach the target for now.
    pub is_stuck: Option<bool>,
}
