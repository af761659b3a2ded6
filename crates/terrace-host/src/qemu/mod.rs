//! VMs that run under QEMU.
//!
//! Responsible for: finding their monitors, talking to one (QMP), and what its answers mean. It leaves
//! to others: where guest RAM is in host memory (`memory_map`), what to do with a VM.

mod command_line;
mod discovery;
mod link;
mod monitor;
mod parse;
mod stream;
mod vm;

pub(crate) use command_line::encryption;
pub use discovery::{Candidate, Discovery, DiscoveryConfig, discover};
pub use monitor::{Memdev, Monitor, QemuError};
pub use parse::{FlatRange, NodeMemory, ParseError, VirtioMem};
pub use vm::{Vm, VmIdentity, VmStatus};
