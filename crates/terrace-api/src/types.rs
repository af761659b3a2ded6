//! Bodies of requests and answers. Units are in the names; tiers are in order, fastest first.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::provision::ProvisioningStatus;

use terrace_proto::agent::{Activity, Cost, Mechanism, NodeMemory};
pub use terrace_proto::snapshot::{
    Cell, Finding, Health, HeatMap, Neighbours, PageExplanation, PlannedMove, RankClass, Refused,
    Round, ScanCost, Share, Worth,
};

/// The body of any failed request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorBody {
    /// The error and what to do about it, one sentence or two.
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
    /// Whether moves are turned on for some VM; others may be observed only.
    pub moves: bool,
    /// Whether everything is paused.
    pub paused: bool,
    /// Memory tiers.
    pub tiers: Vec<Tier>,
    /// Number of VMs that were found.
    pub vms: usize,
    /// The reason why the observation log ended early; `null` if it did not.
    #[serde(default)]
    pub log_ended: Option<String>,
}

/// One memory tier of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tier {
    /// The tier's name in the configuration, or `fast`, `slow`, `tier2`, `tier3`.
    pub name: String,
    /// NUMA nodes.
    pub nodes: Vec<u32>,
    /// All memory of the tier, bytes.
    pub total_bytes: u64,
    /// Memory that is free above the kernel's watermarks, bytes.
    pub free_bytes: u64,
}

/// The state of a VM's management.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Scanned, and its pages are moved.
    Managed,
    /// Scanned; moves are off.
    Observed,
    /// The agent in the guest manages the VM; the host does not look into it.
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
    /// The hypervisor's name for the VM, or its process id.
    pub name: String,
    /// The hypervisor's process id; `null` if it is not known.
    pub pid: Option<u32>,
    /// The kind of hypervisor, as `QEMU`.
    pub hypervisor: String,
    /// The state of the VM's management.
    pub mode: Mode,
    /// The reason for the mode.
    pub reason: String,
    /// Guest RAM, bytes.
    pub memory_bytes: u64,
    /// Bytes of the VM in each tier as the kernel last reported them.
    pub tier_bytes: Vec<u64>,
    /// The VM's part in sharing the first tier; `null` if the VM has no nominal size.
    pub share: Option<Share>,
    /// Rounds completed.
    pub rounds: u64,
    /// Whether the VM's pages may be moved.
    pub moves: bool,
    /// Pages (of 4 KiB) in the hot set of the last complete round; `null` before the first.
    pub hot_pages: Option<u64>,
    /// Pages of that hot set that were in the first tier at the round's end.
    pub hot_on_fast_pages: Option<u64>,
    /// The first tier's part of the accesses and of the memory in the last complete round, an estimate; `null` before the first.
    #[serde(default)]
    pub worth: Option<Worth>,
    /// Pages (of 4 KiB) promoted since the VM arrived.
    pub promoted_pages: u64,
    /// Pages (of 4 KiB) demoted since the VM arrived.
    pub demoted_pages: u64,
    /// The agent in the guest; `null` if none is configured.
    pub agent: Option<Agent>,
}

/// A VM's agent. All figures are the guest's own word, within bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Agent {
    /// The mode that is configured: `guest` or `coordinated`.
    pub mode: String,
    /// The actual manager of the VM's memory, in a sentence.
    pub in_force: String,
    /// The reason why that differs from the configured mode; `null` if it does not.
    pub fallback: Option<String>,
    /// The agent's state: speaking, silent, lying, …
    pub state: String,
    /// Version of the agent's program.
    pub version: Option<String>,
    /// QEMU's end of the agent's port.
    pub socket: String,
    /// Heartbeats that were believed.
    pub heartbeats: u64,
    /// The last heartbeat of this connection.
    pub report: Option<AgentReport>,
    /// Hot pages that were named to it last, for gathering; `null` if none were.
    pub gather: Option<NamedHot>,
}

/// Hot base pages that were named to a guest that gathers, by one round.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedHot {
    /// The round.
    pub round: u64,
    /// Hot 4 KiB pages that were named.
    pub named_pages: u64,
    /// Hot 4 KiB pages that there are.
    pub hot_pages: u64,
    /// Blocks of 2 MiB of the guest's memory with a hot page.
    pub hot_blocks: u64,
}

/// An agent's last heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentReport {
    /// The agent's mode: `guest`, `coordinated` or `off`.
    pub mode: String,
    /// Whether the agent is paused.
    pub paused: bool,
    /// The mechanisms that sample, estimate and place, and move pages.
    #[serde(flatten)]
    pub mechanism: Mechanism,
    /// The guest's NUMA nodes.
    pub nodes: Vec<NodeMemory>,
    /// Share of the last 10 s in which some task waited for memory, hundredths of a percent.
    pub pressure_some_avg10_hundredths: Option<u16>,
    /// The same for all tasks at once.
    pub pressure_full_avg10_hundredths: Option<u16>,
    /// Faults of the guest that waited for a disk, since its boot.
    pub major_faults: u64,
    /// Pages that the guest read from swap, since its boot.
    pub swap_in_pages: u64,
    /// Pages that the guest wrote to swap, since its boot.
    pub swap_out_pages: u64,
    /// The agent's own cost.
    #[serde(flatten)]
    pub cost: Cost,
    /// Bytes a second that the agent may move.
    pub budget_bytes_per_s: u64,
    /// Share of one CPU that the agent may take, percent.
    pub budget_cpu_percent: u8,
    /// Counters of the agent's work since its start.
    #[serde(flatten)]
    pub activity: Activity,
}

/// `GET /v1/vms/{name}`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct VmDetail {
    /// The VM's entry in the list.
    pub vm: Vm,
    /// Size of the unit of ranking and moving, bytes (4096 or 2 MiB).
    pub unit_bytes: u64,
    /// The reason for that size.
    pub unit_reason: String,
    /// Floor and ceiling per tier, bytes.
    pub limits: Vec<Limit>,
    /// The mechanism that really runs at each stage, in the order of the loop.
    pub stages: Vec<Stage>,
    /// The present phase of the VM, in words.
    pub phase: String,
    /// Number of the round that is under way.
    pub round_under_way: Option<u64>,
    /// Seconds until the next round; `null` if none is planned.
    pub next_round_in_s: Option<f64>,
    /// The last rounds, oldest first.
    pub history: Vec<Round>,
    /// The last decisions, oldest first.
    pub reasons: Vec<Reason>,
    /// The VM's resizable memory; `null` if there is none.
    #[serde(default)]
    pub provisioning: Option<ProvisioningStatus>,
    /// The VM's cost to the other VMs; `null` if the host does not manage it.
    #[serde(default)]
    pub neighbours: Option<Neighbours>,
}

/// Floor and ceiling of one tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Memory that is kept for the VM, bytes.
    pub floor_bytes: u64,
    /// Memory that moves never exceed, bytes; `null` if there is no ceiling.
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
    /// The round's number.
    pub round: u64,
}

/// One decision in words.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reason {
    /// Seconds since the daemon started.
    pub at_s: f64,
    /// The decision and the reason for it.
    pub text: String,
}

/// `GET /v1/doctor`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Doctor {
    /// Findings about the host.
    pub host: Vec<Finding>,
    /// Findings about each VM.
    pub vms: BTreeMap<String, Vec<Finding>>,
}

/// `GET /v1/events?after=N`: one of the list.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct EventLine {
    /// Number of the event; rises by one with each event of the daemon's run.
    pub sequence: u64,
    /// Seconds since the daemon started.
    pub at_s: f64,
    /// Name of the VM; `null` if the event is not about one.
    pub vm: Option<String>,
    /// The event in words.
    pub text: String,
}

/// `POST /v1/vms/{name}/set`: keys and values as typed (`moves=on`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name of the setting.
    pub key: String,
    /// The setting's value, with a unit if it has one.
    pub value: String,
}

/// The answer of a `POST`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// The action that was taken, in words.
    pub done: String,
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// Daemon and command may be of different builds.
    #[test]
    fn an_agents_report_and_a_finding_keep_their_keys() {
        let report = json!({
            "mode": "guest", "paused": true, "sampler": "damon", "policy": "hyperplace", "mover": "move_pages",
            "nodes": [{"node": 0, "tier": 1, "total_bytes": 2, "free_bytes": 3}],
            "pressure_some_avg10_hundredths": 4, "pressure_full_avg10_hundredths": null, "major_faults": 5,
            "swap_in_pages": 6, "swap_out_pages": 7, "cpu_ns": 8, "resident_bytes": 9, "budget_bytes_per_s": 10,
            "budget_cpu_percent": 11, "epochs": 12, "processes": 13, "promoted_pages": 14, "demoted_pages": 15,
            "failed_pages": 16,
        });
        let read: AgentReport = serde_json::from_value(report.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), report);
        let finding = json!({"name": "swap", "health": "ok", "found": "none", "advice": null});
        let read: Finding = serde_json::from_value(finding.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), finding);
    }

    #[test]
    fn what_an_older_daemon_does_not_say_of_a_page_is_not_made_up() {
        let older = json!({
            "gpa": 0, "gfn": 0, "tier": null, "known": true, "reads": 0, "writes": 0, "windows": 8, "degree": 0,
            "threshold_degree": 0, "level": 0, "because": [],
        });
        let page: PageExplanation = serde_json::from_value(older).unwrap();
        let page = serde_json::to_value(&page).unwrap();
        for key in ["class", "unit_bytes", "unit_gpa"] {
            assert_eq!(page[key], Value::Null, "{key}");
        }
    }
}
