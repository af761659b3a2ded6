//! A VM as the rules of total memory see it: what it may have, has and wants (HPMBS §4.2).

use super::Loss;
use crate::demand::Curve;
use crate::provision::size_text;

/// The memory that a VM wants, by its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Want {
    /// A VM that swaps: what it has and what it swapped out.
    Swapping {
        /// Swap in use, bytes.
        used_swap_bytes: u64,
    },
    /// A VM in a stable phase, with huge pages for at least 90 % of its memory: its working set.
    WorkingSet {
        /// The working set, bytes.
        bytes: u64,
    },
    /// Any other: its demand is not known, but what it has is enough for now.
    Same,
}

/// A VM's bounds, size and want of the host's memory, all tiers together.
#[derive(Clone, Copy, Debug)]
pub struct Need<'a> {
    /// The VM's weight: 1000 is one share, 0 counts as 1.
    pub weight: u32,
    /// Bytes that nobody takes from the VM.
    pub floor_bytes: u64,
    /// Most bytes that the VM may have; one below the floor counts as the floor.
    pub ceiling_bytes: u64,
    /// Bytes that the VM has, or is on its way to.
    pub size_bytes: u64,
    /// The memory that the VM wants.
    pub want: Want,
    /// Miss-ratio curve, if the VM was tracked.
    pub curve: Option<&'a Curve>,
    /// Time that a major fault takes, ns.
    pub fault_ns: u64,
}

impl Need<'_> {
    /// The size that the VM wants, within its floor and ceiling, bytes.
    #[must_use]
    pub fn expected_bytes(&self) -> u64 {
        let bytes = match self.want {
            Want::Swapping { used_swap_bytes } => self.size_bytes.saturating_add(used_swap_bytes),
            Want::WorkingSet { bytes } => bytes,
            Want::Same => self.size_bytes,
        };
        bytes.clamp(self.floor_bytes, self.most_bytes())
    }

    /// The most bytes that the VM may have: its ceiling, or a floor above that.
    #[must_use]
    pub fn most_bytes(&self) -> u64 {
        self.ceiling_bytes.max(self.floor_bytes)
    }

    /// Time that the VM loses to faults per second, by size; `None` if it has no curve, or one without time.
    #[must_use]
    pub fn loss(&self) -> Option<Loss> {
        Loss::of_curve(self.curve?, self.fault_ns)
    }

    /// Whether the VM swaps.
    #[must_use]
    pub fn is_swapping(&self) -> bool {
        matches!(self.want, Want::Swapping { .. })
    }
}

/// Floors that a host cannot give.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the floors of the VMs are {} together, but the host has {} for them: lower floors, or run fewer VMs here",
    size_text(*floors),
    size_text(*host)
)]
pub struct FloorsExceed {
    /// All floors together, bytes.
    pub floors: u64,
    /// The memory to divide, bytes.
    pub host: u64,
}

impl FloorsExceed {
    /// Refuses floors that exceed the memory to divide.
    pub(super) fn check(floors: impl Iterator<Item = u64>, host: u64) -> Result<(), Self> {
        // In 128 bits, as providers report anything: a sum that ends at the largest number would fit into it.
        let floors: u128 = floors.map(u128::from).sum();
        if floors <= u128::from(host) {
            return Ok(());
        }
        let floors = u64::try_from(floors).unwrap_or(u64::MAX);
        Err(Self { floors, host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vm_wants_what_its_state_says_within_its_limits() {
        let need = |want| Need {
            weight: 1000,
            floor_bytes: 20,
            ceiling_bytes: 200,
            size_bytes: 100,
            want,
            curve: None,
            fault_ns: 0,
        };
        let expected = |want| need(want).expected_bytes();
        let swapping = |used_swap_bytes| Want::Swapping { used_swap_bytes };
        assert_eq!(expected(swapping(50)), 150);
        assert_eq!(expected(swapping(u64::MAX)), 200);
        assert_eq!(expected(Want::WorkingSet { bytes: 70 }), 70);
        assert_eq!(expected(Want::WorkingSet { bytes: 7 }), 20);
        assert_eq!(expected(Want::Same), 100);
        let twisted = Need {
            ceiling_bytes: 10,
            ..need(Want::Same)
        };
        assert_eq!(twisted.expected_bytes(), 20);
    }
}
