//! Mechanisms of other systems, which are not composed of the engine's stages.
//!
//! Responsible for: the events and operations of a mechanism ([`Mechanism`], [`Context`]), keeping it on one VM
//! ([`attached`]), and one file for each mechanism; `docs/baselines/` names the kernel function or the section of a
//! paper behind each. It leaves to others: the moves of pages ([`crate::host::migration`]), and the cost of an access
//! ([`crate::machine`]).
//!
//! A mechanism runs in the guest or at the host ([`Side`]). In the guest it reads the guest's A bits, a hinting fault
//! stays in the guest, and its threads take their time from the vCPUs. At the host it reads the A bits of the second
//! stage, a hinting fault is an exit, and its threads have processors of their own.

pub mod attached;
mod autonuma;
mod balance;
pub mod context;
mod damos;
pub mod gpac;
mod hemem;
mod hyperplace;
mod linux;
pub mod lists;
mod memtierd;
mod memtis;
pub mod needs;
mod nimble;
mod nomad;
mod numab2;
mod raminate;
mod registry;
mod tpp;

pub use crate::base::side::Side;
pub use crate::host::migration::{MigrationMode, Outcome};
pub use crate::machine::pmu::{Pmu, Sample};
pub use balance::Balance;
pub use context::{Context, Stage};
pub use damos::Damos;
pub use hyperplace::Tuning;
pub use numab2::PromotionLimits;
pub use raminate::Cork;
pub use registry::Name;

/// A page of the load, in units of the second stage, numbered from 0 in the order of addresses.
pub type Unit = u32;

/// A fault that a mechanism asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The unit that was touched.
    pub unit: Unit,
    /// Whether the access writes.
    pub write: bool,
}

/// A page whose migration, on which a mechanism sent it, is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// The unit.
    pub unit: Unit,
    /// The target tier.
    pub to: u8,
    /// The outcome of the move.
    pub outcome: Outcome,
}

/// A mechanism of another system.
pub trait Mechanism: Send {
    /// Runs the mechanism's threads, once per quantum, after the vCPUs. `context` has how much time they have.
    fn run_quantum(&mut self, context: &mut Context);

    /// Handles an access that met a hint ([`Context::hint`]), which is gone now. The vCPU waits for the time that is
    /// spent here.
    fn hint_fault(&mut self, context: &mut Context, fault: Fault) {
        let _ = (context, fault);
    }

    /// Handles a write that met a guard ([`Context::guard`]), which is gone now. The vCPU waits for the time that is
    /// spent here.
    fn guard_fault(&mut self, context: &mut Context, unit: Unit) {
        let _ = (context, unit);
    }

    /// Takes in the samples of the processor's counters since the quantum before.
    fn samples(&mut self, context: &mut Context, samples: &[Sample]) {
        let _ = (context, samples);
    }

    /// Reports the outcomes of pages that [`Context::submit`] sent, in that order, in the quantum in which they are
    /// known, before a vCPU runs.
    fn moved(&mut self, context: &mut Context, moved: &[Moved]) {
        let _ = (context, moved);
    }

    /// Reports that an allocation of another program in the guest had to go below a node's low watermark: its kernel
    /// wakes that node's kswapd, if it has one.
    fn below_low_watermark(&mut self, context: &mut Context, tier: u8) {
        let _ = (context, tier);
    }

    /// Reports that the guest's kernel moved a page to a tier for another program's allocation.
    fn displaced(&mut self, context: &mut Context, unit: Unit, to: u8) {
        let _ = (context, unit, to);
    }

    /// Number of times so far that the mechanism scanned all memory and decided.
    fn rounds(&self) -> u64;

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// The facts that a mechanism may know when it starts.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Number of units of the load.
    pub units: u32,
    /// Number of tiers of the machine.
    pub tiers: usize,
    /// 4 KiB pages of a unit.
    pub pages_per_unit: u64,
    /// Divisor of sizes and periods.
    pub scale: u64,
    /// The scenario's seed.
    pub seed: u64,
    /// The VM's name.
    pub vm: String,
    /// Number of the VM's vCPUs.
    pub vcpus: u32,
    /// The side that runs the mechanism.
    pub side: Side,
}

#[cfg(test)]
impl Setup {
    /// A guest's mechanism on a VM of so many units of 4 KiB in two tiers, at full size.
    pub fn of_units(units: u32) -> Self {
        Self {
            units,
            tiers: 2,
            pages_per_unit: 1,
            scale: 1,
            seed: 1,
            vcpus: 2,
            vm: "a".into(),
            side: Side::Guest,
        }
    }
}
