//! Why a page is where it is.

use serde::{Deserialize, Serialize};

use crate::{Gfn, Gpa};

/// A page, and all that its place follows from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PageExplanation {
    /// First byte of the page.
    pub gpa: Gpa,
    /// Its number.
    pub gfn: Gfn,
    /// First byte of what is moved as one with it.
    #[serde(default)]
    pub unit_gpa: Gpa,
    /// Size of that, bytes.
    #[serde(default)]
    pub unit_bytes: u64,
    /// Name of the tier that holds it; none if no host page backs it.
    pub tier: Option<String>,
    /// Some user page table maps it, by the last full pass.
    pub known: bool,
    /// Windows of the last complete round in which it was read.
    pub reads: u8,
    /// Windows in which it was written (0 where no source of writes exists).
    pub writes: u8,
    /// Windows of the round.
    pub windows: u8,
    /// Its degree by the tiers' weights; 0 as well if no round has ranked it.
    pub degree: u8,
    /// Least degree of the hot set; 0 before the first ranking.
    pub threshold_degree: u8,
    /// Level in the multi-level queue at the round's end.
    pub level: u8,
    /// How it ranks.
    #[serde(default)]
    pub class: RankClass,
    /// Rounds for which it is left alone after a move.
    #[serde(default)]
    pub cool_down_rounds: u8,
    /// It is on its way now.
    #[serde(default)]
    pub in_flight: bool,
    /// The answer in sentences.
    pub because: Vec<String>,
}

/// How a page ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
    #[default]
    NotRanked,
}
