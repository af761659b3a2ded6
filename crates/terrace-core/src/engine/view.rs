//! What people may see of a VM: plain data, copied out. Looking changes nothing.
//!
//! Responsible for: the shapes. It leaves to others: how they are filled, and drawn.

use serde::Serialize;
use terrace_proto::{Gfn, MoveStatus, PageSize, Tick, TierId, TierLimit, VmId};

use super::reasons::Reason;
use super::refusal::Refusal;

/// Where a VM's round stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "phase", rename_all = "kebab-case")]
pub enum PhaseView {
    /// Its policy does nothing.
    Unmanaged,
    /// Between rounds.
    Waiting,
    /// Asking where pages are.
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
    },
    /// Waiting for the scan at the end of a window.
    Scanning {
        /// Which, from 1.
        window: u8,
        /// Of how many.
        of: u8,
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
        /// Why.
        reason: String,
    },
}

/// What runs at each stage, in words.
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

/// Cost and counts of a round's scans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize)]
pub struct ScanCost {
    /// Scans answered.
    pub scans: u64,
    /// Wall time, ns.
    pub elapsed_ns: u64,
    /// CPU time, ns.
    pub cpu_ns: u64,
    /// Leaf entries read.
    pub leaves: u64,
    /// Accessed bits found set.
    pub accessed: u64,
    /// Accessed bits cleared.
    pub cleared: u64,
    /// Subtrees skipped.
    pub pruned: u64,
    /// Windows made longer so that scanning stays within its CPU share.
    pub stretched_windows: u64,
}

/// What a round found and did. Pages are of 4 KiB, a unit of 2 MiB counts 512.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct RoundSummary {
    /// Its number, from 1.
    pub round: u64,
    /// When it started.
    pub started_at: Tick,
    /// When pages were ranked.
    pub classified_at: Option<Tick>,
    /// When it ended; none while it runs.
    pub ended_at: Option<Tick>,
    /// Why it was given up, if it was.
    pub abandoned: Option<String>,
    /// Pages that some user table of the guest maps.
    pub known_pages: u64,
    /// Pages in the hot set: the hottest that fit into the first tier.
    pub hot_pages: u64,
    /// Pages of the hot set that were in the first tier already, before the round's moves.
    pub hot_in_first_tier: u64,
    /// The same after them, by where the kernel says pages are.
    pub hot_in_first_tier_after: u64,
    /// Lowest degree in the hot set.
    pub threshold_degree: u8,
    /// Known pages by degree, from 0.
    pub degree_histogram: Vec<u64>,
    /// Units of 2 MiB that were in more than one tier when the round began: the host split their huge
    /// pages.
    pub split_units: u64,
    /// A source of writes has told of all windows so far (in each of them, or in the last for all).
    pub writes_seen: bool,
    /// Pages proposed to go to a faster tier.
    pub proposed_promotions: u64,
    /// Pages proposed to go to a slower tier.
    pub proposed_demotions: u64,
    /// Pages that went to a faster tier.
    pub promoted_pages: u64,
    /// Pages that went to a slower tier.
    pub demoted_pages: u64,
    /// Pages whose move was tried and failed.
    pub failed_pages: u64,
    /// Pages that stayed because other processes map them too.
    pub mapped_by_others_pages: u64,
    /// Proposals that were not tried, by reason.
    pub refused: Vec<(Refusal, u64)>,
    /// Where the round only plans: the first of the moves that would be tried, most wanted first.
    pub planned: Option<Vec<PlannedMove>>,
    /// Bytes that changed tier.
    pub moved_bytes: u64,
    /// Wall time of the moves, ns.
    pub move_elapsed_ns: u64,
    /// The scans.
    pub scan: ScanCost,
}

/// One move that would be tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PlannedMove {
    /// First page of what would move.
    pub gfn: Gfn,
    /// 4 KiB pages that would move together.
    pub pages: u64,
    /// Where it is.
    pub from: TierId,
    /// Where it would go.
    pub to: TierId,
    /// Its degree.
    pub degree: Option<u8>,
}

/// One tier as a VM has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TierView {
    /// Which.
    pub tier: TierId,
    /// Its name.
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

/// A VM's part in sharing the first tier. Sizes of it, bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ShareView {
    /// Its size follows the pool; otherwise it is fixed.
    pub pooled: bool,
    /// Its weight among VMs that want more than there is.
    pub weight: u32,
    /// Its nominal size.
    pub nominal_bytes: u64,
    /// The pool takes nothing below this.
    pub lower_bytes: u64,
    /// The pool gives nothing above this.
    pub upper_bytes: u64,
    /// What it holds, and what is on its way to it.
    pub held_bytes: u64,
    /// Its hot set by its last ranking; none before.
    pub hot_bytes: Option<u64>,
    /// What it held then of pages whose heat is not known.
    pub unseen_bytes: Option<u64>,
    /// What it wants: both, within the limits.
    pub want_bytes: Option<u64>,
    /// Its size: what it may hold. None while it has no part in the pool.
    pub target_bytes: Option<u64>,
    /// Free memory of the pool when it was divided last.
    pub pool_free_bytes: u64,
    /// All of that in a sentence.
    pub words: String,
}

/// What a VM costs the others, and what it was refused for their sake. Sums are since it arrived, those of all
/// VMs since the engine began.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize)]
pub struct NeighboursView {
    /// Shares are by weight, whatever a guest shows.
    pub fair: bool,
    /// Its weight.
    pub weight: u32,
    /// What it has a right to of the first tier, bytes: its nominal size, or its part by weight. None where it
    /// shares with nobody.
    pub right_bytes: Option<u64>,
    /// What it may hold now, bytes: more than its right while others leave it. None where only its ceiling bounds
    /// it.
    pub most_bytes: Option<u64>,
    /// What it holds and what is on its way to it, bytes.
    pub held_bytes: u64,
    /// What of that is above its right, bytes.
    pub above_right_bytes: u64,
    /// Bytes of its plans of moves.
    pub moved_bytes: u64,
    /// The same of all VMs.
    pub all_moved_bytes: u64,
    /// CPU time of what looks into it, ns.
    pub scan_cpu_ns: u64,
    /// The same of all VMs.
    pub all_scan_cpu_ns: u64,
    /// What it showed use for at its last ranking above what it may hold, bytes.
    pub refused_bytes: u64,
    /// Plans of moves that came later because it was others' turn.
    pub late_plans: u64,
    /// By how much, ns.
    pub late_plans_ns: u64,
    /// Windows that were made longer because its scans cost more than its part of the budget.
    pub late_scans: u64,
    /// By how much, ns.
    pub late_scans_ns: u64,
}

/// What happened to a VM since it arrived. Pages are of 4 KiB.
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
    pub refused: Vec<(Refusal, u64)>,
}

/// A VM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VmView {
    /// Its id.
    pub vm: VmId,
    /// Its name.
    pub name: String,
    /// Its policy's name.
    pub policy: String,
    /// What really runs at each stage.
    pub mechanism: Mechanism,
    /// What is ranked and moved as one.
    pub unit: PageSize,
    /// 4 KiB pages of RAM.
    pub ram_pages: u64,
    /// Where its round stands.
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
    /// Its part in sharing the first one; none where it has no nominal size.
    pub share: Option<ShareView>,
    /// What it costs the others.
    pub neighbours: NeighboursView,
    /// The round under way.
    pub current_round: Option<RoundSummary>,
    /// The last round that ended.
    pub last_round: Option<RoundSummary>,
    /// Since arrival.
    pub counters: Counters,
    /// What was done and why, oldest first.
    pub reasons: Vec<Reason>,
}

/// How a page ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum RankClass {
    /// In the hot set.
    Hot,
    /// As hot as the coldest of the hot set, for which there was not room for all.
    Threshold,
    /// Known, and colder than the hot set.
    Cold,
    /// No user table of the guest maps it: not ranked, not moved.
    Unknown,
    /// No round has ranked pages yet.
    NotRanked,
}

/// The newest move of a page that the engine remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct LastMove {
    /// When it was reported.
    pub at: Tick,
    /// Where to.
    pub to: TierId,
    /// How it ended.
    pub status: MoveStatus,
}

/// Why a page is where it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PageExplanation {
    /// The page asked for.
    pub gfn: Gfn,
    /// First page of the unit that is ranked and moved as one.
    pub unit_start: Gfn,
    /// 4 KiB pages that move together.
    pub unit_pages: u64,
    /// The page is RAM.
    pub ram: bool,
    /// Its tier; none where no host page backs it.
    pub tier: Option<TierId>,
    /// Some user table of the guest maps it, by the last full pass.
    pub known: bool,
    /// Windows of the round in which it counted as read.
    pub reads: u8,
    /// Windows in which it counted as written.
    pub writes: u8,
    /// Its level in the multi-level queue.
    pub level: u8,
    /// Its degree by those counts.
    pub degree: Option<u8>,
    /// Lowest degree in the hot set of the last ranking.
    pub threshold_degree: Option<u8>,
    /// How it ranks.
    pub class: RankClass,
    /// The VM's floor and ceiling in each tier.
    pub limits: Vec<TierLimit>,
    /// Rounds for which it is left alone after a move.
    pub cool_down_rounds: u8,
    /// It is in a plan under way.
    pub in_flight: bool,
    /// Its newest move that is still remembered.
    pub last_move: Option<LastMove>,
    /// All of that in a sentence.
    pub why: String,
}
