//! The messages between agent and host.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::frame::{Body, Message};
use super::gather::Gather;
use super::text::Text;
use crate::{Gfn, Tick, TierId};

/// The version of the messages that this code speaks.
pub const VERSION: u16 = 1;
/// Most NUMA nodes that an agent reports.
pub const MAX_NODES: usize = 64;
/// Most frames in one message.
pub const MAX_FRAMES: usize = 4096;
/// Greatest guest page number: 52 bits of address.
pub const GREATEST_GFN: Gfn = Gfn((1 << 40) - 1);
/// Most bytes a second that a budget may name.
const MAX_BYTES_PER_S: u64 = 1 << 40;
/// A share of the time, hundredths of a percent.
const WHOLE: u16 = 10_000;

/// A value that no honest sender sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {got}, at most {most}")]
pub struct OutOfBounds {
    what: &'static str,
    got: u64,
    most: u64,
}

impl OutOfBounds {
    pub(super) fn new(what: &'static str, got: usize, most: usize) -> Self {
        let number = |n| u64::try_from(n).unwrap_or(u64::MAX);
        Self::of(what, number(got), number(most))
    }

    fn of(what: &'static str, got: u64, most: u64) -> Self {
        Self { what, got, most }
    }
}

pub(super) fn at_most(what: &'static str, got: u64, most: u64) -> Result<(), OutOfBounds> {
    if got > most {
        Err(OutOfBounds::of(what, got, most))
    } else {
        Ok(())
    }
}

/// The mode: the parts of host and agent in managing the guest's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Mode {
    /// The agent finds hot pages and moves them.
    #[default]
    Guest,
    /// The host counts and names pages; the agent moves them, and reads no accessed bits itself.
    Coordinated,
    /// The agent neither samples nor moves.
    Off,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Guest => "guest",
            Self::Coordinated => "coordinated",
            Self::Off => "off",
        })
    }
}

/// The versions that one end speaks; not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u16, u16)", into = "(u16, u16)")]
pub struct Versions {
    oldest: u16,
    newest: u16,
}

impl Versions {
    /// The protocol versions that this code speaks.
    pub const OURS: Self = Self {
        oldest: VERSION,
        newest: VERSION,
    };

    /// The newest version that both speak.
    #[must_use]
    pub fn common(self, other: Self) -> Option<u16> {
        let version = self.newest.min(other.newest);
        (version >= self.oldest.max(other.oldest)).then_some(version)
    }
}

impl TryFrom<(u16, u16)> for Versions {
    type Error = OutOfBounds;

    fn try_from((oldest, newest): (u16, u16)) -> Result<Self, OutOfBounds> {
        at_most("oldest version", oldest.into(), newest.into())?;
        Ok(Self { oldest, newest })
    }
}

impl From<Versions> for (u16, u16) {
    fn from(v: Versions) -> Self {
        (v.oldest, v.newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} to {}", self.oldest, self.newest)
    }
}

/// The agent begins.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The protocol versions that the agent speaks.
    pub versions: Versions,
    /// A number that the welcome repeats, so that an answer to an earlier agent is not taken for ours.
    pub session: u64,
    /// The agent's program version.
    pub program: Text<64>,
}

/// One NUMA node of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct NodeMemory {
    /// The node's number.
    pub node: u32,
    /// The tier that it is part of, as the guest sees it.
    pub tier: TierId,
    /// The node's memory, bytes.
    pub total_bytes: u64,
    /// Free of that, bytes.
    pub free_bytes: u64,
}

/// `/proc/pressure/memory`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Pressure {
    /// Share of the last 10 s in which some task waited, hundredths of a percent.
    pub some_avg10_hundredths: u16,
    /// The same for all tasks at once.
    pub full_avg10_hundredths: u16,
    /// Time in which some task waited, µs since boot.
    pub some_total_us: u64,
    /// Time in which all tasks waited, µs since boot.
    pub full_total_us: u64,
}

/// Counters of `/proc/vmstat` since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Faults {
    /// Faults that waited for a disk.
    pub major: u64,
    /// Other faults.
    pub minor: u64,
    /// Pages read from swap.
    pub swap_in_pages: u64,
    /// Pages written to swap.
    pub swap_out_pages: u64,
}

/// Swap space (`/proc/meminfo`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SwapSpace {
    /// All of it, bytes.
    pub total_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
}

/// The agent's own cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cost {
    /// CPU time since its start, ns.
    pub cpu_ns: u64,
    /// Resident memory of the agent, bytes.
    pub resident_bytes: u64,
}

/// The mechanism that really runs at each stage of the loop.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mechanism {
    /// The source of accesses: `pebs`, `ibs`, `damon`; empty if there is none.
    pub sampler: Text<32>,
    /// The policy that estimates and chooses, such as `hyperplace`.
    pub policy: Text<32>,
    /// The way in which pages move, such as `move_pages, symmetric exchange`.
    pub mover: Text<48>,
}

/// Counters of the agent since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Activity {
    /// Epochs that ended.
    pub epochs: u64,
    /// Processes that are managed now.
    pub processes: u32,
    /// Pages (of 4 KiB) moved up.
    pub promoted_pages: u64,
    /// Pages (of 4 KiB) moved down.
    pub demoted_pages: u64,
    /// Pages (of 4 KiB) that could not be moved.
    pub failed_pages: u64,
}

/// The guest's state as its agent reports it. Plain data; a [`Heartbeat`] is one within bounds.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Report {
    /// Nodes with memory, ascending.
    pub nodes: Vec<NodeMemory>,
    /// Memory pressure, if the kernel reports it.
    pub pressure: Option<Pressure>,
    /// Faults and swap of the whole guest.
    pub faults: Faults,
    /// The agent's own cost.
    pub cost: Cost,
    /// The mechanisms at work.
    pub mechanism: Mechanism,
    /// The agent's counters.
    pub activity: Activity,
    /// The mode in force: the host's instruction as far as the agent follows it, or its own configuration.
    pub mode: Mode,
    /// Sampling and moves are paused.
    pub paused: bool,
    /// The limits that the agent keeps.
    pub budgets: Budgets,
    /// Frames of the host that the agent took, in coordinated mode.
    pub frames_taken: u64,
    /// Frames of the host that the agent refused.
    pub frames_refused: u64,
    /// Swap space; an agent of before does not say. It follows the rest of the message.
    #[serde(skip)]
    pub swap: Option<SwapSpace>,
}

/// A sign of life with the guest's state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawHeartbeat")]
pub struct Heartbeat {
    sequence: u64,
    time: Tick,
    report: Report,
}

#[derive(Deserialize)]
struct RawHeartbeat {
    sequence: u64,
    time: Tick,
    report: Report,
}

impl TryFrom<RawHeartbeat> for Heartbeat {
    type Error = OutOfBounds;

    fn try_from(raw: RawHeartbeat) -> Result<Self, OutOfBounds> {
        Self::new(raw.sequence, raw.time, raw.report)
    }
}

impl Heartbeat {
    /// A heartbeat; `time` is the guest's monotonic clock.
    ///
    /// # Errors
    /// If the report is out of bounds.
    pub fn new(sequence: u64, time: Tick, report: Report) -> Result<Self, OutOfBounds> {
        at_most("nodes", report.nodes.len() as u64, MAX_NODES as u64)?;
        for node in &report.nodes {
            at_most("tier", node.tier.0.into(), TierId::MAX as u64 - 1)?;
        }
        for pair in report.nodes.windows(2) {
            let most = u64::from(pair[1].node).saturating_sub(1);
            at_most("node before the next one", pair[0].node.into(), most)?;
            if pair[1].node == 0 {
                return Err(OutOfBounds::of("nodes with number 0", 2, 1));
            }
        }
        if let Some(p) = report.pressure {
            for share in [p.some_avg10_hundredths, p.full_avg10_hundredths] {
                at_most("pressure, 0.01 %", share.into(), WHOLE.into())?;
            }
        }
        Ok(Self {
            sequence,
            time,
            report,
        })
    }

    /// Swap space is appended to what agents of before sent.
    fn decode(body: &[u8]) -> Result<Self, postcard::Error> {
        let (mut heartbeat, rest): (Self, _) = postcard::take_from_bytes(body)?;
        let swap = postcard::take_from_bytes::<Option<SwapSpace>>(rest);
        heartbeat.report.swap = swap.ok().and_then(|(swap, _)| swap);
        Ok(heartbeat)
    }

    /// Rises with each heartbeat of a session.
    #[must_use]
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// The guest's monotonic clock.
    #[must_use]
    pub fn time(&self) -> Tick {
        self.time
    }

    /// The heartbeat's report.
    #[must_use]
    pub fn report(&self) -> &Report {
        &self.report
    }
}

/// Limits on the agent's costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "(u64, u8)", into = "(u64, u8)")]
pub struct Budgets {
    bytes_per_s: u64,
    cpu_percent: u8,
}

impl Budgets {
    /// Moves of `bytes_per_s` (at most 1 TiB/s; 0: none at all), and `cpu_percent` (1 to 100) of one CPU.
    ///
    /// # Errors
    /// If a value is out of range.
    pub fn new(bytes_per_s: u64, cpu_percent: u8) -> Result<Self, OutOfBounds> {
        Self::try_from((bytes_per_s, cpu_percent))
    }

    /// Bytes that may be moved in a second.
    #[must_use]
    pub fn bytes_per_s(self) -> u64 {
        self.bytes_per_s
    }

    /// Share of one CPU.
    #[must_use]
    pub fn cpu_percent(self) -> u8 {
        self.cpu_percent
    }

    /// The smaller one of each.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        Self {
            bytes_per_s: self.bytes_per_s.min(other.bytes_per_s),
            cpu_percent: self.cpu_percent.min(other.cpu_percent),
        }
    }
}

impl Default for Budgets {
    /// No limit but the greatest that can be named.
    fn default() -> Self {
        Self {
            bytes_per_s: MAX_BYTES_PER_S,
            cpu_percent: 100,
        }
    }
}

impl TryFrom<(u64, u8)> for Budgets {
    type Error = OutOfBounds;

    fn try_from((bytes_per_s, cpu_percent): (u64, u8)) -> Result<Self, OutOfBounds> {
        at_most("bytes a second", bytes_per_s, MAX_BYTES_PER_S)?;
        at_most("CPU percent", cpu_percent.into(), 100)?;
        if cpu_percent == 0 {
            return Err(OutOfBounds::of("CPU percent below 1", 1, 0));
        }
        Ok(Self {
            bytes_per_s,
            cpu_percent,
        })
    }
}

impl From<Budgets> for (u64, u8) {
    fn from(b: Budgets) -> Self {
        (b.bytes_per_s, b.cpu_percent)
    }
}

/// Pages that the host wants moved, in coordinated mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "RawFrames")]
pub struct Frames {
    generation: u64,
    promote: Vec<Gfn>,
    demote: Vec<Gfn>,
}

#[derive(Deserialize)]
struct RawFrames {
    generation: u64,
    promote: Vec<Gfn>,
    demote: Vec<Gfn>,
}

impl TryFrom<RawFrames> for Frames {
    type Error = OutOfBounds;

    fn try_from(raw: RawFrames) -> Result<Self, OutOfBounds> {
        Self::new(raw.generation, raw.promote, raw.demote)
    }
}

impl Frames {
    /// Frames of one decision; a later one has a greater generation. At most [`MAX_FRAMES`] together.
    ///
    /// # Errors
    /// If there are more, or one is above [`GREATEST_GFN`].
    pub fn new(generation: u64, promote: Vec<Gfn>, demote: Vec<Gfn>) -> Result<Self, OutOfBounds> {
        let len = promote.len().saturating_add(demote.len());
        at_most("frames", len as u64, MAX_FRAMES as u64)?;
        for gfn in promote.iter().chain(&demote) {
            at_most("frame", gfn.0, GREATEST_GFN.0)?;
        }
        Ok(Self {
            generation,
            promote,
            demote,
        })
    }

    /// The generation of the decision that the frames are part of.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Pages for the first tier, most urgent first.
    #[must_use]
    pub fn promote(&self) -> &[Gfn] {
        &self.promote
    }

    /// Pages to make room, coldest first.
    #[must_use]
    pub fn demote(&self) -> &[Gfn] {
        &self.demote
    }
}

/// From the agent to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage {
    /// The first message of a connection.
    Hello(Hello),
    /// A sign of life, with the agent's report.
    Heartbeat(Box<Heartbeat>),
}

/// From the host to the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage {
    /// The agent may speak this version.
    Welcome {
        /// The version.
        version: u16,
        /// The session number of the hello.
        session: u64,
    },
    /// The agent may not speak.
    Refused {
        /// The session number of the hello.
        session: u64,
        /// The reason, a sentence.
        reason: Text<200>,
    },
    /// The mode, which sets the parts of host and agent.
    Mode(Mode),
    /// Neither sample nor move, or continue.
    Pause(bool),
    /// New budgets.
    Budgets(Budgets),
    /// Pages to move.
    Frames(Frames),
    /// The host does not know the sender: send a hello.
    WhoIsThere,
    /// Hot pages, for a guest that gathers.
    Gather(Gather),
}

impl Message for AgentMessage {
    fn body(&self) -> Result<Body, postcard::Error> {
        match self {
            Self::Hello(m) => Body::of(1, m),
            Self::Heartbeat(m) => Body::of(2, &(m, m.report.swap)),
        }
    }

    fn decode(kind: u16, body: &[u8]) -> Option<Result<Self, postcard::Error>> {
        Some(match kind {
            1 => postcard::from_bytes(body).map(Self::Hello),
            2 => Heartbeat::decode(body).map(|h| Self::Heartbeat(Box::new(h))),
            _ => return None,
        })
    }
}

impl Message for HostMessage {
    fn body(&self) -> Result<Body, postcard::Error> {
        match self {
            Self::Welcome { version, session } => Body::of(0x101, &(version, session)),
            Self::Refused { session, reason } => Body::of(0x102, &(session, reason)),
            Self::Mode(m) => Body::of(0x103, m),
            Self::Pause(m) => Body::of(0x104, m),
            Self::Budgets(m) => Body::of(0x105, m),
            Self::Frames(m) => Body::of(0x106, m),
            Self::WhoIsThere => Body::of(0x107, &()),
            Self::Gather(m) => Body::of(0x108, m),
        }
    }

    fn decode(kind: u16, body: &[u8]) -> Option<Result<Self, postcard::Error>> {
        let welcome = |(version, session)| Self::Welcome { version, session };
        let refused = |(session, reason)| Self::Refused { session, reason };
        Some(match kind {
            0x101 => postcard::from_bytes(body).map(welcome),
            0x102 => postcard::from_bytes(body).map(refused),
            0x103 => postcard::from_bytes(body).map(Self::Mode),
            0x104 => postcard::from_bytes(body).map(Self::Pause),
            0x105 => postcard::from_bytes(body).map(Self::Budgets),
            0x106 => postcard::from_bytes(body).map(Self::Frames),
            0x107 => postcard::from_bytes(body).map(|()| Self::WhoIsThere),
            0x108 => postcard::from_bytes(body).map(Self::Gather),
            _ => return None,
        })
    }
}
