//! The walker's view of a guest's memory: its table pages, and nothing else.

use std::sync::atomic::AtomicU64;

use terrace_proto::Gfn;

/// A page seen as 512 entries. The guest may change any of them at any time.
pub type Table = [AtomicU64; 512];

/// A guest's memory as far as page tables are concerned.
pub trait GuestTables {
    /// One more than the highest guest page number.
    fn frames(&self) -> u64;

    /// The page `frame` as a table. `None` if there is no RAM (or, in a simulation, no table).
    fn table(&self, frame: Gfn) -> Option<&Table>;
}
