//! Scenarios: what is simulated.
//!
//! Responsible for: the checked description of machine, VMs and host that a run takes (all sizes and
//! times of the full-size machine). [`Scenario::load`] reads it from a file. It leaves to others: what
//! a load may be ([`crate::workload`]), and running it ([`crate::simulation`]).

mod error;
mod load;
pub mod policy;
mod preset;
pub mod provision;
pub mod quantity;
mod raw;
mod rules;
mod variants;

use std::path::PathBuf;

use terrace_core::{EngineConfig, PolicyChoice, Share};
use terrace_proto::PageSize;

pub use error::{Fault, ScenarioError};
pub use preset::presets;

use crate::guest::reclaim::BalloonStep;
use crate::host::device::Provision;
use crate::host::start::Start;
use crate::mechanisms::Name;
use crate::words::load::Stop;
use crate::words::side::Side;
use crate::words::tier::Tier;
use crate::workload::Workload;

/// What is simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Its file's name without folder and ending.
    pub name: String,
    /// The folder that files named in it are relative to.
    pub folder: PathBuf,
    /// Seed of all random streams.
    pub seed: u64,
    /// The machine.
    pub machine: Machine,
    /// The VMs: at least one.
    pub vms: Vec<Vm>,
    /// How the host shares the first tier.
    pub host: Host,
    /// Parameters of the engine, of the full-size machine; without tiers, policies and seed.
    pub engine: EngineConfig,
}

/// The machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Machine {
    /// The tiers, fastest first: two to four.
    pub tiers: Vec<Tier>,
    /// Divisor of sizes, operations, durations and periods; 1 is full size.
    pub scale: u64,
    /// Processors that the host's management has for itself.
    pub management_cpus: u32,
    /// Pages that a kernel unmaps together before it copies them: 512 since Linux 6.3, 1 before.
    pub migrate_batch: u32,
}

/// A VM.
#[derive(Clone, Debug, PartialEq)]
pub struct Vm {
    /// Its name; no two VMs have the same.
    pub name: String,
    /// Its memory per tier, bytes: as many as there are tiers.
    pub sizes: Vec<u64>,
    /// Pages of the guest's page tables.
    pub guest_page: PageSize,
    /// Pages of the second stage; also what is ranked and moved as one.
    pub host_page: PageSize,
    /// The host's policy.
    pub policy: HostPolicy,
    /// The guest's own policy, where the host only provides the tiers.
    pub guest_policy: Option<Name>,
    /// Share when VMs compete; 1000 is normal.
    pub weight: u32,
    /// Least bytes of the first tier, where set.
    pub floor: Option<u64>,
    /// Most bytes of the first tier, where set.
    pub ceiling: Option<u64>,
    /// The slowdown that the operator accepts, where set.
    pub max_slowdown: Option<f64>,
    /// Where its pages are at first.
    pub start: Start,
    /// Its vCPUs.
    pub vcpus: u32,
    /// Its load.
    pub workload: Workload,
    /// When its load ends.
    pub stop: Stop,
    /// Size of the guest's swap device, bytes; 0: none.
    pub swap: u64,
    /// What the host takes from the guest over time by a balloon, in order of time.
    pub balloon: Vec<BalloonStep>,
    /// The device that sizes its nodes, where one does; otherwise its memory is just there.
    pub provision: Option<Provision>,
}

/// Who places a VM's pages.
#[derive(Clone, Debug, PartialEq)]
pub enum HostPolicy {
    /// The engine, by a policy of its registry that observes and moves; the name as given.
    Engine(String, PolicyChoice),
    /// A mechanism of another system, in the guest or at the host; the name as given.
    Baseline(String, Name, Side),
    /// The machine's DRAM is a cache of the second tier, where all pages are; the name as given.
    MemoryMode(String),
    /// Nobody: pages stay where [`Start`] puts them.
    FirstTouch,
    /// Pages are dealt to the tiers in turn, in proportion to the VM's sizes, and stay.
    Interleave,
    /// Every page in the first tier, as if it had no end.
    AllFast,
    /// Every page in the last tier, as if it had no end.
    AllSlow,
    /// Each window's most costly pages, known beforehand and placed for free.
    Oracle,
}

/// How the host shares the first tier.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// Fixed sizes, or a pool.
    pub share: Share,
    /// Part of the first tier that two or more VMs leave free.
    pub reserve: f64,
}

/// A name is what people can read on one line of a table.
fn check_name(name: &str, path: &str) -> Result<(), Fault> {
    let letters = name.chars().count();
    if !(1..=64).contains(&letters) || name.chars().any(char::is_control) {
        let what = "not a name: allowed are 1 to 64 printable characters";
        return Err(Fault::new(path, what));
    }
    Ok(())
}

impl Vm {
    /// The mechanism that places its pages, and where it runs, if one does.
    #[must_use]
    pub fn baseline(&self) -> Option<(Name, Side)> {
        match &self.policy {
            HostPolicy::Baseline(_, name, side) => Some((*name, *side)),
            _ => self.guest_policy.map(|name| (name, Side::Guest)),
        }
    }

    /// Whether its 2 MiB pages can be split.
    pub(crate) fn splits(&self) -> bool {
        let huge = (self.guest_page, self.host_page) == (PageSize::Huge, PageSize::Huge);
        huge && self.baseline().is_some_and(|(name, _)| name.splits())
    }
}

impl HostPolicy {
    /// The name, as given.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Engine(name, _) | Self::Baseline(name, ..) | Self::MemoryMode(name) => name,
            Self::FirstTouch => "first-touch",
            Self::Interleave => "interleave",
            Self::AllFast => "all-fast",
            Self::AllSlow => "all-slow",
            Self::Oracle => "oracle",
        }
        .into()
    }
}
