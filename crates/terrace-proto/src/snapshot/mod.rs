//! What people see of the engine: one type for each concept, filled where it is known, shown by the API, the command and
//! the simulator.
//!
//! Responsible for: the shapes. It leaves to others: how they are filled, and drawn. Units are in the names; tiers are in
//! order, fastest first; pages are of 4 KiB. What is known of a VM's sizes is in [`crate::provision`].

mod heat;
mod neighbours;
mod page;
mod round;
mod share;

pub use heat::{Cell, HeatMap};
pub use neighbours::Neighbours;
pub use page::{PageExplanation, RankClass};
pub use round::{PlannedMove, Refused, Round, ScanCost};
pub use share::Share;
