//! VMs that run under QEMU.
//!
//! Responsible for: who may be one ([`who`]), finding their monitors, talking to one (QMP), and what its answers mean.
//! It leaves to others: where guest RAM is in host memory (`memory_map`), what to do with a VM.

mod command_line;
mod discovery;
mod link;
mod machine;
mod monitor;
mod nesting;
mod parse;
mod readings;
mod stream;
mod unasked;
mod vm;
pub mod who;

pub(crate) use command_line::encryption;
pub use discovery::{Candidate, Discovery, DiscoveryConfig, Hypervisor, discover};
pub(crate) use machine::{Backend, Machine};
pub use monitor::{Allow, Memdev, Monitor, QemuError};
pub use nesting::Uncounted;
pub use parse::{FlatRange, NodeMemory, ParseError, VirtioMem};
pub(crate) use unasked::{Unasked, unasked};
pub use vm::{Vm, VmIdentity, VmStatus, bad_name};
