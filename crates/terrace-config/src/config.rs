//! What the daemon runs with, checked.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytesize::ByteSize;
use serde::Deserialize as _;
use terrace_core::{EngineConfig, TierConfig};
use terrace_host::qemu::who::HypervisorConfig;
use terrace_host::topology::{Tier, Topology};
use terrace_host::unit::UnitChoice;
use terrace_proto::{TierId, TierLimit};

use crate::agent::{AgentConfig, Fallback, VmMode};
use crate::pins::{self, PinConfig};
use crate::raw::{Raw, RawLog, RawTier, RawVm, Record, TrackerChoice, WriteSource};
use crate::security::Security;
use crate::sources::{Problem, Sources};

/// What the daemon runs with.
#[derive(Debug)]
pub struct Config {
    /// Where the API listens.
    pub socket: PathBuf,
    /// Folders whose sockets are tried as QMP monitors.
    pub qmp_folders: Vec<PathBuf>,
    /// Look for QEMU among the processes too.
    pub processes: bool,
    /// How often VMs are looked for.
    pub discover_every: Duration,
    /// Who may be a VM.
    pub hypervisors: HypervisorConfig,
    /// How the daemon is locked in.
    pub security: Security,
    /// Name and nodes of each tier; empty: as the kernel describes the host.
    pub tiers: Vec<TierNodes>,
    /// The engine's parameters; its tiers are filled in once the host's are known.
    pub engine: EngineConfig,
    /// Threads that move pages of one VM.
    pub move_workers: usize,
    /// How often a busy page is tried.
    pub move_attempts: u32,
    /// The observation log, where one is wanted: file and limit in bytes.
    pub log: Option<(PathBuf, u64)>,
    /// Guests' agents.
    pub agent: AgentConfig,
    defaults: RawVm,
    pub(crate) vms: BTreeMap<String, RawVm>,
}

/// A tier as the operator defined it.
#[derive(Clone, Debug)]
pub struct TierNodes {
    /// For the engine.
    pub engine: TierConfig,
    /// Its NUMA nodes.
    pub nodes: Vec<u32>,
}

/// What the configuration says about one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmConfig {
    /// Its page tables may be scanned.
    pub scan: bool,
    /// Its pages may be moved.
    pub moves: bool,
    /// Its share among VMs.
    pub weight: u32,
    /// What is ranked and moved as one.
    pub unit: UnitChoice,
    /// Nominal size of the first tier, bytes; 0: it has none.
    pub fast_bytes: u64,
    /// What says which of its pages are accessed.
    pub tracker: TrackerChoice,
    /// What says which of its pages are written.
    pub writes: WriteSource,
    /// How long finding out about writes may pause it, once a round.
    pub write_pause_budget: Duration,
    /// Who manages its memory.
    pub mode: VmMode,
    /// What the host does while the guest's agent is silent or lies.
    pub fallback: Fallback,
    /// QEMU's end of the agent's port; none where the host manages the VM alone.
    pub agent_socket: Option<PathBuf>,
    /// Control socket of its HyperFlex device; none where it has no such device.
    pub hyperflex: Option<PathBuf>,
    /// The host's node behind each tier of that device; empty where the device itself says it.
    pub hyperflex_nodes: Vec<u32>,
    /// Who pins its memory, by the operator's word.
    pub pins: PinConfig,
    /// One per tier.
    pub limits: Vec<TierLimit>,
}

impl Config {
    /// Checks what the files say.
    ///
    /// # Errors
    /// Names file, line and key of what is wrong.
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

    /// The message of a check that fails begins with the path of its key.
    fn from_raw(raw: Raw) -> Result<Self> {
        ensure!(
            (1..=64).contains(&raw.mover.workers),
            "move.workers = {} is out of range: allowed is 1 to 64",
            raw.mover.workers
        );
        ensure!(
            raw.discover.every >= Duration::from_millis(100),
            "discover.every is shorter than 100ms"
        );
        raw.hypervisors
            .check()
            .map_err(|e| anyhow!("hypervisors.{e}"))?;
        ensure!(
            raw.engine.tiers == EngineConfig::default().tiers,
            "engine.tiers is not set here: describe each tier by a [[tier]] section"
        );
        ensure!(
            !raw.engine.rearm_all,
            "engine.rearm_all is not set here: write record = \"full\" under [log]"
        );
        let mut engine = raw.engine;
        engine.rearm_all = raw.log.as_ref().is_some_and(|l| l.record == Record::Full);
        let tiers = tiers(raw.tier)?;
        if !tiers.is_empty() {
            engine.tiers = tiers.iter().map(|t| t.engine.clone()).collect();
        }
        share(&mut engine, &raw.defaults, &raw.vm);
        engine.validate().map_err(|e| anyhow!("engine.{e}"))?;
        let config = Self {
            socket: raw.daemon.socket,
            qmp_folders: raw.discover.qmp_folders,
            processes: raw.discover.processes,
            discover_every: raw.discover.every,
            hypervisors: raw.hypervisors,
            security: raw.security,
            tiers,
            engine,
            move_workers: raw.mover.workers,
            move_attempts: raw.mover.attempts,
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
                writes: raw.defaults.writes.or(Some(WriteSource::None)),
                write_pause_budget_ms: raw.defaults.write_pause_budget_ms.or(Some(20)),
                ..raw.defaults
            },
            vms: raw.vm,
        };
        config.check()?;
        Ok(config)
    }

    /// What depends on the names of the tiers, or works in the simulator only.
    fn check(&self) -> Result<()> {
        self.check_tier_names(&self.defaults).context("defaults")?;
        ensure!(
            self.defaults.agent_socket.is_none(),
            "defaults.agent_socket: each VM has a socket of its own: set it under [vm.NAME], or agent.folder"
        );
        for name in self.vms.keys() {
            self.vm(name)
                .and_then(|vm| vm.check_units().map_err(anyhow::Error::msg))
                .with_context(|| format!("vm.{name}"))?;
        }
        // Of a VM that has no section.
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

    /// What is said about the VM of this name: its own section over the defaults.
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
            (1..=MOST_WEIGHT).contains(&weight),
            "weight = {weight} is out of range: allowed is 1 to {MOST_WEIGHT}"
        );
        let fast = own.fast.or(self.defaults.fast).unwrap_or_default();
        if let Some(limit) = limits.first().filter(|_| fast.as_u64() > 0) {
            ensure!(
                (limit.floor_bytes..=limit.ceiling_bytes).contains(&fast.as_u64()),
                "fast ({fast}) is not between floor ({}) and ceiling ({}) of the first tier",
                ByteSize(limit.floor_bytes),
                ByteSize(limit.ceiling_bytes)
            );
        }
        let tracker = own.tracker.or(self.defaults.tracker).unwrap_or_default();
        let writes = own.writes.or(self.defaults.writes).unwrap_or_default();
        ensure!(
            (tracker, writes) != (TrackerChoice::Damon, WriteSource::SoftBit),
            "writes = \"soft-bit\" is told by page tables, which tracker = \"damon\" does not read: use \
             writes = \"soft-dirty\" or tracker = \"page-tables\""
        );
        let pause = own.write_pause_budget_ms;
        let pause = pause.or(self.defaults.write_pause_budget_ms).unwrap_or(20);
        let mode = own.mode.or(self.defaults.mode).unwrap_or_default();
        let scan = own.scan.or(self.defaults.scan).unwrap_or(false);
        if let Some(socket) = &own.hyperflex {
            ensure!(
                socket.is_absolute(),
                "hyperflex = \"{}\" is not an absolute path: it names the control socket of this VM's device",
                socket.display()
            );
        }
        ensure!(
            self.defaults.hyperflex.is_none() && self.defaults.hyperflex_nodes.is_none(),
            "hyperflex and hyperflex_nodes are about the device of one VM: they belong under [vm.NAME], not [defaults]"
        );
        Ok(VmConfig {
            mode,
            hyperflex: own.hyperflex.clone(),
            hyperflex_nodes: own.hyperflex_nodes.clone().unwrap_or_default(),
            pins: pins::of_vm(own, &self.defaults)?,
            fallback: own.fallback.or(self.defaults.fallback).unwrap_or_default(),
            agent_socket: self
                .agent
                .socket(name, mode, scan, own.agent_socket.as_deref())?,
            tracker,
            writes,
            write_pause_budget: Duration::from_millis(pause),
            scan,
            moves: own.moves.or(self.defaults.moves).unwrap_or(false),
            weight,
            unit: own.unit.or(self.defaults.unit).unwrap_or_default(),
            fast_bytes: fast.as_u64(),
            limits,
        })
    }

    /// Takes the tiers as the kernel describes them, where the file defines none.
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
pub const MOST_WEIGHT: u32 = 1_000_000;

/// Makes `share` of `[defaults]` and `[vm.NAME]` a part of the policies, where the engine has it; it goes
/// before what a policy says itself.
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
        let reference = include_str!("../../../dist/terrace.toml");
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
    fn nothing_is_scanned_or_moved_unless_asked_for() {
        let config = Config::parse("").unwrap();
        let vm = config.vm("any").unwrap();
        assert!(!vm.scan && !vm.moves);
        assert_eq!(vm.writes, WriteSource::None);
        assert_eq!(vm.tracker, TrackerChoice::Auto);
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
        assert_eq!(a.limits[0].ceiling_bytes, 64 << 20);
        assert_eq!(
            a.limits[1],
            TierLimit {
                floor_bytes: 1 << 20,
                ceiling_bytes: u64::MAX
            }
        );
        assert_eq!(config.vm("b").unwrap().limits[0].ceiling_bytes, 1 << 30);
    }

    #[test]
    fn a_vm_may_have_a_nominal_size_a_unit_and_a_share_of_its_own() {
        let config = Config::parse(
            "[defaults]\nfast = \"2GiB\"\n[vm.a]\nunit = \"2MiB\"\nweight = 3000\n\
             [vm.b]\nfast = \"1GiB\"\nshare = \"island\"\n",
        )
        .unwrap();
        let (a, b) = (config.vm("a").unwrap(), config.vm("b").unwrap());
        assert_eq!((a.fast_bytes, b.fast_bytes), (2 << 30, 1 << 30));
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
        assert!(refused("[vm.a]\nwrites = \"pml\"").contains("soft-dirty"));
        let inner = refused("[engine]\nrearm_all = true");
        assert!(
            inner.contains("write record = \"full\" under [log]"),
            "{inner}"
        );
        assert!(refused("[move]\nworkers = 0").contains("allowed is 1 to 64"));
    }
}
