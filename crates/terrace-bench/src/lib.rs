//! The measurements of `terrace bench`: each fast path beside a baseline of the same run.
//!
//! Responsible for: inputs, runs and baselines. It leaves to others: counting allocations, and printing.

mod arbiter;
mod classify;
mod distances;
mod division;
pub mod driver;
mod filter;
mod inflate;
mod measured;
mod range_tree;
mod scan;
mod simulator;
mod state_bytes;
mod vm;

pub use arbiter::arbiter;
pub use classify::Classify;
pub use distances::distances;
pub use division::division;
pub use filter::filter;
pub use inflate::inflate;
pub use measured::Measured;
pub use range_tree::{range_tree, range_tree_epoch};
pub use scan::{
    PartWindows, part_windows, root_proof, scan_leaf, scan_leaf_all, scan_leaf_all_by,
    scan_leaf_by, scan_pruned, scan_sampled, side_by_side,
};
pub use simulator::{Simulated, simulate};
pub use state_bytes::state_bytes_per_page;
/// The instructions that a scan can be made of.
pub use terrace_pagetable::Vectors;
pub use vm::PAGES_OF_64_GIB;
