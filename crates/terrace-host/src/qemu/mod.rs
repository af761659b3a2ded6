//! QEMU: its processes, monitors and VMs.
//!
//! Responsible for: who may be one ([`who`]), finding their monitors, talking to one (QMP), and what its answers mean.
//! It leaves to others: where guest RAM is in host memory (`memory_map`), one VM as a whole (`vm`), what to do with it.

mod balloon_stats;
mod command_line;
mod discovery;
mod disks;
mod link;
mod machine;
mod monitor;
mod nesting;
mod parse;
mod readings;
mod stream;
mod unasked;
pub mod who;

pub use balloon_stats::{BalloonSetup, GuestStats};
pub(crate) use command_line::{encryption, has_uuid};
pub(crate) use discovery::hypervisors;
pub use discovery::{Candidate, Discovery, DiscoveryConfig, Hypervisor, discover};
pub(crate) use machine::{Backend, Machine};
pub use monitor::{Allow, Memdev, Monitor, QemuError, VmStatus};
pub use nesting::Uncounted;
pub use parse::{FlatRange, NodeMemory, ParseError, VirtioMem};
pub(crate) use readings::Reader;
pub(crate) use unasked::{Unasked, unasked};
