//! Baselines: mechanisms of other systems, which are no compositions of the engine's stages.
//!
//! Responsible for: what a mechanism is told and may do ([`Mechanism`], [`Ground`]), keeping it on one
//! VM ([`home`]), and one file for each mechanism; `docs/baselines.md` names the kernel function or the
//! section of a paper behind each. It leaves to others: how pages travel ([`crate::host::travel`]), and
//! what an access costs ([`crate::machine`]).
//!
//! A mechanism runs in the guest or at the host ([`Side`]). In the guest it reads the guest's A bits, a
//! hinting fault stays in the guest, and its threads take their time from the vCPUs. At the host it reads
//! those of the second stage, a hinting fault is an exit, and its threads have processors of their own.

mod autonuma;
pub mod ground;
pub mod home;
mod hyperplace;
mod linux;
pub mod lists;
mod memtierd;
mod nimble;
mod nomad;
mod numab2;
pub mod pmu;
mod raminate;
mod tpp;

pub use crate::host::travel::{Kind as Travelling, Outcome, Side};
pub use ground::{Ground, Stage};
pub use pmu::{Pmu, Sample};

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

/// A page that a mechanism sent on a journey, at its end.
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

    /// A journey ended that [`Ground::submit`] began.
    fn moved(&mut self, ground: &mut Ground, moved: &[Moved]) {
        let _ = (ground, moved);
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

/// The baselines that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// NUMA balancing, mode 1.
    Autonuma,
    /// Our own, in the guest.
    Hyperplace,
    /// NUMA balancing, mode 2.
    Numab2,
    /// Transparent page placement.
    Tpp,
    /// Non-exclusive tiering.
    Nomad,
    /// Nimble.
    Nimble,
    /// RAMinate.
    Raminate,
    /// memtierd with its heat policy.
    Memtierd,
    /// memtierd with its age policy.
    MemtierdAge,
}

impl Name {
    /// All of them.
    pub const ALL: &[Self] = &[
        Self::Autonuma,
        Self::Numab2,
        Self::Tpp,
        Self::Nomad,
        Self::Hyperplace,
        Self::Nimble,
        Self::Raminate,
        Self::Memtierd,
        Self::MemtierdAge,
    ];

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Autonuma => "autonuma",
            Self::Hyperplace => "hyperplace",
            Self::Numab2 => "numab2",
            Self::Tpp => "tpp",
            Self::Nomad => "nomad",
            Self::Nimble => "nimble",
            Self::Raminate => "raminate",
            Self::Memtierd => "memtierd",
            Self::MemtierdAge => "memtierd-age",
        }
    }

    /// What it is, in a line.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::Autonuma => {
                "NUMA balancing, mode 1: hinting faults promote while fast memory is free; no demotion"
            }
            Self::Hyperplace => {
                "HyperTier's placement: samples, a tree of virtual ranges, pages that change places"
            }
            Self::Numab2 => {
                "NUMA balancing, mode 2: pages that fault soon after their hint are promoted; kswapd demotes"
            }
            Self::Tpp => {
                "TPP: hinting faults promote active pages; kswapd keeps 2 % of fast memory free"
            }
            Self::Nomad => {
                "Nomad: a thread promotes by transactions and leaves shadow copies; clean pages are demoted by a remap"
            }
            Self::Nimble => {
                "Nimble: every 5 s, the slow node's active list and the fast node's inactive one"
            }
            Self::Raminate => {
                "RAMinate: written pages first, by a corked multi-queue, 4 MiB a second"
            }
            Self::Memtierd => {
                "memtierd, heat policy: regions of 1 MiB by their heat, as in its README"
            }
            Self::MemtierdAge => {
                "memtierd, age policy: regions of 1 MiB that are active or idle for long"
            }
        }
    }

    /// Who runs it by nature.
    #[must_use]
    pub fn nature(self) -> Side {
        match self {
            Self::Autonuma | Self::Numab2 | Self::Tpp | Self::Nomad | Self::Hyperplace => {
                Side::Guest
            }
            Self::Nimble => Side::Guest,
            Self::Raminate | Self::Memtierd | Self::MemtierdAge => Side::Host,
        }
    }

    /// A mechanism that begins.
    #[must_use]
    pub fn begin(self, setup: &Setup) -> Box<dyn Mechanism> {
        match self {
            Self::Autonuma => Box::new(autonuma::Autonuma::new(setup)),
            Self::Hyperplace => Box::new(hyperplace::Hyperplace::new(setup)),
            Self::Numab2 => Box::new(numab2::Numab2::new(setup)),
            Self::Tpp => Box::new(tpp::Tpp::new(setup)),
            Self::Nomad => Box::new(nomad::Nomad::new(setup)),
            Self::Nimble => Box::new(nimble::Nimble::new(setup)),
            Self::Raminate => Box::new(raminate::Raminate::new(setup)),
            Self::Memtierd => Box::new(memtierd::Memtierd::new(setup, memtierd::Policy::Heat)),
            Self::MemtierdAge => Box::new(memtierd::Memtierd::new(setup, memtierd::Policy::Age)),
        }
    }
}
