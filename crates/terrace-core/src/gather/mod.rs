//! Gathering: a guest's scattered hot base pages into few blocks of 2 MiB of its physical memory, so that a host that tiers
//! pages of 2 MiB needs fast memory for those alone (GPAC §4).
//!
//! Responsible for: which blocks have few hot pages, which of them are worth emptying, and when that no longer pays. It
//! leaves to others: which pages are hot, where they go, moving them.

mod heat;
mod plan;
mod rounds;
mod skew;
mod splits;

pub use heat::{Heat, WINDOWS};
pub use plan::{Cl, Limits, Plan};
pub use rounds::{Pace, Rounds, keep_cold};
pub use skew::{BLOCK_PAGES, Skew};
pub use splits::{LargePage, Splits};
