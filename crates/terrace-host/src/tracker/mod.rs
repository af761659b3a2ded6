//! Sources of observations.
//!
//! Responsible for: joining what is needed for one kind of observation into answers that the engine
//! takes. It leaves to others: when to observe, and what it means.

mod guest_tables;

pub use guest_tables::GuestTables;
