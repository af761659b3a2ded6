//! Memory demand: how much memory a VM uses, and when that changes.
//!
//! Responsible for: the working set of each second ([`WorkingSets`]), swapping ([`Swap`]), and phases ([`Phases`]). It
//! leaves to others: observing accesses, and deciding who gets memory. HPMBS §2.5, §2.6 and §4.1 are the sources.

mod phases;
mod swap;
mod working_set;

pub use phases::{MAX_WINDOWS, PhaseChange, PhaseConfig, Phases, WINDOW_NS};
pub use swap::{Swap, VALUES};
pub use working_set::{WorkingSet, WorkingSets};
