//! Scenarios: descriptions of simulated machines, VMs and hosts.
//!
//! Responsible for: the checked description of machine, VMs and host that a run takes (all sizes and times of the
//! full-size machine). [`Scenario::load`] reads it from a file. It leaves to others: the kinds of loads
//! ([`crate::workload`]), and running the scenario ([`crate::simulation`]).

mod cache;
mod claim;
mod error;
mod guest;
mod load;
mod loaded;
mod model;
mod pages;
mod parameters;
pub mod policy;
mod preset;
pub mod provision;
pub mod quantity;
mod raw;
mod rules;
mod share;
mod shortage;
mod variants;

use std::path::PathBuf;

use terrace_core::gather::Cl;
use terrace_core::policy::{Move, Observe, Place, PolicyName, PolicyStages};
use terrace_core::{EngineConfig, PolicyChoice};
use terrace_proto::PageSize;

pub use cache::Cache;
pub use claim::Claim;
pub use error::{Fault, ScenarioError};
pub use pages::Pages;
pub use preset::presets;
pub use share::{Host, HostShare, MAX_PRICE_RATIO};
pub use shortage::Shortage;

use crate::base::load::Stop;
use crate::base::side::Side;
use crate::base::tier::Tier;
use crate::host::bounds::clairvoyant::By;
use crate::host::device::{Device, Provision};
use crate::host::start::Initial;
use crate::mechanisms::Name;
use crate::workload::Workload;

/// The machine, the VMs and the host that are simulated.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The name of the scenario's file without folder and ending.
    pub name: String,
    /// The folder that file names in the scenario are relative to.
    pub folder: PathBuf,
    /// Seed of all random streams.
    pub seed: u64,
    /// The machine.
    pub machine: Machine,
    /// The VMs: at least one.
    pub vms: Vec<Vm>,
    /// The sharing of memory by the host.
    pub host: Host,
    /// Parameters of the engine, of the full-size machine; without tiers, policies and seed.
    pub engine: EngineConfig,
}

/// The machine of a scenario.
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
    /// The processor's last-level cache; `None` if every access reaches memory.
    pub cache: Option<Cache>,
    /// The treatment of VMs that are too small for their mechanism's own constants.
    pub small_vms: SmallVms,
    /// Least free memory of each slower tier beside the VMs' sizes, bytes for each VM; `None`: as much as follows from
    /// the VM's size ([`Vm::room_to_demote`]).
    pub slow_room: Option<u64>,
    /// Time in which a guest's kernel writes a page to its swap device, ns; 0: none.
    pub swap_write_ns: u64,
}

/// The model of a tier's latency under load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LoadedLatency {
    /// Curves of measured machines ([`crate::base::service::Service`]).
    #[default]
    Measured,
    /// A queue with its knee at saturation, for all tiers alike.
    Queue,
}

impl LoadedLatency {
    /// The tier under this model.
    fn of(self, tier: Tier) -> Tier {
        match self {
            Self::Measured => tier,
            Self::Queue => Tier {
                service: None,
                ..tier
            },
        }
    }
}

/// The treatment of VMs that are too small for their mechanism's own constants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SmallVms {
    /// The scenario is refused.
    #[default]
    Refuse,
    /// The scenario runs: results say little about the mechanism.
    Allow,
}

/// A VM of a scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Vm {
    /// The VM's name; no two VMs have the same.
    pub name: String,
    /// The VM's memory per tier, bytes: as many entries as there are tiers.
    pub sizes: Vec<u64>,
    /// The page sizes of guest and host.
    pub pages: Pages,
    /// The host's policy for the VM.
    pub policy: HostPolicy,
    /// The guest's own policy.
    pub guest_policy: Option<GuestPolicy>,
    /// The VM's claim on the first tier.
    pub claim: Claim,
    /// The initial locations of the VM's pages and page tables.
    pub initial: Initial,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// The VM's load.
    pub workload: Workload,
    /// The end of the load.
    pub stop: Stop,
    /// The reasons for which the guest lacks memory.
    pub shortage: Shortage,
    /// The device that sizes the VM's nodes; `None` if the memory is just there.
    pub provision: Option<Provision>,
}

/// The policy that places a VM's pages.
#[derive(Clone, Debug, PartialEq)]
pub enum HostPolicy {
    /// The engine, with a policy of its registry that observes and moves; the name as given.
    Engine(String, PolicyChoice),
    /// A mechanism of another system, in the guest or at the host; the name as given.
    Baseline(String, Name, Side),
    /// Memory mode: the machine's DRAM is a cache of the second tier, where all pages are; the name as given.
    MemoryMode(String),
    /// No placement: pages stay where [`Initial`] puts them.
    FirstTouch,
    /// Dealing of pages to the tiers in turn, in proportion to the VM's sizes; pages stay there.
    Interleave,
    /// Placement of every page in the first tier, as if it had no end.
    AllFast,
    /// Placement of every page in the last tier, as if it had no end.
    AllSlow,
    /// Placement of the whole run's most costly pages, which are known beforehand; pages stay there.
    StaticBest,
    /// Placement of each window's most costly pages, which are known beforehand and moved for free; the name as given.
    Clairvoyant(String, By),
}

/// The policy of a guest.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum GuestPolicy {
    /// A mechanism that places pages: the host only provides the tiers.
    Places(Name),
    /// The gathering of scattered hot pages, beside any policy of the host (GPAC), out of blocks of 2 MiB within that limit.
    Gathers(Cl),
}

impl GuestPolicy {
    /// The name of gathering.
    pub(crate) const GATHERS: &'static str = "gpac";

    /// Gathering without a limit of the scenario's: out of blocks that free as many pages as are copied.
    pub(crate) const AUTO: Self = Self::Gathers(Cl::Auto { gain: 1 });

    /// The policy's name, with its limit if the scenario sets one: `gpac cl=50`.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Places(name) => name.name().into(),
            Self::Gathers(Cl::Below(cl)) => format!("{} cl={cl}", Self::GATHERS),
            Self::Gathers(Cl::Auto { .. }) => Self::GATHERS.into(),
        }
    }

    /// The mechanism, if it places pages.
    #[must_use]
    pub fn places(self) -> Option<Name> {
        match self {
            Self::Places(name) => Some(name),
            Self::Gathers(_) => None,
        }
    }
}

/// Checks that a name can be read on one line of a table.
fn check_name(name: &str, path: &str) -> Result<(), Fault> {
    let letters = name.chars().count();
    if !(1..=64).contains(&letters) || name.chars().any(char::is_control) {
        let what = "not a name: allowed are 1 to 64 printable characters";
        return Err(Fault::new(path, what));
    }
    Ok(())
}

/// Least room to demote to of a VM, bytes: what Memtis was seen to need beside a VM whose load fills it.
const LEAST_ROOM: u64 = 128 << 20;

/// Part of the first tier that a VM has as room to demote to, percent: the largest part that a mechanism keeps free there is
/// Memtis's 3 % (`get_memcg_promotion_watermark`).
const ROOM_PERCENT: u64 = 4;

/// Divisor of a VM's memory that gives twice what its page tables take: 8 bytes for each 4 KiB.
const TABLES_DIVISOR: u64 = 256;

impl Vm {
    /// The free memory that a VM has in each slower tier unless the scenario sets another, bytes: a mechanism that keeps a
    /// part of the first tier free has to hold that part's pages below.
    #[must_use]
    pub fn room_to_demote(&self) -> u64 {
        let part = self
            .sizes
            .first()
            .map_or(0, |first| first / 100 * ROOM_PERCENT);
        part.max(LEAST_ROOM) + self.bytes() / TABLES_DIVISOR
    }

    /// Whether the load, or a phase of it, ends by the clock: its run time says nothing about how fast it was.
    #[must_use]
    pub fn is_timed(&self) -> bool {
        matches!(self.stop, Stop::Duration(_)) || self.workload.has_timed_phases()
    }

    /// The mechanism that places the VM's pages and the side that runs it; `None` if there is no mechanism.
    #[must_use]
    pub fn baseline(&self) -> Option<(Name, Side)> {
        match &self.policy {
            HostPolicy::Baseline(_, name, side) => Some((*name, *side)),
            _ => Some((self.guest_policy?.places()?, Side::Guest)),
        }
    }

    /// The limit within which the guest gathers hot pages, if it does.
    pub(crate) fn gathers(&self) -> Option<Cl> {
        match self.guest_policy? {
            GuestPolicy::Gathers(cl) => Some(cl),
            GuestPolicy::Places(_) => None,
        }
    }

    /// Checks that there is something to gather, and nothing that changes frames besides.
    fn check_gathering(&self, path: &str) -> Result<(), Fault> {
        if self.gathers().is_none() {
            return Ok(());
        }
        let what = if self.pages.guest != PageSize::Base || self.pages.host != PageSize::Huge {
            "gathers pages of 4 KiB for a host that moves 2 MiB: set guest_page = \"4KiB\" and host_page = \"2MiB\""
        } else if !self.shortage.is_none() || self.provision.is_some() {
            "cannot be simulated with swap, a balloon or provision: leave them out"
        } else if self.workload.frees_memory() {
            "cannot be simulated with programs that free their memory: set fresh = false in the load"
        } else {
            return Ok(());
        };
        Err(Fault::new(path, format!("{} {what}", GuestPolicy::GATHERS)))
    }

    /// Whether the guest moves what lies in the frames that the engine names: if its policy says so, or under hot lists beside
    /// a device that sizes the guest's nodes.
    pub(crate) fn moves_in_guest(&self) -> bool {
        let HostPolicy::Engine(_, choice) = &self.policy else {
            return false;
        };
        let says = matches!(choice, PolicyChoice::Composed(stages) if stages.moves.is_some());
        choice.resolve("policy").is_ok_and(|policy| {
            let lists = policy.name == PolicyName::Hmvisor && policy.place != Place::Stay;
            policy.moves == Move::Guest || lists && !says && self.provision.is_some()
        })
    }

    /// Whether the guest's nodes are told apart: a device sizes them and the guest can swap, or the guest moves pages between
    /// them.
    pub(crate) fn has_nodes(&self) -> bool {
        self.is_sized() || self.moves_in_guest()
    }

    /// A policy of the engine whose moves are the guest's: unless it says how it observes, by the guest's page tables, as the
    /// daemon does. A frame that is free in the guest is then known to be no program's.
    pub(crate) fn observed_as_live(&self, choice: &PolicyChoice) -> PolicyChoice {
        match choice {
            PolicyChoice::Composed(stages) if !self.policy.name().contains("observe=") => {
                PolicyChoice::Composed(PolicyStages {
                    observe: None,
                    ..stages.clone()
                })
            }
            _ => choice.clone(),
        }
    }

    /// The policy's name, as given; with the way of moving that follows from the device.
    pub(crate) fn policy_name(&self) -> String {
        let name = self.policy.name();
        let is_said = name.contains("move=");
        match self.moves_in_guest() && !is_said {
            true => format!("{name} move={}", Move::Guest.name()),
            false => name,
        }
    }

    /// Whether a device sizes a guest that can swap: it then gives more than what is free. Under a bound, tiers have no
    /// end, and there is no device.
    pub(crate) fn is_sized(&self) -> bool {
        let bound = matches!(self.policy, HostPolicy::AllFast | HostPolicy::AllSlow);
        self.provision.is_some() && self.shortage.swap > 0 && !bound
    }

    /// Whether a balloon of 4 KiB pages sizes a guest of 2 MiB pages: what comes back has 4 KiB pages of the host.
    pub(crate) fn is_split_by_balloon(&self) -> bool {
        let small = |provision: &Provision| {
            provision.by != Device::VirtioMem && provision.page == PageSize::Base
        };
        self.pages.all(PageSize::Huge) && self.provision.as_ref().is_some_and(small)
    }

    /// Whether the VM's 2 MiB pages can be split.
    pub(crate) fn splits(&self) -> bool {
        self.pages.all(PageSize::Huge) && self.baseline().is_some_and(|(name, _)| name.splits())
    }
}

impl HostPolicy {
    /// Whether the policy learns of accesses by protection faults.
    pub(crate) fn tracks_faults(&self) -> bool {
        let Self::Engine(_, choice) = self else {
            return false;
        };
        let policy = choice.resolve("policy");
        policy.is_ok_and(|policy| policy.observe == Observe::ProtectionFaults)
    }

    /// Whether the policy is one of the engine's that moves no page.
    pub(crate) fn stays(&self) -> bool {
        let Self::Engine(_, choice) = self else {
            return false;
        };
        let policy = choice.resolve("policy");
        policy.is_ok_and(|policy| policy.place == Place::Stay)
    }

    /// The policy's name, as given.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Engine(name, _)
            | Self::Baseline(name, ..)
            | Self::MemoryMode(name)
            | Self::Clairvoyant(name, _) => name,
            Self::FirstTouch => "first-touch",
            Self::Interleave => "interleave",
            Self::AllFast => "all-fast",
            Self::AllSlow => "all-slow",
            Self::StaticBest => "static-best",
        }
        .into()
    }
}
