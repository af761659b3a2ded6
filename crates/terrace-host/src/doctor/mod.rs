//! The checks of `doctor`: which mechanisms work on this host and for one VM, which do not, and what to change.
//!
//! Responsible for: inspection, and words for people. It leaves to others: changing anything. Findings are
//! in a fixed order; good ones are among them.

mod host;
mod processes;
mod vm;

pub use host::host;
pub use processes::{Processes, processes};
pub use vm::{VmFacts, bound_on_purpose, vm};
