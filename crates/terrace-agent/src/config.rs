//! The agent's configuration: as people write it, checked, and as the rest of the agent takes it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use bytesize::ByteSize;
use serde::Deserialize;
use terrace_core::ranges::Params;
use terrace_proto::agent::Budgets;
use terrace_sys::topology::{NodeId, TierDefinition};

use crate::gathering::{Gathering, RawGather};
use crate::processes::Wanted;

/// The configuration file if none is named.
pub const DEFAULT_FILE: &str = "/etc/terrace/agent.toml";
/// The socket on which the agent answers `status`, unless configured otherwise.
pub const DEFAULT_SOCKET: &str = "/run/terrace-agent/agent.sock";

/// Longest name of a process, bytes.
const MAX_NAME: usize = 15;

/// Choice of the source of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SamplerChoice {
    /// The best that works: PEBS, IBS, the module's scan, DAMON.
    #[default]
    Auto,
    /// Intel's precise events.
    Pebs,
    /// AMD's instruction-based sampling.
    Ibs,
    /// Accessed bits of base pages, by the guest's kernel module.
    Scan,
    /// Regions by accessed bits.
    Damon,
}

/// Choice of where a process's tree begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RootChoice {
    /// One leaf for each mapping.
    #[default]
    Maps,
    /// One root, `[start_brk, mmap_base)` (HyperTier §5).
    Paper,
}

/// Parameters of the tree for the PMU's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Preset {
    /// HyperTier §4.2.2.
    #[default]
    Paper,
    /// The values that §6.4 found best.
    Tuned,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Raw {
    socket: PathBuf,
    sampler: SamplerChoice,
    root: RootChoice,
    preset: Preset,
    epoch_ms: u32,
    moves: bool,
    module: bool,
    headroom: ByteSize,
    tier: Vec<RawTier>,
    processes: RawProcesses,
    capacity: RawCapacity,
    budget: RawBudget,
    gather: RawGather,
    host: RawHost,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawTier {
    name: String,
    nodes: Vec<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawProcesses {
    names: Vec<String>,
    exclude: Vec<String>,
    min: ByteSize,
    most: usize,
    #[serde(alias = "look_every_ms")]
    scan_interval_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawCapacity {
    fast: Option<ByteSize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawBudget {
    moves_per_s: ByteSize,
    cpu_percent: u32,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHost {
    channel: bool,
    port: String,
}

impl Default for Raw {
    fn default() -> Self {
        Self {
            socket: DEFAULT_SOCKET.into(),
            sampler: SamplerChoice::Auto,
            root: RootChoice::Maps,
            preset: Preset::Paper,
            epoch_ms: 500,
            moves: true,
            module: true,
            headroom: ByteSize::mib(16),
            tier: Vec::new(),
            processes: RawProcesses::default(),
            capacity: RawCapacity::default(),
            budget: RawBudget::default(),
            gather: RawGather::default(),
            host: RawHost::default(),
        }
    }
}

impl Default for RawProcesses {
    fn default() -> Self {
        Self {
            names: Vec::new(),
            exclude: Vec::new(),
            min: ByteSize::mib(64),
            most: 8,
            scan_interval_ms: 2000,
        }
    }
}

impl Default for RawBudget {
    fn default() -> Self {
        Self {
            moves_per_s: ByteSize::mib(512),
            cpu_percent: 5,
        }
    }
}

impl Default for RawHost {
    fn default() -> Self {
        Self {
            channel: true,
            port: "org.terrace.agent.0".into(),
        }
    }
}

/// Choice of the processes to manage, and how they are followed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Following {
    /// The processes to manage.
    pub wanted: Wanted,
    /// Time between two scans of `/proc`.
    pub scan_interval: Duration,
    /// Choice of where trees begin.
    pub root: RootChoice,
}

/// Choice of the source of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// The source.
    pub source: SamplerChoice,
    /// Parameters for the PMU's samples.
    pub preset: Preset,
    /// Length of an epoch.
    pub epoch: Duration,
}

/// A valid configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The socket on which `status` is answered.
    pub socket: PathBuf,
    /// The source of samples.
    pub sampling: Sampling,
    /// Whether pages may be moved.
    pub moves: bool,
    /// Whether the guest's kernel module is used if it is loaded.
    pub module: bool,
    /// Free memory of the first tier that is left alone, bytes.
    pub headroom_bytes: u64,
    /// Tiers as the owner defines them; if empty, as the kernel describes them.
    pub tiers: Vec<TierDefinition>,
    /// The processes to manage.
    pub following: Following,
    /// Most fast memory for all processes together, bytes; `None`: no limit.
    pub capacity_bytes: Option<u64>,
    /// Limits of spending: bytes copied per second, and percent of one CPU for surveys of where pages are.
    pub budgets: Budgets,
    /// How `terrace-agent gather` works.
    pub gather: Gathering,
    /// Name of the port to the host; `None`: no channel.
    pub port: Option<String>,
}

impl Config {
    /// Reads a file; if none is named, the default file if it exists, else the defaults.
    ///
    /// # Errors
    /// If the file cannot be read or something in it is wrong.
    pub fn read(file: Option<&Path>) -> Result<Self> {
        let default = Path::new(DEFAULT_FILE);
        let file = match file {
            Some(file) => file,
            None if default.exists() => default,
            None => return Self::parse(""),
        };
        let text =
            std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
        Self::parse(&text).with_context(|| file.display().to_string())
    }

    /// Parses a file's text.
    ///
    /// # Errors
    /// If something in it is wrong; the message names the key and what is allowed.
    pub fn parse(text: &str) -> Result<Self> {
        let raw: Raw = toml::from_str(text)
            .map_err(|error| anyhow::anyhow!(without_types(&error.to_string())))?;
        within("epoch_ms", u64::from(raw.epoch_ms), 100, 60_000)?;
        within("processes.most", raw.processes.most as u64, 1, 61)?;
        within(
            "processes.scan_interval_ms",
            raw.processes.scan_interval_ms,
            500,
            600_000,
        )?;
        within(
            "budget.cpu_percent",
            u64::from(raw.budget.cpu_percent),
            1,
            100,
        )?;
        within("headroom (bytes)", raw.headroom.as_u64(), 4 << 20, 1 << 40)?;
        within(
            "budget.moves_per_s (bytes)",
            raw.budget.moves_per_s.as_u64(),
            1 << 20,
            1 << 40,
        )?;
        ensure!(
            raw.module || raw.sampler != SamplerChoice::Scan,
            "sampler = \"scan\" needs the guest module, which module = false switches off"
        );
        check_names(&raw)?;
        ensure!(
            raw.host.channel || !raw.gather.is_by_host(),
            "gather.heat = \"host\" needs the channel to the host, which host.channel = false switches off"
        );
        let port = raw.host.port;
        ensure!(
            !port.is_empty() && !port.contains(['/', '\0']),
            "host.port = {port:?} is no name of a port: as org.terrace.agent.0"
        );
        Ok(Self {
            socket: raw.socket,
            sampling: Sampling {
                source: raw.sampler,
                preset: raw.preset,
                epoch: Duration::from_millis(raw.epoch_ms.into()),
            },
            moves: raw.moves,
            module: raw.module,
            headroom_bytes: raw.headroom.as_u64(),
            tiers: raw.tier.into_iter().map(definition).collect(),
            following: Following {
                wanted: Wanted {
                    names: raw.processes.names,
                    exclude: raw.processes.exclude,
                    min_bytes: raw.processes.min.as_u64(),
                    most: raw.processes.most,
                },
                scan_interval: Duration::from_millis(raw.processes.scan_interval_ms),
                root: raw.root,
            },
            capacity_bytes: raw.capacity.fast.map(|size| size.as_u64()),
            budgets: budgets(&raw.budget),
            gather: raw.gather.check()?,
            port: raw.host.channel.then_some(port),
        })
    }

    /// The parameters of a tree. The preset counts only if the source of samples takes the papers' parameters.
    #[must_use]
    pub fn params(&self, sampler: Params) -> Params {
        let tuned = Params::tuned(sampler.vcpus);
        match self.sampling.preset {
            Preset::Tuned if sampler == Params::paper(sampler.vcpus) => tuned,
            _ => sampler,
        }
    }
}

/// The limits of spending, in the channel's terms.
fn budgets(raw: &RawBudget) -> Budgets {
    let percent = u8::try_from(raw.cpu_percent).unwrap_or(100);
    // Both are checked to be within what can be named.
    Budgets::new(raw.moves_per_s.as_u64(), percent).unwrap_or_default()
}

fn definition(tier: RawTier) -> TierDefinition {
    TierDefinition {
        name: tier.name,
        nodes: tier.nodes.into_iter().map(NodeId).collect(),
    }
}

/// Names that are no names: those of two tiers, and those that no process can have.
fn check_names(raw: &Raw) -> Result<()> {
    for (at, tier) in raw.tier.iter().enumerate() {
        ensure!(!tier.name.is_empty(), "a [[tier]] has no name");
        let before = raw
            .tier
            .iter()
            .take(at)
            .any(|other| other.name == tier.name);
        ensure!(!before, "two [[tier]] sections are named {:?}", tier.name);
    }
    for name in raw.processes.names.iter().chain(&raw.processes.exclude) {
        ensure!(
            name.len() <= MAX_NAME,
            "processes: no process can have the name {name:?}: /proc/PID/comm has at most {MAX_NAME} characters"
        );
    }
    Ok(())
}

/// A parser's message without the names of Rust's types.
fn without_types(message: &str) -> String {
    let mut text = message.trim_end().to_owned();
    for name in ["usize", "u64", "u32", "u16", "u8"] {
        let expected = format!("expected {name}");
        text = text.replace(&expected, "expected a whole number, 0 or more");
    }
    text
}

fn within(key: &str, value: u64, least: u64, most: u64) -> Result<()> {
    ensure!(
        (least..=most).contains(&value),
        "{key} = {value} is out of range: allowed is {least} to {most}"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        format!("{:#}", Config::parse(text).unwrap_err())
    }

    #[test]
    fn the_reference_file_is_valid_and_equals_the_defaults() {
        let reference = include_str!("../../../dist/terrace-agent.toml");
        assert_eq!(
            Config::parse(reference).unwrap(),
            Config::parse("").unwrap()
        );
        let all = reference
            .lines()
            .map(|line| line.strip_prefix("#! ").unwrap_or(line));
        let all: Vec<&str> = all.collect();
        Config::parse(&all.join("\n")).expect("the examples in the comments are valid too");
    }

    #[test]
    fn errors_name_the_key_and_what_is_allowed() {
        assert!(refused("smapler = \"damon\"").contains("unknown field `smapler`"));
        assert!(refused("sampler = \"pml\"").contains("expected one of"));
        assert!(refused("epoch_ms = 5").contains("epoch_ms = 5 is out of range: allowed is 100"));
        assert!(refused("[processes]\nmost = 0").contains("processes.most = 0"));
        assert!(refused("headroom = \"1MiB\"").contains("headroom"));
        assert!(refused("[host]\nport = \"a/b\"").contains("no name of a port"));
        assert!(refused("sampler = \"scan\"\nmodule = false").contains("module = false"));
        assert!(refused("[gather]\ngain = 512").contains("gather.gain = 512 is out of range"));
        assert!(refused("[gather]\ncl = 1").contains("gather.cl = 1 is out of range"));
        assert!(refused("[gather]\ncl = -3").contains("allowed is \"auto\", or 2 to 512"));
        assert!(refused("[gather]\nnode = -1").ends_with("expected a whole number, 0 or more"));
        assert!(refused("[gather]\ncl = \"all\"").contains("allowed is \"auto\", or 2 to 512"));
        assert!(refused("[gather]\nsplit = 20000").contains("allowed is 0 to 16384"));
        assert!(refused("[gather]\nheat = \"damon\"").contains("expected `auto` or `host`"));
        let alone = "[gather]\nheat = \"host\"\n[host]\nchannel = false";
        assert!(refused(alone).contains("needs the channel to the host"));
        assert!(refused("[gather]\nwindow_s = 0").contains("gather.window_s = 0 is out of range"));
        let tier = |name| format!("[[tier]]\nname = \"{name}\"\nnodes = [0]\n");
        assert!(refused(&(tier("a") + &tier("a"))).contains("are named \"a\""));
        assert!(refused(&tier("")).contains("has no name"));
        let long = "[processes]\nnames = [\"a-name-of-16-char\"]";
        assert!(refused(long).contains("at most 15 characters"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = Config::read(Some(Path::new("/none/agent.toml"))).unwrap_err();
        assert!(format!("{error:#}").contains("/none/agent.toml"));
    }

    #[test]
    fn presets_are_the_papers_and_do_not_touch_damons_numbers() {
        let tuned = Config::parse("preset = \"tuned\"").unwrap();
        assert_eq!(tuned.params(Params::paper(4)), Params::tuned(4));
        let damon = Params {
            tau_split: 2,
            ..Params::paper(1)
        };
        assert_eq!(tuned.params(damon), damon);
    }
}
