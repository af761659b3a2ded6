//! Types of elastic memory: `POST /v1/vms/{name}/resize`, and its part of `GET /v1/vms/{name}`.

use serde::{Deserialize, Serialize};

use terrace_proto::provision::MOST_TIERS;
pub use terrace_proto::provision::{
    Elastic, ElasticTier, GuestTier, Order, OrderState, Ordered, Orders, Resident,
};

/// What a VM shall have of each tier, bytes; what is absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Resize {
    /// Of its first tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fast_bytes: Option<u64>,
    /// Of its second tier.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slow_bytes: Option<u64>,
    /// Of each tier, fastest first, instead of the two above; `null`: it stays as it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tiers_bytes: Option<Vec<Option<u64>>>,
}

impl Resize {
    /// The list of tiers that this names.
    ///
    /// # Errors
    /// If it names sizes in both ways, or of more tiers than there can be.
    pub fn list(&self) -> Result<Vec<Option<u64>>, String> {
        let two = [self.fast_bytes, self.slow_bytes];
        match &self.tiers_bytes {
            None => Ok(two.to_vec()),
            Some(_) if two.iter().any(Option::is_some) => {
                Err("say sizes as fast_bytes and slow_bytes, or as tiers_bytes, not both".into())
            }
            Some(tiers) if tiers.len() > MOST_TIERS => Err(format!(
                "{} tiers are too many: a VM has {MOST_TIERS} at most",
                tiers.len()
            )),
            Some(tiers) => Ok(tiers.clone()),
        }
    }
}
