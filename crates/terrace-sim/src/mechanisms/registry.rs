//! The registry of mechanisms, by name.

use super::balance::Balance;
use super::damos::Damos;
use super::hyperplace::Tuning;
use super::needs::{Memory, Need};
use super::numab2::PromotionLimits;
use super::raminate::Cork;
use super::{Mechanism, Setup, Side};
use super::{
    autonuma, balance, damos, hemem, hyperplace, memtierd, memtis, nimble, nomad, numab2, raminate,
    tpp,
};

/// The names of the mechanisms.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// NUMA balancing, mode 1.
    Autonuma,
    /// NUMA balancing, mode 2.
    Numab2(PromotionLimits),
    /// Transparent page placement.
    Tpp,
    /// DAMON's schemes for tiering.
    Damos(Damos),
    /// Non-exclusive tiering.
    Nomad,
    /// The mechanism Memtis.
    Memtis,
    /// Nimble page management.
    Nimble,
    /// The mechanism HeMem.
    Hemem,
    /// The mechanism RAMinate.
    Raminate(Cork),
    /// memtierd with its heat policy.
    Memtierd,
    /// memtierd with its age policy.
    MemtierdAge,
    /// Placement by the tiers' latencies under load.
    Balance(Balance),
    /// Our own mechanism, in the guest.
    Hyperplace(Tuning),
}

impl Name {
    /// All mechanisms.
    pub const ALL: &[Self] = &[
        Self::Autonuma,
        Self::Numab2(PromotionLimits::LINUX),
        Self::Tpp,
        Self::Damos(Damos::DEFAULT),
        Self::Nomad,
        Self::Memtis,
        Self::Nimble,
        Self::Hemem,
        Self::Raminate(Cork::DEFAULT),
        Self::Memtierd,
        Self::MemtierdAge,
        Self::Balance(Balance::DEFAULT),
        Self::Hyperplace(Tuning::PAPER),
    ];

    /// The mechanism's name in scenarios, the side that runs it by nature, and a description in one line.
    fn facts(self) -> (&'static str, Side, &'static str) {
        let (guest, host) = (Side::Guest, Side::Host);
        match self {
            Self::Autonuma => (
                "autonuma",
                guest,
                "NUMA balancing, mode 1: hinting faults promote while fast memory is free; no demotion",
            ),
            Self::Numab2(_) => (
                "numab2",
                guest,
                "NUMA balancing, mode 2: pages that fault soon after their hint are promoted; kswapd demotes",
            ),
            Self::Tpp => (
                "tpp",
                guest,
                "TPP: hinting faults promote active pages; kswapd keeps 2 % of fast memory free",
            ),
            Self::Damos(_) => (
                "damos",
                guest,
                "DAMON: regions of physical memory, sampled by a page each; migrate_hot and migrate_cold within quotas",
            ),
            Self::Nomad => (
                "nomad",
                guest,
                "Nomad: a thread promotes by transactions and leaves shadow copies; clean pages are demoted by a remap",
            ),
            Self::Memtis => (
                "memtis",
                guest,
                "Memtis: a histogram of sampled accesses sets the hot threshold; splits skewed 2 MiB pages",
            ),
            Self::Nimble => (
                "nimble",
                guest,
                "Nimble: every 5 s, the slow node's active list and the fast node's inactive one",
            ),
            Self::Hemem => (
                "hemem",
                host,
                "HeMem: counts of sampled loads and stores, fixed thresholds, write-heavy pages first",
            ),
            Self::Raminate(_) => (
                "raminate",
                host,
                "RAMinate: written pages first, by a corked multi-queue, 4 MiB a second",
            ),
            Self::Memtierd => (
                "memtierd",
                host,
                "memtierd, heat policy: regions of 1 MiB by their heat, as in its README",
            ),
            Self::MemtierdAge => (
                "memtierd-age",
                host,
                "memtierd, age policy: regions of 1 MiB that are active or idle for long",
            ),
            Self::Balance(_) => (
                "balance",
                host,
                "latency balancing: accesses go to the tier that answers faster under load, until both are equal",
            ),
            Self::Hyperplace(_) => (
                "hyperplace",
                guest,
                "HyperTier's placement: samples, a tree of virtual ranges, pages that change places",
            ),
        }
    }

    /// The mechanism's name in scenarios.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.facts().0
    }

    /// The side that runs the mechanism by nature.
    #[must_use]
    pub fn nature(self) -> Side {
        self.facts().1
    }

    /// A description in one line.
    #[must_use]
    pub fn what(self) -> &'static str {
        self.facts().2
    }

    /// Whether the mechanism splits 2 MiB pages.
    #[must_use]
    pub fn splits(self) -> bool {
        self == Self::Memtis
    }

    /// Whether the kernel of the mechanism's guest demotes if an allocation finds no memory.
    #[must_use]
    pub fn demotes(self) -> bool {
        self != Self::Autonuma
    }

    /// The least VM for the mechanism's own constants: what a kernel or a paper was made for.
    #[must_use]
    pub fn needs(self, memory: Memory) -> Vec<Need> {
        match self {
            Self::Autonuma => autonuma::Autonuma::needs(memory),
            Self::Numab2(_) => numab2::Numab2::needs(memory),
            Self::Tpp => tpp::Tpp::needs(memory),
            Self::Nomad => nomad::Nomad::needs(memory),
            Self::Memtis => memtis::Memtis::needs(),
            Self::Nimble => nimble::Nimble::needs(memory),
            Self::Hemem
            | Self::Raminate(_)
            | Self::Memtierd
            | Self::MemtierdAge
            | Self::Damos(_)
            | Self::Balance(_)
            | Self::Hyperplace(_) => Vec::new(),
        }
    }

    /// Starts the mechanism on a VM.
    #[must_use]
    pub fn begin(self, setup: &Setup) -> Box<dyn Mechanism> {
        match self {
            Self::Autonuma => Box::new(autonuma::Autonuma::new(setup)),
            Self::Numab2(limits) => Box::new(numab2::Numab2::new(setup, limits)),
            Self::Tpp => Box::new(tpp::Tpp::new(setup)),
            Self::Damos(parameters) => Box::new(damos::Damon::new(setup, parameters)),
            Self::Nomad => Box::new(nomad::Nomad::new(setup)),
            Self::Memtis => Box::new(memtis::Memtis::new(setup)),
            Self::Nimble => Box::new(nimble::Nimble::new(setup)),
            Self::Hemem => Box::new(hemem::Hemem::new(setup)),
            Self::Raminate(cork) => Box::new(raminate::Raminate::new(setup, cork)),
            Self::Memtierd => Box::new(memtierd::Memtierd::new(setup, memtierd::Policy::Heat)),
            Self::MemtierdAge => Box::new(memtierd::Memtierd::new(setup, memtierd::Policy::Age)),
            Self::Balance(parameters) => Box::new(balance::Balancer::new(setup, parameters)),
            Self::Hyperplace(tuning) if tuning.literal => {
                Box::new(hyperplace::literal::Literal::new(setup, tuning))
            }
            Self::Hyperplace(tuning) => Box::new(hyperplace::Hyperplace::new(setup, tuning)),
        }
    }
}
