//! Types of resizable memory: `POST /v1/vms/{name}/resize`, and its part of `GET /v1/vms/{name}`.

use serde::{Deserialize, Serialize};

use terrace_proto::provision::MAX_TIERS;
pub use terrace_proto::provision::{
    BalanceStatus, GuestTier, HugeStatus, HugeSteps, OrderCounts, OrderState, OrderView, Ordered,
    ProvisionedTier, ProvisioningStatus, Resident, SharedMemory, SizeChange,
};

/// `GET /v1/plan`: the sizes that the sharing of memory between VMs would order now.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SizePlan {
    /// The VMs that would change size.
    pub changes: Vec<PlannedSize>,
    /// The other VMs with resizable memory.
    pub unchanged: Vec<Unchanged>,
    /// The memory that VMs share; `null` if it is not shared.
    #[serde(default)]
    pub shared: Option<SharedMemory>,
    /// The VMs that share it, whether they would change size or not.
    #[serde(default)]
    pub vms: Vec<SharingVm>,
}

/// A VM that shares memory with others.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SharingVm {
    /// Name of the VM.
    pub vm: String,
    /// The memory that it has, bytes.
    pub size_bytes: u64,
    /// The least that it is left, bytes.
    pub floor_bytes: u64,
    /// The most that it is given, bytes.
    pub ceiling_bytes: u64,
    /// The VM's weight: its lost time counts so many thousandths.
    pub weight: u32,
    /// Memory that its guest calls free, bytes; `null`: not known.
    pub free_bytes: Option<u64>,
    /// Swap that its guest uses, bytes; `null`: not known.
    pub used_swap_bytes: Option<u64>,
    /// Whether its guest swaps.
    pub is_swapping: bool,
}

/// A VM that would change size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedSize {
    /// Name of the VM.
    pub vm: String,
    /// Its change.
    #[serde(flatten)]
    pub change: SizeChange,
}

/// A VM that would keep its size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unchanged {
    /// Name of the VM.
    pub vm: String,
    /// The reason why it is left alone, or why its guest's need is not known; `null`: it has what it is to have.
    pub left_alone: Option<String>,
}

/// The size that a VM is to have of each tier, bytes; absent tiers stay as they are.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// The size of the first tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bytes: Option<u64>,
    /// The size of the second tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_bytes: Option<u64>,
    /// The size of each tier, fastest first, instead of the two above; `null`: that tier stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiers_bytes: Option<Vec<Option<u64>>>,
}

impl Resize {
    /// The sizes as a list, one for each tier.
    ///
    /// # Errors
    /// If sizes are given in both ways, or for more tiers than there can be.
    pub fn list(&self) -> Result<Vec<Option<u64>>, String> {
        let two = [self.fast_bytes, self.slow_bytes];
        match &self.tiers_bytes {
            None => Ok(two.to_vec()),
            Some(_) if two.iter().any(Option::is_some) => {
                Err("say sizes as fast_bytes and slow_bytes, or as tiers_bytes, not both".into())
            }
            Some(tiers) if tiers.len() > MAX_TIERS => Err(format!(
                "{} tiers are too many: a VM has {MAX_TIERS} at most",
                tiers.len()
            )),
            Some(tiers) => Ok(tiers.clone()),
        }
    }
}
