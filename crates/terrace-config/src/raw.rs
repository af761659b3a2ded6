//! The file as written: its sections and keys, before anything is checked.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytesize::ByteSize;
use serde::Deserialize;
use terrace_core::policy::Share;
use terrace_core::{EngineConfig, TierKind};
use terrace_host::qemu::who::HypervisorConfig;
use terrace_host::unit::UnitChoice;

use crate::agent::{self, Fallback, VmMode};
use crate::balance::RawBalance;
use crate::discover::Discover;
use crate::mover::Mover;
use crate::security::Security;
use crate::wording;

/// The file as written.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Raw {
    pub(crate) daemon: RawDaemon,
    pub(crate) discover: Discover,
    pub(crate) hypervisors: HypervisorConfig,
    pub(crate) security: Security,
    pub(crate) tier: Vec<RawTier>,
    pub(crate) engine: EngineConfig,
    #[serde(rename = "move")]
    pub(crate) mover: Mover,
    pub(crate) agent: agent::Raw,
    pub(crate) balance: RawBalance,
    pub(crate) defaults: RawVm,
    pub(crate) vm: BTreeMap<String, RawVm>,
    pub(crate) log: Option<RawLog>,
}

#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawDaemon {
    pub(crate) socket: PathBuf,
}

impl Default for RawDaemon {
    fn default() -> Self {
        Self {
            socket: terrace_api::DEFAULT_SOCKET.into(),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawTier {
    pub(crate) name: String,
    pub(crate) nodes: Vec<u32>,
    #[serde(default)]
    pub(crate) kind: TierKind,
    #[serde(default)]
    pub(crate) capacity: Option<ByteSize>,
    #[serde(default)]
    pub(crate) reserve: ByteSize,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RawVm {
    pub(crate) scan: Option<bool>,
    pub(crate) moves: Option<bool>,
    pub(crate) weight: Option<u32>,
    pub(crate) unit: Option<UnitChoice>,
    pub(crate) fast: Option<ByteSize>,
    pub(crate) share: Option<Share>,
    pub(crate) tracker: Option<TrackerChoice>,
    pub(crate) scan_threads: Option<u8>,
    pub(crate) writes: Option<WriteSource>,
    pub(crate) write_pause_budget_ms: Option<u64>,
    pub(crate) mode: Option<VmMode>,
    pub(crate) fallback: Option<Fallback>,
    pub(crate) agent_socket: Option<PathBuf>,
    pub(crate) gather: Option<bool>,
    pub(crate) hyperflex: Option<PathBuf>,
    pub(crate) hyperflex_nodes: Option<Vec<u32>>,
    pub(crate) nobody_pins: Option<bool>,
    pub(crate) do_not_pin: Option<Vec<PathBuf>>,
    #[serde(deserialize_with = "wording::switch")]
    pub(crate) balance: Option<bool>,
    pub(crate) memory_floor: Option<ByteSize>,
    pub(crate) memory_ceiling: Option<ByteSize>,
    pub(crate) floor: BTreeMap<String, ByteSize>,
    pub(crate) ceiling: BTreeMap<String, ByteSize>,
}

/// The tracker: how accessed pages are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrackerChoice {
    /// The page tables; DAMON if they are out of reach because RAM is private.
    #[default]
    Auto,
    /// The page tables or nothing.
    PageTables,
    /// DAMON.
    Damon,
}

/// The source of writes: how written pages are found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WriteSource {
    /// No source: reads only.
    #[default]
    None,
    /// D of the guest's page tables, moved to the software bit that Linux 6.6 and later takes for it too.
    SoftBit,
    /// The soft-dirty bits of the hypervisor's process, once a round.
    SoftDirty,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RawLog {
    /// Optional, because the file may be set in another file than the limit.
    #[serde(default)]
    pub(crate) file: Option<PathBuf>,
    #[serde(default = "log_limit")]
    pub(crate) limit: ByteSize,
    #[serde(default)]
    pub(crate) record: Record,
}

/// The extent to which the log has the pages' accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Record {
    /// The accesses that the policy asked for.
    #[default]
    Decisions,
    /// The accesses of every page in every window.
    Full,
}

/// Bytes that a log may have unless the configuration says otherwise.
pub const LOG_LIMIT: u64 = 256 << 20;

fn log_limit() -> ByteSize {
    ByteSize(LOG_LIMIT)
}
