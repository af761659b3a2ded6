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
    /// The answer in sentences.
    pub because: Vec<String>,
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
