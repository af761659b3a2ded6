//! The machine that is L1: its parts, its process, and its snapshots.

pub mod blueprint;
pub mod checked;
pub mod cpio;
pub mod emulator;
pub mod images;
pub mod kernel;
pub mod options;
pub mod process;
pub mod qmp;
pub mod slow_node;
pub mod snapshot;
