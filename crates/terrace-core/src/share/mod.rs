//! Share: how much of the first tier each VM gets (vTMM §3.5).
//!
//! Responsible for: the size of a VM's hot set, a VM's limits around its nominal size, what those without
//! one have a right to, and dividing the pool between VMs. It leaves to others: when that is done, and the moves that
//! follow from it ([`crate::engine`]).

mod fair;
mod hot_set;
mod limits;
mod pool;

pub use fair::{Part, by_weight, parts};
pub use hot_set::HotSet;
pub use limits::FastLimits;
pub use pool::{Claim, divide};
