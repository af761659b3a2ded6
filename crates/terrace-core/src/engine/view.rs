//! Views of a VM for people: plain data, copied out. Reading them changes nothing.
//!
//! Responsible for: the shapes. It leaves to others: how they are filled, and drawn.

use serde::Serialize;
use terrace_proto::snapshot::{Neighbours, Round, Share};
use terrace_proto::{PageSize, Tick, TierId, TierLimit, VmId};

use super::refusal::MoveRefusal;
use crate::demand::{Aged, Curve, PhaseChange};
use crate::reasons::Reason;

/// The phase of a VM's round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "phase", rename_all = "kebab-case")]
pub enum PhaseView {
    /// The policy does nothing.
    Unmanaged,
    /// Between rounds.
    Waiting,
    /// Queries of where pages are.
    Placing,
    /// Clearing accessed bits before the first window.
    Clearing,
    /// In a monitoring window.
    Window {
        /// Which, from 1.
        window: u8,
        /// Of how many.
        of: u8,
        /// When its scan starts.
        ends_at: Tick,
        /// Whose window it is, if the round looks at parts in turn.
        part: Option<PartView>,
    },
    /// Waiting for the scan at the end of a window.
    Scanning {
        /// Which, from 1.
        window: u8,
        /// Of how many.
        of: u8,
        /// Whose window it was, if the round looks at parts in turn.
        part: Option<PartView>,
    },
    /// Moving pages.
    Moving {
        /// 4 KiB pages that wait for a plan.
        waiting_pages: u64,
        /// 4 KiB pages in plans under way.
        in_flight_pages: u64,
    },
    /// No scan of this VM works: it is only observed from outside.
    Unscannable {
        /// The reason, a sentence.
        reason: String,
    },
}

/// The part of a VM's memory that is under a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PartView {
    /// Which, from 1.
    pub part: u32,
    /// Of how many.
    pub of: u32,
}

impl std::fmt::Display for PartView {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "part {} of {}", self.part, self.of)
    }
}

/// The mechanism of each stage, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Mechanism {
    /// How pages touched are seen.
    pub observe: String,
    /// How they are ranked.
    pub estimate: String,
    /// Who gets which share.
    pub share: String,
    /// Which pages travel.
    pub place: String,
    /// How they travel.
    #[serde(rename = "move")]
    pub moves: String,
}

/// One tier as a VM has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierView {
    /// The tier.
    pub tier: TierId,
    /// The tier's name.
    pub name: String,
    /// Bytes of the VM there.
    pub bytes: u64,
    /// Bytes on their way there.
    pub coming_bytes: u64,
    /// Bytes on their way out.
    pub leaving_bytes: u64,
    /// The VM's floor and ceiling.
    pub limit: TierLimit,
    /// Bytes of the whole tier, as reported last.
    pub total_bytes: Option<u64>,
    /// Free bytes of the whole tier, as reported last and moved since.
    pub free_bytes: Option<u64>,
}

/// Counters of a VM since it arrived. Pages are of 4 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct Counters {
    /// Rounds that ran to their end.
    pub rounds: u64,
    /// Times that its memory map changed.
    pub map_changes: u64,
    /// Rounds given up.
    pub rounds_abandoned: u64,
    /// Scans that failed.
    pub scan_failures: u64,
    /// Answers and reports that no open question matches: late, repeated or forged.
    pub stale_answers: u64,
    /// Answers and reports whose content does not fit the VM or the plan.
    pub malformed_answers: u64,
    /// Pages that went to a faster tier.
    pub promoted_pages: u64,
    /// Pages that went to a slower tier.
    pub demoted_pages: u64,
    /// Pages that were where they were wanted.
    pub already_there_pages: u64,
    /// Pages pinned or in use.
    pub busy_pages: u64,
    /// Pages that no host page backed.
    pub absent_pages: u64,
    /// Pages for which the target had no memory.
    pub no_memory_pages: u64,
    /// Pages not tried.
    pub not_tried_pages: u64,
    /// Pages with any other error.
    pub failed_pages: u64,
    /// Pages that stayed because other processes map them too.
    pub mapped_by_others_pages: u64,
    /// Proposals refused, by reason.
    pub refused: Vec<(MoveRefusal, u64)>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmView {
    /// The VM's id.
    pub vm: VmId,
    /// The VM's name.
    pub name: String,
    /// The policy's name.
    pub policy: String,
    /// The mechanism that really runs at each stage.
    pub mechanism: Mechanism,
    /// The unit of ranking and moving.
    pub unit: PageSize,
    /// 4 KiB pages of RAM.
    pub ram_pages: u64,
    /// The phase of the round.
    #[serde(flatten)]
    pub phase: PhaseView,
    /// Number of the round under way or, between rounds, the last one; 0 before the first.
    pub round: u64,
    /// Neither scanned nor moved until resumed.
    pub paused: bool,
    /// Pages may be moved; otherwise it is only observed.
    pub moves: bool,
    /// The next period tick.
    pub next_tick_at: Option<Tick>,
    /// When the next round starts, if the running one is over by then.
    pub next_round_at: Option<Tick>,
    /// Intermittent monitoring's counter: period ticks to go, the one of the next round included.
    pub counter: u8,
    /// Each tier, fastest first.
    pub tiers: Vec<TierView>,
    /// The VM's part in sharing the first tier; `None` without a nominal size.
    pub share: Option<Share>,
    /// The VM's cost to the others.
    pub neighbours: Neighbours,
    /// The round under way.
    pub current_round: Option<Round>,
    /// The last round that ended.
    pub last_round: Option<Round>,
    /// Since arrival.
    pub counters: Counters,
    /// The reasons that are stored, oldest first.
    pub reasons: Vec<Reason>,
    /// The ages of its memory, while they are scanned.
    #[serde(skip)]
    pub aged: Option<Aged>,
}

/// Whether a VM's accesses are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum TrackingView {
    /// They are not.
    Off,
    /// They are.
    On,
    /// They are not for now, because tracking took too much of the VM's time.
    Resting,
}

/// The memory that a VM used in one second, by its tracked accesses; or the demand alone, of a guest that swaps while
/// none are tracked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct DemandEstimate {
    /// The second's end.
    pub at: Tick,
    /// Tracked accesses.
    pub tracked: u64,
    /// Memory that was tracked in the second, or in the hot set, bytes.
    pub footprint_bytes: u64,
    /// Memory that 95 % of the tracked reuses need, bytes.
    pub most_95_bytes: u64,
    /// Memory that 99 % of the tracked reuses need, bytes.
    pub most_99_bytes: u64,
    /// Memory that all tracked reuses need, bytes.
    pub all_bytes: u64,
    /// Whether the guest swapped.
    pub is_swapping: bool,
    /// The demand, bytes: the memory for 99 % of the reuses, or the footprint if no reuse was tracked; of a guest that
    /// swaps, its size and its used swap.
    pub demand_bytes: u64,
}

/// The demand of a VM, and how it was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DemandView {
    /// Whether accesses are tracked now.
    pub tracking: TrackingView,
    /// Faults that were tracked.
    pub tracked_faults: u64,
    /// Blocks of 2 MiB that were ever tracked.
    pub known_blocks: u64,
    /// Size of the hot set, blocks of 2 MiB.
    pub hot_set_pages: u32,
    /// The largest size so far.
    pub largest_hot_set_pages: u32,
    /// Number of rests.
    pub rests: u64,
    /// Time of all rests, the one under way to its end, ns.
    pub rest_ns: u64,
    /// Number of phases that began.
    pub phases: u64,
    /// Whether the phase is stable.
    pub is_stable: bool,
    /// The first changes of phase.
    pub changes: Vec<(Tick, PhaseChange)>,
    /// The last second in which accesses were tracked.
    pub estimate: Option<DemandEstimate>,
    /// The misses of each size of memory, at most 256 points; `None` before anything was tracked.
    pub curve: Option<Curve>,
}
