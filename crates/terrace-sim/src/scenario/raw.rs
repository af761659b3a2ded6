//! A scenario as written, and its conversion into a checked one.

use std::path::Path;

use serde::Deserialize;
use terrace_core::EngineConfig;
use terrace_proto::PageSize;

use super::cache::{self, RawCache};
use super::error::Fault;
use super::guest::RawGuestPolicy;
use super::policy::RawPolicy;
use super::preset::RawTier;
use super::provision::{self, RawProvision, RawResize};
use super::quantity::{self, Number, Size, Time, Whole, size_text};
use super::rules::MAX_SCALE;
use super::share::RawHost;
use super::{
    Claim, GuestPolicy, HostPolicy, LoadedLatency, Machine, Pages, Scenario, Shortage, SmallVms,
    Vm, check_name,
};
use crate::base::tier::Tier;
use crate::guest::reclaim::BalloonStep;
use crate::host::start::{Initial, Start, Tables};
use crate::machine::PS;
use crate::machine::costs::Costs;
use crate::mechanisms::Name;
use crate::workload::Load;

/// Most memory of a tier, bytes: 52 bits of physical addresses reach no further.
const MAX_BYTES: u64 = 1 << 52;

/// Most VMs of a scenario.
const MAX_VMS: usize = 1024;

/// Most processors of one VM, or of the management.
const MAX_CPUS: u32 = 1024;

/// Most pages that Linux unmaps together (`NR_MAX_BATCHED_MIGRATION`).
const MAX_BATCH: u32 = 512;

/// Longest time of a write to a swap device, ns.
const MAX_SWAP_WRITE: u64 = 1_000_000_000;

/// Highest weight of a VM, as in the daemon.
const MAX_WEIGHT: u32 = 1_000_000;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a scenario")]
pub(super) struct RawScenario {
    seed: Option<Whole>,
    machine: RawMachine,
    #[serde(default)]
    vm: Vec<RawVm>,
    #[serde(default)]
    host: RawHost,
    #[serde(default)]
    engine: EngineConfig,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [machine]")]
struct RawMachine {
    tiers: Vec<RawTier>,
    sizes: Option<Vec<Size>>,
    scale: Option<Whole>,
    vcpus_per_vm: Option<Whole>,
    management_cpus: Option<Whole>,
    migrate_batch: Option<Whole>,
    cache: Option<RawCache>,
    #[serde(default)]
    small_vms: SmallVms,
    #[serde(default)]
    loaded_latency: LoadedLatency,
    slow_room: Option<Size>,
    swap_write: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [[vm]]")]
struct RawVm {
    name: String,
    fast: Option<Size>,
    slow: Option<Size>,
    tiers: Option<Vec<Size>>,
    page: Option<PageSize>,
    guest_page: Option<PageSize>,
    host_page: Option<PageSize>,
    policy: Option<RawPolicy>,
    guest_policy: Option<RawGuestPolicy>,
    weight: Option<Whole>,
    floor: Option<Size>,
    ceiling: Option<Size>,
    max_slowdown: Option<Number>,
    #[serde(default)]
    start: Start,
    #[serde(default)]
    tables: Tables,
    workload: Load,
    swap: Option<Size>,
    memory_floor: Option<Size>,
    memory_ceiling: Option<Size>,
    #[serde(default)]
    balloon: Vec<RawBalloon>,
    provision: Option<RawProvision>,
    #[serde(default)]
    resize: Vec<RawResize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table of at and size")]
struct RawBalloon {
    at: Time,
    size: Size,
}

/// Refuses keys under `[engine]` that are set elsewhere in a scenario.
fn engine(config: EngineConfig) -> Result<EngineConfig, Fault> {
    let defaults = EngineConfig::default();
    let elsewhere = [
        ("tiers", config.tiers != defaults.tiers, "machine.tiers"),
        ("policy", config.policy != defaults.policy, "vm.policy"),
        (
            "vm_policies",
            config.vm_policies != defaults.vm_policies,
            "vm.policy",
        ),
        (
            "random_seed",
            config.random_seed != defaults.random_seed,
            "seed",
        ),
    ];
    if let Some((key, _, there)) = elsewhere.iter().find(|(_, set, _)| *set) {
        let what = format!("a scenario says this by `{there}`");
        return Err(Fault::new(format!("engine.{key}"), what));
    }
    config
        .validate()
        .map_err(|error| Fault::new("engine", error.to_string()))?;
    Ok(config)
}

impl RawScenario {
    /// Checks each value on its own; [`super::rules`] checks how they fit together.
    pub fn check(self, name: &str, folder: &Path) -> Result<Scenario, Fault> {
        let host = self.host.check()?;
        let vcpus = cpus("machine.vcpus_per_vm", self.machine.vcpus_per_vm, 8)?;
        let explicit = self.machine.sizes.is_some();
        let mut machine = self.machine.check()?;
        if self.vm.is_empty() {
            return Err(Fault::new(
                "vm",
                "there is no VM: describe each by a [[vm]] table",
            ));
        }
        if self.vm.len() > MAX_VMS {
            let what = format!("{} VMs are too many: at most {MAX_VMS}", self.vm.len());
            return Err(Fault::new("vm", what));
        }
        let mut vms: Vec<Vm> = Vec::new();
        for (i, raw) in self.vm.into_iter().enumerate() {
            let vm = raw.check(&format!("vm[{i}]"), &machine, vcpus)?;
            if vms.iter().any(|other| other.name == vm.name) {
                let what = format!(
                    "another VM is called \"{}\" too: choose another name",
                    vm.name
                );
                return Err(Fault::new(format!("vm[{i}].name"), what));
            }
            vms.push(vm);
        }
        if !explicit {
            for (t, tier) in machine.tiers.iter_mut().enumerate() {
                tier.bytes = vms.iter().map(|vm| vm.sizes[t]).sum();
            }
        }
        Ok(Scenario {
            name: name.into(),
            folder: folder.into(),
            seed: self.seed.map_or(1, |seed| seed.0),
            machine,
            vms,
            host,
            engine: engine(self.engine)?,
        })
    }

    /// Whether each VM gives its sizes as `fast` and `slow`.
    pub fn shorthand(&self) -> Vec<bool> {
        self.vm.iter().map(|vm| vm.tiers.is_none()).collect()
    }
}

impl RawMachine {
    /// Checks the machine; tiers without a size keep 0.
    fn check(self) -> Result<Machine, Fault> {
        let mut tiers: Vec<Tier> = Vec::new();
        for (i, raw) in self.tiers.into_iter().enumerate() {
            let path = format!("machine.tiers[{i}]");
            let tier = raw.check(&path)?;
            if tiers.iter().any(|other| other.name == tier.name) {
                let what = format!(
                    "another tier is called \"{}\" too: give one a table with its own name",
                    tier.name
                );
                return Err(Fault::new(path, what));
            }
            if let Some(before) = tiers.last().filter(|before| before.read_ns > tier.read_ns) {
                let what = format!(
                    "\"{}\" ({} ns a read) is faster than \"{}\" ({} ns) before it: write the fastest tier first",
                    tier.name, tier.read_ns, before.name, before.read_ns
                );
                return Err(Fault::new(path, what));
            }
            tiers.push(self.loaded_latency.of(tier));
        }
        if !(2..=4).contains(&tiers.len()) {
            let what = format!("{} given: allowed are two to four tiers", tiers.len());
            return Err(Fault::new("machine.tiers", what));
        }
        if let Some(sizes) = self.sizes {
            as_many("machine.sizes", sizes.len(), &tiers)?;
            for (i, (tier, size)) in tiers.iter_mut().zip(sizes).enumerate() {
                // All VMs may live in the first tier.
                tier.bytes = match (i, size.0) {
                    (1.., 0) => 0,
                    _ => above_zero(&format!("machine.sizes[{i}]"), size)?,
                };
            }
        }
        let scale = self.scale.map_or(64, |scale| scale.0);
        if !(1..=MAX_SCALE).contains(&scale) {
            let what = format!("{scale} is out of range: allowed is 1 (full size) to {MAX_SCALE}");
            return Err(Fault::new("machine.scale", what));
        }
        Ok(Machine {
            tiers,
            scale,
            management_cpus: cpus("machine.management_cpus", self.management_cpus, 4)?,
            migrate_batch: batch(self.migrate_batch)?,
            cache: cache::check(self.cache)?,
            small_vms: self.small_vms,
            slow_room: match self.slow_room {
                Some(Size(0)) => Some(0),
                room => optional("machine.slow_room", room)?,
            },
            swap_write_ns: swap_write(self.swap_write.as_deref())?,
        })
    }
}

impl RawVm {
    fn check(self, path: &str, machine: &Machine, vcpus: u32) -> Result<Vm, Fault> {
        let at = |key: &str| format!("{path}.{key}");
        check_name(&self.name, &at("name"))?;
        let guest_policy = self.guest_policy.map(|raw| raw.check(&at("guest_policy")));
        let guest_policy = guest_policy.transpose()?;
        let page = self.page.unwrap_or(PageSize::Base);
        // A guest that places its own pages wants a host that leaves them alone.
        let usual = if guest_policy.is_some_and(|policy| policy.places().is_some()) {
            "first-touch"
        } else {
            "vtmm"
        };
        let policy = self.policy.unwrap_or(RawPolicy::Name(usual.into()));
        let policy = policy.check(&at("policy"))?;
        one_owner(
            &policy,
            guest_policy.and_then(GuestPolicy::places),
            &at("guest_policy"),
        )?;
        let weight = self.weight.map_or(Some(1000), |w| u32::try_from(w.0).ok());
        let weight = weight.filter(|w| (1..=MAX_WEIGHT).contains(w));
        let max_slowdown = self.max_slowdown.map(|m| m.0);
        if let Some(m) = max_slowdown.filter(|m| *m < 1.0) {
            let what = format!("{m} is out of range: allowed is 1 or more (1.2: a fifth slower)");
            return Err(Fault::new(at("max_slowdown"), what));
        }
        let sizes = sizes(path, (self.fast, self.slow), self.tiers, &machine.tiers)?;
        let tiers = &machine.tiers;
        let memory_ceiling = optional(&at("memory_ceiling"), self.memory_ceiling)?;
        let given = (self.provision, memory_ceiling);
        Ok(Vm {
            provision: provision::check(given, self.resize, path, &sizes, tiers)?,
            sizes,
            pages: Pages {
                guest: self.guest_page.unwrap_or(page),
                host: self.host_page.unwrap_or(page),
            },
            policy,
            guest_policy,
            claim: Claim {
                weight: weight.ok_or_else(|| {
                    let what = format!("out of range: allowed is 1 to {MAX_WEIGHT}");
                    Fault::new(at("weight"), what)
                })?,
                floor: optional(&at("floor"), self.floor)?,
                ceiling: optional(&at("ceiling"), self.ceiling)?,
                max_slowdown,
                memory_floor: optional(&at("memory_floor"), self.memory_floor)?,
                memory_ceiling,
            },
            initial: Initial {
                start: self.start,
                tables: self.tables,
            },
            vcpus,
            workload: self.workload.workload,
            stop: self.workload.stop,
            shortage: Shortage {
                swap: optional(&at("swap"), self.swap)?.unwrap_or(0),
                balloon: balloon(path, &self.balloon)?,
            },
            name: self.name,
        })
    }
}

/// Checks that only one side places the VM's pages: two would undo each other's work.
fn one_owner(policy: &HostPolicy, guest: Option<Name>, path: &str) -> Result<(), Fault> {
    let placed = matches!(
        policy,
        HostPolicy::Engine(..)
            | HostPolicy::Baseline(..)
            | HostPolicy::MemoryMode(_)
            | HostPolicy::StaticBest
            | HostPolicy::Clairvoyant(..)
    );
    let Some(guest) = guest.filter(|_| placed) else {
        return Ok(());
    };
    let what = format!(
        "\"{}\" and the host's \"{}\" would both place the VM's pages: set policy = \"first-touch\", or leave one out",
        guest.name(),
        policy.name()
    );
    Err(Fault::new(path, what))
}

fn batch(given: Option<Whole>) -> Result<u32, Fault> {
    let Some(Whole(given)) = given else {
        return Ok(MAX_BATCH);
    };
    let number = u32::try_from(given).ok();
    number
        .filter(|n| (1..=MAX_BATCH).contains(n))
        .ok_or_else(|| {
            let what = format!("{given} is out of range: allowed is 1 to {MAX_BATCH} pages");
            Fault::new("machine.migrate_batch", what)
        })
}

/// Time of writing a page to a swap device, ns.
fn swap_write(given: Option<&str>) -> Result<u64, Fault> {
    let path = "machine.swap_write";
    let ns = match given {
        None => return Ok(Costs::default().swap_write / PS),
        Some("off") => return Ok(0),
        Some(text) => {
            quantity::time(text).map_err(|what| Fault::new(path, format!("{what}, or \"off\"")))?
        }
    };
    if !(1..=MAX_SWAP_WRITE).contains(&ns) {
        let what = "out of range: allowed is \"off\", or 1ns to 1s";
        return Err(Fault::new(path, what));
    }
    Ok(ns)
}

/// The VM's memory per tier, from either way of writing it.
fn sizes(
    path: &str,
    shorthand: (Option<Size>, Option<Size>),
    tiers: Option<Vec<Size>>,
    of: &[Tier],
) -> Result<Vec<u64>, Fault> {
    let at = |key: &str| format!("{path}.{key}");
    match (shorthand, tiers) {
        ((None, None), Some(sizes)) => {
            as_many(&at("tiers"), sizes.len(), of)?;
            let sizes = sizes.into_iter().enumerate();
            // A VM need not have memory of every tier; of the first it must.
            let checked = sizes.map(|(t, size)| match (t, size.0) {
                (1.., 0) => Ok(0),
                _ => above_zero(&at(&format!("tiers[{t}]")), size),
            });
            checked.collect()
        }
        ((Some(fast), Some(slow)), None) if of.len() == 2 => Ok(vec![
            above_zero(&at("fast"), fast)?,
            above_zero(&at("slow"), slow)?,
        ]),
        ((fast, slow), None) if of.len() == 2 => {
            let (key, other) = if fast.is_none() {
                ("fast", slow.map(|_| "slow"))
            } else {
                ("slow", Some("fast"))
            };
            let beside = other.map_or(String::new(), |other| format!(" beside {other}"));
            let what =
                format!("missing{beside}: give the VM's size of that tier, as {key} = \"8GiB\"");
            Err(Fault::new(at(key), what))
        }
        (_, None) => {
            let what = format!(
                "missing: the machine has {} tiers, so give a size for each, as tiers = [\"8GiB\", …]",
                of.len()
            );
            Err(Fault::new(at("tiers"), what))
        }
        (_, Some(_)) => {
            let what = "fast and slow stand for tiers: give either, not both";
            Err(Fault::new(at("tiers"), what))
        }
    }
}

fn balloon(path: &str, raw: &[RawBalloon]) -> Result<Vec<BalloonStep>, Fault> {
    let mut steps: Vec<BalloonStep> = Vec::new();
    for (i, step) in raw.iter().enumerate() {
        let step = BalloonStep {
            at_ns: step.at.0,
            bytes: match step.size {
                Size(0) => 0,
                size => above_zero(&format!("{path}.balloon[{i}].size"), size)?,
            },
        };
        if steps
            .last()
            .is_some_and(|before| before.at_ns >= step.at_ns)
        {
            let what = "not later than the step before it: write the steps in order of time";
            return Err(Fault::new(format!("{path}.balloon[{i}].at"), what));
        }
        steps.push(step);
    }
    Ok(steps)
}

fn cpus(path: &str, given: Option<Whole>, default: u32) -> Result<u32, Fault> {
    let Some(Whole(given)) = given else {
        return Ok(default);
    };
    let number = u32::try_from(given).ok();
    number
        .filter(|n| (1..=MAX_CPUS).contains(n))
        .ok_or_else(|| {
            let what = format!("{given} is out of range: allowed is 1 to {MAX_CPUS}");
            Fault::new(path, what)
        })
}

pub(super) fn as_many(path: &str, given: usize, tiers: &[Tier]) -> Result<(), Fault> {
    if given == tiers.len() {
        return Ok(());
    }
    let what = format!("{given} sizes for {} tiers: give one for each", tiers.len());
    Err(Fault::new(path, what))
}

/// Checks that a size is neither 0 nor so large that sums would overflow.
pub(super) fn above_zero(path: &str, size: Size) -> Result<u64, Fault> {
    let what = match size.0 {
        0 => "0 is no size: give more than nothing".into(),
        bytes if bytes > MAX_BYTES => {
            format!(
                "{} is too much: at most {}",
                size_text(bytes),
                size_text(MAX_BYTES)
            )
        }
        bytes => return Ok(bytes),
    };
    Err(Fault::new(path, what))
}

fn optional(path: &str, size: Option<Size>) -> Result<Option<u64>, Fault> {
    size.map(|size| above_zero(path, size)).transpose()
}
