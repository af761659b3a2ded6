//! A VM's memory at a glance.

use serde::{Deserialize, Serialize};

/// A VM's guest-physical memory in pieces of one size: which tiers hold it, and how hot it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeatMap {
    /// Base pages of a cell (the last may be shorter).
    pub pages_per_cell: u64,
    /// Names of the tiers.
    pub tiers: Vec<String>,
    /// Highest degree that a page can have.
    pub max_degree: u32,
    /// The cells in address order.
    pub cells: Vec<Cell>,
}

/// One piece of the map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Pages in each tier.
    pub tier_pages: Vec<u64>,
    /// Pages that some user table maps.
    pub known_pages: u64,
    /// Known pages with a degree above zero, in each tier; where degrees are averages of minutes (`terrace`), those that are hot enough for fast
    /// memory.
    pub warm_pages: Vec<u64>,
    /// Sum of the degrees of its known pages.
    pub degree_sum: u64,
}
