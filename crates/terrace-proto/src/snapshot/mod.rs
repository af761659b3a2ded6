//! Views for people of the engine and of its surroundings: one type for each concept, filled by the part that knows it,
//! shown by the API, the command and the simulator.
//!
//! Responsible for: the shapes. It leaves to others: how they are filled, and drawn. Units are in the names; tiers
//! are in order, fastest first; pages are of 4 KiB. Views of a VM's sizes are in [`crate::provision`].

mod finding;
mod heat;
mod neighbours;
mod page;
mod round;
mod share;

pub use finding::{Finding, Health};
pub use heat::{Cell, HeatMap};
pub use neighbours::Neighbours;
pub use page::{Benefit, PageExplanation, RankClass};
pub use round::{PlannedMove, Refused, Round, ScanCost, Worth};
pub use share::Share;
