//! Bodies of requests and answers. Units are in the names; tiers are in order, fastest first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::elastic::Elastic;

pub use terrace_proto::snapshot::{
    Cell, HeatMap, Neighbours, PageExplanation, PlannedMove, RankClass, Refused, Round, ScanCost,
    Share,
};

/// Any failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// What happened and what to do, one sentence or two.
    pub error: String,
}

/// `GET /v1/status`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Program version.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// Name of the default policy.
    pub policy: String,
    /// Moves are turned on in general (a VM may still be observed only).
    pub moves: bool,
    /// Everything is paused.
    pub paused: bool,
    /// Memory tiers.
    pub tiers: Vec<Tier>,
    /// VMs that were found.
    pub vms: usize,
    /// Why the observation log ended before its time, where it did.
    #[serde(default)]
    pub log_ended: Option<String>,
}

/// One memory tier of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// Its name in the configuration, or `fast`, `slow`, `tier2`, `tier3`.
    pub name: String,
    /// NUMA nodes.
    pub nodes: Vec<u32>,
    /// All memory, bytes.
    pub total_bytes: u64,
    /// Free above the kernel's watermarks, bytes.
    pub free_bytes: u64,
}

/// What the daemon does with a VM.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Scanned, and its pages are moved.
    Managed,
    /// Scanned; moves are off.
    Observed,
    /// The agent in the guest manages it; the host does not look into it.
    Guest,
    /// Neither scanned nor moved until resumed.
    Paused,
    /// Found, but not opted in.
    Ignored,
    /// Opted in, but it cannot be scanned; `reason` says why.
    Unscannable,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Managed => "managed",
            Self::Observed => "observed",
            Self::Guest => "guest",
            Self::Paused => "paused",
            Self::Ignored => "ignored",
            Self::Unscannable => "unscannable",
        })
    }
}

/// `GET /v1/vms`: one of the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vm {
    /// The hypervisor's name for it, or its process id.
    pub name: String,
    /// The hypervisor's process, where it is known.
    pub pid: Option<u32>,
    /// What it runs under.
    pub hypervisor: String,
    /// What the daemon does with it.
    pub mode: Mode,
    /// Why the mode is what it is.
    pub reason: String,
    /// Guest RAM, bytes.
    pub memory_bytes: u64,
    /// Bytes in each tier as the kernel last said.
    pub tier_bytes: Vec<u64>,
    /// Its part in sharing the first tier; `null` where it has no nominal size.
    pub share: Option<Share>,
    /// Rounds completed.
    pub rounds: u64,
    /// Its pages may be moved.
    pub moves: bool,
    /// Pages (of 4 KiB) in the hot set of its last complete round; none before the first.
    pub hot_pages: Option<u64>,
    /// Of these, pages that were in the first tier at that round's end.
    pub hot_on_fast_pages: Option<u64>,
    /// Pages (of 4 KiB) promoted since it arrived.
    pub promoted_pages: u64,
    /// Pages (of 4 KiB) demoted since it arrived.
    pub demoted_pages: u64,
    /// The agent in the guest; `null` where none is configured.
    pub agent: Option<Agent>,
}

/// A VM's agent. All figures are the guest's own word, within bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The mode that is configured: `guest` or `coordinated`.
    pub mode: String,
    /// Who really manages the VM's memory, in a sentence.
    pub in_force: String,
    /// Why that is not what is configured, where it is not.
    pub fallback: Option<String>,
    /// What the agent does: speaking, silent, lying, …
    pub state: String,
    /// Its program version.
    pub version: Option<String>,
    /// QEMU's end of its port.
    pub socket: String,
    /// Heartbeats that were believed.
    pub heartbeats: u64,
    /// Its last heartbeat of this connection.
    pub report: Option<AgentReport>,
}

/// What an agent told last.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// What it does: `guest`, `coordinated` or `off`.
    pub mode: String,
    /// It is paused.
    pub paused: bool,
    /// What samples accesses; empty where nothing does.
    pub sampler: String,
    /// What estimates and places.
    pub policy: String,
    /// What moves pages.
    pub mover: String,
    /// The guest's NUMA nodes.
    pub nodes: Vec<AgentNode>,
    /// Share of the last 10 s in which some task waited for memory, hundredths of a percent.
    pub pressure_some_avg10_hundredths: Option<u16>,
    /// The same for all tasks at once.
    pub pressure_full_avg10_hundredths: Option<u16>,
    /// Faults of the guest that waited for a disk, since its boot.
    pub major_faults: u64,
    /// Pages that the guest read from swap, since its boot.
    pub swap_in_pages: u64,
    /// Pages that it wrote there.
    pub swap_out_pages: u64,
    /// The agent's CPU time, ns.
    pub cpu_ns: u64,
    /// Its resident memory, bytes.
    pub resident_bytes: u64,
    /// Bytes a second that it may move.
    pub budget_bytes_per_s: u64,
    /// Share of one CPU that it may take, percent.
    pub budget_cpu_percent: u8,
    /// Epochs that ended.
    pub epochs: u64,
    /// Processes that it looks after.
    pub processes: u32,
    /// Pages (of 4 KiB) that it promoted.
    pub promoted_pages: u64,
    /// Pages (of 4 KiB) that it demoted.
    pub demoted_pages: u64,
    /// Pages (of 4 KiB) that it could not move.
    pub failed_pages: u64,
}

/// One NUMA node of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentNode {
    /// Its number in the guest.
    pub node: u32,
    /// Place of its tier, as the guest sees it; 0 is the fastest.
    pub tier: u8,
    /// Its memory, bytes.
    pub total_bytes: u64,
    /// Free of that, bytes.
    pub free_bytes: u64,
}

/// `GET /v1/vms/{name}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmDetail {
    /// The line of the list.
    pub vm: Vm,
    /// What is ranked and moved as one, bytes (4096 or 2 MiB).
    pub unit_bytes: u64,
    /// Why it is that.
    pub unit_reason: String,
    /// Floor and ceiling per tier, bytes.
    pub limits: Vec<Limit>,
    /// What really runs at each stage, in the order of the loop.
    pub stages: Vec<Stage>,
    /// What the VM does right now.
    pub phase: String,
    /// Number of the round that is under way.
    pub round_under_way: Option<u64>,
    /// Seconds until the next round, where one is planned.
    pub next_round_in_s: Option<f64>,
    /// The last rounds, oldest first.
    pub history: Vec<Round>,
    /// The last decisions, oldest first.
    pub reasons: Vec<Reason>,
    /// Its elastic memory, where it has any.
    #[serde(default)]
    pub elastic: Option<Elastic>,
    /// What it costs the other VMs, where the host manages it.
    #[serde(default)]
    pub neighbours: Option<Neighbours>,
}

/// Floor and ceiling of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Kept for the VM, bytes.
    pub floor_bytes: u64,
    /// Never exceeded by moves, bytes; `null` where there is none.
    pub ceiling_bytes: Option<u64>,
}

/// One stage of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stage {
    /// `observe`, `estimate`, `share`, `place` or `move`.
    pub stage: String,
    /// The mechanism that really runs.
    pub mechanism: String,
}

/// `POST /v1/vms/{name}/plan`: a round that moves nothing has begun; it ends in the VM's history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planning {
    /// Its number.
    pub round: u64,
}

/// One decision in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Seconds since the daemon started.
    pub at_s: f64,
    /// What was decided and why.
    pub text: String,
}

/// `GET /v1/doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doctor {
    /// About the host.
    pub host: Vec<Finding>,
    /// About each VM.
    pub vms: BTreeMap<String, Vec<Finding>>,
}

/// How well something works.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Health {
    /// As it should be.
    Ok,
    /// Works, with something lost.
    Degraded,
    /// Does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// What was looked at.
    pub name: String,
    /// How well it works.
    pub health: Health,
    /// What was found.
    pub found: String,
    /// What to change, where something is to be gained.
    pub advice: Option<String>,
}

/// `GET /v1/events?after=N`: one of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// Rises by one with each event of the daemon's run.
    pub sequence: u64,
    /// Seconds since the daemon started.
    pub at_s: f64,
    /// Which VM, where it is about one.
    pub vm: Option<String>,
    /// What happened.
    pub text: String,
}

/// `POST /v1/vms/{name}/set`: keys and values as typed (`moves=on`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name of the setting.
    pub key: String,
    /// Its value, with a unit where it has one.
    pub value: String,
}

/// The answer of a `POST`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// What was done.
    pub done: String,
}
