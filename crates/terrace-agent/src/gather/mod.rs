//! Gathering a guest's scattered hot base pages into few blocks of 2 MiB of its physical memory (GPAC), so that a host that
//! tiers pages of 2 MiB needs fast memory for those alone.
//!
//! Responsible for: finding hot base pages, their frames, and moving them by one of two ways: to a small node of the same
//! tier whose memory is kept as a pool of 2 MiB pages (`node`), or by the guest's kernel module (`module`). It leaves to
//! others: which blocks are worth emptying (`terrace_core::gather`). Nothing of it needs a host that knows.

mod areas;
mod background;
mod bits;
mod by_damos;
mod by_host;
pub mod commands;
mod damos;
mod doctor;
mod heat;
mod hot;
mod idle;
mod location;
mod node;
mod picture;
mod pool;
mod report;
mod residents;
mod round;
mod samples;
mod scan;
mod session;
mod split;
mod state;
mod watch;
mod way;

pub use background::Background;
pub use bits::are_held as accessed_bits_are_held;
pub use by_host::{NamedByHost, write as write_hot};
pub use doctor::inspect;
pub use round::Round;
pub use state::GatherStatus;
