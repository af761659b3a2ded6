//! Configuration of the controller of ranges.

use serde::{Deserialize, Serialize};
use terrace_proto::PAGES_PER_HUGE;
use terrace_proto::ranges::{Params, RangesBudget};

/// The configuration: a log begins with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Of the trees, until another source of samples is used.
    pub params: Params,
    /// Length of an epoch, ms.
    pub epoch_ms: u32,
    /// Whether pages may be moved.
    pub moves: bool,
    /// Whether pages can be exchanged in place, without a free page.
    #[serde(default)]
    pub swaps: bool,
    /// The nodes of each tier, the fastest tier first.
    pub tiers: Vec<Vec<u32>>,
    /// Pages of the first tier that stay free.
    pub headroom_pages: u64,
    /// Most pages of the first tier for all processes together; none: what is free of it.
    pub capacity_pages: Option<u64>,
    /// The budget at the start.
    pub budget: RangesBudget,
    /// Pages of an extent, and of the largest piece.
    pub extent_pages: u16,
    /// Pages of one batch: a call holds the process's map lock for its whole length.
    pub batch_pages: u64,
}

impl Config {
    /// For a machine of full size with these tiers.
    #[must_use]
    pub fn new(params: Params, tiers: Vec<Vec<u32>>, budget: RangesBudget) -> Self {
        Self {
            params,
            epoch_ms: params.epoch_ms,
            moves: true,
            swaps: false,
            tiers,
            headroom_pages: 0,
            capacity_pages: None,
            budget,
            extent_pages: HUGE,
            batch_pages: PAGES_PER_HUGE,
        }
    }
}

/// Pages of a huge page.
#[expect(clippy::cast_possible_truncation, reason = "512")]
const HUGE: u16 = PAGES_PER_HUGE as u16;
