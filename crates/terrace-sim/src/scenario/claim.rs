//! The claim of a VM on the first tier when VMs compete.

use super::error::Fault;
use super::quantity::size_text;

/// A VM's claim on the first tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Share when VMs compete; 1000 is normal.
    pub weight: u32,
    /// Least bytes of the first tier; `None` if not set.
    pub floor: Option<u64>,
    /// Most bytes of the first tier; `None` if not set.
    pub ceiling: Option<u64>,
    /// The slowdown that the operator accepts; `None` if not set.
    pub max_slowdown: Option<f64>,
}

impl Claim {
    /// Checks the claim of a VM that has `fast` bytes of the first tier, from a pool or for itself.
    pub(super) fn check(&self, path: &str, fast: u64, pool: bool) -> Result<(), Fault> {
        if let Some(floor) = self.floor.filter(|floor| *floor > fast) {
            let what = format!(
                "{} is more than the VM's first tier ({}): make it at most that",
                size_text(floor),
                size_text(fast)
            );
            return Err(Fault::new(format!("{path}.floor"), what));
        }
        let default = |percent: u64| pool.then(|| fast * percent / 100);
        let (floor, ceiling) = (self.floor.or(default(75)), self.ceiling.or(default(125)));
        if let (Some(floor), Some(ceiling)) = (floor, ceiling)
            && floor > ceiling
        {
            let said = |given: Option<u64>| if given.is_some() { "" } else { ", the default" };
            let what = format!(
                "the floor ({}{}) is above the ceiling ({}{}): lower the floor or raise the ceiling",
                size_text(floor),
                said(self.floor),
                size_text(ceiling),
                said(self.ceiling)
            );
            let key = if self.floor.is_some() {
                "floor"
            } else {
                "ceiling"
            };
            return Err(Fault::new(format!("{path}.{key}"), what));
        }
        Ok(())
    }
}
