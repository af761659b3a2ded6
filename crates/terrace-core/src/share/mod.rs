//! Share: how much memory each VM gets, of the first tier (vTMM §3.5) and of all tiers together (HPMBS §4, HMvisor §3.3).
//!
//! Responsible for: the size of a VM's hot set, a VM's limits around its nominal size, what those without one have a right
//! to, and the rules that divide: the pool, by demand (`dp`), by time saved, by slowdown, by trade. It leaves to others:
//! when that is done, and the moves and resizes that follow from it ([`crate::engine`]).

mod dp;
mod fair;
mod hot_set;
mod least_cost;
mod limits;
mod loss;
mod marginal;
mod need;
mod pool;
mod slowdown;
mod trade;

pub use dp::totals;
pub use fair::{Part, by_weight, in_proportion, parts};
pub use hot_set::HotSet;
pub use least_cost::{UnitCosts, least_cost};
pub use limits::FastLimits;
pub use loss::{Heat, Loss};
pub use marginal::{FastNeed, by_gain};
pub use need::{FloorsExceed, Need, Want};
pub use pool::{Claim, divide, divide_by_gain};
pub use slowdown::{Fair, FairNeed, least_slowdown};
pub use trade::{Sizes, Step, Terms, Trade, TradeWindow};
