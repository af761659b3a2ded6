//! Mechanisms of other systems, which are no compositions of the engine's stages.
//!
//! Responsible for: what a mechanism is told and may do ([`Mechanism`], [`Ground`]), keeping it on one
//! VM ([`home`]), and one file for each mechanism; `docs/baselines/` names the kernel function or the
//! section of a paper behind each. It leaves to others: how pages travel ([`crate::host::travel`]), and
//! what an access costs ([`crate::machine`]).
//!
//! A mechanism runs in the guest or at the host ([`Side`]). In the guest it reads the guest's A bits, a
//! hinting fault stays in the guest, and its threads take their time from the vCPUs. At the host it reads
//! those of the second stage, a hinting fault is an exit, and its threads have processors of their own.

mod autonuma;
pub mod ground;
mod hemem;
pub mod home;
mod hyperplace;
mod linux;
pub mod lists;
mod memtierd;
mod memtis;
mod nimble;
mod nomad;
mod numab2;
mod raminate;
mod registry;
mod tpp;

pub use crate::host::travel::{Kind as Travelling, Outcome};
pub use crate::machine::pmu::{Pmu, Sample};
pub use crate::words::side::Side;
pub use ground::{Ground, Stage};
pub use hyperplace::Tuning;
pub use registry::Name;

/// A page of the load, in units of the second stage, numbered from 0 in the order of addresses.
pub type Unit = u32;

/// A fault that a mechanism asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Where.
    pub unit: Unit,
    /// Whether the access writes.
    pub write: bool,
}

/// A page that a mechanism sent on a journey, which is over for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moved {
    /// Which.
    pub unit: Unit,
    /// Where to.
    pub to: u8,
    /// What became of it.
    pub outcome: Outcome,
}

/// What a mechanism is.
pub trait Mechanism: Send {
    /// Called once per quantum, after the vCPUs ran: what its threads do. `ground` says how much time
    /// they have.
    fn pass(&mut self, ground: &mut Ground);

    /// An access met a hint ([`Ground::hint`]), which is gone now. What is spent here, the vCPU waits.
    fn hint_fault(&mut self, ground: &mut Ground, fault: Fault) {
        let _ = (ground, fault);
    }

    /// A write met a guard ([`Ground::guard`]), which is gone now. What is spent here, the vCPU waits.
    fn guard_fault(&mut self, ground: &mut Ground, unit: Unit) {
        let _ = (ground, unit);
    }

    /// Samples of the processor's counters since the quantum before.
    fn samples(&mut self, ground: &mut Ground, samples: &[Sample]) {
        let _ = (ground, samples);
    }

    /// What became of pages that [`Ground::submit`] sent, in that order: told in the quantum in which it is
    /// known, before a vCPU runs.
    fn moved(&mut self, ground: &mut Ground, moved: &[Moved]) {
        let _ = (ground, moved);
    }

    /// An allocation of somebody else in the guest had to go below a node's low watermark: its kernel wakes
    /// that node's kswapd, where it has one.
    fn pressed(&mut self, ground: &mut Ground, tier: u8) {
        let _ = (ground, tier);
    }

    /// The guest's kernel moved a page to a tier for somebody else's allocation.
    fn pushed(&mut self, ground: &mut Ground, unit: Unit, to: u8) {
        let _ = (ground, unit, to);
    }

    /// Times that it looked over all memory and decided, so far.
    fn rounds(&self) -> u64;

    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// What a mechanism may know when it begins.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Units of the load.
    pub units: u32,
    /// Tiers of the machine.
    pub tiers: usize,
    /// 4 KiB pages of a unit.
    pub pages_per_unit: u64,
    /// Divisor of sizes and periods.
    pub scale: u64,
    /// The scenario's seed.
    pub seed: u64,
    /// The VM's name.
    pub vm: String,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Who runs it.
    pub side: Side,
}
