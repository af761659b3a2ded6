//! The explanation of a page's node.

use serde::{Deserialize, Serialize};

use crate::{Gfn, Gpa};

/// A page, and everything that decides its place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageExplanation {
    /// First byte of the page.
    pub gpa: Gpa,
    /// The page's guest page number.
    pub gfn: Gfn,
    /// First byte of the unit that the page is moved with; `None`: an older daemon does not report it.
    #[serde(default)]
    pub unit_gpa: Option<Gpa>,
    /// Size of the unit, bytes; `None`: an older daemon does not report it.
    #[serde(default)]
    pub unit_bytes: Option<u64>,
    /// Name of the tier that holds the page; `None` if no host page backs it.
    pub tier: Option<String>,
    /// Whether some user page table maps the page, by the last full pass.
    pub known: bool,
    /// Windows of the last complete round in which the page was read.
    pub reads: u8,
    /// Windows in which the page was written (0 if no source of writes exists).
    pub writes: u8,
    /// Windows of the round.
    pub windows: u8,
    /// The page's degree by the tiers' weights; 0 as well if no round has ranked it.
    pub degree: u8,
    /// Least degree of the hot set; 0 before the first ranking.
    pub threshold_degree: u8,
    /// Level in the multi-level queue at the round's end.
    pub level: u8,
    /// The page's rank; `None`: an older daemon does not report it.
    #[serde(default)]
    pub class: Option<RankClass>,
    /// Rounds for which the page is left alone after a move.
    #[serde(default)]
    pub cool_down_rounds: u8,
    /// Whether the page is on its way now.
    #[serde(default)]
    pub in_flight: bool,
    /// The sum by which the page would change places; none if the policy makes no such sum, or no round has ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub benefit: Option<Benefit>,
    /// The answer in sentences.
    pub because: Vec<String>,
}

/// The sum by which a page changes places with another: of a page in fast memory with the hottest one outside, of any other with the coldest one in it, as
/// the last round left them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Benefit {
    /// Likely touches of the page, once chance is taken out, in 1,000 seconds.
    pub touches_per_1000_s: u64,
    /// The same of the other page; none if there is no such page that may move, or none has to leave since fast memory has room.
    pub other_touches_per_1000_s: Option<u64>,
    /// Misses that a touch stands for.
    pub misses_per_touch: u64,
    /// Additional time of a miss in a slower tier, ns.
    pub miss_extra_ns: u64,
    /// The time for which rates are expected to stay as they are, ms.
    pub stay_ms: u64,
    /// Time that the exchange of both is expected to save, ns; 0 if the one in fast memory is the hotter one.
    pub saves_ns: u64,
    /// The cost of both moves, or of one where there is room, ns.
    pub costs_ns: u64,
    /// Whether they are to change places: it saves more than it costs, and chance does not explain the difference.
    pub pays: bool,
}

/// The rank of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
