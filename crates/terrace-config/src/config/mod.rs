//! The daemon's configuration, checked.

mod warnings;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use serde::Deserialize as _;
use terrace_core::{EngineConfig, TierConfig};
use terrace_host::qemu::who::HypervisorConfig;
use terrace_host::topology::{Tier, Topology, empty_second};
use terrace_host::unit::UnitChoice;
use terrace_proto::{TierId, TierLimit};

use crate::agent::{AgentConfig, Fallback, Management, VmMode};
use crate::balance::Balance;
use crate::discover::Discover;
use crate::gather::{self, Namer};
use crate::hyperflex::{self, Hyperflex};
use crate::mover::Mover;
use crate::pins::{self, PinConfig};
use crate::raw::{Raw, RawLog, RawTier, RawVm, Record, TrackerChoice, WriteSource};
use crate::security::Security;
use crate::sizes::Sizes;
use crate::sources::{Problem, Sources};
use crate::writes::{self, Writes};

/// The daemon's configuration.
#[derive(Debug)]
pub struct Config {
    /// The socket of the API.
    pub socket: PathBuf,
    /// The places where VMs are looked for, and how often.
    pub discover: Discover,
    /// The rules for who may be a VM.
    pub hypervisors: HypervisorConfig,
    /// The confinement of the daemon.
    pub security: Security,
    /// Name and nodes of each tier; empty: as the kernel describes the host.
    pub tiers: Vec<TierNodes>,
    /// The engine's parameters; its tiers are filled in once the host's are known.
    pub engine: EngineConfig,
    /// The parameters of moves.
    pub mover: Mover,
    /// The observation log: file and limit in bytes; `None` if none is wanted.
    pub log: Option<(PathBuf, u64)>,
    /// Guests' agents.
    pub agent: AgentConfig,
    defaults: RawVm,
    pub(crate) vms: BTreeMap<String, RawVm>,
}

/// A tier as the operator defined it.
#[derive(Clone, Debug)]
pub struct TierNodes {
    /// The tier as the engine has it.
    pub engine: TierConfig,
    /// The tier's NUMA nodes.
    pub nodes: Vec<u32>,
}

/// The configuration of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Whether the VM's page tables may be scanned.
    pub scan: bool,
    /// Whether the VM's pages may be moved.
    pub moves: bool,
    /// The VM's weight in sharing the first tier.
    pub weight: u32,
    /// The unit of ranking and moving.
    pub unit: UnitChoice,
    /// The VM's sizes: how much of each tier it may have.
    pub sizes: Sizes,
    /// The tracker of accesses to the VM's pages.
    pub tracker: TrackerChoice,
    /// Threads that a pass over all of the VM's page tables may use; 0: by its size.
    pub scan_threads: u8,
    /// The tracking of writes to the VM's pages.
    pub writes: Writes,
    /// The management of the VM's memory.
    pub management: Management,
    /// The VM's HyperFlex device, if it has one.
    pub hyperflex: Hyperflex,
    /// The operator's word on who pins the VM's memory.
    pub pins: PinConfig,
    /// The VM's part in the sharing of memory.
    pub balance: Balance,
}

impl VmConfig {
    /// Threads that a pass over the page tables of so many pages may use on a host of so many processors: as configured, or one for each
    /// 32 GiB, up to four and to a quarter of the processors.
    #[must_use]
    pub fn scan_threads_for(&self, pages: u64, processors: usize) -> u8 {
        const PAGES_OF_32_GIB: u64 = 8 << 20;
        if self.scan_threads > 0 {
            return self.scan_threads;
        }
        let of_host = u64::try_from(processors / 4).unwrap_or(u64::MAX);
        let wanted = pages.div_ceil(PAGES_OF_32_GIB).min(4).min(of_host);
        u8::try_from(wanted.max(1)).unwrap_or(1)
    }

    /// Whether the host may look for the VM's memory, or its agent manages it.
    #[must_use]
    pub fn is_opted_in(&self) -> bool {
        self.scan || self.management.mode != VmMode::Host
    }
}

impl Config {
    /// Checks the files and makes the configuration of them.
    ///
    /// # Errors
    /// If a file is not valid: the problem, with its file, line and key.
    pub fn new(sources: &Sources) -> Result<Self, Problem> {
        for (layer, text) in sources.texts() {
            toml::from_str::<Raw>(text).map_err(|e| sources.misshapen(layer, &e))?;
        }
        let merged = Raw::deserialize(sources.merged()).map_err(anyhow::Error::from);
        let checked = merged.and_then(Self::from_raw);
        checked.map_err(|e| sources.invalid(format!("{e:#}")))
    }

    /// Parses and checks the text of one file.
    ///
    /// # Errors
    /// As [`Config::new`].
    pub fn parse(text: &str) -> Result<Self, Problem> {
        Self::new(&Sources::of_text(text)?)
    }

    /// Checks each section and builds the configuration. The message of a check that fails begins with the path of its
    /// key.
    fn from_raw(raw: Raw) -> Result<Self> {
        raw.mover.check()?;
        raw.discover.check()?;
        raw.hypervisors
            .check()
            .map_err(|e| anyhow!("hypervisors.{e}"))?;
        let full = raw.log.as_ref().is_some_and(|l| l.record == Record::Full);
        check_engine_keys(&raw.engine, full)?;
        let mut engine = raw.engine;
        engine.rearm_all = full;
        let tiers = tiers(raw.tier)?;
        if !tiers.is_empty() {
            engine.tiers = tiers.iter().map(|t| t.engine.clone()).collect();
        }
        engine.tiers.extend(second(&tiers));
        share(&mut engine, &raw.defaults, &raw.vm);
        raw.balance
            .check_units()
            .map_err(|e| anyhow!("balance.{e}"))?;
        for tier in &tiers {
            tier.check_units()
                .map_err(|e| anyhow!("tier.{}.{e}", tier.engine.name))?;
        }
        let capacities: Option<Vec<u64>> = tiers.iter().map(|t| t.engine.capacity_bytes).collect();
        raw.balance
            .apply(&mut engine, capacities.unwrap_or_default())?;
        engine
            .validate()
            .and_then(|()| engine.check_thresholds())
            // The arbiter's keys are those of [balance] here.
            .map_err(|e| {
                anyhow!(
                    "{}",
                    format!("engine.{e}").replacen("engine.arbiter.", "balance.", 1)
                )
            })?;
        let config = Self {
            socket: raw.daemon.socket,
            discover: raw.discover,
            hypervisors: raw.hypervisors,
            security: raw.security,
            tiers,
            engine,
            mover: raw.mover,
            log: raw.log.map(log).transpose()?,
            agent: raw.agent.try_into()?,
            defaults: RawVm {
                mode: raw.defaults.mode.or(Some(VmMode::Host)),
                fallback: raw.defaults.fallback.or(Some(Fallback::Host)),
                scan: raw.defaults.scan.or(Some(false)),
                moves: raw.defaults.moves.or(Some(false)),
                weight: raw.defaults.weight.or(Some(1000)),
                unit: raw.defaults.unit.or(Some(UnitChoice::Auto)),
                tracker: raw.defaults.tracker.or(Some(TrackerChoice::Auto)),
                scan_threads: raw.defaults.scan_threads.or(Some(0)),
                writes: raw.defaults.writes.or(Some(WriteSource::None)),
                write_pause_budget_ms: raw.defaults.write_pause_budget_ms.or(Some(20)),
                balance: raw.defaults.balance.or(Some(true)),
                ..raw.defaults
            },
            vms: raw.vm,
        };
        config.check()?;
        Ok(config)
    }

    /// Checks what depends on the names of the tiers, and refuses policies that work in the simulator only.
    fn check(&self) -> Result<()> {
        self.check_tier_names(&self.defaults).context("defaults")?;
        gather::check_defaults(&self.defaults)?;
        for name in self.vms.keys() {
            self.vm(name)
                .and_then(|vm| vm.check_units().map_err(anyhow::Error::msg))
                .with_context(|| format!("vm.{name}"))?;
        }
        self.check_floors()?;
        // A VM that has no section.
        let other = self
            .vm("another")
            .and_then(|vm| vm.check_units().map_err(anyhow::Error::msg));
        other.context("defaults")?;
        let own = self.engine.vm_policies.iter();
        let own = own.map(|(vm, choice)| (format!("engine.vm_policies.{vm}"), choice));
        for (key, choice) in own.chain([("engine.policy".to_owned(), &self.engine.policy)]) {
            choice.resolve_live(&key)?;
        }
        Ok(())
    }

    /// The names of VMs that have a section of their own.
    pub fn named(&self) -> impl Iterator<Item = &str> {
        self.vms.keys().map(String::as_str)
    }

    /// Refuses a floor that no VM can have.
    fn check_floors(&self) -> Result<()> {
        let capacity = self.engine.arbiter.capacity_bytes;
        for (name, floor) in self.floors() {
            ensure!(
                capacity == 0 || floor <= capacity,
                "{name}.memory_floor ({}) is above the capacity of all tiers together ({})",
                ByteSize(floor),
                ByteSize(capacity)
            );
        }
        Ok(())
    }

    /// The least memory of each VM that has a section, and of one that has none, bytes; with the section's path.
    fn floors(&self) -> Vec<(String, u64)> {
        let named = self
            .vms
            .keys()
            .map(|name| (format!("vm.{name}"), name.as_str()));
        let all = named.chain([("defaults".to_owned(), "")]);
        all.filter_map(|(path, name)| Some((path, self.vm(name).ok()?.balance.floor_bytes?)))
            .collect()
    }

    /// The configuration of the VM of this name: its own section over the defaults.
    pub fn vm(&self, name: &str) -> Result<VmConfig> {
        let none = RawVm::default();
        let own = self.vms.get(name).unwrap_or(&none);
        let tiers = self.engine.tiers.iter().enumerate();
        let limits = tiers
            .map(|(i, tier)| self.limit(own, i, &tier.name))
            .collect::<Result<Vec<_>>>()?;
        self.check_tier_names(own)?;
        let weight = own.weight.or(self.defaults.weight).unwrap_or(1000);
        ensure!(
            (1..=MAX_WEIGHT).contains(&weight),
            "weight = {weight} is out of range: allowed is 1 to {MAX_WEIGHT}"
        );
        let fast = own.fast.or(self.defaults.fast).unwrap_or_default();
        let sizes = Sizes::new(fast, limits)?;
        let tracker = own.tracker.or(self.defaults.tracker).unwrap_or_default();
        let writes = writes::of_vm(own, &self.defaults, tracker)?;
        if self.engine.scan_parts > 1 {
            writes.check_parts(tracker)?;
        }
        let scan_threads = own.scan_threads.or(self.defaults.scan_threads).unwrap_or(0);
        ensure!(
            scan_threads <= 16,
            "scan_threads = {scan_threads} is out of range: allowed is 0 (by the VM's size) to 16"
        );
        let mode = own.mode.or(self.defaults.mode).unwrap_or_default();
        let scan = own.scan.or(self.defaults.scan).unwrap_or(false);
        let unit = mode.unit(own.unit.or(self.defaults.unit).unwrap_or_default())?;
        let policy = self.engine.vm_policies.get(name);
        let namer = Namer {
            mode,
            scan,
            unit,
            tracker,
            policy: policy.unwrap_or(&self.engine.policy),
        };
        let (gather, unit) = gather::of_vm(own, namer)?;
        Ok(VmConfig {
            hyperflex: hyperflex::of_vm(own, &self.defaults)?,
            pins: pins::of_vm(own, &self.defaults)?,
            balance: Balance::new(
                own.balance.or(self.defaults.balance).unwrap_or(true),
                own.memory_floor.or(self.defaults.memory_floor),
                own.memory_ceiling.or(self.defaults.memory_ceiling),
            )?
            .unless_off(self.engine.arbiter.rule),
            management: Management {
                mode,
                fallback: own.fallback.or(self.defaults.fallback).unwrap_or_default(),
                agent_socket: self.agent.socket(
                    name,
                    mode,
                    scan,
                    own.agent_socket.as_deref(),
                    gather,
                )?,
                gather,
            },
            tracker,
            scan_threads,
            writes,
            scan,
            moves: own.moves.or(self.defaults.moves).unwrap_or(false),
            weight,
            unit,
            sizes,
        })
    }

    /// Takes the tiers as the kernel describes them; called if the file defines none.
    pub fn follow(&mut self, topology: &Topology) -> Result<()> {
        let named = |tier: &Tier| TierConfig {
            name: tier.name.clone(),
            ..TierConfig::default()
        };
        self.engine.tiers = topology.tiers.iter().map(named).collect();
        self.check()
    }

    fn limit(&self, own: &RawVm, index: usize, name: &str) -> Result<TierLimit> {
        let pick = |of: fn(&RawVm) -> &BTreeMap<String, ByteSize>| {
            [own, &self.defaults].into_iter().find_map(|vm| {
                let alias = ["fast", "slow"].get(index).and_then(|a| of(vm).get(*a));
                of(vm).get(name).or(alias).map(ByteSize::as_u64)
            })
        };
        let floor_bytes = pick(|vm| &vm.floor).unwrap_or(0);
        let ceiling_bytes = pick(|vm| &vm.ceiling).unwrap_or(u64::MAX);
        ensure!(
            floor_bytes <= ceiling_bytes,
            "the floor of {name} ({}) is above its ceiling ({})",
            ByteSize(floor_bytes),
            ByteSize(ceiling_bytes)
        );
        Ok(TierLimit {
            floor_bytes,
            ceiling_bytes,
        })
    }

    fn check_tier_names(&self, vm: &RawVm) -> Result<()> {
        for name in vm.floor.keys().chain(vm.ceiling.keys()) {
            if self.tier(name).is_none() {
                let known: Vec<&str> = self.engine.tiers.iter().map(|t| t.name.as_str()).collect();
                let aliases = ["fast", "slow"].into_iter();
                let aliases = aliases.filter(|alias| !known.contains(alias));
                let allowed: Vec<&str> = aliases.chain(known.iter().copied()).collect();
                bail!(
                    "there is no tier \"{name}\": allowed is {}",
                    allowed.join(", ")
                );
            }
        }
        Ok(())
    }

    /// The tier of this name.
    pub fn tier(&self, name: &str) -> Option<TierId> {
        tier_named(&self.engine.tiers, name)
    }
}

/// The tier of this name; `fast` and `slow` are the first two whatever their names.
pub fn tier_named(tiers: &[TierConfig], name: &str) -> Option<TierId> {
    let alias = ["fast", "slow"].iter().position(|alias| *alias == name);
    let index = tiers.iter().position(|t| t.name == name).or(alias)?;
    u8::try_from(index).ok().map(TierId)
}

/// Highest weight of a VM.
pub const MAX_WEIGHT: u32 = 1_000_000;

/// Refuses keys of the engine that are set elsewhere, and what a full record does not go with.
fn check_engine_keys(engine: &EngineConfig, full: bool) -> Result<()> {
    ensure!(
        engine.tiers == EngineConfig::default().tiers,
        "engine.tiers is not set here: describe each tier by a [[tier]] section"
    );
    ensure!(
        !engine.rearm_all,
        "engine.rearm_all is not set here: write record = \"full\" under [log]"
    );
    ensure!(
        !full || engine.scan_parts == 1,
        "log.record = \"full\" is for replays with another policy, which rounds by parts do not allow: set \
         engine.scan_parts = 1, or leave record out"
    );
    Ok(())
}

/// The empty second tier if one is defined, as on a host of one tier that defines none.
fn second(tiers: &[TierNodes]) -> Option<TierConfig> {
    let [only] = tiers else {
        return None;
    };
    Some(TierConfig {
        name: empty_second(&only.engine.name).to_owned(),
        ..TierConfig::default()
    })
}

/// Moves `share` of `[defaults]` and `[vm.NAME]` into the policies, because the engine has it there; it overrides the
/// policy's own.
fn share(engine: &mut EngineConfig, defaults: &RawVm, vms: &BTreeMap<String, RawVm>) {
    if let Some(share) = defaults.share {
        engine.policy = engine.policy.with_share(share);
        for policy in engine.vm_policies.values_mut() {
            *policy = policy.with_share(share);
        }
    }
    for (name, vm) in vms {
        if let Some(share) = vm.share {
            let policy = engine.vm_policies.get(name).unwrap_or(&engine.policy);
            let policy = policy.with_share(share);
            engine.vm_policies.insert(name.clone(), policy);
        }
    }
}

fn log(raw: RawLog) -> Result<(PathBuf, u64)> {
    let file = raw.file.ok_or_else(|| anyhow!("log.file is missing"))?;
    Ok((file, raw.limit.as_u64()))
}

fn tiers(raw: Vec<RawTier>) -> Result<Vec<TierNodes>> {
    let mut seen = std::collections::BTreeSet::new();
    raw.into_iter()
        .map(|tier| {
            ensure!(!tier.nodes.is_empty(), "tier {}: nodes is empty", tier.name);
            for node in &tier.nodes {
                ensure!(
                    seen.insert(*node),
                    "tier {}: node {node} is in two tiers",
                    tier.name
                );
            }
            Ok(TierNodes {
                nodes: tier.nodes,
                engine: TierConfig {
                    name: tier.name,
                    kind: tier.kind,
                    capacity_bytes: tier.capacity.map(|c| c.as_u64()),
                    reserve_bytes: tier.reserve.as_u64(),
                    ..TierConfig::default()
                },
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use terrace_core::policy::Share;

    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn the_reference_file_is_valid_and_equals_the_defaults() {
        let reference = include_str!("../../../../dist/terrace.toml");
        let written = Config::parse(reference).unwrap();
        let default = Config::parse("").unwrap();
        assert_eq!(format!("{written:?}"), format!("{default:?}"));
        let all = reference
            .lines()
            .map(|l| l.strip_prefix("#! ").unwrap_or(l));
        let all: Vec<&str> = all.collect();
        Config::parse(&all.join("\n")).expect("the examples in the comments are valid too");
    }

    #[test]
    fn a_large_vm_on_a_large_host_is_scanned_by_several_threads() {
        let vm = |text: &str| Config::parse(text).unwrap().vm("a").unwrap();
        let threads = |gib: u64, processors| vm("").scan_threads_for(gib << 18, processors);
        assert_eq!(
            [1, 32, 33, 64, 129, 4096].map(|gib| threads(gib, 64)),
            [1, 1, 2, 2, 4, 4]
        );
        assert_eq!([1, 2, 7, 8, 12].map(|n| threads(4096, n)), [1, 1, 1, 2, 3]);
        let set = vm("[vm.a]\nscan_threads = 3");
        assert_eq!(set.scan_threads_for(1, 1), 3);
    }

    #[test]
    fn nothing_is_scanned_or_moved_unless_asked_for() {
        let config = Config::parse("").unwrap();
        let vm = config.vm("any").unwrap();
        assert!(!vm.scan && !vm.moves);
        assert_eq!(vm.writes.source, WriteSource::None);
        assert_eq!(vm.tracker, TrackerChoice::Auto);
    }

    #[test]
    fn a_threshold_that_no_count_exceeds_is_refused() {
        let text = |threshold: u8| {
            format!(
                "[engine]\npolicy = {{ base = \"hmvisor\", hotness_threshold = {threshold} }}\n"
            )
        };
        assert!(Config::parse(&text(49)).is_ok());
        let error = refused(&text(200));
        assert!(
            error.contains("engine.policy.hotness_threshold = 200 is out of range"),
            "{error}"
        );
    }

    #[test]
    fn balancing_that_does_nothing_is_warned_of() {
        let warnings = |text: &str| Config::parse(text).unwrap().warnings();
        let on = "[balance]\nmode = \"on\"\n";
        assert!(warnings(on)[0].contains("no VM has a memory_floor"));
        assert!(warnings(&format!("{on}[vm.a]\nmemory_floor = \"1GiB\"\n")).is_empty());
        assert!(warnings(&format!("{on}[defaults]\nmemory_floor = \"1GiB\"\n")).is_empty());
        let tiers = "[[tier]]\nname = \"a\"\nnodes = [0]\ncapacity = \"4GiB\"\n[[tier]]\nname = \"b\"\nnodes = [1]\n";
        assert!(warnings(tiers)[0].contains("tier a has one and tier b has none"));
        assert!(warnings(&format!("[balance]\nmode = \"off\"\n{tiers}")).is_empty());
        let floors = |b: u64| {
            format!(
                "[[tier]]\nname = \"a\"\nnodes = [0]\ncapacity = \"4GiB\"\n[vm.a]\nmemory_floor = \"3GiB\"\n[vm.b]\nmemory_floor = \"{b}GiB\"\n"
            )
        };
        assert!(warnings(&format!("[balance]\nreserve_percent = 0\n{}", floors(1))).is_empty());
        assert!(warnings(&floors(2))[0].contains("(5.0 GiB) is above the capacity"));
        let little = warnings(&format!("[balance]\nreserve_percent = 10\n{}", floors(1)));
        assert!(
            little[0].contains("(4.0 GiB) leaves too little"),
            "{little:?}"
        );
        let capped = warnings("[vm.a]\nmemory_ceiling = \"4GiB\"\n");
        assert!(
            capped[0].contains("vm.a: memory_ceiling has no effect"),
            "{capped:?}"
        );
        for wrong in ["24", "\"24\""] {
            let text = format!("[[tier]]\nname = \"a\"\nnodes = [0]\ncapacity = {wrong}\n");
            assert!(
                refused(&text).contains("tier.a.capacity = 24 bytes"),
                "{}",
                refused(&text)
            );
        }
        assert!(refused(&floors(5)).contains("vm.b.memory_floor (5.0 GiB) is above"));
    }

    #[test]
    fn moves_without_scans_are_warned_of() {
        let warnings = |text| Config::parse(text).unwrap().warnings();
        let found = warnings("[vm.a]\nmoves = true\n[vm.b]\nmoves = true\nscan = true\n");
        assert!(found.len() == 1 && found[0].starts_with("vm.a: moves = true has no effect"));
        assert!(warnings("[defaults]\nmoves = true\n")[0].starts_with("defaults: "));
        assert!(warnings("[defaults]\nmoves = true\n[vm.a]\nscan = true\n").is_empty());
        assert!(warnings("[defaults]\nscan = true\n[vm.a]\nmoves = true\n").is_empty());
    }

    #[test]
    fn every_page_is_re_armed_where_the_log_shall_have_every_access() {
        let rearms = |text| Config::parse(text).unwrap().engine.rearm_all;
        assert!(rearms("[log]\nfile = \"/x\"\nrecord = \"full\""));
        assert!(!rearms("[log]\nfile = \"/x\""));
        assert!(
            refused("[log]\nfile = \"/x\"\nrecord = \"all\"").contains("unknown variant `all`")
        );
    }

    #[test]
    fn a_vms_own_section_goes_over_the_defaults() {
        let config = Config::parse(
            "[defaults]\nscan = true\nceiling = { fast = \"1GiB\" }\n\
             [vm.a]\nmoves = true\nceiling = { fast = \"64MiB\" }\nfloor = { slow = \"1MiB\" }\n",
        )
        .unwrap();
        let a = config.vm("a").unwrap();
        assert!(a.scan && a.moves);
        assert_eq!(a.sizes.limits[0].ceiling_bytes, 64 << 20);
        assert_eq!(
            a.sizes.limits[1],
            TierLimit {
                floor_bytes: 1 << 20,
                ceiling_bytes: u64::MAX
            }
        );
        assert_eq!(
            config.vm("b").unwrap().sizes.limits[0].ceiling_bytes,
            1 << 30
        );
    }

    #[test]
    fn a_vm_may_have_a_nominal_size_a_unit_and_a_share_of_its_own() {
        let config = Config::parse(
            "[defaults]\nfast = \"2GiB\"\n[vm.a]\nunit = \"2MiB\"\nweight = 3000\n\
             [vm.b]\nfast = \"1GiB\"\nshare = \"island\"\n",
        )
        .unwrap();
        let (a, b) = (config.vm("a").unwrap(), config.vm("b").unwrap());
        assert_eq!((a.sizes.fast_bytes, b.sizes.fast_bytes), (2 << 30, 1 << 30));
        assert_eq!((a.unit, b.unit), (UnitChoice::Huge, UnitChoice::Auto));
        assert_eq!((a.weight, b.weight), (3000, 1000));
        let share = |choice: &terrace_core::PolicyChoice| choice.resolve("policy").unwrap().share;
        assert_eq!(share(&config.engine.policy), Share::Pool);
        assert_eq!(share(&config.engine.vm_policies["b"]), Share::Island);
        assert_eq!(config.engine.vm_policies.len(), 1);
        let fixed = Config::parse("[defaults]\nshare = \"island\"\n[vm.a]\nshare = \"pool\"");
        let fixed = fixed.unwrap().engine;
        assert_eq!(share(&fixed.policy), Share::Island);
        assert_eq!(share(&fixed.vm_policies["a"]), Share::Pool);
    }

    #[test]
    fn errors_name_the_key_and_what_is_allowed() {
        assert!(refused("[engine]\nwindos = 3").contains("unknown field `windos`"));
        assert!(refused("[engine]\nwindows = 99").contains("windows = 99 is out of range"));
        assert!(refused("[vm.a]\nfloor = { quick = \"1GiB\" }").contains("no tier \"quick\""));
        let default = "[defaults]\nceiling = { quick = \"1GiB\" }";
        assert!(refused(default).contains("no tier \"quick\""));
        for policy in [
            "{ base = \"vtmm\", observe = \"ept-scan\" }",
            "{ base = \"vtmm\", move = \"write-protect\" }",
            "\"vtmm-paper\"",
        ] {
            let error = refused(&format!("[engine]\npolicy = {policy}"));
            assert!(error.contains("simulator only"), "{error}");
        }
        let swapped = "[vm.a]\nfloor = { fast = \"2GiB\" }\nceiling = { fast = \"1GiB\" }";
        assert!(
            refused(swapped).contains("is above its ceiling"),
            "{}",
            refused(swapped)
        );
        let low = "[vm.a]\nfast = \"2GiB\"\nceiling = { fast = \"1GiB\" }";
        assert!(
            refused(low).contains("fast (2.0 GiB) is not between"),
            "{}",
            refused(low)
        );
        assert!(refused("[vm.a]\nweight = 0").contains("weight = 0 is out of range"));
        assert!(refused("[vm.a]\nshare = \"fair\"").contains("unknown variant `fair`"));
        assert!(refused("[vm.a]\nunit = \"1GiB\"").contains("unknown variant `1GiB`"));
        let twice = "[[tier]]\nname = \"a\"\nnodes = [0]\n[[tier]]\nname = \"b\"\nnodes = [0]";
        assert!(refused(twice).contains("node 0 is in two tiers"));
        let blind = "[vm.a]\ntracker = \"damon\"\nwrites = \"soft-bit\"";
        assert!(refused(blind).contains("tracker = \"page-tables\""));
        assert!(refused("[vm.a]\nscan_threads = 17").contains("allowed is 0"));
        assert!(refused("[vm.a]\nwrites = \"pml\"").contains("soft-dirty"));
        let parts = |rest: &str| refused(&format!("[engine]\nscan_parts = 8\n{rest}"));
        assert!(parts("[vm.a]\ntracker = \"damon\"").contains("watches all of a VM's memory"));
        assert!(parts("[vm.a]\nwrites = \"soft-dirty\"").contains("engine.scan_parts = 1"));
        assert!(parts("[log]\nfile = \"/x\"\nrecord = \"full\"").contains("record"));
        assert!(refused("[engine]\nscan_parts = 12").contains("a power of two"));
        assert!(refused("[engine]\nscan_parts = 2048").contains("scan_parts"));
        let inner = refused("[engine]\nrearm_all = true");
        assert!(
            inner.contains("write record = \"full\" under [log]"),
            "{inner}"
        );
        assert!(refused("[move]\nworkers = 0").contains("allowed is 1 to 64"));
    }

    #[test]
    fn parts_and_samples_and_threads_out_of_range_are_refused() {
        let values = ["-1", "17", "300", "65536", "18446744073709551615"];
        for value in values.into_iter().chain(["0", "3", "2048"]) {
            for [section, key] in [["engine", "scan_parts"], ["balance", "age_sample"]] {
                let error = refused(&format!("[{section}]\n{key} = {value}"));
                assert!(error.contains(key), "{error}");
            }
        }
        for value in values {
            let error = refused(&format!("[defaults]\nscan_threads = {value}"));
            assert!(error.contains("scan_threads"), "{error}");
        }
        for more in ["tracker = \"damon\"", "writes = \"soft-dirty\""] {
            let error = refused(&format!("[engine]\nscan_parts = 2\n[defaults]\n{more}"));
            assert!(error.contains("engine.scan_parts = 1"), "{error}");
        }
    }
}
