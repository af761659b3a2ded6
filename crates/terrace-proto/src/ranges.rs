//! Events and actions of the controller of a guest's ranges (`terrace_core::ranges`).
//!
//! Pages are virtual pages of a process, in units of 4 KiB; nodes are the guest's NUMA nodes, by their numbers.

use serde::{Deserialize, Serialize};

/// Virtual 4 KiB pages of one process, from `start` up to and without `end`.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct Range {
    /// First page.
    pub start: u64,
    /// The page after the last.
    pub end: u64,
}

impl Range {
    /// Number of pages.
    #[must_use]
    pub fn pages(self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Parameters of a tree of ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Params {
    /// Length of an epoch, ms.
    pub epoch_ms: u32,
    /// τ_split: accesses per vCPU and epoch.
    pub tau_split: u32,
    /// α: how many τ_split a leaf must exceed both neighbours by.
    pub alpha: u32,
    /// Smallest range that a split may leave, pages.
    pub granularity: u64,
    /// τ_merge: splits of the tree for which neighbours must have been without accesses.
    pub tau_merge: u32,
    /// vCPUs that accesses come from.
    pub vcpus: u32,
    /// Most leaves of a tree: it splits no more beyond.
    pub most_leaves: usize,
    /// Splits by the paper's rule to the letter (docs/decisions/0009).
    pub literal: bool,
}

/// Splits that lead from a root of 40 TiB to one range of 2 MiB. The paper gives no τ_merge: with this
/// one, a range is merged when a whole hot spot could have been found elsewhere without it being touched.
const FULL_DESCENT: u32 = 24;

impl Params {
    /// HyperTier §4.2.2: 500 ms, α 2, τ_split 15, 2 MiB.
    #[must_use]
    pub fn paper(vcpus: u32) -> Self {
        Self {
            epoch_ms: 500,
            tau_split: 15,
            alpha: 2,
            granularity: 512,
            tau_merge: FULL_DESCENT,
            vcpus,
            most_leaves: 4096,
            literal: false,
        }
    }

    /// The values that §6.4 found best: 512 ms, τ_split 11.
    #[must_use]
    pub fn tuned(vcpus: u32) -> Self {
        Self {
            epoch_ms: 512,
            tau_split: 11,
            ..Self::paper(vcpus)
        }
    }
}

/// One event that the controller receives. New kinds are added at the end: their position is their number in
/// the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangesEvent {
    /// A process is managed from now on, or its mappings have changed.
    Mapped(Mappings),
    /// A process is no longer managed.
    Gone(u32),
    /// Another source of samples is used from now on: the counts of the old one no longer apply.
    Restarted(Params),
    /// A new budget.
    Budget(RangesBudget),
    /// Accesses that were seen.
    Sampled(Vec<RangeSample>),
    /// An epoch ends; all its samples were handed over.
    EpochEnded,
    /// Free memory of nodes.
    Free(Vec<NodeFree>),
    /// The locations of pages.
    Surveyed(Surveyed),
    /// The outcome of a move.
    Migrated(MigrationOutcome),
    /// Pages that the host named, to be moved now: it counted their accesses.
    Named(Named),
}

/// One thing that the controller wants done, each answered by an event before the next one comes. New kinds are
/// added at the end: their position is their number in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RangesAction {
    /// Read the free memory of each node; answered by `Free`.
    ReadFree,
    /// Survey the nodes of pages; answered by `Surveyed`.
    Survey(Survey),
    /// Move pages; answered by `Migrated`.
    Migrate(Migration),
    /// Nothing is left to do in this epoch; not answered.
    EpochOver(EpochSummary),
    /// Exchange pages in place; answered by `Migrated`, with the states of those that come up and then of the others.
    Swap(Swap),
}

/// The managed mappings of a process. Lists are ascending and apart.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Mappings {
    /// The process.
    pub process: u32,
    /// The ranges that the process's tree covers.
    pub seeds: Vec<Range>,
    /// The mappings that are managed.
    pub mapped: Vec<Range>,
    /// The managed mappings that other processes may map, too.
    pub shared: Vec<Range>,
    /// Text, data and stacks, which are brought up once.
    pub pinned: Vec<Range>,
}

/// Limits on the controller's costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangesBudget {
    /// Bytes that may be copied in a second.
    pub bytes_per_s: u64,
    /// Share of one CPU for surveys, percent.
    pub cpu_percent: u32,
}

/// Accesses that were seen; those of a range are spread over it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeSample {
    /// The process.
    pub process: u32,
    /// First page.
    pub page: u64,
    /// Number of pages.
    pub pages: u64,
    /// Number of accesses.
    pub accesses: u32,
}

/// Free memory of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeFree {
    /// The node.
    pub node: u32,
    /// 4 KiB pages above the kernel's watermarks.
    pub pages: u64,
}

/// A question for the location of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    /// The question's number, echoed in the answer.
    pub id: u64,
    /// The process that has the pages.
    pub process: u32,
    /// The range.
    pub range: Range,
}

/// Pieces that follow each other, of one size and on one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PieceRun {
    /// First page.
    pub page: u64,
    /// Number of pieces.
    pub pieces: u32,
    /// 4 KiB pages of each: 1, or 512 for a huge page.
    pub pages_each: u16,
    /// The node that holds them.
    pub node: u32,
}

/// The locations of pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Surveyed {
    /// The question's number.
    pub id: u64,
    /// Runs of the pages that are present, ascending; `None` if the kernel does not answer, as for a process that
    /// ended.
    pub present: Option<Vec<PieceRun>>,
    /// CPU time that it took, ns.
    pub cpu_ns: u64,
}

/// Pages of one process that should move, in one call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Migration {
    /// The order's number, echoed in the answer.
    pub id: u64,
    /// The process that has the pages, or [`FRAMES`].
    pub process: u32,
    /// The target node.
    pub node: u32,
    /// Other processes may map them, and they are moved for them, too.
    pub shared: bool,
    /// The pages; each run's node is their present one.
    pub pieces: Vec<PieceRun>,
}

/// Pages that should change nodes in pairs, without a free page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    /// The order's number, echoed in the answer.
    pub id: u64,
    /// Those that come up.
    pub up: Side,
    /// As many that go down.
    pub down: Side,
}

/// Instead of a process (the kernel numbers those from 1): pages are the guest's frames, whoever has them.
pub const FRAMES: u32 = 0;

/// One side of pairs: pages of one process, 4 KiB each, that nobody else maps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Side {
    /// The process that has the pages.
    pub process: u32,
    /// The pages; each run's node is their present one.
    pub pieces: Vec<PieceRun>,
}

/// Pages that are to change tiers because somebody named them; those of [`FRAMES`] by their frames.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Named {
    /// To the first tier, most urgent first.
    pub up: Vec<Side>,
    /// Out of it, coldest first.
    pub down: Vec<Side>,
}

/// The location of a piece after a move, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PieceState {
    /// On a node.
    On(u32),
    /// Pinned or in use: the piece stays on its node.
    Busy,
    /// The piece exists no more.
    Absent,
    /// The old location: the piece may not be moved.
    Refused,
}

/// The reason why a call did not move all of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KernelRefusal {
    /// The kernel found no free page.
    NoMemory,
    /// The process's pages cannot be moved: it ended, or its cpuset or policy is against it.
    Process,
    /// Pages cannot be exchanged in place.
    NotSupported,
}

/// The outcome of a move.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MigrationOutcome {
    /// The call's number.
    pub id: u64,
    /// Of each piece, in order: so many in a row.
    pub states: Vec<(u32, PieceState)>,
    /// The call failed.
    pub refusal: Option<KernelRefusal>,
}

/// The reason why an exchange ended early.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stopped {
    /// The first tier is full of pages that are not colder.
    NothingColder,
    /// The first tier is full.
    FastFull,
    /// The other tiers are full.
    SlowFull,
    /// Both are, and the headroom is too small.
    BothFull,
    /// The kernel returned this, against its earlier figures.
    NoFreePage,
}

impl std::fmt::Display for Stopped {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::NothingColder => "fast memory is full and nothing colder is in it",
            Self::FastFull => "fast memory has no room",
            Self::SlowFull => "slow memory has no room",
            Self::BothFull => "neither tier has room for a batch",
            Self::NoFreePage => "the kernel found no free page",
        })
    }
}

/// The outcome of an exchange, in 4 KiB pages.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Exchanged {
    /// Came up.
    pub promoted: u64,
    /// Went down.
    pub demoted: u64,
    /// Pinned or in use; they stay on their nodes.
    pub busy: u64,
    /// Gone meanwhile, or refused.
    pub failed: u64,
    /// Processes that are left alone for a while from now on, because the kernel refuses to move their pages.
    pub refused: Vec<u32>,
    /// The reason why the exchange ended early; `None` if it did not.
    pub stopped: Option<Stopped>,
}

/// An epoch that is over.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct EpochSummary {
    /// The epoch's number, from 1.
    pub epoch: u32,
    /// Ranges of all processes.
    pub ranges: u64,
    /// Number of these ranges that fit into the first tier.
    pub fitting: u64,
    /// Number of extents whose location was surveyed, beside the pages that are to move.
    pub surveys: u64,
    /// The exchange of the epoch; `None` if there was nothing to move.
    pub exchanged: Option<Exchanged>,
}
