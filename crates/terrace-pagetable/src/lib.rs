//! x86-64 page-table walker and accessed-bit scanner over any guest memory.
//!
//! Responsible for: reading the 4- or 5-level tables of a guest from outside while the guest runs,
//! saying which guest pages were accessed since they were last re-armed, and re-arming them; finding
//! the guest's top-level tables; guest memory made of table pages alone, for the simulator, tests
//! and benches. It leaves to others: mapping guest RAM, asking for registers, clocks (the times in
//! [`terrace_proto::ScanStats`] stay 0 here), and what the answer means.
//!
//! The observation is vTMM's (accessed bits of guest tables, pruned by those of non-leaf entries).
//! Rules that keep guest data whole:
//!
//! - Only the accessed bit is ever changed, by compare-exchange of the whole entry, and only in
//!   present user entries ([`entry`]). The one exception is asked for ([`Scanner::tell_writes`]): D of a
//!   leaf moves to the software bit where the guest looks for it too, in the same exchange.
//! - Before a table is walked, and before anything in it is written, all entries that lead there are
//!   read again: a table that the guest freed meanwhile is data ([`Scanner::scan_checked`]).
//! - What a register names is walked only once Linux's direct map proves that it is a top-level table
//!   ([`prove`]).
//! - The number of levels comes from the registers, never from a guess ([`Paging`]).
//! - A parent's bit is cleared before its children are read; the top level is never pruned and
//!   never written ([`Scanner`]).
//! - Everything read from the guest is untrusted: checked against reserved bits and the end of RAM,
//!   counted, skipped. A pass reads every table page at most once, whatever the tables say.
//!
//! **Invariant:** the cost of a scan is bounded by the guest's number of pages, not by the contents of its tables.

#[doc(hidden)]
mod bits;
mod chunk;
mod direct_map;
pub mod entry;
mod kernel_half;
#[doc(hidden)]
pub mod linux;
mod mapped;
mod marks;
mod memory;
mod named;
mod paging;
mod pairs;
mod pass;
mod roots;
mod scanner;
mod simulated;
mod vectors;
mod visited;

pub use direct_map::{DirectMap, Unproven};
pub use kernel_half::{KernelHalf, maps_users};
pub use mapped::{MapRangeError, MappedMemory, MappedRange};
pub use memory::{GuestTables, Table};
pub use paging::{Paging, Unsupported};
pub use pass::Guard;
pub use roots::{Proven, find_roots, prove};
pub use scanner::Scanner;
pub use simulated::{Leaf, LeafSize, MapError, SimulatedMemory};
#[doc(hidden)]
pub use vectors::Vectors;
