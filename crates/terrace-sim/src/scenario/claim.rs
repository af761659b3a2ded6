//! The claim of a VM on memory when VMs compete.

use super::Vm;
use super::error::Fault;
use super::quantity::size_text;

/// A VM's claim on the first tier, and on memory of all tiers together.
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
    /// Least bytes of all tiers together; `None` if not set.
    pub memory_floor: Option<u64>,
    /// Most bytes of all tiers together; `None` if not set.
    pub memory_ceiling: Option<u64>,
}

/// Part of its memory that a VM keeps unless the scenario says otherwise: a quarter.
const FLOOR_DIVISOR: u64 = 4;

impl Vm {
    /// The least memory that sharing leaves the VM, bytes of all tiers together.
    #[must_use]
    pub fn memory_floor(&self) -> u64 {
        let default = || self.bytes() / FLOOR_DIVISOR;
        self.claim.memory_floor.unwrap_or_else(default)
    }

    /// The most memory that sharing gives the VM, bytes of all tiers together.
    #[must_use]
    pub fn memory_ceiling(&self) -> u64 {
        let nodes = || match &self.provision {
            Some(provision) => provision.nodes.iter().sum(),
            None => self.bytes(),
        };
        self.claim.memory_ceiling.unwrap_or_else(nodes)
    }

    /// Checks the bounds of the VM's whole memory.
    pub(super) fn check_memory(&self, path: &str) -> Result<(), Fault> {
        let has = self.bytes();
        let given = [
            ("memory_floor", self.claim.memory_floor),
            ("memory_ceiling", self.claim.memory_ceiling),
        ];
        for (key, _) in given.iter().filter(|(_, given)| given.is_some()) {
            if self.provision.is_none() {
                let what = "memory that is just there keeps its size: set provision = \"hyperflex\", \"balloon\" or \"virtio-mem\", or leave this out";
                return Err(Fault::new(format!("{path}.{key}"), what));
            }
        }
        if let Some(floor) = self.claim.memory_floor.filter(|floor| *floor > has) {
            let what = format!(
                "{} is more than the VM has ({}): make it at most that",
                size_text(floor),
                size_text(has)
            );
            return Err(Fault::new(format!("{path}.memory_floor"), what));
        }
        let nodes = self.provision.iter().flat_map(|provision| &provision.nodes);
        let nodes = nodes.fold(0, |sum: u64, node| sum.saturating_add(*node));
        let fits = |ceiling: &u64| (has..=nodes).contains(ceiling);
        if let Some(ceiling) = self.claim.memory_ceiling.filter(|ceiling| !fits(ceiling)) {
            let what = format!(
                "{} is out of range: allowed is from what the VM has ({}) to what its nodes have ({})",
                size_text(ceiling),
                size_text(has),
                size_text(nodes)
            );
            return Err(Fault::new(format!("{path}.memory_ceiling"), what));
        }
        Ok(())
    }
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
